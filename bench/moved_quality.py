"""What moving state does to the text: perplexity of how a text really goes on, after four ways of reading it.

    python bench/moved_quality.py [--passages 6] [--seed 1]

Passages are prose that comes with Python: the documentation strings of its standard library and its licence.
Each passage is a head, a history, a rest and a tail; what follows the tail is what must be foretold, token by
token, with the true tokens before it. A client changes something near the top:

    was read    head | history | rest             "the oldest turns are dropped"
    is sent     head | rest | tail

    was read    head | 12:01 | history | rest     "a timestamp changes"
    is sent     head | 9:47:30 | history | rest | tail

    was read    head | history | rest             "a note is put in"
    is sent     head | note | history | rest | tail

    exact       what is sent, read in an empty context
    moved       the head as it is; what was read behind the change, at its new place; the rest of what is sent, read
    not moved   a server that throws the stretch away and does not read it again: head, change and tail alone
    not changed for comparison: what was read and the tail, as if the client had changed nothing, exactly

The last is not a way to serve the request. It says how much the change itself does to the text.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
import sysconfig
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from demo_model import demo_model_path
from onceread.engine.config import default_threads
from onceread.engine.moved import Stretch, find_moved
from onceread.engine.sequence import as_tokens, common_prefix
from onceread.native import stateblob
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model
from onceread.native.shift import Shifter

HEAD, HISTORY, REST, TAIL, NEXT = 48, 112, 272, 32, 64  # tokens
PASSAGE = HEAD + HISTORY + REST + TAIL + NEXT
STAMPS = ("\nToday is Monday, 12:01.\n", "\nToday is Tuesday, 9:47:30 in the evening.\n")
NOTE = "\n[Note: the reader prefers short and plain answers, and does not want to be asked anything.]\n"
WAYS = ("exact", "moved", "not moved", "not changed")


def texts() -> Iterator[str]:
    """Long prose that every Python installation has, in an order that does not change."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in [library / "LICENSE.txt", *sorted(library.glob("*.py"))]:
        try:
            text = path.read_text(encoding="utf-8")
            found = text if path.suffix == ".txt" else ast.get_docstring(ast.parse(text)) or ""
        except (OSError, ValueError, SyntaxError):
            continue
        if len(found) > 3_000:
            yield found


