"""The chat templates that Onceread knows by name, and how ``--chat-template`` finds one."""

from __future__ import annotations

from pathlib import Path

from onceread.chat.errors import TemplateUnusable

CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

BY_NAME = {"chatml": CHATML}
FALLBACK = "chatml"
"""What a model without a template of its own gets: the format most models have seen."""

_MAX_FILE = 1024 * 1024


def find_template(file_or_name: str) -> str:
    """The source of a template, by the name of a built-in one or the path of a file.

    Raises TemplateUnusable, one line that says what to do.
    """
    if file_or_name in BY_NAME:
        return BY_NAME[file_or_name]
    path = Path(file_or_name).expanduser()
    try:
        if path.stat().st_size > _MAX_FILE:
            raise TemplateUnusable(f"the chat template {path} is larger than {_MAX_FILE} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        names = ", ".join(sorted(BY_NAME))
        raise TemplateUnusable(
            f"there is no chat template {file_or_name!r}: "
            f"give the path of a Jinja file or one of these names: {names}"
        ) from None
    except UnicodeDecodeError:
        raise TemplateUnusable(f"the chat template {path} is not UTF-8 text") from None
    except OSError as error:
        raise TemplateUnusable(f"the chat template {path} can't be read: {error.strerror}") from None
    except ValueError:  # a NUL in the path
        raise TemplateUnusable("the chat template's path holds a NUL character") from None
