"""Control tokens in a reply's text: shown only where a request asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceread.engine.engine import Engine
from onceread.engine.request import Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

pytestmark = pytest.mark.model


def test_control_tokens_are_text_where_they_are_asked_for(
    model: Model, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine()
    shown, hidden = (model.vocab.control_tokens[name] for name in ("<|im_start|>", "<repo_name>"))
    prompt = tuple(model.vocab.tokenize("Once upon a time", add_special=False, parse_special=False))
    # Nothing but these two can be sampled, one as likely as the other.
    bias = tuple((t, 0.0 if t in (shown, hidden) else float("-inf")) for t in range(model.vocab.size))
    sampling = SamplingParams(temperature=100.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias=bias, seed=1)
    answer = gather(
        engine.submit(Request(prompt, sampling, max_tokens=16, spelled=frozenset({shown}), logprobs=0))
    )
    tokens = [entry.token for entry in answer.logprobs[0]]
    assert len(tokens) == 16
    assert set(tokens) == {shown, hidden}
    assert answer.texts == ["<|im_start|>" * tokens.count(shown)]
    stopped = gather(
        engine.submit(Request(prompt, sampling, max_tokens=16, spelled=frozenset({shown}), stop=("start|>",)))
    )
    assert (stopped.texts, stopped.reasons) == (["<|im_"], ["stop"])
