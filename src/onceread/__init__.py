"""Onceread: a local LLM server and library over llama.cpp that reads every prompt once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceread.library.async_llama import AsyncLlama
    from onceread.library.caches import LlamaCache, LlamaDiskCache, LlamaRAMCache
    from onceread.library.grammar import LlamaGrammar
    from onceread.library.hooks import LogitsProcessorList, StoppingCriteriaList
    from onceread.library.llama import Llama
    from onceread.library.llama_state import LlamaState
    from onceread.library.session import Session

__version__ = "0.1.0"

_FROM = {  # imported when they are asked for: a command's --help should not wait for llama.cpp
    "Llama": "llama",
    "AsyncLlama": "async_llama",
    "Session": "session",
    "LlamaCache": "caches",
    "LlamaRAMCache": "caches",
    "LlamaDiskCache": "caches",
    "LlamaGrammar": "grammar",
    "LlamaState": "llama_state",
    "LogitsProcessorList": "hooks",
    "StoppingCriteriaList": "hooks",
}

__all__ = [
    "AsyncLlama",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "Session",
    "StoppingCriteriaList",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"onceread.library.{_FROM[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM})
