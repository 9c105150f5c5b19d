"""What the layers below refuse is told in the parameters of `Llama`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceread import Llama
from onceread.library.errors import InvalidParameter

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"n_ctx": 2**31 - 256}, "n_ctx"),
        ({"n_ctx": 1024, "exact": True, "type_k": "q8_0", "reuse_moved": True}, "exact"),
        ({"n_ctx": 1024, "lora_path": "nowhere.gguf"}, "lora_path"),
    ],
)
def test_an_error_names_the_parameter_and_no_flag(
    smollm2_path: Path, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        Llama(smollm2_path, verbose=False, cache_ram=0, **given)
    assert param in str(refused.value)
    assert "--" not in str(refused.value)
