"""State moved to other positions: it is what llama.cpp's own shift gives, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, RopeScalingType
from tests.tiny.models import BATCH, BOUND, Bench, words
from tests.tiny.writer import KV_HEADS, TinyModel

from onceread.native import stateblob
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.errors import NativeError, StateImportFailed, StateLayoutUnknown
from onceread.native.library import lib
from onceread.native.model import MemoryKind, Model
from onceread.native.shift import Shifter, ShiftUnsupported, probe, refusal

pytestmark = pytest.mark.model

PAST, GAP, MORE, OTHER = words(300), words(20), words(3), words(150)
START, SOURCE, N = 20, 100, 200  # the last 200 tokens of PAST, moved behind GAP
STRETCH = PAST[SOURCE:]


def write_plain(path: Path, tokenizer: GGUFReader, *, yarn: bool = False) -> None:
    """Llama's shape."""
    model = TinyModel(path, "llama", tokenizer, layers=4)
    model.head(KV_HEADS)
    if yarn:
        model.file.add_rope_scaling_type(RopeScalingType.YARN)
        model.file.add_rope_scaling_factor(4.0)
        model.file.add_rope_scaling_orig_ctx_len(2048)
    model.norm("output_norm")
    for i in range(model.layers):
        model.norm(f"blk.{i}.attn_norm")
        model.attention(f"blk.{i}", normed=False)
        model.feed_forward(f"blk.{i}")
    model.finish()


@pytest.fixture(scope="module", params=["plain", "yarn"])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path):
    path = tmp_path_factory.mktemp("shift") / f"{request.param}.gguf"
    write_plain(path, GGUFReader(str(smollm2_path)), yarn=request.param == "yarn")
    with Model.load(path) as model:
        assert model.memory_kind is MemoryKind.PLAIN
        yield model


plain = pytest.mark.parametrize("llama", ["plain"], indirect=True)


@pytest.fixture
def bench(llama: Model) -> Iterator[Bench]:
    made = Bench(llama)
    yield made
    made.close()


@pytest.fixture
def shifter(bench: Bench) -> Iterator[Shifter]:
    with Shifter(bench.context) as made:
        yield made


def keys_and_values(blob: bytes) -> bytes:
    """A state without its table of cells, which names sequences and positions."""
    whole = stateblob.layout(blob)
    return blob[whole.tail :]


def relabelled(blob: bytes, by: int) -> bytes:
    """The same keys under other positions: what a shift must not be."""
    whole = stateblob.layout(blob)
    raw = np.frombuffer(blob, np.uint8).copy()
    raw[16 : 16 + whole.cells * whole.cell].view("<i4").reshape(whole.cells, -1)[:, 0] += by
    return raw.tobytes()


# -- it is right --------------------------------------------------------------------


@plain
def test_what_was_read_with_nothing_before_it_is_right_wherever_it_is_moved(
    bench: Bench, shifter: Shifter
) -> None:
    bench.read(STRETCH, 250, 0)
    blob = bench.context.export_range(0, 250, 250 + N)
    shifter.append_moved(1, blob, 250, 0, N)
    assert bench.off(STRETCH, MORE, seq=1) < BOUND
    for by in (-250, -249):  # in name only, and one too far
        bench.context.drop(2)
        moved_in_name = relabelled(blob, by)
        bench.context.import_sequence(2, moved_in_name, N + 250 + by)
        bench.context.drop(3)
        if by == -249:
            again = bench.another()
            with Shifter(again) as other:
                bench.read(MORE[:1], 0, 0, again)
                other.append_moved(0, blob, 250, 1, N)  # turned to 1, used as if it were at 0
                moved_in_name = relabelled(again.export_range(0, 1, 1 + N), -1)
        bench.context.import_sequence(3, moved_in_name, N)
        assert bench.off(STRETCH, MORE, seq=3) > BOUND, "the test can't tell right from wrong"


