"""The parameters that say what a reply must be: OpenAI's, and the ones of llama-server and vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.native.params import Constraint
from onceread.server.body import RequestModel
from onceread.server.errors import invalid

_MAX_TEXT = 64 * 1024
_MAX_CHOICES = 1000
_ANY_OBJECT = '{"type": "object"}'


def no_nul(text: str) -> str:
    if "\0" in text:  # C would read the string up to here and no further
        raise PydanticCustomError("nul_character", "must not hold NUL characters")
    return text


Grammar = Annotated[str, Field(max_length=_MAX_TEXT), AfterValidator(no_nul)]
Regex = Annotated[str, Field(min_length=1, max_length=_MAX_TEXT), AfterValidator(no_nul)]
Choice = Annotated[str, Field(min_length=1, max_length=1000)]
Choices = Annotated[list[Choice], Len(1, _MAX_CHOICES)]
Schema = dict[str, Any]


class NamedSchema(RequestModel):
    """A JSON schema as OpenAI wants it packed. It is enforced with and without ``strict``."""

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """What the reply must be. ``schema`` beside ``type``, without a name, is llama-server's way to say it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_the_schema(self) -> Self:
        if self.type == "json_schema" and (self.json_schema is None) == (self.schema_ is None):
            raise PydanticCustomError("schema", "needs its schema in json_schema.schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise PydanticCustomError("schema", "must have the type json_schema for a json_schema")
        if self.type == "text" and self.schema_ is not None:
            raise PydanticCustomError("schema", "must have the type json_schema for a schema")
        return self

    def constraints(self, param: str) -> Iterator[Constraint]:
        schema = self.json_schema.schema_ if self.json_schema is not None else self.schema_
        if schema is not None:
            yield _by_schema(schema, param)
        elif self.type == "json_object":
            yield Constraint("json_schema", _ANY_OBJECT, param)


class StructuredOutputs(RequestModel):
    """vLLM's: one of these."""

    json_: Schema | str | None = Field(None, alias="json")
    regex: Regex | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: Any = Field(None, json_schema_extra={"type": "null"})

    @field_validator("structural_tag")
    @classmethod
    def _no_tags(cls, value: object) -> object:
        return _refused(value)

    def constraints(self, param: str) -> Iterator[Constraint]:
        if self.json_ is not None:
            yield _by_schema(self.json_, param)
        if self.regex is not None:
            yield Constraint("regex", self.regex, param)
        if self.choice is not None:
            yield _by_choice(self.choice, param)
        if self.grammar:
            yield Constraint("gbnf", self.grammar, param)
        if self.json_object:
            yield Constraint("json_schema", _ANY_OBJECT, param)


class ConstraintFields(RequestModel):
    """At most one of these; ``response_format`` of the type ``text`` is none."""

    response_format: ResponseFormat | None = Field(
        None, description="`json_object` is any object; `json_schema` is enforced, `strict` or not."
    )
    json_schema: Schema | None = Field(None, description="A JSON schema; `{}` is any JSON.")
    regex: Regex | None = Field(None, description="A pattern for the whole reply, in Rust's dialect.")
    grammar: Grammar | None = Field(None, description="GBNF with a rule `root`.")
    guided_json: Schema | str | None = Field(None, description="vLLM's name for json_schema.")
    guided_regex: Regex | None = Field(None, description="vLLM's name for regex.")
    guided_choice: Choices | None = Field(None, description="vLLM's: the reply is one of these.")
    guided_grammar: Grammar | None = Field(None, description="vLLM's name for grammar.")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's newer way to say it.")

    # Of other servers, and not here. An answer that just left it out would be a wrong one.
    ebnf: Any = Field(None, json_schema_extra={"type": "null"})
    structural_tag: Any = Field(None, json_schema_extra={"type": "null"})

    @field_validator("ebnf", "structural_tag")
    @classmethod
    def _not_ours(cls, value: object) -> object:
        return _refused(value)

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        given = list(self._given())
        if len(given) > 1:
            first, second = given[0].param, given[1].param
            both = first if first == second else f"{first} and {second}"
            raise invalid(f"{both}: only one constraint on the reply is possible; give one.", second)
        return self

    @property
    def constraint(self) -> Constraint | None:
        """What the reply must be, if anything."""
        return next(self._given(), None)

    def _given(self) -> Iterator[Constraint]:
        if self.response_format is not None:
            yield from self.response_format.constraints("response_format")
        for param, schema in (("json_schema", self.json_schema), ("guided_json", self.guided_json)):
            if schema is not None:
                yield _by_schema(schema, param)
        for param, pattern in (("regex", self.regex), ("guided_regex", self.guided_regex)):
            if pattern is not None:
                yield Constraint("regex", pattern, param)
        for param, gbnf in (("grammar", self.grammar), ("guided_grammar", self.guided_grammar)):
            if gbnf:  # clients send an empty one for none
                yield Constraint("gbnf", gbnf, param)
        if self.guided_choice is not None:
            yield _by_choice(self.guided_choice, "guided_choice")
        if self.structured_outputs is not None:
            yield from self.structured_outputs.constraints("structured_outputs")


def _by_schema(schema: Schema | str, param: str) -> Constraint:
    if isinstance(schema, str):
        return Constraint("json_schema", schema, param)
    try:
        return Constraint("json_schema", json.dumps(schema, ensure_ascii=False, allow_nan=False), param)
    except (ValueError, RecursionError):
        raise invalid(
            f"{param}: the schema holds a number that is not JSON, or is too deep.", param
        ) from None


def _by_choice(choices: list[str], param: str) -> Constraint:
    literals = (re.sub(r"[^A-Za-z0-9 ]", lambda c: f"\\x{{{ord(c[0]):x}}}", choice) for choice in choices)
    return Constraint("regex", "|".join(literals), param)


def _refused(value: object) -> object:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "is not supported in this version")
    return value
