"""Ten seconds of computing: how fast this machine reads prompts and writes replies with this model."""

from __future__ import annotations

import time
from pathlib import Path

from onceread.cli.doctor.finding import Finding, bad, ok, warn
from onceread.cli.errors import one_line
from onceread.engine.config import default_threads
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.errors import NativeError
from onceread.native.model import Model

_PROMPT = 512  # tokens, if there is time
_SLICE = 128
_REPLY = 96
_PREFILL_SECONDS = 5.0
_DECODE_SECONDS = 4.0
_SLOW = 2.0  # tokens a second: slower than anybody reads
_TEXT = "The harbour was quiet, and the boats lay side by side under a pale sky. "


def speed(path: Path, gpu_layers: int = 0) -> Finding:
    """Prefill and decode in tokens a second. Says nothing of a machine that is busy with other things."""
    threads = default_threads()
    params = ContextParams(
        n_ctx=1024, n_seq_max=2, n_batch=_SLICE, n_threads=threads, n_threads_batch=threads
    )
    try:
        with Model.load(path, gpu_layers=gpu_layers) as model, Context(model, params) as context:
            tokens = model.vocab.tokenize(_TEXT * 64, add_special=True, parse_special=False)[:_PROMPT]
            batch = Batch(_SLICE)
            try:
                read, prefill = _prefill(context, batch, tokens)
                written, decode = _decode(context, batch, read)
            finally:
                batch.close()
            name = model.name
    except NativeError as error:
        return bad("speed", one_line(error), "onceread models inspect shows what is wrong with the file")
    data = {
        "model": name,
        "prefill_tokens": read,
        "prefill_per_second": round(prefill, 1),
        "decode_tokens": written,
        "decode_per_second": round(decode, 1),
        "threads": threads,
    }
    text = (
        f"{name}: prompts {data['prefill_per_second']:,} tokens/s, replies {data['decode_per_second']:,} tokens/s "
        f"with {threads} threads"
    )
    if decode < _SLOW:
        return warn(
            "speed",
            f"{text}: too slow to talk to",
            "use a smaller model or quantization, a GPU, or see above what else keeps the machine busy",
            **data,
        )
    return ok("speed", text, **data)


def _prefill(context: Context, batch: Batch, tokens: list[int]) -> tuple[int, float]:
    """How many tokens were read, and tokens a second. If there are several slices, the first one only warms up."""
    began = time.monotonic()
    at, counted_from, timed_from = 0, 0, began
    while at < len(tokens) and time.monotonic() - began < _PREFILL_SECONDS:
        piece = tokens[at : at + _SLICE]
        batch.clear()
        batch.add(piece, at, 0, logits_last=True)
        context.decode(batch)
        context.logits(len(piece) - 1)  # waits until it is computed
        now = time.monotonic()
        if at == 0 and len(piece) < len(tokens) and now - began < _PREFILL_SECONDS / 2:
            counted_from, timed_from = len(piece), now
        at += len(piece)
    return at, (at - counted_from) / max(time.monotonic() - timed_from, 1e-6)


def _decode(context: Context, batch: Batch, at: int) -> tuple[int, float]:
    """How many tokens were written, and tokens a second."""
    began, written, token = time.monotonic(), 0, 0
    while written < _REPLY and time.monotonic() - began < _DECODE_SECONDS:
        batch.clear()
        index = batch.add_one(token, at + written, 0)
        context.decode(batch)
        token = int(context.logits(index).argmax())
        written += 1
    return written, written / max(time.monotonic() - began, 1e-6)