VARIANTS = pytest.mark.parametrize(
    "kind",
    [
        {"flash_attn": "on"},
        {"flash_attn": "off"},
        {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
        {"flash_attn": "off", "type_k": "q4_0"},
    ],
    ids=["flash attention", "values transposed", "quantized", "quantized keys"],
)


def read(context: Context, batch: Batch, tokens: list[int], pos: int = 0, seq: int = 0) -> np.ndarray:
    batch.clear()
    index = batch.add(tokens, pos, seq, logits_last=True)
    context.decode(batch)
    return context.logits(index)


def shifted_in_place(context: Context, batch: Batch, seq: int, start: int, end: int, by: int) -> bytes:
    """llama.cpp's own shift, of a sequence whose cells nobody shares."""
    lib.llama_memory_seq_add(lib.llama_get_memory(context.handle), seq, start, end, by)
    read(context, batch, [1], 0, context.tmp)
    context.drop(context.tmp)
    return stateblob.in_order(context.export_range(seq, start + by, end + by))


@VARIANTS
@pytest.mark.parametrize("to", [START, 230], ids=["towards the beginning", "away from it"])
def test_it_is_to_the_bit_what_llama_cpp_makes_of_a_whole_sequence(
    make_context: Callable[..., Context], batch: Batch, kind: dict[str, str], to: int
) -> None:
    context, apart = (make_context(n_ctx=1024, **kind) for _ in range(2))
    for one in (context, apart):
        read(one, batch, PAST)
    blob = context.export_range(0, SOURCE, SOURCE + N)
    apart.share(0, 1, SOURCE, SOURCE + N)
    apart.drop(0)
    wanted = shifted_in_place(apart, batch, 1, SOURCE, SOURCE + N, to - SOURCE)
    read(context, batch, PAST[:to], 0, 1)
    with Shifter(context) as shifter:
        shifter.append_moved(1, blob, SOURCE, to, N)
    moved = context.export_range(1, to, to + N)
    assert keys_and_values(moved) == keys_and_values(wanted)
    assert keys_and_values(moved) != keys_and_values(blob), "nothing was turned"


@plain
@pytest.mark.parametrize("cells", [256, 512])
def test_a_long_stretch_goes_in_pieces(bench: Bench, cells: int) -> None:
    long = words(700)
    bench.read(long)
    blob = bench.context.export_range(0, 10, 700)
    states = []
    for size in (cells, 1024):
        context = bench.another()
        with Shifter(context, cells=size) as shifter:
            bench.read(long[:4], context=context)
            shifter.append_moved(0, blob, 10, 4, 690)
        context.verify(0, 694)
        states.append(keys_and_values(context.export_range(0, 4, 694)))
    assert states[0] == states[1]


@plain
def test_a_stretch_at_its_own_place_is_loaded_as_it_is(bench: Bench, shifter: Shifter) -> None:
    bench.read(PAST)
    blob = bench.context.export_range(0, SOURCE, SOURCE + N)
    bench.read(words(SOURCE), 0, 1)
    shifter.append_moved(1, blob, SOURCE, SOURCE, N)
    moved = bench.context.export_range(1, SOURCE, SOURCE + N)
    assert keys_and_values(moved) == keys_and_values(blob)


# -- it disturbs nobody ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"type_k": "q8_0", "type_v": "q8_0"}], ids=["plain", "quantized"])
def test_other_sequences_go_on_to_the_bit_as_if_something_else_had_been_loaded(
    make_context: Callable[..., Context], batch: Batch, kind: dict[str, str]
) -> None:
    logits, states = [], []
    for moves in (True, False):
        context = make_context(n_ctx=1024, **kind)
        read(context, batch, PAST, 0, 0)
        read(context, batch, OTHER, 0, 1)
        blob = context.export_range(0, SOURCE, SOURCE + N)
        if moves:
            with Shifter(context) as shifter:
                read(context, batch, GAP, 0, 2)
                shifter.append_moved(2, blob, SOURCE, START, N)
        else:  # as many cells, by a load of what was not moved
            context.share(0, 2, 0, START)
            read(context, batch, GAP, 0, 3)
            context.import_sequence(2, blob, SOURCE + N)
        states.append([context.export_range(0, 0, 300), context.export_range(1, 0, 150)])
        logits.append([read(context, batch, MORE, 300, 0), read(context, batch, MORE, 150, 1)])
    assert states[0] == states[1]
    assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))


