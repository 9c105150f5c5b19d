"""What a model's memory takes: bytes of segments and checkpoints, times to take and restore them, decode speed.

    python bench/memories.py MODEL.gguf [--tokens 2048] [--ctx-size 8192, at least twice the tokens] [--passes 3]

For models whose memory can't be cut: sliding windows, recurrent, hybrid. The small and the full-size window
cache take turns, each pass in a process of its own with nothing else alive; decode speeds are the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceread.engine.config import default_threads
from onceread.native import checkpoints
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model

SENTENCE = "Sailors followed fires on hills, and every village kept its own watch over the sea. "
SEQUENCES = 9
SLICE = 512


def resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def milliseconds(act: Callable[[], object], times: int = 5) -> float:
    act()
    start = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - start) / times * 1e3


def measure(path: Path, n: int, ctx_size: int, swa_full: bool) -> dict[str, Any]:
    threads = default_threads()
    with Model.load(path) as model:
        tokens = model.vocab.tokenize(SENTENCE * (n // 8), add_special=True, parse_special=True)[: n + 64]
        before = resident_mib()
        params = ContextParams(
            ctx_size,
            SEQUENCES,
            n_threads=threads,
            n_threads_batch=threads,
            swa_full=swa_full,
        )
        with Context(model, params) as context:
            batch = Batch(SLICE)
            for i in range(0, n, SLICE):
                batch.clear()
                batch.add(tokens[i : min(n, i + SLICE)], i, 0, logits_last=True)
                context.decode(batch)

            def rate(sequences: range, steps: int = 48) -> float:
                start = time.perf_counter()
                for i in range(steps):
                    batch.clear()
                    for seq in sequences:
                        batch.add_one(tokens[100 + i], n + i, seq)
                    context.decode(batch)
                return steps * len(sequences) / (time.perf_counter() - start)

            part = checkpoints.checkpoint(context, 0, n)
            edges = range(0, n, 256)
            segments = [
                (a, min(n, a + 256), checkpoints.segment(context, 0, a, min(n, a + 256))) for a in edges
            ]
            figures: dict[str, Any] = {
                "checkpoint bytes": len(part),
                "segment bytes a token": sum(len(blob) for _, _, blob in segments) / n,
                "window room": checkpoints.window_room(context),
                "checkpoint ms": milliseconds(lambda: checkpoints.checkpoint(context, 0, n)),
                "segment of 256 ms": milliseconds(lambda: checkpoints.segment(context, 0, 0, 256)),
                "branch ms": milliseconds(lambda: checkpoints.branch(context, 0, 1, part, n)),
                "rewind ms": milliseconds(lambda: checkpoints.settle(context, 1, part, n)),
                "restore ms": milliseconds(lambda: checkpoints.restore(context, 2, segments, part, n)),
            }
            context.drop(1)
            context.drop(2)
            figures["decode 1"] = rate(range(1))
            checkpoints.settle(context, 0, part, n)
            for seq in (1, 2, 3):
                checkpoints.branch(context, 0, seq, part, n)
            figures["decode 4"] = rate(range(4))
            for seq in range(4):
                checkpoints.settle(context, seq, part, n)
            figures["decode 1 beside 3 idle"] = rate(range(1))
            figures["MiB of the context"] = resident_mib() - before
            batch.close()
            return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--ctx-size", type=int, default=8192)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--one", choices=["small", "full"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.model, args.tokens, args.ctx_size, args.one == "full")))
        return
    found: dict[str, list[dict[str, float]]] = {"small": [], "full": []}
    for _ in range(args.passes):
        for kind, passes in found.items():
            command = [sys.executable, __file__, str(args.model), "--one", kind]
            command += ["--tokens", str(args.tokens), "--ctx-size", str(args.ctx_size)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            passes.append(json.loads(output))
    print(f"| {args.model.name}, {args.tokens} tokens | small windows | full size |\n| --- | ---: | ---: |")
    for name in found["small"][0]:
        small, full = (statistics.median(one[name] for one in passes) for passes in found.values())
        print(f"| {name} | {small:,.1f} | {full:,.1f} |")


if __name__ == "__main__":
    main()
