"""Memories that can't be cut: back to a checkpoint, branched from it, stored in parts, as if nothing had happened."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tests.tiny.models import BOUND, NAMES, Bench, Segments, taken, words

from onceread.native import checkpoints, stateblob
from onceread.native.errors import NoRoom, StateImportFailed, StateLayoutUnknown
from onceread.native.model import Model

pytestmark = pytest.mark.model

# Few tokens more, or they push a wrong recurrent state out of sight.
PAST, MORE, OTHER = words(300), words(3), words(100)
windowed = pytest.mark.parametrize("tiny", ["windowed"], indirect=True)
with_attention = pytest.mark.parametrize(
    "tiny", [name for name in NAMES if name != "recurrent"], indirect=True
)


# -- what can be done ----------------------------------------------------------


def test_a_sequence_goes_back_to_its_checkpoint(bench: Bench) -> None:
    bench.read(PAST)
    part = checkpoints.checkpoint(bench.context, 0, 300)
    bench.read(OTHER, 300)
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, MORE) < BOUND
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, OTHER) < BOUND


def test_a_branch_begins_at_a_checkpoint_and_its_source_goes_on(bench: Bench) -> None:
    bench.read(PAST)
    part = checkpoints.checkpoint(bench.context, 0, 300)
    bench.read(OTHER, 300)
    checkpoints.branch(bench.context, 0, 3, part, 300)
    assert bench.off(PAST, MORE, seq=3) < BOUND
    assert bench.off(PAST + OTHER, MORE) < BOUND


def test_a_fork_begins_where_its_source_ends(bench: Bench) -> None:
    bench.read(PAST)
    for seq in (1, 2):
        checkpoints.fork(bench.context, 0, seq, 300)
    assert bench.off(PAST, MORE, seq=1) < BOUND
    assert bench.off(PAST, OTHER, seq=0) < BOUND
    assert bench.off(PAST, MORE[::-1], seq=2) < BOUND


def test_segments_and_a_checkpoint_make_the_sequence_elsewhere(bench: Bench) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 90, 200)
    bench.read(OTHER, 300)
    elsewhere = bench.another()
    checkpoints.restore(elsewhere, 2, segments, part, 300)
    assert bench.off(PAST, MORE, 2, elsewhere) < BOUND
    assert elsewhere.length(elsewhere.tmp) == 0


def test_other_sequences_decode_between_two_segments(bench: Bench) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 100, 200)
    bench.context.drop(0)
    other = words(40)
    bench.read(other, seq=1)
    tmp = bench.context.tmp
    empty = bench.context.state_size(tmp, partial=False)
    for i, (start, end, blob) in enumerate(segments):
        checkpoints.attach(bench.context, 0, blob, start, end)
        assert bench.context.state_size(tmp, partial=False) == empty, "the scratch sequence takes cells"
        more = words(30)
        assert bench.off(other, more, seq=1) < BOUND, f"after segment {i}"
        other += more
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, MORE) < BOUND
    assert bench.off(other, MORE, seq=1) < BOUND


def test_a_live_sequence_is_continued_from_the_store(bench: Bench) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 200)
    early = taken(bench.context, 300, 200)
    bench.context.drop(0)
    bench.read(PAST[:200])  # a resident has the beginning
    checkpoints.attach(bench.context, 0, segments[1][2], 200, 300)
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, MORE) < BOUND
    assert early == (segments, part), "the same state gives the same bytes"


def test_attention_is_lent_and_settled_later_while_its_owner_and_others_go_on(bench: Bench) -> None:
    bench.read(PAST)
    segments, _ = taken(bench.context, 300, 200)
    more = words(60)
    bench.read(more, 300)
    part = checkpoints.checkpoint(bench.context, 0, 360)
    segments.append((300, 360, checkpoints.segment(bench.context, 0, 300, 360)))
    checkpoints.lend(bench.context, 0, 3, 250)
    for seq in (0, 1):  # the owner goes on, another one comes
        bench.read(OTHER, 360 if seq == 0 else 0, seq)
    rest = stateblob.cut(segments[1][2], 50)[1]
    checkpoints.attach(bench.context, 3, rest, 250, 300)
    bench.read(MORE, 100, 1)
    checkpoints.attach(bench.context, 3, segments[2][2], 300, 360)
    checkpoints.settle(bench.context, 3, part, 360)
    assert bench.off(PAST + more, MORE, seq=3) < BOUND
    assert bench.off(PAST + more + OTHER, MORE) < BOUND
    assert bench.off(OTHER + MORE, words(3), seq=1) < BOUND


def test_segments_are_cut_like_those_of_a_plain_model(bench: Bench) -> None:
    bench.read(PAST)
    whole = checkpoints.segment(bench.context, 0, 50, 250)
    for at in (1, 64, 199):
        head, tail = stateblob.cut(whole, at)
        assert head == checkpoints.segment(bench.context, 0, 50, 50 + at)
        assert tail == checkpoints.segment(bench.context, 0, 50 + at, 250)
        stateblob.check(head, 50, at)
        stateblob.check(tail, 50 + at, 200 - at)
        for start, n in ((50, at + 1), (51, at)):
            with pytest.raises(StateLayoutUnknown):
                stateblob.check(head, start, n)


def test_attention_is_stored_once_for_each_token_and_checkpoints_do_not_grow(bench: Bench) -> None:
    bench.read(PAST)
    (_, _, first), (_, _, last) = taken(bench.context, 300, 100)[0]
    early = checkpoints.checkpoint(bench.context, 0, 300)
    bench.read(OTHER, 300)
    assert len(checkpoints.checkpoint(bench.context, 0, 400)) == len(early)
    if not bench.context.has_attention:
        assert len(first) == len(last) == 16
        return
    kinds = stateblob.layout(last).kinds
    row = stateblob.layout(last).cell + sum(width * n for _, width, n in kinds)
    assert len(last) - len(first) == 100 * row, "a window or a recurrent state is in the segment"


@with_attention
@pytest.mark.parametrize("flash_attn", ["on", "off"], ids=["flash attention", "values transposed"])
def test_cells_that_lie_out_of_order_are_put_in_order(tiny: Model, flash_attn: str) -> None:
    bench = Bench(tiny, flash_attn=flash_attn)
    try:
        bench.read(words(120), seq=1)
        bench.read(PAST[:40])
        bench.context.drop(1)  # the next cells come before those that are in use
        bench.read(PAST[40:200], 40)
        segments, part = taken(bench.context, 200)
        stateblob.check(segments[0][2], 0, 200)
        head, tail = stateblob.cut(segments[0][2], 70)
        checkpoints.restore(bench.context, 2, [(0, 70, head), (70, 200, tail)], part, 200)
        assert bench.off(PAST[:200], MORE, seq=2) < BOUND
    finally:
        bench.close()


# -- room ------------------------------------------------------------------------------


@windowed
@pytest.mark.parametrize("shared", [True, False], ids=["shared windows", "forks"])
def test_windows_left_behind_together_fill_the_room_and_forks_do_not(tiny: Model, shared: bool) -> None:
    bench = Bench(tiny, n_ctx=2048)
    try:
        texts = {0: words(500)}
        bench.read(texts[0])
        for seq in (1, 2, 3, 4):
            if shared:
                bench.context.share_all(0, seq)
            else:
                checkpoints.fork(bench.context, 0, seq, 500)
            texts[seq] = list(texts[0])
        if shared:
            with pytest.raises(NoRoom):
                _grow(bench, texts)
            assert 500 + sum(len(text) - 500 for text in texts.values()) < 2048 // 2, "it was nearly full"
            return
        _grow(bench, texts)
        for seq, text in texts.items():
            assert bench.off(text, MORE, seq=seq) < BOUND
    finally:
        bench.close()


def _grow(bench: Bench, texts: dict[int, list[int]]) -> None:
    """Let sequences go on in turns by 160 tokens each, past their windows."""
    for _ in range(10):
        for seq, text in texts.items():
            more = words(16)
            bench.read(more, len(text), seq)
            text += more


@windowed
@pytest.mark.parametrize(
    ("n_ctx", "n_seq_max", "swa_full", "room"),
    [(2048, 6, False, 512), (2048, 8, False, 768), (256, 6, False, 256), (768, 6, True, 768)],
    ids=["by sequences", "rounded up", "never more than the context", "full size"],
)
def test_the_room_for_windows_is_as_computed(
    tiny: Model, n_ctx: int, n_seq_max: int, swa_full: bool, room: int
) -> None:
    bench = Bench(tiny, n_ctx=n_ctx, n_seq_max=n_seq_max, swa_full=swa_full)
    try:
        assert checkpoints.window_room(bench.context) == room
        past = words(room - 10)
        bench.read(past)
        bench.context.share_all(0, 1)  # now none of its cells can be used again
        with pytest.raises(NoRoom):
            bench.read(words(11), len(past), 1)
        bench.read(words(10), len(past), 1)
    finally:
        bench.close()


@windowed
@pytest.mark.parametrize("swa_full", [False, True], ids=["small", "full"])
def test_windows_fit_exactly_as_counted(tiny: Model, swa_full: bool) -> None:
    # 12 windows of 64 would fit into no context of 512: prefixes are shared, windows are not.
    bench = Bench(tiny, n_ctx=512, n_seq_max=13, swa_full=swa_full)
    try:
        context, past = bench.context, words(100)
        assert checkpoints.window_room(context) == 512
        bench.read(past)
        part = checkpoints.checkpoint(context, 0, 100)
        for seq in range(1, 8):
            checkpoints.branch(context, 0, seq, part, 100)
        assert 8 * checkpoints.window_cells(context, 100) == 512
        with pytest.raises(StateImportFailed):
            checkpoints.branch(context, 0, 8, part, 100)
        with pytest.raises(NoRoom):
            bench.read(words(20), 100, 7)
        context.drop(7)
        assert bench.off(past, MORE, seq=6) < BOUND
    finally:
        bench.close()


# -- everything together ---------------------------------------------------------------


class Walk:
    """Three sequences and what is known of them, under random operations."""

    LIMIT = 130

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.context = bench.context
        self.rng = random.Random(seed)
        self.texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.marks: dict[int, dict[int, bytes]] = {0: {}, 1: {}, 2: {}}  # checkpoints of each, by position
        self.stored: list[tuple[list[int], Segments, bytes]] = []
        self.context.clear()

    def step(self) -> None:
        {
            "decode": self.decode,
            "checkpoint": self.checkpoint,
            "rewind": self.rewind,
            "branch": self.branch,
            "fork": self.fork,
            "store": self.store,
            "restore": self.restore,
            "drop": self.drop,
        }[
            self.rng.choices(
                ["decode", "checkpoint", "rewind", "branch", "fork", "store", "restore", "drop"],
                [10, 4, 2, 2, 1, 2, 2, 1],
            )[0]
        ]()

    def decode(self) -> None:
        """One batch, of one sequence or more."""
        batch = self.bench.batch
        batch.clear()
        for seq in self.rng.sample(range(3), self.rng.choice([1, 2, 3])):
            n = min(self.rng.choice([1, 1, 3, 20, 50]), batch.room)
            if n == 0:
                continue
            if len(self.texts[seq]) + n > self.LIMIT:
                self._empty(seq)
            more = [self.rng.randrange(100, 40_000) for _ in range(n)]
            batch.add(more, len(self.texts[seq]), seq, logits_last=True)
            self.texts[seq] += more
        self.context.decode(batch)

    def checkpoint(self) -> None:
        seq = self._some()
        if seq is not None:
            length = len(self.texts[seq])
            self.marks[seq][length] = checkpoints.checkpoint(self.context, seq, length)

    def rewind(self) -> None:
        seq = self.rng.randrange(3)
        if self.marks[seq]:
            length = self.rng.choice(list(self.marks[seq]))
            checkpoints.settle(self.context, seq, self.marks[seq][length], length)
            self._cut(seq, length)

    def branch(self) -> None:
        src, dst = self.rng.sample(range(3), 2)
        if self.marks[src]:
            length = self.rng.choice(list(self.marks[src]))
            checkpoints.branch(self.context, src, dst, self.marks[src][length], length)
            self._copy(src, dst)
            self._cut(dst, length)

    def fork(self) -> None:
        src, dst = self.rng.sample(range(3), 2)
        if self.texts[src]:
            checkpoints.fork(self.context, src, dst, len(self.texts[src]))
            self._copy(src, dst)

    def store(self) -> None:
        seq = self.rng.randrange(3)
        if self.marks[seq]:
            length = self.rng.choice(list(self.marks[seq]))
            edges = [0, *sorted(self.rng.sample(range(1, length), min(2, length - 1))), length]
            segments = [(a, b, checkpoints.segment(self.context, seq, a, b)) for a, b in pairwise(edges)]
            self.stored.append((self.texts[seq][:length], segments, self.marks[seq][length]))

    def restore(self) -> None:
        if not self.stored:
            return
        seq = self.rng.randrange(3)
        text, segments, part = self.rng.choice(self.stored)
        parts: Segments = []
        for start, end, blob in segments:
            if end - start > 1 and self.rng.random() < 0.5:
                at = self.rng.randrange(1, end - start)
                head, tail = stateblob.cut(blob, at)
                parts += [(start, start + at, head), (start + at, end, tail)]
            else:
                parts.append((start, end, blob))
        checkpoints.restore(self.context, seq, parts, part, len(text))
        self.texts[seq] = list(text)
        self.marks[seq] = {len(text): part}

    def drop(self) -> None:
        self._empty(self.rng.randrange(3))

    def check(self) -> None:
        """Every sequence that is left answers as if cold."""
        for seq, text in self.texts.items():
            if text:
                more = [self.rng.randrange(100, 40_000) for _ in range(3)]
                assert self.bench.off(text, more, seq=seq) < BOUND, f"sequence {seq} of {len(text)} tokens"

    def _some(self) -> int | None:
        held = [seq for seq in range(3) if self.texts[seq]]
        return self.rng.choice(held) if held else None

    def _copy(self, src: int, dst: int) -> None:
        self.texts[dst] = list(self.texts[src])
        self.marks[dst] = dict(self.marks[src])

    def _cut(self, seq: int, length: int) -> None:
        self.texts[seq] = self.texts[seq][:length]
        self.marks[seq] = {at: part for at, part in self.marks[seq].items() if at <= length}

    def _empty(self, seq: int) -> None:
        self.context.drop(seq)
        self.texts[seq], self.marks[seq] = [], {}


@pytest.mark.parametrize(
    ("tiny", "swa_full"),
    [*((name, False) for name in NAMES), ("windowed", True)],
    indirect=["tiny"],
    ids=[*NAMES, "windowed, full size"],
)
def test_after_random_operations_every_sequence_answers_as_if_cold(tiny: Model, swa_full: bool) -> None:
    bench = Bench(tiny, n_ctx=512, n_seq_max=4, swa_full=swa_full)
    try:
        for seed in range(40):
            walk = Walk(bench, seed)
            for _ in range(30):
                walk.step()
            walk.check()
    finally:
        bench.close()
