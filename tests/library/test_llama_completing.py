"""`Llama`'s completing methods: what they take, what they refuse, how their streams end."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from tests.library.endless import ENDLESS
from tests.tiny.plain import write_plain

from onceread import Llama
from onceread.engine.errors import ContextLengthExceeded
from onceread.library.errors import Closed, InvalidParameter

pytestmark = pytest.mark.model

TEXT = "The keeper of the lighthouse walked down to the sea and"


def rest(llm: Llama, seconds: float = 30) -> bool:
    """Does the engine come to rest within this time?"""
    until = threading.Event()
    for _ in range(int(seconds / 0.02)):
        stats = llm._serving.engine.stats()
        if stats.running == stats.waiting == 0:
            return True
        until.wait(0.02)
    return False


def test_a_prompt_that_was_read_is_not_read_again(llm: Llama) -> None:
    first = llm(TEXT, max_tokens=4)
    again = llm(TEXT, max_tokens=4)
    assert first["timings"]["prompt_n"] == first["usage"]["prompt_tokens"]
    assert again["timings"]["prompt_n"] == 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1


def test_token_ids_are_a_prompt_too(llm: Llama) -> None:
    tokens = llm.tokenize(TEXT.encode(), add_bos=False)
    assert llm(tuple(tokens), max_tokens=1)["usage"]["prompt_tokens"] == len(tokens)
    assert llm.detokenize(tokens).decode() == TEXT


def test_echo_begins_the_text_with_the_prompt(llm: Llama) -> None:
    assert llm(TEXT, max_tokens=1, echo=True)["choices"][0]["text"].startswith(TEXT)
    chunks = list(llm(TEXT, max_tokens=1, echo=True, stream=True))
    assert chunks[0]["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_no_limit_is_up_to_the_contexts_end(tiny_path: Path, limit: int | None) -> None:
    with Llama(tiny_path, n_ctx=256, cache_ram=0, verbose=False) as small:
        answer = small(TEXT, max_tokens=limit, ignore_eos=True, logit_bias={0: -1.0})
    assert answer["usage"]["total_tokens"] == small_limit(answer)
    assert answer["choices"][0]["finish_reason"] == "length"


def small_limit(answer: dict[str, Any]) -> int:
    return 256 if answer["usage"]["total_tokens"] == 256 else 257  # the last sampled token takes no cell


def test_the_model_is_called_by_its_path_or_as_the_caller_says(llm: Llama, tiny_path: Path) -> None:
    assert llm(TEXT, max_tokens=1)["model"] == str(tiny_path)
    assert llm(TEXT, max_tokens=1, model="mine")["model"] == "mine"
    assert next(iter(llm(TEXT, max_tokens=1, model="mine", stream=True)))["model"] == "mine"


def test_fields_of_the_servers_api_are_options(llm: Llama) -> None:
    answer = llm.create_chat_completion([{"role": "user", "content": "hi"}], max_tokens=2, n=2, explain=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert "explain" in answer


def test_the_last_chunk_has_the_reason_the_usage_and_the_timings(llm: Llama) -> None:
    chunks = list(llm.create_chat_completion([{"role": "user", "content": "hi"}], max_tokens=3, stream=True))
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][:-1] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == last["timings"]["cache_n"]
    assert (
        sum(last["usage"]["prompt_tokens_details"]["cached_tokens_by_source"].values())
        == (last["timings"]["cache_n"])
    )


def test_a_seed_at_construction_draws_the_same_seeds_each_time(llm: Llama) -> None:
    def drawn() -> list[int | None]:
        llm.set_seed(7)
        return [llm._next_seed() for _ in range(3)]

    first, again = drawn(), drawn()
    assert first == again
    assert len(set(first)) == 3
    llm.set_seed(-1)
    assert llm._next_seed() is None


@pytest.mark.parametrize(
    "leave", [lambda stream: stream.close(), lambda stream: None], ids=["close", "let go"]
)
def test_a_stream_that_is_left_stops_costing(llm: Llama, leave: Callable[[Any], None]) -> None:
    before = llm._serving.engine.stats().requests_cancelled
    stream = llm(TEXT, stream=True, **ENDLESS)
    next(stream)
    leave(stream)
    del stream
    gc.collect()
    assert rest(llm)
    assert llm._serving.engine.stats().requests_cancelled == before + 1


def test_a_stream_that_was_never_begun_stops_costing_too(llm: Llama) -> None:
    before = llm._serving.engine.stats().requests_cancelled
    llm(TEXT, stream=True, **ENDLESS).close()  # type: ignore[union-attr]
    assert rest(llm)
    assert llm._serving.engine.stats().requests_cancelled == before + 1


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        pytest.param({"prompt": 5}, "prompt", id="a prompt that is neither text nor tokens"),
        pytest.param({"prompt": [10**9]}, "prompt", id="a token that there is not"),
        pytest.param({"temperature": 1000.0}, "temperature", id="a temperature out of range"),
        pytest.param({"top_p": 2.0}, "top_p", id="a share above 1"),
        pytest.param({"stop": [1]}, "stop", id="a stop that is no string"),
        pytest.param({"stop": 1}, "stop", id="stops that are no list"),
        pytest.param({"tfs_z": 0.5}, "tfs_z", id="a sampler that is gone"),
        pytest.param({"logit_bias": {10**9: 1.0}}, "logit_bias", id="a bias for a token that there is not"),
        pytest.param({"grammar": "root ::= ("}, "grammar", id="a grammar that can't be read"),
        pytest.param({"grammar": 5}, "grammar", id="a grammar that is none"),
        pytest.param({"suffix": "behind"}, "suffix", id="a gap, and the model fills none"),
        pytest.param({"mirostat_mode": 3}, "mirostat", id="a mirostat that there is not"),
    ],
)
def test_what_can_not_be_done_is_refused_by_its_name(
    llm: Llama, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidParameter, match=param) as refused:
        llm(**{"prompt": TEXT, **arguments})
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        pytest.param({"messages": []}, "messages", id="no messages"),
        pytest.param({"messages": [{"role": "user"}]}, "messages[0]", id="a message without content"),
        pytest.param(
            {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", id="a strange role"
        ),
        pytest.param({"tools": [{"type": "function"}]}, "tools[0].function", id="a tool without a function"),
        pytest.param(
            {"response_format": {"type": "yaml"}}, "response_format.type", id="a format of another kind"
        ),
    ],
)
def test_what_is_wrong_with_a_chat_is_named_by_its_place(
    llm: Llama, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        llm.create_chat_completion(**{"messages": [{"role": "user", "content": "hi"}], **arguments})
    assert refused.value.param == param


def test_a_prompt_that_is_too_long_is_a_value_error_with_both_figures(llm: Llama) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        llm([1] * 5000)
    assert isinstance(refused.value, ValueError)
    assert (refused.value.n_prompt, refused.value.limit) == (5000, llm.n_ctx())


def test_an_argument_of_another_name_is_a_type_error(llm: Llama) -> None:
    with pytest.raises(TypeError, match="temprature"):
        llm(TEXT, temprature=1.0)


def test_the_older_names_for_tools_are_understood(llm: Llama) -> None:
    answer = llm.create_chat_completion(
        [{"role": "user", "content": "Jason is 25"}],
        functions=[{"name": "age", "parameters": {"type": "object", "properties": {"n": {"enum": [25]}}}}],
        function_call={"name": "age"},
        max_tokens=60,
    )
    (choice,) = answer["choices"]
    assert choice["message"]["function_call"]["name"] == "age"
    assert choice["message"]["tool_calls"][0]["function"] == choice["message"]["function_call"]


def test_what_openai_makes_of_it_is_valid(llm: Llama) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = llm.create_chat_completion_openai_v1(messages, max_tokens=2)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(llm.create_chat_completion_openai_v1(messages, max_tokens=2, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_a_model_that_fills_gaps_takes_a_suffix(tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "filling.gguf"
    write_plain(path, GGUFReader(str(smollm2_path)), fills=True)
    with Llama(path, n_ctx=512, cache_ram=0, verbose=False) as filling:
        answer = filling("before ", suffix=" behind", max_tokens=2)
        tokens = filling.tokenize(b"before ", add_bos=False) + filling.tokenize(b" behind", add_bos=False)
        assert answer["usage"]["prompt_tokens"] >= len(tokens) + 3


def test_it_can_not_be_pickled_or_copied(llm: Llama) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="can't be pickled"):
            attempt(llm)


def test_what_is_closed_says_so(tiny_path: Path) -> None:
    llm = Llama(tiny_path, n_ctx=512, cache_ram=0, verbose=False)
    stream = llm(TEXT, stream=True, **ENDLESS)
    next(stream)  # type: ignore[call-overload]
    llm.close()
    llm.close()
    with pytest.raises(Closed):
        list(stream)
    for call in (lambda: llm(TEXT), lambda: llm.tokenize(b"x"), lambda: llm.embed("x"), llm.n_ctx):
        with pytest.raises(Closed):
            call()


def test_closing_while_others_call_gives_each_an_answer_or_says_that_it_is_closed(tiny_path: Path) -> None:
    llm = Llama(tiny_path, n_ctx=1024, cache_ram=0, verbose=False)
    begun = threading.Barrier(5)

    def call(i: int) -> str:
        begun.wait()
        try:
            for n in range(1000):
                llm(f"{TEXT} {i} {n}", max_tokens=3)
                llm.detokenize(llm.tokenize(TEXT.encode() * 50))
        except Closed:
            return "closed"
        return "answered"

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, i) for i in range(4)]
        begun.wait()
        llm.close()
        assert {one.result(60) for one in calls} <= {"closed", "answered"}


def test_one_that_nobody_holds_any_more_ends_its_threads(tiny_path: Path) -> None:
    llm = Llama(tiny_path, n_ctx=512, cache_ram=0, verbose=False)
    thread = llm._serving.engine._thread
    assert thread.is_alive()
    del llm
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_a_stream_that_was_closed_still_tells_what_its_prompt_cost(llm: Llama) -> None:
    prompt = "The keeper counted the ships that came in by night. " * 3
    known = llm(prompt, max_tokens=1)
    assert isinstance(known, dict)
    stream: Any = llm(prompt, max_tokens=50, stream=True, ignore_eos=True)
    next(stream)
    stream.close()
    assert stream.prompt_usage["prompt_tokens"] == known["usage"]["prompt_tokens"]
    assert (
        stream.prompt_usage["prompt_tokens_details"]["cached_tokens"] == known["usage"]["prompt_tokens"] - 1
    )
