"""One prompt and its reply: streamed to stdout as it is written, or whole as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceread.cli.errors import CommandError
from onceread.cli.terminal.connection import Connection
from onceread.cli.terminal.screen import clean
from onceread.models.home import expanded


@dataclass(frozen=True)
class Prompt:
    text: str
    as_chat: bool
    system: str | None = None


def read_prompt(words: str, file: Path | None) -> str:
    """The words, and behind them the file; stdin if there is neither. Raises CommandError."""
    if file is None and words:
        return words
    if file is None and sys.stdin.isatty():
        raise CommandError("no prompt: give it as words, by --file FILE, or through a pipe")
    text = _read(None if file is None or str(file) == "-" else file)
    if not text.strip() and not words:
        raise CommandError("the prompt is empty")
    return f"{words}\n\n{text}" if words else text


def constraints(grammar: Path | None, json_schema: Path | None) -> dict[str, Any]:
    """What the reply must be, from files. Raises CommandError."""
    if grammar is not None and json_schema is not None:
        raise CommandError("--grammar and --json-schema exclude each other: give one")
    if grammar is not None:
        return {"grammar": _read(grammar)}
    if json_schema is None:
        return {}
    try:
        schema = json.loads(_read(json_schema))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"--json-schema {json_schema} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise CommandError(f"--json-schema {json_schema} is not a JSON object")
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}}


def run(connection: Connection, prompt: Prompt, options: Mapping[str, Any], *, as_json: bool) -> None:
    """Ask, and print. Raises what a reply fails with."""
    if prompt.as_chat:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages.append({"role": "user", "content": prompt.text})
        chunks = connection.llama.create_chat_completion(messages, stream=True, **options)
    else:
        chunks = connection.llama.create_completion(prompt.text, stream=True, **options)
    with ExitStack() as stack:
        if callable(close := getattr(chunks, "close", None)):
            stack.callback(close)
        if as_json:
            _print_json(connection, chunks)
        else:
            _print_text(chunks)


def _print_text(chunks: Iterator[Mapping[str, Any]]) -> None:
    # A file gets the text as it is; a terminal must not be told anything by it.
    terminal = sys.stdout.isatty()
    last = "\n"
    for chunk in chunks:
        if piece := _text(chunk):
            piece = clean(piece) if terminal else piece
            sys.stdout.write(piece)
            sys.stdout.flush()
            last = piece or last
    if terminal and not last.endswith("\n"):
        sys.stdout.write("\n")


def _print_json(connection: Connection, chunks: Iterator[Mapping[str, Any]]) -> None:
    found: dict[str, Any] = {"model": connection.name, "text": "", "finish_reason": None}
    found |= {"usage": None, "timings": None}
    for chunk in chunks:
        found["text"] += _text(chunk)
        for choice in chunk.get("choices") or ():
            found["finish_reason"] = choice.get("finish_reason") or found["finish_reason"]
        for name in ("usage", "timings"):
            found[name] = chunk.get(name) or found[name]
    whole = json.dumps(found, ensure_ascii=False, indent=2)
    # JSON leaves some control characters as they are, and one of them begins escape sequences.
    print(re.sub("[\x7f-\x9f]", lambda c: f"\\u{ord(c[0]):04x}", whole))  # noqa: T201


def _text(chunk: Mapping[str, Any]) -> str:
    text = ""
    for choice in chunk.get("choices") or ():
        text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return text


def _read(file: Path | None) -> str:
    """A file's text, or stdin's."""
    try:
        raw = sys.stdin.buffer.read() if file is None else expanded(file).read_bytes()
        return raw.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{file or 'stdin'} is not UTF-8 text") from None
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror or error}") from None
