"""Patterns of JSON schemas, which are ECMAScript's, in the dialect of the engine that enforces them.

llguidance reads Rust's dialect. Where the two differ in silence, a pattern is rewritten, or refused: never
looser than it was written, at most a little tighter. It also lets a quote or a backslash through wherever a
class has all of ASCII's control characters but neither of the two, as ``[^"]`` has, so no class keeps NUL.
"""

from __future__ import annotations

import re

from onceread.native.errors import GrammarInvalid

_MAX_SHORTEST = 64 * 1024
_ESCAPE = r"\\[pP](?:\{[^}]*\}|\w)|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[xu]\{[^}]*\}|\\."
_TOKEN = re.compile(rf"{_ESCAPE}|\[\^?(?:\\.|[^\]\\])*\]|\{{\d+(?:,\d*)?\}}|\(\?[^:)>]*[:>]?|.", re.DOTALL)
_IN_CLASS = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_CONTROLS = re.compile(r"\\p(?:C|\{[^}]*\b(?:C|Cc|Other|Control|Cntrl)\})", re.IGNORECASE)
_NUL = re.compile(r"\0|\\0|\\x00|\\u0000|\\[xu]\{0+\}")
_SPACE = r" \t-\r"
_ANY_BUT_A_LINE_END = r"[^\x00\n\r\u{2028}\u{2029}]"
_REPEAT = re.compile(r"[*+?]|\{(\d+)(?:,\d*)?\}")


def translated(pattern: str) -> str:
    """``pattern`` of a JSON schema for llguidance. Raises GrammarInvalid for what can't be told apart safely."""
    parts = []
    for match in _TOKEN.finditer(pattern):
        piece = match[0]
        if piece.startswith("[") and len(piece) > 1:
            parts.append(_class(piece))
        elif piece == ".":
            parts.append(_ANY_BUT_A_LINE_END)
        elif piece == r"\s":
            parts.append(f"[{_SPACE}]")
        elif piece.startswith(r"\P"):
            parts.append(rf"[^\x00\p{piece[2:]}]")
        elif _CONTROLS.match(piece):
            raise GrammarInvalid(f"in patterns {piece} is not supported")
        else:
            parts.append(piece)
    return "".join(parts)


def _class(text: str) -> str:
    negated = text.startswith("[^")
    body = text[2 if negated else 1 : -1]
    if not body:
        if negated:
            return "(?s:.)"
        raise GrammarInvalid("in patterns [] matches nothing")
    pieces = [match[0] for match in _IN_CLASS.finditer(body)]
    parts = [r"[^\x00"] if negated else ["["]
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece == "-" and following == "-":
            raise GrammarInvalid(r"in patterns -- inside [...] is not supported: write a hyphen as \-")
        if piece in ("[", "&", "~"):  # there they begin a nested class, or are a half of a set operator
            parts.append("\\" + piece)
        elif negated:
            parts.append(piece)
        elif piece.startswith(r"\P") or _CONTROLS.match(piece):
            raise GrammarInvalid(f"in patterns {piece} inside [...] is not supported: write [^...]")
        elif _NUL.fullmatch(piece):
            if following != "-":
                raise GrammarInvalid("in patterns U+0000 inside [...] is not supported")
            parts.append(r"\x01")
        else:
            parts.append(_SPACE if piece == r"\s" else piece)
    return "".join(parts) + "]"


def check_length(pattern: str) -> None:
    """Refuse what only a very long text can match: each token of it would take as long as that is."""
    if _shortest(pattern) > _MAX_SHORTEST:
        raise GrammarInvalid(f"a pattern asks for a text of more than {_MAX_SHORTEST} characters")


def _shortest(pattern: str) -> int:
    """About how long the shortest match is; of alternatives the longest counts."""
    total, last, best = 0, 0, 0  # of this branch, of its last part, of the branches before it
    outer: list[tuple[int, int]] = []
    repeated = False
    for match in _TOKEN.finditer(pattern):
        piece = match[0]
        repeat = _REPEAT.fullmatch(piece)
        if repeat is not None:
            if not (repeated and piece == "?"):  # there it says how to match, not how often
                times = 1 if piece == "+" else int((repeat[1] or "0")[:9])
                again = min(last * times, 10**9)
                total, last = total - last + again, again
        elif piece.startswith("("):
            outer.append((total, best))
            total, last, best = 0, 0, 0
        elif piece == ")" and outer:
            last = max(total, best)
            total, best = outer.pop()
            total += last
        elif piece == "|":
            total, last, best = 0, 0, max(total, best)
        else:
            last = 1
            total += 1
        repeated = repeat is not None
    return max(total, best)
