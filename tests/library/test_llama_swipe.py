"""Regenerating, editing and going back on one `Llama`: only what is new is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceread import Llama

pytestmark = pytest.mark.model

PROSE = "Sailors followed fires on hills, and every village kept its own watch by day and by night. "
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def swiped(smollm2_path: Path) -> Iterator[Llama]:
    with Llama(smollm2_path, n_ctx=4096, cache_ram="256MiB", verbose=False) as llm:
        yield llm


def chat(llm: Llama, about: str, tokens: int) -> Messages:
    """A conversation of about so many tokens, its last message the user's."""
    messages = [{"role": "system", "content": f"You tell of {about}."}]
    each = len(llm.tokenize((PROSE * 2).encode()))
    for turn in range(max(2, tokens // each)):
        role = "assistant" if turn % 2 else "user"
        messages.append({"role": role, "content": f"{about} {turn}: {PROSE * 2}"})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "Go on."})
    return messages


def read(llm: Llama, messages: Messages, seed: int = 1) -> Any:
    """(prompt tokens, tokens of it that were evaluated)"""
    answer = llm.create_chat_completion(messages, max_tokens=3, seed=seed, temperature=1.0)
    assert isinstance(answer, dict)
    return answer["usage"]["prompt_tokens"], answer["timings"]["prompt_n"]


@pytest.mark.soak
def test_five_seeds_five_edits_and_another_chat_read_only_what_is_new(
    swiped: Llama, soak_scale: float, record_property: Callable[[str, object], None]
) -> None:
    wanted = 2000 if soak_scale == 1 else 600  # as long as the demo model was trained for, or CI has time for
    messages = chat(swiped, "lighthouses", min(wanted, swiped.n_ctx() - 200))
    prompt, evaluated = read(swiped, messages)
    record_property("first", f"{evaluated} of {prompt}")
    assert prompt >= 0.8 * min(wanted, swiped.n_ctx() - 200)
    assert evaluated == prompt

    regenerated = [read(swiped, messages, seed)[1] for seed in range(2, 7)]
    record_property("regenerations", regenerated)
    assert regenerated == [1] * 5

    edits = []
    for edit in range(5):
        edited = [*messages[:-1], {"role": "user", "content": f"And what about number {edit}?"}]
        new = len(swiped.tokenize(edited[-1]["content"].encode(), add_bos=False))
        _, evaluated = read(swiped, edited)
        edits.append(evaluated)
        assert 1 <= evaluated <= new + 8  # and the template's own behind it
    record_property("edits", edits)

    other = chat(swiped, "gardens", 100)
    prompt, evaluated = read(swiped, other)
    assert evaluated <= prompt
    back = [read(swiped, messages, 9)[1], read(swiped, other, 9)[1]]
    record_property("another chat, and back", [evaluated, *back])
    assert back == [1, 1]
