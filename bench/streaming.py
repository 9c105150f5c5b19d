"""How fast streams run through the server, against the engine alone, for several thread counts.

    python bench/streaming.py [--threads 1 2] [--streams 1 4] [--wait active passive]

Prints tokens a second in all, for the engine in this process and for clients of a server. The clients are
one process with one thread each; their work is part of what is measured, as it is on anyone's machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import httpx

from demo_model import demo_model_path
from live_server import live_server

TOKENS = 120
PROMPT = "The keeper of the lighthouse wrote that"


def stream(url: str, seed: int, starts: list[float], ends: list[float]) -> None:
    body = {
        "prompt": PROMPT, "max_tokens": TOKENS, "seed": seed,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                (starts if len(starts) < 1 else ends).append(time.perf_counter())


def through_server(url: str, streams: int) -> float:
    times = [([], []) for _ in range(streams)]  # type: list[tuple[list[float], list[float]]]
    threads = [threading.Thread(target=stream, args=(url, i, *times[i])) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    first = max(starts[0] for starts, _ in times)
    last = max(ends[-1] for _, ends in times)
    return streams * (TOKENS - 1) / (last - first)


def engine_alone(threads: int, streams: int) -> float:
    from onceread.engine.engine import Engine, EngineConfig
    from onceread.engine.request import Request, gather
    from onceread.native.model import Model
    from onceread.native.params import SamplingParams

    with (
        Model.load(demo_model_path()) as model,
        Engine(model, EngineConfig(ctx_size=4096, threads=threads)) as engine,
    ):
        prompt = tuple(
            model.vocab.tokenize(
                "The keeper of the lighthouse wrote that", add_special=True, parse_special=True
            )
        )
        rates = []
        for seed in range(4):
            usage = gather(
                engine.submit(Request(prompt, SamplingParams(seed=seed), TOKENS, n=streams, ignore_eos=True))
            ).usage
            rates.append((usage.completion_tokens - streams) / usage.decode_seconds)
        return statistics.median(rates[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--wait", nargs="+", default=["active"], choices=["active", "passive"])
    parser.add_argument("--alone", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(engine_alone(*args.alone)))
        return
    print("| threads | waiting | streams | engine alone | through the server | ratio |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for threads in args.threads:
        for wait in args.wait:
            environment = {} if wait == "active" else {"OMP_WAIT_POLICY": "passive"}
            alone = {}
            for streams in args.streams:
                command = [sys.executable, __file__, "--alone", str(threads), str(streams)]
                alone[streams] = json.loads(
                    subprocess.check_output(command, env={**os.environ, **environment})
                )
            with live_server("--threads", str(threads), "--ctx-size", "4096", environment=environment) as url:
                for streams in args.streams:
                    served = statistics.median(through_server(url, streams) for _ in range(4))
                    print(
                        f"| {threads} | {wait} | {streams} | {alone[streams]:.1f} | {served:.1f} "
                        f"| {served / alone[streams]:.2f} |"
                    )


if __name__ == "__main__":
    main()