@plain
def test_the_result_can_be_shared_and_exported_at_once(bench: Bench, shifter: Shifter) -> None:
    context = bench.context
    bench.read(PAST)
    bench.read(GAP, 0, 1)
    blob = context.export_range(0, SOURCE, SOURCE + N)
    shifter.append_moved(1, blob, SOURCE, START, N)
    context.verify(1, START + N)
    context.share_all(1, 2)
    whole = context.export_range(1, 0, START + N)
    bench.read(MORE, START + N, 3)  # a decode in between: nothing is left to be turned
    assert context.export_range(1, 0, START + N) == whole
    assert context.export_range(2, 0, START + N) == whole
    elsewhere = bench.another()
    elsewhere.import_sequence(0, whole, START + N)
    live, shared = (bench.read(MORE, START + N, seq) for seq in (1, 2))
    loaded = bench.read(MORE, START + N, 0, elsewhere)
    assert np.abs(live - loaded).max() < BOUND
    assert np.abs(live - shared).max() < BOUND
    assert bench.off(PAST, MORE, 0) < BOUND, "the source has suffered"
    # In the target's place the stretch attended to other text: it is near, and not the same.
    assert np.abs(live - bench.cold(GAP + STRETCH + MORE)).max() > BOUND


# -- it refuses -----------------------------------------------------------------------


@plain
def test_what_does_not_fit_is_refused_and_leaves_everything_as_it_was(bench: Bench, shifter: Shifter) -> None:
    context = bench.context
    bench.read(PAST)
    bench.read(GAP, 0, 1)
    blob = context.export_range(0, SOURCE, SOURCE + N)
    before = context.export_range(1, 0, START)
    size = context.n_ctx
    for error, arguments in [
        (StateImportFailed, (blob, SOURCE, START - 1, N)),  # the sequence does not end there
        (StateImportFailed, (blob, SOURCE, START + 1, N)),
        (StateImportFailed, (blob, SOURCE, size - N + 1, N)),  # beyond the context
        (StateImportFailed, (blob, SOURCE, -1, N)),
        (StateImportFailed, (blob, SOURCE, START, 0)),
        (StateLayoutUnknown, (blob, SOURCE + 1, START, N)),  # other positions than it holds
        (StateLayoutUnknown, (blob, SOURCE, START, N - 1)),
        (NativeError, (blob[:-1], SOURCE, START, N)),
        (NativeError, (blob[: len(blob) // 2], SOURCE, START, N)),
        (StateLayoutUnknown, (b"", SOURCE, START, N)),
    ]:
        with pytest.raises(error):
            shifter.append_moved(1, *arguments)
        context.verify(1, START)
    assert context.export_range(1, 0, START) == before
    shifter.append_moved(1, blob, SOURCE, START, N)
    context.verify(1, START + N)


@plain
def test_without_room_the_sequence_is_as_it_was(bench: Bench, shifter: Shifter) -> None:
    context = bench.context
    bench.read(PAST)
    blob = context.export_range(0, 0, 300)
    for seq, n in ((1, 300), (2, 300)):
        bench.read(words(n), 0, seq)
    with pytest.raises(StateImportFailed):  # 124 cells are free
        shifter.append_moved(3, blob, 0, 0, 300)
    assert context.length(3) == 0
    context.truncate(2, 136)  # 288 are free: the first of two pieces finds room, the second does not
    with Shifter(context, cells=256) as small, pytest.raises(StateImportFailed):
        small.append_moved(2, blob, 0, 136, 300)
    context.verify(2, 136)
    context.drop(1)
    shifter.append_moved(3, blob, 0, 0, 300)
    context.verify(3, 300)


def test_memories_that_are_not_plain_are_refused_whatever_llama_cpp_says(tiny: Model) -> None:
    bench = Bench(tiny)
    try:
        with pytest.raises(ShiftUnsupported, match="not plain attention"):
            Shifter(bench.context)
    finally:
        bench.close()


@plain
def test_keys_that_llama_cpp_would_abort_on_are_refused(llama: Model) -> None:
    assert refusal(llama, "f16") is None
    assert "bf16" in (refusal(llama, "bf16") or "")
    with Context(llama, ContextParams(512, 3, type_k="bf16")) as context, pytest.raises(ShiftUnsupported):
        Shifter(context)


@pytest.mark.parametrize("llama", ["yarn"], indirect=True)
def test_a_rope_with_a_magnitude_is_refused_by_its_name_and_seen_by_the_probe(bench: Bench) -> None:
    with pytest.raises(ShiftUnsupported, match="yarn"):
        Shifter(bench.context)
    with pytest.raises(ShiftUnsupported, match="off"):
        probe(bench.context)


@plain
def test_the_probe_passes_where_all_is_well(bench: Bench) -> None:
    assert bench.params.n_batch == BATCH
    probe(bench.context)


def test_the_probe_passes_on_a_real_model(make_context: Callable[..., Context]) -> None:
    probe(make_context())
