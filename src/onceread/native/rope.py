"""How positions are turned into angles, where that is not left to the model: RoPE's base, its scaling, YaRN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceread.native.errors import ContextInvalid

SCALINGS = {"unspecified": -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}
"""llama.cpp's numbers for the kinds of scaling."""


@dataclass(frozen=True, slots=True)
class Rope:
    """In llama.cpp's terms; each default leaves the value to the model.

    Sources: RoPE (arXiv 2104.09864), linear scaling (2306.15595), YaRN (2309.00071).
    """

    scaling_type: int = -1  # see SCALINGS
    freq_base: float = 0.0  # 0 = the model's
    freq_scale: float = 0.0  # 0 = the model's; 0.5 spreads it over twice the positions
    yarn_ext_factor: float = -1.0  # negative = the model's
    yarn_attn_factor: float = 1.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_orig_ctx: int = 0  # 0 = the model's

    @property
    def scales(self) -> bool:
        """Does it say how positions beyond the trained ones are to be read?"""
        return self.scaling_type > 0 or self.freq_scale not in (0.0, 1.0) or self.freq_base > 0

    @property
    def facts(self) -> list[float]:
        """Every value: states computed with others are no good."""
        return [
            self.scaling_type,
            self.freq_base,
            self.freq_scale,
            self.yarn_ext_factor,
            self.yarn_attn_factor,
            self.yarn_beta_fast,
            self.yarn_beta_slow,
            self.yarn_orig_ctx,
        ]

    def apply(self, params: Any) -> None:
        """Write them into llama.cpp's struct for contexts. Raises ContextInvalid."""
        if self.scaling_type not in SCALINGS.values():
            raise ContextInvalid(f"rope_scaling_type must be -1 to 3, not {self.scaling_type}")
        for name in ("freq_base", "freq_scale", "yarn_orig_ctx"):
            if getattr(self, name) < 0:
                what = name if name.startswith("yarn") else f"rope_{name}"
                raise ContextInvalid(f"{what} must not be negative")
        if self == AS_TRAINED:
            return
        params.rope_scaling_type = self.scaling_type
        params.rope_freq_base = self.freq_base
        params.rope_freq_scale = self.freq_scale
        params.yarn_ext_factor = self.yarn_ext_factor
        params.yarn_attn_factor = self.yarn_attn_factor
        params.yarn_beta_fast = self.yarn_beta_fast
        params.yarn_beta_slow = self.yarn_beta_slow
        params.yarn_orig_ctx = self.yarn_orig_ctx


AS_TRAINED = Rope()
"""All is left to the model."""
