"""One record a model: what it is, how large, in which files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onceread.models.errors import GgufInvalid
from onceread.models.gguf_header import Header, LongArray, read_header
from onceread.models.gguf_types import FILE_TYPES
from onceread.models.names import quant_of
from onceread.models.places import Found
from onceread.models.state import MOST_LAYERS, StateSize, state_size


@dataclass(frozen=True, slots=True)
class Record:
    """A model. Of one that can't be read, only what its files' names and sizes tell, and the ``problem``."""

    name: str  # what --model takes
    place: str
    paths: tuple[Path, ...]
    size_bytes: int  # of all files
    problem: str | None = None
    title: str | None = None  # general.name
    architecture: str | None = None
    quantization: str | None = None
    tensor_types: dict[str, float] | None = None  # share of the weights
    parameters: int | None = None
    context_length: int | None = None  # trained
    vocabulary: int | None = None
    state: StateSize | None = None

    def needed_bytes(self, tokens: int) -> int | None:
        """RAM for the weights and the state of so many tokens; None if that can't be said."""
        return None if self.state is None else self.size_bytes + self.state.for_context(tokens)


def catalog(found: Iterable[Found]) -> Iterator[Record]:
    """Read each model's header, in order."""
    for one in found:
        yield record(one)


def record(found: Found) -> Record:
    """What a model's files say of it. Never raises for what is wrong with them: that is its ``problem``."""
    size = 0
    try:
        size = sum(path.stat().st_size for path in found.paths)
        headers = [read_header(path) for path in found.paths]
    except (GgufInvalid, OSError) as error:
        why = str(error) if isinstance(error, GgufInvalid) else f"{error.filename}: {error.strerror}"
        return Record(found.name, found.place, found.paths, size, why, quantization=quant_of(found.path.name))
    first = headers[0]
    types = tensor_types(headers)
    return Record(
        name=found.name,
        place=found.place,
        paths=found.paths,
        size_bytes=size,
        problem=_problem(found, headers),
        title=first.text("general.name"),
        architecture=first.text("general.architecture"),
        quantization=quantization(first, types),
        tensor_types=types,
        parameters=sum(tensor.weights for header in headers for tensor in header.tensors),
        context_length=first.number(first.of("context_length")) or None,
        vocabulary=vocabulary(first),
        state=state_size(first),
    )


def _problem(found: Found, headers: list[Header]) -> str | None:
    if not found.is_whole:
        return f"{len(found.paths)} of {found.parts} files are here"
    for header in headers:
        if header.missing_bytes:
            return f"{header.path.name} is torn: {header.missing_bytes:,} bytes are missing at its end"
    if headers[0].text("general.type") not in (None, "model"):
        return f"it is no model but a GGUF of the type {headers[0].text('general.type')!r}"
    if not headers[0].text("general.architecture"):
        return "it names no architecture: it is no model"
    return _crash(headers[0])


def _crash(header: Header) -> str | None:
    """What would end the process in llama.cpp."""
    layers = header.numbers(header.of("block_count"))
    if layers and not 0 < max(layers) <= MOST_LAYERS:
        return f"it claims to have {max(layers):,} layers, and llama.cpp loads 1 to {MOST_LAYERS}"
    if header.numbers(header.of("full_attention_interval")) == [0]:
        return "it claims that each 0th layer has attention"
    return None


def tensor_types(headers: Iterable[Header]) -> dict[str, float]:
    """Which share of the weights is of which type, the largest first."""
    weights: dict[str, int] = {}
    for header in headers:
        for tensor in header.tensors:
            weights[tensor.type] = weights.get(tensor.type, 0) + tensor.weights
    total = sum(weights.values())
    by_share = sorted(weights.items(), key=lambda item: -item[1])
    return {name: n / total for name, n in by_share} if total else {}


def quantization(header: Header, types: dict[str, float]) -> str | None:
    """What people call it: by the file's own word where the tensors bear it out, else by most of the weights."""
    file_type = header.metadata.get("general.file_type")
    said = FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
    if not types:
        return said
    most = next(iter(types))
    if said is not None and any(said == one or said.startswith(f"{one}_") for one in types):
        return said
    # Mixtures are named for their size (IQ2_M is mostly IQ2_S, …): the family must agree.
    return said if said is not None and said[:3] == most[:3] else most


def vocabulary(header: Header) -> int | None:
    """How many tokens there are."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, LongArray):
        return tokens.length
    return len(tokens) if isinstance(tokens, list) else None
