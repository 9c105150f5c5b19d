"""What `make docs` does to the pages on their way: mkdocs calls this."""

from __future__ import annotations

import re
from typing import Any

_CODE = re.compile(r"`[^`]+`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Code in tables has its pipes escaped, since GitHub splits the row at them; Python-Markdown shows the escape."""
    return "\n".join([_unescaped(line) if line.startswith("|") else line for line in markdown.split("\n")])


def _unescaped(row: str) -> str:
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row)
