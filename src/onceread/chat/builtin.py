"""How ``--chat-template`` and ``chat_format`` find a template: by a format's name, as a file, or written out."""

from __future__ import annotations

from pathlib import Path

from onceread.chat.errors import TemplateUnusable
from onceread.chat.formats import BY_NAME, FORMATS

CHATML = BY_NAME["chatml"].source
"""What a model without a template of its own gets: the format most models have seen."""

_MAX_FILE = 1024 * 1024


def is_inline(template: str) -> bool:
    """Is this a template itself, and no name of one?"""
    return "{{" in template or "{%" in template


def find_template(template: str) -> str:
    """The source of a template: one of :data:`FORMATS` by its name, a file by its path, or Jinja as it is.

    Raises TemplateUnusable, one line that says what to do.
    """
    if template in BY_NAME:
        return BY_NAME[template].source
    if is_inline(template):
        return template
    try:
        path = Path(template).expanduser()
        if path.stat().st_size > _MAX_FILE:
            raise TemplateUnusable(f"the chat template {path} is larger than {_MAX_FILE} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        names = ", ".join([one.name for one in FORMATS])
        raise TemplateUnusable(
            f"there is no chat template {template!r}: "
            f"give a Jinja file, a template written out, or one of these names: {names}"
        ) from None
    except UnicodeDecodeError:
        raise TemplateUnusable(f"the chat template {template} is not UTF-8 text") from None
    except OSError as error:
        raise TemplateUnusable(f"the chat template {template} can't be read: {error.strerror}") from None
    except (ValueError, RuntimeError):  # a NUL in the path, a home that nobody has
        raise TemplateUnusable(f"the chat template {template!r} is no path of a file") from None
