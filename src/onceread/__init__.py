"""Onceread: a local LLM server over llama.cpp that reads every prompt once."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
