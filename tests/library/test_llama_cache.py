"""Caches by llama-cpp-python's names: how much is kept, and where."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from onceread import Llama, LlamaCache, LlamaDiskCache, LlamaRAMCache
from onceread.library.errors import InvalidParameter

pytestmark = pytest.mark.model

MIB = 2**20
TEXT = "The keeper of the lighthouse walked down to the sea. " * 20


def stats(llm: Llama) -> Any:
    store = llm._serving.engine.store
    return None if store is None else store.stats()


@pytest.mark.parametrize("at", ["constructor", "set_cache"])
def test_a_cache_in_ram_sets_its_budget(tiny_path: Path, at: str) -> None:
    cache = LlamaRAMCache(capacity_bytes=65 * MIB)
    with Llama(
        tiny_path, n_ctx=1024, cache=cache if at == "constructor" else None, cache_ram="64MiB", verbose=False
    ) as llm:
        if at == "set_cache":
            llm.set_cache(cache)
        assert llm.cache is cache
        assert stats(llm).memory.budget == 65 * MIB
        assert stats(llm).disk.state == "off"
        tokens = llm.tokenize(TEXT.encode())
        llm(TEXT, max_tokens=1)
        engine = llm._serving.engine
        assert engine.wait_remembered(llm._namespace, tokens, 20)
        assert cache.cache_size == stats(llm).memory.bytes > 0


def test_a_class_will_do(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=1024, cache=LlamaCache, verbose=False) as llm:
        assert stats(llm).memory.budget == LlamaRAMCache().capacity_bytes == 2 * 2**30


def test_a_cache_on_disk_is_there_for_the_next_llama(tiny_path: Path, tmp_path: Path) -> None:
    for evaluates_all in (True, False):
        cache = LlamaDiskCache(str(tmp_path / "kept"), capacity_bytes=256 * MIB)
        with Llama(tiny_path, n_ctx=1024, cache_ram="64MiB", verbose=False) as llm:
            llm.set_cache(cache)
            assert stats(llm).disk.budget == 256 * MIB
            answer = llm(TEXT, max_tokens=1)
            assert isinstance(answer, dict)
            whole = answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"]
            assert whole == evaluates_all
            assert cache.cache_size > 0 or evaluates_all


def test_none_keeps_nothing_but_the_context(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=1024, cache_ram="64MiB", verbose=False) as llm:
        llm.set_cache(None)
        assert stats(llm) is None
        llm(TEXT, max_tokens=1)
        answer = llm(TEXT, max_tokens=1)
        assert isinstance(answer, dict)
        assert answer["timings"]["prompt_n"] == 1


def test_setting_it_keeps_the_place_and_what_runs(tiny_path: Path) -> None:
    with Llama(tiny_path, n_ctx=1024, cache_ram="64MiB", verbose=False) as llm:
        llm.eval(llm.tokenize(b"The sea"))
        stands = llm.n_tokens
        answers: list[Any] = []
        stream = llm("The sea", max_tokens=50, stream=True, ignore_eos=True)
        next(stream)  # type: ignore[call-overload]
        calls = [
            threading.Thread(target=lambda: answers.append(llm("A gull", max_tokens=5))) for _ in range(4)
        ]
        for call in calls:
            call.start()
        llm.set_cache(LlamaRAMCache(70 * MIB))
        for call in calls:
            call.join(60)
        assert len(answers) == 4
        assert list(stream)[-1]["usage"]["completion_tokens"] == 50  # type: ignore[index]
        assert llm.n_tokens == stands
        assert stats(llm).memory.budget == 70 * MIB


@pytest.mark.parametrize(
    ("cache", "says"),
    [
        pytest.param(LlamaRAMCache(1), "64MiB", id="too little RAM"),
        pytest.param(LlamaDiskCache("x", 1), "256MiB", id="too little disk"),
        pytest.param(object(), "LlamaRAMCache", id="something else"),
    ],
)
def test_what_is_no_cache_of_ours_is_refused(llm: Llama, cache: Any, says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        llm.set_cache(cache)
    llm("still there", max_tokens=1)
