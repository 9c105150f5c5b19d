"""Who the model is to be, from a file: plain text, or a character card as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceread.models.home import expanded

_LARGEST = 2**20  # bytes
_USER = "User"


class PersonaInvalid(Exception):
    """The file can't be used; the message is one line."""


@dataclass(frozen=True)
class Persona:
    name: str
    system: str
    greeting: str
    """What the character says first; may be empty."""


def read_persona(path: Path) -> Persona:
    """The persona in a file. Raises PersonaInvalid."""
    path = expanded(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise PersonaInvalid(f"{path} can't be read: {error.strerror or error}") from None
    if len(raw) > _LARGEST:
        raise PersonaInvalid(f"{path} is larger than 1 MiB: that is no persona")
    if raw.startswith(b"\x89PNG"):
        raise PersonaInvalid(f"{path} is a picture: export the character card as JSON")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PersonaInvalid(f"{path} is not UTF-8 text") from None
    if path.suffix.lower() == ".json":
        return _card(path, text)
    if not text.strip():
        raise PersonaInvalid(f"{path} is empty")
    return Persona(path.stem, text.strip(), "")


def _card(path: Path, text: str) -> Persona:
    """A card of version 1, whose fields lie open, or of 2 and 3, where they are in ``data``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise PersonaInvalid(f"{path} is not valid JSON") from None
    card = found.get("data", found) if isinstance(found, dict) else None
    if not isinstance(card, dict) or not isinstance(card.get("name"), str) or not _field(card, "name"):
        raise PersonaInvalid(f"{path} is no character card: it has no name")
    name = _field(card, "name")
    parts = [
        _field(card, "system_prompt").replace("{{original}}", "").strip() or "You are {{char}}.",
        _field(card, "description"),
        *(
            f"{label}: {said}"
            for label, key in (("Personality", "personality"), ("Scenario", "scenario"))
            if (said := _field(card, key))
        ),
    ]
    if examples := _field(card, "mes_example"):
        parts.append(f"How {{{{char}}}} talks:\n{examples}")
    system = "\n\n".join(part for part in parts if part)
    return Persona(name, _names(system, name), _names(_field(card, "first_mes"), name))


def _field(card: dict[str, Any], key: str) -> str:
    value = card.get(key)
    if not isinstance(value, str):
        return ""
    return value.strip().encode(errors="replace").decode()  # JSON can say half a character


def _names(text: str, name: str) -> str:
    for placeholder, value in (("char", name), ("user", _USER)):
        for form in (placeholder, placeholder.capitalize(), placeholder.upper()):
            text = text.replace(f"{{{{{form}}}}}", value)
        text = text.replace("<BOT>" if placeholder == "char" else "<USER>", value)
    return text
