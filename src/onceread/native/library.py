"""The one place that imports the binding."""

from __future__ import annotations

from onceread.native.errors import LibraryMissing

try:
    import llama_cpp.llama_cpp as lib
except (
    ImportError,
    OSError,
    RuntimeError,
) as error:  # a missing or broken shared library raises any of these
    raise LibraryMissing(
        f"llama.cpp's binding does not load ({error}); install it with `pip install llama-cpp-python`."
    ) from error

__all__ = ["lib"]