class Reader:
    """A context, and what was read into it."""

    def __init__(self, model: Model) -> None:
        threads = default_threads()
        self.context = Context(model, ContextParams(2048, 3, n_threads=threads, n_threads_batch=threads))
        self._batch = Batch(512)

    def read(self, tokens: list[int], start: int, seq: int) -> None:
        for i in range(0, len(tokens), self._batch.capacity):
            part = tokens[i : i + self._batch.capacity]
            self._batch.clear()
            self._batch.add(part, start + i, seq, logits_last=False)
            self.context.decode(self._batch)

    def foretold(self, tokens: list[int], start: int, seq: int) -> np.ndarray[Any, Any]:
        """Log probabilities of all tokens after each of ``tokens``."""
        self._batch.clear()
        for i, token in enumerate(tokens):
            self._batch.add_one(token, start + i, seq)
        self.context.decode(self._batch)
        logits = np.stack([self.context.logits(i) for i in range(len(tokens))]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def close(self) -> None:
        self._batch.close()
        self.context.close()


class Case:
    """One change, over all passages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses: dict[str, list[float]] = {way: [] for way in WAYS}
        self.divergences: list[float] = []
        self.agreed: list[bool] = []
        self.moved = self.sent = 0

    def add(self, found: dict[str, np.ndarray[Any, Any]], true: list[int]) -> None:
        for way, all_of_them in found.items():
            self.losses[way] += (-all_of_them[np.arange(len(true)), true]).tolist()
        exact, moved = found["exact"], found["moved"]
        self.divergences += (np.exp(exact) * (exact - moved)).sum(axis=1).tolist()
        self.agreed += (exact.argmax(axis=1) == moved.argmax(axis=1)).tolist()

    def row(self) -> str:
        perplexities = [f"{math.exp(np.mean(self.losses[way])):.2f}" for way in WAYS]
        figures = [
            f"{self.moved / self.sent:.0%}",
            *perplexities,
            f"{np.mean(self.divergences):.3f}",
            f"{np.mean(self.agreed):.0%}",
        ]
        return f"| {self.name} | {' | '.join(figures)} |"


def measure(
    reader: Reader,
    shifter: Shifter,
    was: list[int],
    changes: list[tuple[Case, list[int]]],
    passage: list[int],
) -> None:
    """``was``: what was read. ``changes``: what is sent in its place, up to the tail."""
    context = reader.context
    tail, true = passage[-NEXT - TAIL : -NEXT], passage[-NEXT:]
    ahead = [tail[-1], *true[:-1]]  # what is read to foretell each of the true tokens

    context.clear()
    reader.read(was, 0, 0)
    state = stateblob.in_order(context.export_range(0, 0, len(was)))
    reader.read(tail[:-1], len(was), 0)
    not_changed = reader.foretold(ahead, len(was) + len(tail) - 1, 0)

    def fresh(tokens: list[int]) -> np.ndarray[Any, Any]:
        context.clear()
        reader.read(tokens[:-1], 0, 0)
        return reader.foretold(ahead, len(tokens) - 1, 0)

    for case, sent in changes:
        prompt = sent + tail
        kept = common_prefix(as_tokens(was), as_tokens(prompt))
        stretches = find_moved(as_tokens(prompt), kept, [as_tokens(was)])
        left, at = [], 0
        for one in stretches:
            left += prompt[at : one.start]
            at = one.end
        left += prompt[at:]

        context.clear()
        context.import_range(0, state, 0, kept)
        at = kept
        for one in stretches:
            reader.read(prompt[at : one.start], at, 0)
            shifter.append_moved(0, part(state, one), one.source_start, one.start, one.n)
            at = one.end
        reader.read(prompt[at:-1], at, 0)
        moved = reader.foretold(ahead, len(prompt) - 1, 0)
        found = {
            "exact": fresh(prompt),
            "moved": moved,
            "not moved": fresh(left),
            "not changed": not_changed,
        }
        case.add(found, true)
        case.moved += sum(s.n for s in stretches)
        case.sent += len(prompt)


def part(state: bytes, stretch: Stretch) -> bytes:
    """A stretch's own part of a state that begins at 0."""
    if stretch.source_start > 0:
        state = stateblob.cut(state, stretch.source_start)[1]
    return state if stateblob.layout(state).cells == stretch.n else stateblob.cut(state, stretch.n)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--passages", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chosen = random.Random(args.seed)
    with Model.load(demo_model_path()) as model, closing(Reader(model)) as reader:

        def tokens_of(text: str) -> list[int]:
            return model.vocab.tokenize(text, add_special=False, parse_special=False)

        known = [tokens for text in texts() if len(tokens := tokens_of(text)) >= PASSAGE]
        passages = []
        for tokens in chosen.choices(known, k=args.passages):
            start = chosen.randrange(len(tokens) - PASSAGE + 1)
            passages.append(tokens[start : start + PASSAGE])
        earlier, later = (tokens_of(stamp) for stamp in STAMPS)
        note = tokens_of(NOTE)
        cases = [Case("the oldest turns are dropped"), Case("a timestamp changes"), Case("a note is put in")]
        dropped, changed, noted = cases
        with Shifter(reader.context) as shifter:
            for passage in passages:
                head, behind = passage[:HEAD], passage[HEAD : -NEXT - TAIL]
                stamped = [(changed, head + later + behind)]
                others = [(dropped, head + behind[HISTORY:]), (noted, head + note + behind)]
                measure(reader, shifter, head + earlier + behind, stamped, passage)
                measure(reader, shifter, head + behind, others, passage)
        print(f"{len(passages)} passages of {len(known)} texts, {NEXT} tokens foretold in each\n")
        print("| change | moved | " + " | ".join(WAYS) + " | divergence | same first choice |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for case in cases:
            print(case.row())


if __name__ == "__main__":
    main()
