"""Prompt formats that Onceread knows by name, for models without a template of their own.

Each is a Jinja file of this folder, written after what the format's publisher says of it, whose address the file
names. BOS and EOS are the model's own: a format writes them where its publisher does, and where it writes no BOS,
the tokenizer adds one if the model wants it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    ends: tuple[str, ...] = ()
    """What a reply ends with where EOS does not end it: a control string, or the words that begin the next turn."""
    aliases: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The template, in Jinja."""
        return _source(self.name)


FORMATS = (
    Format("alpaca", ("\n\n### Instruction:", "### Instruction:")),
    Format("chatml", ("<|im_end|>",)),
    Format("gemma", ("<end_of_turn>",)),
    Format("llama2", aliases=("llama-2",)),
    Format("llama3", ("<|eot_id|>",), ("llama-3",)),
    # A model without a template is older than Mistral's third format.
    Format("mistral-v1", aliases=("mistral", "mistral-instruct")),
    Format("mistral-v3"),
    Format("phi2", ("\nInstruct:",), ("phi-2",)),
    Format("phi3", ("<|end|>",), ("phi-3", "phi")),
    Format("plain", ("\nUser:",)),
    Format("vicuna", ("USER:",)),
    Format("zephyr"),
)

BY_NAME = {name: one for one in FORMATS for name in (one.name, *one.aliases)}


def format_of(source: str) -> Format | None:
    """The format whose template ``source`` is."""
    return next((one for one in FORMATS if one.source == source), None)


@cache
def _source(name: str) -> str:
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
