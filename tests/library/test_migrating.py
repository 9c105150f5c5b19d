"""docs/migrating.md: each of its lines is run, and it leaves nothing of llama-cpp-python's `Llama` out."""

from __future__ import annotations

import inspect
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

import onceread
from onceread import Llama
from onceread.library.errors import InvalidParameter
from onceread.library.setup import IGNORED, REFUSED, defaults

pytestmark = pytest.mark.model

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CHAT = [{"role": "user", "content": "Tell me of the sea."}]
OTHER_DEFAULTS = {"n_ctx", "flash_attn", "stop"}  # [] and None are the same to `stop`


def rows(header: str) -> list[Any]:
    """The code in the first column of every table with this header."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith(f"| {header} |"):
            inside = True
        elif inside and (code := re.match(r"\| `(.+?)` \|", line)):
            found.append(pytest.param(code[1], id=code[1][:60]))
    return found


def blocks() -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.fixture(scope="module")
def names(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    def flash_attention(how: str) -> bool:
        said = {"auto": {}, "off": {"flash_attn": False}}[how]
        with Llama(tiny_path, n_ctx=512, cache_ram=0, verbose=False, **said) as made:
            return made._host.setup.engine.flash_attn == "auto"

    def quiet(*, verbose: bool) -> bool:
        Llama(tiny_path, n_ctx=512, cache_ram=0, verbose=verbose).close()
        return not logging.getLogger("onceread.llama").isEnabledFor(logging.ERROR)

    with Llama(tiny_path, cache_ram="64MiB", verbose=False) as llm:
        yield {
            **{name: getattr(onceread, name) for name in onceread.__all__ if name != "Session"},
            "llm": llm,
            "path": str(tiny_path),
            "chat": CHAT,
            "tool": TOOL,
            "thing": object(),
            "same": lambda ids, scores: scores,
            "folder": str(tmp_path_factory.mktemp("states")),
            "error_of": error_of,
            "pickle": pickle,
            "flash_attention": flash_attention,
            "quiet": quiet,
        }


def test_its_examples_run(tiny_path: Path) -> None:
    exec(blocks(), {"MODEL": str(tiny_path)})


@pytest.mark.parametrize("code", rows("Call"))
def test_what_it_says_works_does(code: str, names: dict[str, Any]) -> None:
    eval(code, names)


@pytest.mark.parametrize("code", rows("Here this is true"))
def test_what_it_says_is_true_is(code: str, names: dict[str, Any]) -> None:
    assert eval(code, names)


@pytest.mark.parametrize("code", rows("Refused"))
def test_what_it_says_is_refused_is_by_its_name(code: str, names: dict[str, Any]) -> None:
    error = error_of(lambda: eval(code, names))
    assert isinstance(error, InvalidParameter | TypeError)
    if isinstance(error, InvalidParameter):
        assert error.param is not None
        assert str(error).startswith(error.param.partition("[")[0])


def test_every_table_is_read() -> None:
    assert [len(rows(header)) > 5 for header in ("Call", "Here this is true", "Refused")] == [True] * 3


@pytest.mark.parametrize(
    "method",
    ["__init__", "__call__", "create_completion", "create_chat_completion", "create_embedding", "embed",
     "generate", "sample", "tokenize", "detokenize", "from_pretrained"],
)  # fmt: skip
def test_every_parameter_has_its_place_and_its_default(method: str) -> None:
    theirs = inspect.signature(getattr(llama_cpp.Llama, method)).parameters
    ours = inspect.signature(getattr(Llama, method)).parameters
    named = [name for name, p in theirs.items() if p.kind is not p.VAR_KEYWORD]
    assert list(ours)[: len(named)] == named
    for name in set(named) - OTHER_DEFAULTS:
        assert ours[name].default == theirs[name].default, name


def test_every_parameter_of_the_constructor_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name in [*inspect.signature(llama_cpp.Llama.__init__).parameters][1:-1]:
        assert re.search(rf"\b{name}\b", page), name
    for name in (*IGNORED, *REFUSED):
        assert name in defaults(Llama.__init__)


def test_every_public_name_is_there_or_on_the_page_as_not_there() -> None:
    missing = {name for name in dir(llama_cpp.Llama) if name[0] != "_" and not hasattr(Llama, name)}
    absent = PAGE.read_text().split("## Not there")[1].split("##")[0]
    assert missing == {"ctx", "model"}
    assert all(f"`{name}`" in absent for name in missing)
