"""How far warm answers are from cold ones, in the default mode and in exact mode, and what exact mode costs.

    python bench/exactness.py [--prompts 12]

Each prompt is read in an empty engine, answered, and asked again while its state is in the context, and once
more from RAM. Compared are the log probabilities of the chosen tokens as long as the texts agree, and the texts.
Both modes are measured in turns; the speeds are of the same run.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from statistics import median

from demo_model import demo_model_path
from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Completed, Request, gather
from onceread.native.model import Model
from onceread.native.params import SamplingParams

REPLY = 32
GREEDY = SamplingParams(temperature=0)
TEXT = (
    "In 1716 the first tower was built on the island of Little Brewster, near Boston, and a keeper lived there "
    "with his family. He lit candles, later oil lamps, and he walked the rocks at night. His log says little of "
    "storms and much of the price of bread. "
)


@dataclass
class Found:
    """Of one mode."""

    equal_greedy: int = 0
    equal_sampled: int = 0
    asked: int = 0
    differences: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)  # tokens a second
    decode: list[float] = field(default_factory=list)


def ask(engine: Engine, prompt: tuple[int, ...], sampling: SamplingParams) -> Completed:
    done = gather(engine.submit(Request(prompt, sampling, REPLY, logprobs=0, ignore_eos=True)))
    engine.clear({"nobody"})  # returns when what follows the reply is done
    return done


def compare(found: Found, cold: Completed, warm: Completed, *, sampled: bool) -> None:
    pairs = list(zip(cold.logprobs[0], warm.logprobs[0], strict=True))
    equal = all(a.token == b.token for a, b in pairs)
    if sampled:
        found.equal_sampled += equal
        return
    found.asked += 1
    found.equal_greedy += equal
    for a, b in pairs:
        if a.token != b.token:
            break
        found.differences.append(abs(a.logprob - b.logprob))


def measure(engine: Engine, found: Found, prompt: tuple[int, ...], other: tuple[int, ...]) -> None:
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=7)):
        engine.clear(None)
        cold = ask(engine, prompt, sampling)
        usage = cold.usage
        if sampling is GREEDY:
            found.prefill.append(usage.evaluated_tokens / usage.prompt_seconds)
            found.decode.append((REPLY - 1) / usage.decode_seconds)
        compare(found, cold, ask(engine, prompt, sampling), sampled=sampling is not GREEDY)
        ask(engine, other, GREEDY)  # takes the context
        compare(found, cold, ask(engine, prompt, sampling), sampled=sampling is not GREEDY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12)
    given = parser.parse_args()
    rng = random.Random(1)
    with Model.load(demo_model_path()) as model:
        words = model.vocab.tokenize(TEXT * 12, add_special=True, parse_special=True)
        modes = {"default": Found(), "exact": Found()}
        for i in range(given.prompts):
            start = rng.randrange(200)
            prompt, other = tuple(words[start : start + 300 + i]), tuple(words[start + 1 : start + 200])
            for name, found in modes.items():
                config = EngineConfig(
                    ctx_size=2048, cache_ram=1 << 30, resident_cells=0, exact=name == "exact"
                )
                with Engine(model, config) as engine:
                    measure(engine, found, prompt, other)
        print("| mode | greedy texts equal | sampled texts equal | log probability off by, median | at most |"
              " prefill, tokens/s | decode, tokens/s |")  # fmt: skip
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for name, found in modes.items():
            print(
                f"| {name} | {found.equal_greedy} of {found.asked} | {found.equal_sampled} of {found.asked} "
                f"| {median(found.differences):.4f} | {max(found.differences):.4f} "
                f"| {median(found.prefill):.0f} | {median(found.decode):.1f} |"
            )


if __name__ == "__main__":
    main()
