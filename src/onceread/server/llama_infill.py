"""Prompts for filling a gap in a text, put together as llama-server does it."""

from __future__ import annotations

from collections.abc import Sequence

from onceread.engine.errors import ContextLengthExceeded
from onceread.server.llama_errors import not_supported
from onceread.server.llama_schemas import ExtraFile
from onceread.server.state import Serving

_REPOSITORY = "myproject\n"  # models were trained with names here, and no client gives one
_FILE = "filename\n"
_UNNAMED = "tmp"
_BETWEEN = "\n\n--- snippet ---\n\n"  # where the model has no token for it
_REPLY = 4  # a fourth of the context is left for the reply, or what it may have


def check_fills(serving: Serving) -> None:
    """Raises a 501 for a model that can't fill gaps."""
    fill = serving.model.vocab.fill
    named = {"prefix": fill.prefix, "suffix": fill.suffix, "middle": fill.middle}
    missing = [name for name, token in named.items() if token < 0]
    if missing:
        raise not_supported(
            f"This model can't fill gaps: its vocabulary has no token for {', '.join(missing)}."
        )


def infill_tokens(
    prefix: str,
    suffix: str,
    serving: Serving,
    *,
    extra: Sequence[ExtraFile] = (),
    begun: str = "",
    max_tokens: int | None = None,
) -> tuple[int, ...]:
    """The prompt. What does not fit goes: extra files first, the oldest before others, then what is far from the gap.

    Nothing of a text turns into control tokens, but ``begun``, what the gap begins with, may have some written out.
    Raises ApiError, and ContextLengthExceeded where not even ``begun`` fits.
    """
    check_fills(serving)
    vocab, limit = serving.model.vocab, serving.engine.limit
    fill = vocab.fill
    before, after = _plain(prefix, serving), _plain(suffix, serving)
    start = serving.tokenizer.written(begun) if begun else []
    head = [vocab.bos] if vocab.add_bos and vocab.bos >= 0 else []
    if fill.repo >= 0:
        head += [fill.repo, *_plain(_REPOSITORY, serving)]
    here = [fill.file, *_plain(_FILE, serving)] if fill.file >= 0 else []
    files = [_file(file, serving) for file in extra]

    fixed = len(head) + len(here) + len(start) + 3
    reply = limit // _REPLY if max_tokens is None else min(max_tokens, limit // _REPLY)
    room = limit - max(1, reply) - fixed
    if room < 0:
        raise ContextLengthExceeded(fixed + len(before) + len(after), limit)
    if len(before) + len(after) > room:
        # Three parts of four for what comes before, unless the other leaves more.
        n_after = min(len(after), max(room // 4, room - len(before)))
        before, after = before[max(0, len(before) - (room - n_after)) :], after[:n_after]
    room -= len(before) + len(after)
    while files and sum(map(len, files)) > room:
        files.pop(0)
    # What the gap begins with belongs to the text before it: models are trained to go on behind the middle token.
    tokens = [*head, *(token for file in files for token in file), *here, fill.prefix, *before, *start]
    return (*tokens, fill.suffix, *after, fill.middle)


def _file(file: ExtraFile, serving: Serving) -> list[int]:
    token = serving.model.vocab.fill.file
    text = _plain(file.text, serving)
    if token < 0:
        return [*_plain(_BETWEEN, serving), *text]
    return [token, *_plain(f"{file.filename or _UNNAMED}\n", serving), *text]


def _plain(text: str, serving: Serving) -> list[int]:
    return serving.model.vocab.tokenize(text, add_special=False, parse_special=False)
