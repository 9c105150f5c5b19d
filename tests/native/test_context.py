"""Sequences and their state as bytes, on the real model: what must hold and what must be refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onceread.native.batch import Batch
from onceread.native.context import Context
from onceread.native.errors import (
    BatchInvalid,
    ContextTooLarge,
    NoRoom,
    SequenceIdInvalid,
    StateExportFailed,
    StateImportFailed,
)
from onceread.native.model import Model

pytestmark = pytest.mark.model
MakeContext = Callable[..., Context]


def read(context: Context, batch: Batch, tokens: list[int], pos: int = 0, seq: int = 0) -> np.ndarray:
    batch.clear()
    index = batch.add(tokens, pos, seq, logits_last=True)
    context.decode(batch)
    return context.logits(index)


@pytest.fixture
def tokens(model: Model) -> list[int]:
    text = "Sailors followed fires on hills, and every village kept its own watch. " * 4
    return model.vocab.tokenize(text, add_special=True, parse_special=True)[:48]


def test_a_shared_prefix_gives_the_logits_of_a_fresh_reading(
    make_context: MakeContext, batch: Batch, tokens: list[int]
) -> None:
    fresh = read(make_context(), batch, tokens)
    context = make_context()
    read(context, batch, [*tokens[:40], 5, 6, 7], seq=0)
    context.share(0, 1, 0, 40)
    warm = read(context, batch, tokens[40:], pos=40, seq=1)
    assert np.abs(warm - fresh).max() < 2.0
    wrong = read(context, batch, tokens[40:], pos=40, seq=_wrong_prefix(context, batch, tokens))
    assert np.abs(wrong - fresh).max() > 2.0, "the bound could not tell a wrong prefix"


def _wrong_prefix(context: Context, batch: Batch, tokens: list[int]) -> int:
    read(context, batch, [*tokens[:20], 9, *tokens[21:39], 11], seq=2)
    return 2


def test_a_range_goes_out_as_bytes_and_comes_back(
    make_context: MakeContext, batch: Batch, tokens: list[int]
) -> None:
    context = make_context()
    live = read(context, batch, tokens)
    context.truncate(0, 47)
    first, second = context.export_range(0, 0, 32), context.export_range(0, 32, 47)
    again = read(context, batch, tokens[47:], pos=47)
    other = make_context()
    other.import_range(3, first, 0, 32)
    other.import_range(3, second, 32, 47)
    loaded = read(other, batch, tokens[47:], pos=47, seq=3)
    assert np.array_equal(loaded, again), "same layout and batch shape must be bit-equal"
    assert np.abs(loaded - live).max() < 2.0


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda b: b[:-1], id="a byte short"),
        pytest.param(lambda b: b + b"\0", id="a byte long"),
        pytest.param(lambda b: b"", id="empty"),
        pytest.param(lambda b: b"GGUF" + b[4:], id="another magic"),
        pytest.param(lambda b: b[: len(b) // 2], id="half"),
    ],
)
def test_a_damaged_blob_is_refused_and_the_others_are_unharmed(
    make_context: MakeContext, batch: Batch, tokens: list[int], damage: Callable[[bytes], bytes]
) -> None:
    context = make_context()
    read(context, batch, tokens, seq=0)
    blob = context.export_range(0, 0, 20)
    with pytest.raises(StateImportFailed):
        context.import_range(1, damage(blob), 0, 20)
    assert context.length(0) == len(tokens)
    assert context.length(1) == 0
    assert context.length(context.tmp) == 0
    context.import_range(1, blob, 0, 20)
    assert context.length(1) == 20


def test_a_blob_of_another_place_is_refused(
    make_context: MakeContext, batch: Batch, tokens: list[int]
) -> None:
    context = make_context()
    read(context, batch, tokens)
    tail = context.export_range(0, 20, 40)
    with pytest.raises(StateImportFailed, match="ends at 0, not at 20"):
        context.import_range(1, tail, 20, 40)
    with pytest.raises(StateImportFailed, match="does not hold"):
        context.import_range(1, tail, 0, 20)
    assert context.length(1) == 0
    with pytest.raises(StateExportFailed):
        context.export_range(0, 40, 60)


@pytest.mark.parametrize("seq", [-1, 6, 255, 256, 100_000])
def test_sequence_ids_are_checked_before_llama_sees_them(make_context: MakeContext, seq: int) -> None:
    context = make_context()
    for call in (
        lambda: context.drop(seq),
        lambda: context.share(0, seq, 0, 4),
        lambda: context.share(seq, 0, 0, 4),
        lambda: context.length(seq),
        lambda: context.truncate(seq, 0),
    ):
        with pytest.raises(SequenceIdInvalid):
            call()


def test_too_many_sequences_are_refused(make_context: MakeContext) -> None:
    with pytest.raises(SequenceIdInvalid):
        make_context(n_seq_max=257)


def test_a_full_context_says_so_and_stays_usable(
    make_context: MakeContext, batch: Batch, tokens: list[int]
) -> None:
    context = make_context(n_ctx=256)
    for seq in range(5):
        read(context, batch, tokens, seq=seq)
    with pytest.raises(NoRoom):
        read(context, batch, tokens, pos=len(tokens), seq=0)
    context.drop(1)
    read(context, batch, tokens[:20], pos=len(tokens), seq=0)


def test_a_gap_in_positions_is_refused(make_context: MakeContext, batch: Batch, tokens: list[int]) -> None:
    context = make_context()
    read(context, batch, tokens)
    with pytest.raises(BatchInvalid):
        read(context, batch, tokens[:4], pos=len(tokens) + 5)
    assert context.length(0) == len(tokens)


def test_a_context_that_can_not_be_made_is_one_clear_line(make_context: MakeContext) -> None:
    with pytest.raises(ContextTooLarge, match="--ctx-size") as caught:
        make_context(n_ctx=512, type_v="q4_0", flash_attn="off")
    assert "\n" not in str(caught.value)
