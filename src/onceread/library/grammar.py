"""Grammars under the name that people know: what a reply must be, read and checked where it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onceread.native.grammar import check
from onceread.native.params import Constraint


class LlamaGrammar:
    """What a reply must be. Holds no place in a reply: one object serves any number of them, at the same time."""

    def __init__(self, constraint: Constraint) -> None:
        """Raises GrammarInvalid for what can't be read."""
        check(constraint)
        self.constraint = constraint

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar in llama.cpp's GBNF, with a rule ``root``. Raises GrammarInvalid. ``verbose`` does nothing."""
        return cls(Constraint("gbnf", grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """The same from a file. Raises OSError, GrammarInvalid."""
        return cls.from_string(Path(file).read_text(encoding="utf-8"), verbose)

    @classmethod
    def from_json_schema(cls, json_schema: str | dict[str, Any], verbose: bool = True) -> LlamaGrammar:
        """JSON that satisfies a schema, given as JSON text or as what that means. Raises GrammarInvalid."""
        text = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        return cls(Constraint("json_schema", text, "json_schema"))
