"""Eight threads that stream from one `Llama`, against a bare llama_decode loop at batch 8 and one thread, in one run.

    python bench/threads_on_one_llama.py [--passes 3] [--threads N] [--decode 96]

Each measurement is a process of its own, with nothing else alive, and they take turns. Eight callers have short
prompts and no two the same; what counts is from when all of them write to when the first one is done, so that
every step is a batch of eight. The bare loop decodes eight sequences of the same lengths with llama.cpp's greedy
sampler and does nothing else. Prints tokens a second and both ratios. The promise: at least 0.9 of the bare loop,
and at least 1.4 times one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from demo_model import demo_model_path
from onceread import Llama
from onceread.engine.config import default_threads
from onceread.native.batch import Batch
from onceread.native.context import Context, ContextParams
from onceread.native.model import Model
from onceread.native.params import SamplingParams
from onceread.native.samplers import Sampler

CALLERS = 8
CTX = 4096
PROMPT = 24  # tokens
GREEDY = SamplingParams(temperature=0)
SENTENCE = "Sailors followed fires on hills, and every village kept its own watch over the sea. "


def prompts(model: Model) -> list[list[int]]:
    tokens = model.vocab.tokenize(SENTENCE * 20, add_special=False, parse_special=False)
    return [tokens[7 * i : 7 * i + PROMPT] for i in range(CALLERS)]


def ours(model_path: Path, threads: int, n: int, callers: int) -> float:
    """Tokens a second of all callers, each on a thread of its own, streaming."""
    times: list[list[float]] = [[] for _ in range(callers)]
    with Llama(
        model_path, n_ctx=CTX, parallel=CALLERS, n_threads=threads, n_threads_batch=threads, verbose=False
    ) as llm:

        def call(which: int, prompt: list[int]) -> None:
            for chunk in llm(prompt, max_tokens=n, temperature=0, stream=True, ignore_eos=True):
                if chunk["choices"][0]["text"]:  # one token: in these texts each is whole characters
                    times[which].append(time.perf_counter())

        given = prompts(llm._serving.model)[:callers]
        workers = [threading.Thread(target=call, args=each) for each in enumerate(given)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    begin = max(each[0] for each in times)
    end = min(each[-1] for each in times)
    return sum(begin < at <= end for each in times for at in each) / (end - begin)


def bare(model: Model, threads: int, n: int) -> float:
    """Tokens a second of llama_decode over batches of eight, with a greedy sampler for each."""
    params = ContextParams(n_ctx=CTX, n_seq_max=CALLERS + 1, n_threads=threads, n_threads_batch=threads)
    batch = Batch(512)
    samplers = [Sampler(model.vocab, GREEDY, n_ctx=CTX, ignore_eos=True) for _ in range(CALLERS)]
    with Context(model, params) as context:
        pending = []
        for seq, prompt in enumerate(prompts(model)):
            batch.clear()
            index = batch.add(prompt, 0, seq, logits_last=True)
            context.decode(batch)
            pending.append(samplers[seq].sample(context, index))
        start = time.perf_counter()
        for step in range(n - 1):
            batch.clear()
            for seq in range(CALLERS):
                batch.add_one(pending[seq], PROMPT + step, seq)
            context.decode(batch)
            pending = [sampler.sample(context, i) for i, sampler in enumerate(samplers)]
        seconds = time.perf_counter() - start
    for sampler in samplers:
        sampler.close()
    batch.close()
    return CALLERS * (n - 1) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=default_threads(), help="of ggml")
    parser.add_argument("--decode", type=int, default=96, help="tokens of each reply")
    parser.add_argument("--only", choices=["eight", "one", "bare"], help="one measurement")
    args = parser.parse_args()
    if args.only:
        if args.only == "bare":
            with Model.load(demo_model_path()) as model:
                rate = bare(model, args.threads, args.decode)
        else:
            callers = CALLERS if args.only == "eight" else 1
            rate = ours(demo_model_path(), args.threads, args.decode, callers)
        print(json.dumps(rate))
        return
    print(
        f"{demo_model_path().name}, {args.threads} threads of ggml, replies of {args.decode} tokens, greedy"
    )
    rates: dict[str, list[float]] = {"bare": [], "eight": [], "one": []}
    for number in range(args.passes):
        for kind in rates if number % 2 else reversed(rates):
            command = [sys.executable, __file__, "--only", kind]
            command += ["--threads", str(args.threads), "--decode", str(args.decode)]
            rates[kind].append(json.loads(subprocess.check_output(command)))
        print(f"pass {number + 1}: " + line({kind: each[-1:] for kind, each in rates.items()}))
    print("median: " + line(rates))


def line(rates: dict[str, list[float]]) -> str:
    eight, one, plain = (statistics.median(rates[kind]) for kind in ("eight", "one", "bare"))
    of_bare = statistics.median(a / b for a, b in zip(rates["eight"], rates["bare"], strict=True))
    of_one = statistics.median(a / b for a, b in zip(rates["eight"], rates["one"], strict=True))
    return (
        f"eight threads {eight:6.1f}, bare loop {plain:6.1f}, one thread {one:6.1f} tokens/s; "
        f"{of_bare:.3f} of the bare loop, {of_one:.2f} x one thread"
    )


if __name__ == "__main__":
    main()
