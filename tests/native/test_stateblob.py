"""States as bytes: cut anywhere they are what an export of the part gives, and they come back bit for bit."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from onceread.native import stateblob
from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.errors import StateImportFailed, StateLayoutUnknown

pytestmark = pytest.mark.model

TOKENS = [100 + 7 * i for i in range(300)]
VARIANTS = pytest.mark.parametrize(
    "kind",
    [
        {"flash_attn": "on"},
        {"flash_attn": "off"},
        {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    ],
    ids=["flash attention", "values transposed", "quantized"],
)


def read(context: Context, batch: Batch, tokens: list[int], seq: int = 0, start: int = 0) -> np.ndarray:
    batch.clear()
    index = batch.add(np.asarray(tokens, dtype=np.int32), start, seq, logits_last=True)
    context.decode(batch)
    return context.logits(index)


@VARIANTS
@pytest.mark.parametrize("at", [1, 64, 199])
def test_a_cut_gives_what_exports_of_the_parts_give(
    make_context: Callable[..., Context], batch: Batch, kind: dict, at: int
) -> None:
    context = make_context(**kind)
    read(context, batch, TOKENS)
    head, tail = stateblob.cut(context.export_range(0, 50, 250), at)
    assert head == context.export_range(0, 50, 50 + at)
    assert tail == context.export_range(0, 50 + at, 250)
    stateblob.check(head, 50, at)
    stateblob.check(tail, 50 + at, 200 - at)


@VARIANTS
def test_a_path_loaded_in_the_same_order_gives_the_very_bits_of_the_live_one(
    make_context: Callable[..., Context], batch: Batch, kind: dict
) -> None:
    live = make_context(**kind)
    read(live, batch, TOKENS)
    middle_head, middle_tail = stateblob.cut(live.export_range(0, 100, 260), 50)
    parts = [(0, 100, live.export_range(0, 0, 100)), (100, 150, middle_head), (150, 260, middle_tail)]
    parts.append((260, 300, live.export_range(0, 260, 300)))
    loaded = make_context(**kind)
    for start, end, blob in parts:
        loaded.import_range(0, blob, start, end)
    more = [5000 + i for i in range(70)]
    assert np.array_equal(read(live, batch, more, start=300), read(loaded, batch, more, start=300))
    for position, token in enumerate((17, 18, 19), start=370):
        one = read(live, batch, [token], start=position)
        assert np.array_equal(one, read(loaded, batch, [token], start=position))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[:100],
        lambda blob: b"",
        lambda blob: blob + b"\0",
        lambda blob: struct.pack("<IiII", 1, 0, 2, 20) + blob[16:],
    ],
    ids=["a byte short", "most is gone", "empty", "a byte long", "two streams"],
)
def test_another_layout_is_refused(
    make_context: Callable[..., Context], batch: Batch, spoil: Callable[[bytes], bytes]
) -> None:
    context = make_context()
    read(context, batch, TOKENS[:20])
    blob = context.export_range(0, 0, 20)
    with pytest.raises(StateLayoutUnknown):
        stateblob.layout(spoil(blob))


def test_other_positions_are_refused_before_llama_cpp_sees_them(
    make_context: Callable[..., Context], batch: Batch
) -> None:
    context = make_context()
    read(context, batch, TOKENS[:60])
    blob = context.export_range(0, 20, 60)
    for start, n in ((0, 40), (21, 40), (20, 39), (20, 41)):
        with pytest.raises(StateLayoutUnknown):
            stateblob.check(blob, start, n)
    with pytest.raises(StateImportFailed):
        context.import_range(1, blob, 0, 20)


def test_cells_that_lie_in_another_order_come_in_that_of_their_positions(
    make_context: Callable[..., Context], batch: Batch
) -> None:
    context = make_context()
    first, middle, last = TOKENS[:100], TOKENS[100:160], TOKENS[160:220]
    read(context, batch, first, seq=0)
    read(context, batch, first, seq=1)
    context.drop(0)
    read(context, batch, last, seq=2)
    read(context, batch, middle, seq=1, start=100)  # into what the dropped one left
    blob = context.export_range(1, 50, 160)
    with pytest.raises(StateLayoutUnknown, match="other positions"):
        stateblob.check(blob, 50, 110)
    ordered = stateblob.in_order(blob)
    stateblob.check(ordered, 50, 110)
    assert stateblob.in_order(ordered) is ordered
    other = make_context()
    head, tail = stateblob.cut(ordered, 30)
    other.import_range(0, context.export_range(1, 0, 50), 0, 50)
    other.import_range(0, head, 50, 80)
    other.import_range(0, tail, 80, 160)
    live, loaded = (read(c, batch, last, seq=s, start=160) for c, s in ((context, 1), (other, 0)))
    assert np.abs(live - loaded).max() < 2, "a wrong state is off by 3 and more"
