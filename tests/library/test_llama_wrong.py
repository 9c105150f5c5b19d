"""What `Llama` says to arguments of wrong types, after its end, and in a process that is not its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from onceread import Llama
from onceread.library.errors import Closed, InvalidParameter

pytestmark = pytest.mark.model
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "cache_ram": "64MiB", "verbose": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", b"bytes"),
        ("prompt", [1.5]),
        ("max_tokens", "many"),
        ("temperature", "hot"),
        ("top_k", float("inf")),
        ("seed", "x"),
        ("logit_bias", [1]),
    ],
)
def test_a_call_names_the_argument(llm: Llama, name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        llm(**{"prompt": "x", "max_tokens": 1, name: value})
    assert caught.value.param == name
    assert name in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("messages", 5), ("functions", 5)])
def test_a_chat_names_the_argument(llm: Llama, name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=name):
        llm.create_chat_completion(**{"messages": [{"role": "user", "content": "x"}], name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("kv_overrides", 5), ("kv_overrides", {5: 1}), ("kv_overrides", {"a": 2**70}), ("chat_format", 5)],
)
def test_the_constructor_names_the_argument(tiny_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        Llama(tiny_path, **SMALL, **{name: value})
    assert caught.value.param == name


def test_the_single_steps_say_that_it_is_closed(tiny_path: Path) -> None:
    llm = Llama(tiny_path, **SMALL)
    llm.eval([1, 2])
    llm.close()
    for call in (lambda: llm.eval([1]), llm.sample):
        with pytest.raises(Closed):
            call()


def test_a_fork_is_told_and_not_kept_waiting(tiny_path: Path) -> None:
    with Llama(tiny_path, **SMALL) as llm:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                llm("x", max_tokens=1)
            except Closed as error:
                llm.close()
                os._exit(0 if "process" in str(error) else 3)
            except BaseException:
                os._exit(4)
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert llm("x", max_tokens=1)["usage"]["completion_tokens"] == 1  # type: ignore[index]
