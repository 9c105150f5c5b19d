"""Whatever a model samples under a constraint, what ends satisfies it: tokens at random, without a model's say."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from onceread.native.errors import BegunOtherwise, GrammarInvalid
from onceread.native.grammar import Grammar, GrammarDeadEnd
from onceread.native.model import Model
from onceread.native.params import Constraint

pytestmark = pytest.mark.model

Write = Callable[..., str | None]


def by_schema(schema: Any, begun: str = "") -> Constraint:
    return Constraint("json_schema", json.dumps(schema), begun=begun)


@pytest.fixture(scope="module")
def write(model: Model) -> Write:
    """A reply of random tokens, those before others that close what is open; None if it came to no end."""
    vocab = model.vocab
    closing = np.zeros(vocab.size, dtype=np.bool_)
    closing[[t for t, piece in enumerate(vocab.pieces) if piece and not piece.strip(b'"]},: ')]] = True
    ends = sorted(vocab.eog_tokens)
    closing[ends] = True
    unspeakable = vocab.control_mask.copy()
    unspeakable[ends] = False

    def run(constraint: Constraint, seed: int, n: int = 300) -> str | None:
        grammar = Grammar(vocab, constraint)
        rng = random.Random(seed)
        written: list[int] = []
        while not grammar.complete:
            allowed = grammar.allowed()
            assert allowed.any()
            assert not (allowed & unspeakable).any()
            closers = np.flatnonzero(allowed & closing)
            every = np.flatnonzero(allowed)
            token = int(rng.choice(closers if len(closers) and rng.random() < 0.5 else every))
            if vocab.is_eog(token):
                break
            if len(written) == n:
                return None
            grammar.accept(token)
            written.append(token)
        return vocab.detokenize(written).decode()

    return run


def check(schema: Any, text: str) -> None:
    """``text`` is JSON of the schema. A number beyond a double's range is still one."""
    value = json.loads(text, parse_float=lambda digits: max(-1e308, min(1e308, float(digits))))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    assert validator.is_valid(value), text


NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
CIRCLE = {"kind": {"const": "circle"}, "radius": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}}
SQUARE = {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 99}}


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "anything": {},
    "a flat object": closed(
        {"name": {"type": "string"}, "age": {"type": "integer"}, "alive": {"type": "boolean"}}
    ),
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}},
        "required": ["b"],
    },
    "nested objects": closed({"a": closed({"b": closed({"c": {"enum": ["x", "y"]}})})}),
    "an enum of kinds": {"enum": ["red", "grün", 3, -1.5, None, True, {"a": [1]}]},
    "a constant": {"const": {"quote": '"', "backslash": "\\", "line": "\n", "é": "😀"}},
    "a list within bounds": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "a list of objects": {
        "type": "array",
        "items": closed({"id": {"type": "integer", "minimum": 0}}),
        "minItems": 1,
    },
    "a tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False},
    "an old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "string"}, {"type": "boolean"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "a linked list": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "references": {
        "$defs": {"point": closed({"x": {"type": "integer"}, "y": {"type": "integer"}})},
        **closed({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    },
    "kinds that exclude each other": {"oneOf": [closed(CIRCLE), closed(SQUARE)]},
    "names of constants": {"oneOf": [{"const": "low", "title": "Low"}, {"const": "high"}]},
    "one or the other": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "maxItems": 1}]},
    "all of them": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "maybe nothing": closed({"note": {"type": ["string", "null"]}}),
    "a map": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "names by pattern": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,3}$": {"type": "boolean"}},
        "additionalProperties": False,
    },
    "a string within bounds": {"type": "string", "minLength": 2, "maxLength": 5},
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"},
    "a pattern without quotes": {"type": "string", "pattern": '^[^"\\\\]{1,8}$'},
    "a pattern of letters anywhere": {"type": "string", "pattern": r"^\p{L}[\p{L}\s]{0,9}$"},
    "a pattern with dots": {"type": "string", "pattern": "^.{3}$"},
    "numbers within bounds": closed(
        {
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "above": {"type": "number", "exclusiveMinimum": -1.4, "exclusiveMaximum": -1},
            "price": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99},
            "even": {"type": "integer", "multipleOf": 2, "minimum": -10, "maximum": 10},
        }
    ),
    "dates and such": closed(
        {name: {"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid", "ipv4")}
    ),
    "an e-mail address": {"type": "string", "format": "email"},
    "odd names": closed(
        {'a"b': {"type": "null"}, "": {"type": "null"}, "line\n": {"type": "null"}, "日本": {}}
    ),
    "a tree": {
        "type": "object",
        "properties": {"label": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["label"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_replies_satisfy_their_schema(write: Write, schema: Any) -> None:
    texts = [write(by_schema(schema), seed) for seed in range(10)]
    ended = [text for text in texts if text is not None]
    assert len(ended) >= 3
    for text in ended:
        check(schema, text)


def bounded(kind: str, low: Any, high: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A type with a lower and an upper bound of these names, or without."""
    return st.tuples(st.integers(0, 3), st.integers(0, 3)).flatmap(
        lambda ends: st.fixed_dictionaries(
            {"type": st.just(kind)},
            optional={low: st.just(min(ends)), high: st.just(max(ends))},
        )
    )


# Of the planes beyond, the vocabulary lacks some bytes.
_names = st.text(
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\0"), max_size=4
)
_leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "format": "date"}]),
    bounded("string", "minLength", "maxLength"),
    bounded("integer", "minimum", "maximum"),
    bounded("number", "exclusiveMinimum", "maximum"),
    st.lists(_names | st.integers(-99, 99) | st.none(), min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.sampled_from(["^[a-c]{1,3}$", "^[^\"x]{0,3}$", "^(ab|\\d)+$", "^\\w\\s?$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
)  # fmt: skip


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(_names, inner, max_size=3).flatmap(
        lambda properties: st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.just(properties),
                "required": st.just([])
                if not properties
                else st.lists(st.sampled_from(list(properties)), unique=True),
            },
            optional={"additionalProperties": st.just(False)},
        )
    )


_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        _objects(inner),
        st.builds(
            lambda items, bounds: {**bounds, "items": items}, inner, bounded("array", "minItems", "maxItems")
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=6,
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(schema=_schemas, seed=st.integers(0, 99))
def test_replies_satisfy_any_schema(write: Write, schema: dict[str, Any], seed: int) -> None:
    try:
        text = write(by_schema(schema), seed, 200)
    except GrammarInvalid:
        assume(False)
        return
    if text is not None:
        check(schema, text)


REGEXES = [
    r"\d{3}-[a-f]+",
    "yes|no",
    r"[^\n]{5}",
    r"(ab?c|é)*",
    "^$",
    "<\\|im_end\\|>",
    r"[\u4e00-\u9fff]{2}",
]


@pytest.mark.parametrize("pattern", REGEXES)
def test_replies_match_their_pattern(write: Write, pattern: str) -> None:
    for seed in range(5):
        text = write(Constraint("regex", pattern), seed)
        assert text is None or re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}}, {"if": {}, "then": {}}, {"uniqueItems": True}, {"contains": {}},
        {"dependentRequired": {"a": ["b"]}}, {"propertyNames": {"pattern": "a"}}, {"unevaluatedProperties": False},
        {"$dynamicRef": "#a"}, {"format": "regex"}, {"type": "strin"}, {"enum": []},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]}, {"pattern": "(?=a)a"}, {"pattern": r"\bword"},
        {"pattern": "("}, {"pattern": r"(a)\1"}, {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "object", "required": ["a"], "additionalProperties": False}, {"properties": 5},
        {"minimum": "1"}, {"multipleOf": 0}, {"allOf": [{"type": "string"}, {"type": "null"}]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_schemas_that_can_not_be_enforced_are_refused(model: Model, schema: Any) -> None:
    with pytest.raises(GrammarInvalid, match="JSON schema can't be enforced: "):
        Grammar(model.vocab, by_schema(schema))


@pytest.mark.parametrize(
    "pattern", ["(", r"\bword", "(?=a)a", r"(a)\1", "a$b", r"(?-u:\xff)", "[z-a]", "[^\\x00-\\x{10FFFF}]"]
)
def test_patterns_that_can_not_be_enforced_are_refused(model: Model, pattern: str) -> None:
    with pytest.raises(GrammarInvalid, match="pattern can't be enforced: "):
        Grammar(model.vocab, Constraint("regex", pattern))


def nested(depth: int, kind: str) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        schema = {"items": schema} if kind == "items" else {kind: [schema, {"type": "null"}]}
    return schema


HOSTILE: dict[str, Constraint] = {
    "deep lists": by_schema(nested(400, "items")),
    "deep alternatives": by_schema(nested(200, "anyOf")),
    "many alternatives of many": by_schema(
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(25)]}
    ),
    "many optional properties": by_schema({"type": "object", "properties": {f"{i}": {} for i in range(400)}}),
    "references that double": by_schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)},
                "40": {"type": "null"},
            },
        }
    ),
    "many words": by_schema({"enum": [f"word{i}" for i in range(4000)]}),
    "a huge list": by_schema({"type": "array", "items": nested(5, "items"), "minItems": 10**9}),
    "states by the power of two": Constraint("regex", "(a|b)*a(a|b){200}"),
    "repetitions of repetitions": Constraint("regex", "((((a{1,100}){1,100}){1,100}){1,100})"),
    "stars of stars": Constraint("regex", "((a*)*)*b"),
    "options before a run": Constraint("regex", "(a?){500}a{500}"),
    "a very long run": Constraint("regex", "a{60000}"),
    "deep groups": Constraint("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "every letter, often": by_schema({"type": "string", "pattern": r"^(\p{L}{1,1000}\p{N}){1,1000}$"}),
}  # fmt: skip


@pytest.mark.timeout(30)
@pytest.mark.parametrize("constraint", HOSTILE.values(), ids=HOSTILE)
def test_hostile_constraints_are_refused_or_quick(write: Write, constraint: Constraint) -> None:
    with contextlib.suppress(GrammarInvalid, GrammarDeadEnd):
        write(constraint, 1, 20)


class TestBegun:
    SCHEMA = closed({"name": {"type": "string"}, "age": {"type": "integer"}})

    @pytest.mark.parametrize(
        "begun", ["{", '{"na', '{"name": "日本', '{ "name": "a\\', '{"name": "a", "age": 1']
    )
    def test_a_reply_goes_on_from_there(self, write: Write, begun: str) -> None:
        texts = [write(by_schema(self.SCHEMA, begun), seed) for seed in range(5)]
        ended = [text for text in texts if text is not None]
        assert ended
        for text in ended:
            check(self.SCHEMA, begun + text)

    @pytest.mark.parametrize(
        ("begun", "at"), [("Sure: {", 0), ('{"nom', 2), ('{"name": "a"}', 11), (" {", 0)]
    )
    def test_another_beginning_is_refused(self, model: Model, begun: str, at: int) -> None:
        with pytest.raises(BegunOtherwise, match=f"after its first {at} characters"):
            Grammar(model.vocab, by_schema(self.SCHEMA, begun))

    def test_what_is_complete_ends_at_once(self, model: Model) -> None:
        assert Grammar(model.vocab, by_schema(self.SCHEMA, '{"name": "a", "age": 1}')).complete


def takes(model: Model, constraint: Constraint, *parts: str | int) -> bool:
    """May the reply be these texts and tokens, and no more?"""
    grammar = Grammar(model.vocab, constraint)
    for part in parts:
        text = (
            model.vocab.tokenize(part, add_special=False, parse_special=False)
            if isinstance(part, str)
            else [part]
        )
        for token in text:
            if not grammar.allowed()[token]:
                return False
            grammar.accept(token)
    return bool(grammar.complete or grammar.allowed()[model.vocab.eos])


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        (
            "json_schema",
            '{"type": "object", "properties": {"a": {"enum": ["/", 7]}}}',
            '{"a": 7}',
            '{"a": 8}',
        ),
        ("regex", r"a/b\\/c\/[/]|d", r"a/b\/c//", r"a/b/c//"),
        ("gbnf", 'root ::= "a" more\nmore ::= "/" | "start: b"', "astart: b", "a"),
        ("lark", 'start: "a" /[0-9]/', "a1", "ab"),
    ],
)
class TestAfter:
    def test_whatever_comes_before_it_is_free(
        self, model: Model, kind: Any, text: str, right: str, wrong: str
    ) -> None:
        constraint = Constraint(kind, text, after="</think>")
        for thought in ("", "So </th, \n\n<think> é"):
            assert takes(model, constraint, f"{thought}</think>\n\n{right}")
            assert takes(model, constraint, f"{thought}</think>{right}")
            assert not takes(model, constraint, f"{thought}</think>\n\n{wrong}")
            assert not takes(model, constraint, f"{thought}</think>\n\n\n{right}")
        assert not takes(model, constraint, right)
        assert takes(model, Constraint(kind, text), right)

    def test_a_mark_with_a_token_of_its_own_counts_as_that(
        self, model: Model, kind: Any, text: str, right: str, wrong: str
    ) -> None:
        constraint = Constraint(kind, text, after="<gh_stars>")
        mark = model.vocab.marks["<gh_stars>"]
        assert takes(model, constraint, "So\n", mark, f"\n{right}")
        assert not takes(model, constraint, "So\n", mark, f"\n{wrong}")
        assert not takes(model, constraint, f"So\n<gh_stars>\n{right}")


@pytest.mark.parametrize(
    "pattern", ['^[^"]*$', "^[^\\\\]*$", '^(a|[^"])*$', r"^\P{P}*$", "^[\x00-!]*$", r"^\s$"]
)
def test_what_a_class_leaves_out_stays_out(model: Model, pattern: str) -> None:
    """llguidance itself lets a quote or a backslash through where a class has every control character."""
    schema = {"type": "string", "pattern": pattern}
    for character in ('"', "\\", "\n", "\x85"):
        begun = json.dumps(character, ensure_ascii=False)
        if not re.search(pattern.replace(r"\P{P}", r"[^!-/:-@\[-`{-~]"), character, re.ASCII):
            with pytest.raises(BegunOtherwise):
                Grammar(model.vocab, by_schema(schema, begun))


def test_replies_to_one_request_do_not_share_their_place(model: Model) -> None:
    constraint = Constraint("regex", "ab|cd")
    first, second = Grammar(model.vocab, constraint), Grammar(model.vocab, constraint)
    (a,) = model.vocab.tokenize("a", add_special=False, parse_special=False)
    (c,) = model.vocab.tokenize("c", add_special=False, parse_special=False)
    first.accept(a)
    assert not first.allowed()[c]
    assert second.allowed()[c]
    second.accept(c)
    assert Grammar(model.vocab, constraint).allowed()[a]
