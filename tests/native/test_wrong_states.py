"""States that llama.cpp takes for right and that are not, and failures in the middle: seen before anything is decoded.

Where llama.cpp says nothing, the tests show as well that what it computes then is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.tiny.models import BATCH, BOUND, NAMES, Bench, taken, words

from onceread.native import checkpoints, stateblob
from onceread.native.context import Context
from onceread.native.errors import (
    DecodeAborted,
    NativeError,
    SequenceWrong,
    StateImportFailed,
    StateLayoutUnknown,
)
from onceread.native.library import lib

pytestmark = pytest.mark.model

WINDOW = 64
# Few tokens more, or they push a wrong recurrent state out of sight.
PAST, MORE, OTHER = words(300), words(3), words(100)
windowed = pytest.mark.parametrize("tiny", ["windowed"], indirect=True)
hybrid = pytest.mark.parametrize("tiny", ["hybrid", "granite", "qwen"], indirect=True)
recurrent = pytest.mark.parametrize("tiny", ["recurrent", "hybrid", "granite", "qwen"], indirect=True)
with_attention = pytest.mark.parametrize(
    "tiny", [name for name in NAMES if name != "recurrent"], indirect=True
)


@windowed
def test_a_window_rolled_back_past_itself_is_seen(bench: Bench) -> None:
    bench.read(PAST)
    part = checkpoints.checkpoint(bench.context, 0, 300)
    bench.read(words(600), 300)
    bench.context.truncate(0, 300)  # says that all is well
    with pytest.raises(SequenceWrong):
        checkpoints.verify(bench.context, 0, 300)
    with pytest.raises(SequenceWrong):
        checkpoints.checkpoint(bench.context, 0, 300)
    assert bench.off(PAST, MORE) > BOUND, "the trap is gone"
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, MORE) < BOUND


@windowed
def test_a_window_that_lost_its_first_cell_only_is_seen(bench: Bench) -> None:
    bench.read(PAST)
    bench.context.share(0, 1, 300 - WINDOW + 1, 300)
    with pytest.raises(SequenceWrong, match="attention"):  # its window is whole
        checkpoints.verify(bench.context, 1, 300)
    bench.context.share(0, 2, 300 - WINDOW + 2, 300)
    with pytest.raises(SequenceWrong, match="window"):
        checkpoints.verify(bench.context, 2, 300)


@hybrid
def test_a_branch_from_a_source_that_went_on_is_seen(bench: Bench) -> None:
    bench.read(PAST)
    bench.read(OTHER, 300)
    bench.context.share(0, 1, 0, 300)
    assert bench.context.length(1) == 300, "the trap: it looks whole"
    with pytest.raises(SequenceWrong, match="recurrent state after 399"):
        checkpoints.checkpoint(bench.context, 1, 300)
    assert bench.off(PAST, MORE, seq=1) > BOUND, "the trap is gone"
    with pytest.raises(SequenceWrong):
        checkpoints.fork(bench.context, 0, 2, 300)


@with_attention
def test_attention_without_the_rest_is_seen(bench: Bench) -> None:
    bench.read(PAST)
    (segments, part), elsewhere = taken(bench.context, 300, 100), bench.another()
    for start, end, blob in segments:
        checkpoints.attach(elsewhere, 0, blob, start, end)
    with pytest.raises(SequenceWrong):
        checkpoints.verify(elsewhere, 0, 300)
    assert bench.off(PAST, MORE, 0, elsewhere) > BOUND, "the trap is gone"
    checkpoints.restore(elsewhere, 0, segments, part, 300)
    assert bench.off(PAST, MORE, 0, elsewhere) < BOUND


@with_attention
@pytest.mark.parametrize("lacking", [[0], [1], [2], [0, 1, 2]], ids=["first", "middle", "last", "all"])
def test_the_rest_without_all_of_the_attention_is_seen(bench: Bench, lacking: list[int]) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 100, 200)
    elsewhere = bench.another()
    for i, (start, end, blob) in enumerate(segments):
        if i not in lacking:
            checkpoints.attach(elsewhere, 0, blob, start, end)
    with pytest.raises(SequenceWrong):
        checkpoints.settle(elsewhere, 0, part, 300)
    assert elsewhere.length(0) == 0
    assert checkpoints.attention_cells(elsewhere, 0) == 0
    # What it would have been:
    for i, (start, end, blob) in enumerate(segments):
        if i not in lacking:
            checkpoints.attach(elsewhere, 0, blob, start, end)
    elsewhere.import_state(0, part, partial=True)
    if elsewhere.length(0) == 300:  # else llama.cpp refuses to go on as well
        assert bench.off(PAST, MORE, 0, elsewhere) > BOUND, "the trap is gone"


@with_attention
def test_attention_beyond_the_checkpoint_is_dropped(bench: Bench) -> None:
    bench.read(PAST)
    part = checkpoints.checkpoint(bench.context, 0, 300)
    bench.read(OTHER, 300)
    bench.context.import_state(0, part, partial=True)
    assert bench.context.length(0) == 300, "the trap: it looks whole"
    with pytest.raises(SequenceWrong, match="400"):
        checkpoints.verify(bench.context, 0, 300)
    checkpoints.settle(bench.context, 0, part, 300)
    assert checkpoints.attention_cells(bench.context, 0) == 300


@windowed
def test_a_windowed_segment_is_not_resumed_inside(bench: Bench) -> None:
    bench.read(PAST)
    whole = bench.context.export_range(0, 0, 300)  # a range together with the window at its end
    with pytest.raises(StateImportFailed):
        bench.context.import_range(1, whole, 0, 250)
    bench.context.import_state(1, whole, partial=False)
    bench.context.truncate(1, 250)
    with pytest.raises(SequenceWrong, match="window from 236 on"):
        checkpoints.verify(bench.context, 1, 250)
    assert bench.off(PAST[:250], MORE, seq=1) > BOUND, "the trap is gone"
    segments, part = taken(bench.context, 300)
    head, _ = stateblob.cut(segments[0][2], 250)
    with pytest.raises(StateLayoutUnknown, match="no checkpoint of 250"):
        checkpoints.restore(bench.context, 2, [(0, 250, head)], part, 250)


def test_a_checkpoint_serves_its_own_position_only(bench: Bench) -> None:
    bench.read(PAST[:200])
    early = checkpoints.checkpoint(bench.context, 0, 200)
    with pytest.raises(SequenceWrong):
        checkpoints.checkpoint(bench.context, 0, 199)
    bench.read(PAST[200:], 200)
    segments, part = taken(bench.context, 300, 200)
    for wrong, length, parts in ((early, 300, segments), (part, 200, segments[:1]), (early, 201, segments)):
        with pytest.raises((StateLayoutUnknown, SequenceWrong)):
            checkpoints.restore(bench.context, 1, parts, wrong, length)
        assert bench.context.length(1) == 0
        with pytest.raises((StateLayoutUnknown, SequenceWrong)):
            checkpoints.branch(bench.context, 0, 2, wrong, length)
        assert bench.context.length(2) == 0
    assert bench.off(PAST, MORE) < BOUND


# -- failures in the middle --------------------------------------------------------


class Stop:
    """Aborts the decode at the n-th question."""

    def __init__(self, context: Context, after: int) -> None:
        self.left = after
        self._context = context
        self._callback = lib.ggml_abort_callback(self._ask)

    def _ask(self, _data: object) -> bool:
        self.left -= 1
        return self.left < 0

    def __enter__(self) -> None:
        lib.llama_set_abort_callback(self._context.handle, self._callback, None)

    def __exit__(self, *_: object) -> None:
        lib.llama_set_abort_callback(self._context.handle, lib.ggml_abort_callback(0), None)


@recurrent
@pytest.mark.parametrize("after", [5, 30])
def test_an_abort_spoils_every_sequence_of_the_batch_and_no_other(bench: Bench, after: int) -> None:
    context, batch = bench.context, bench.batch
    pasts = {seq: words(50 + 20 * seq) for seq in (0, 1, 2)}
    parts = {}
    for seq, past in pasts.items():
        bench.read(past, seq=seq)
        parts[seq] = checkpoints.checkpoint(context, seq, len(past))
    batch.clear()
    for seq in (0, 1):
        batch.add(words(BATCH // 2), len(pasts[seq]), seq, logits_last=True)
    with Stop(context, after), pytest.raises(DecodeAborted):
        context.decode(batch)
    for seq in (0, 1):
        with pytest.raises(SequenceWrong):
            checkpoints.verify(context, seq, len(pasts[seq]))
        checkpoints.settle(context, seq, parts[seq], len(pasts[seq]))
    for seq in (0, 1, 2):
        checkpoints.verify(context, seq, len(pasts[seq]))
        assert bench.off(pasts[seq], MORE, seq=seq) < BOUND


@windowed
def test_a_window_is_whole_again_after_an_abort(bench: Bench) -> None:
    bench.read(PAST)
    part = checkpoints.checkpoint(bench.context, 0, 300)
    with Stop(bench.context, 5), pytest.raises(DecodeAborted):
        bench.read(OTHER[:BATCH], 300)
    checkpoints.settle(bench.context, 0, part, 300)
    assert bench.off(PAST, MORE) < BOUND


damages = pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[:-1], id="a byte short"),
        pytest.param(lambda b: b + b"\0", id="a byte long"),
        pytest.param(lambda b: b"", id="empty"),
        pytest.param(lambda b: b"GGUF" + b[4:], id="another magic"),
        pytest.param(lambda b: b[: len(b) // 2], id="half"),
        pytest.param(lambda b: b[:10], id="most is gone"),
    ],
)
Damage = Callable[[bytes], bytes]


@damages
def test_a_damaged_checkpoint_leaves_the_sequence_empty_and_others_as_they_are(
    bench: Bench, damage: Damage
) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 100)
    for seq, act in {
        1: lambda: checkpoints.restore(bench.context, 1, segments, damage(part), 300),
        2: lambda: checkpoints.branch(bench.context, 0, 2, damage(part), 300),
    }.items():
        with pytest.raises(NativeError):
            act()
        assert bench.context.length(seq) == 0
        assert not bench.context.has_attention or checkpoints.attention_cells(bench.context, seq) == 0
    assert bench.off(PAST, MORE) < BOUND
    checkpoints.restore(bench.context, 1, segments, part, 300)
    assert bench.off(PAST, MORE, seq=1) < BOUND


@damages
def test_a_damaged_segment_leaves_the_sequence_empty_and_others_as_they_are(
    bench: Bench, damage: Damage
) -> None:
    bench.read(PAST)
    segments, part = taken(bench.context, 300, 100)
    spoilt = [segments[0], (100, 300, damage(segments[1][2]))]
    with pytest.raises((StateImportFailed, StateLayoutUnknown)):
        checkpoints.restore(bench.context, 1, spoilt, part, 300)
    assert bench.context.length(1) == bench.context.length(bench.context.tmp) == 0
    assert not bench.context.has_attention or checkpoints.attention_cells(bench.context, 1) == 0
    assert bench.off(PAST, MORE) < BOUND
