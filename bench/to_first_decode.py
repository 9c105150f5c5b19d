"""Our own time from a request's arrival to its first llama_decode, where the whole prompt is cached.

    python bench/to_first_decode.py [--passes 20] [--profile]

A chat of about 6,000 tokens, with tools, in the context of a server in this process; the same request again and
again. Prints the median and the worst of the time from the last byte of the body to the first decode, and what of
it passed before the prompt was in tokens, and before the engine had it. ``--profile`` prints where it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import sys
import time
from typing import Any

import httpx

from agentlike import prose, tools
from demo_model import demo_model_path

sys.path.insert(0, str(__import__("pathlib").Path(__file__).resolve().parent.parent))
from tests.server.live import serving

from onceread.engine.engine import Engine, EngineConfig
from onceread.native.context import Context
from onceread.native.model import Model
from onceread.server.app import create_app
from onceread.server.settings import Settings


class Clock:
    """When what happened, for the request that is being served."""

    def __init__(self, app: Any) -> None:
        self.marks: dict[str, float] = {}
        self._app = app
        decode, submit = Context.decode, Engine.submit

        def timed_decode(context: Context, batch: Any) -> None:
            self.marks.setdefault("decode", time.perf_counter())
            decode(context, batch)

        def timed_submit(engine: Engine, *args: Any, **more: Any) -> Any:
            self.marks.setdefault("tokens", time.perf_counter())
            handle = submit(engine, *args, **more)
            self.marks.setdefault("engine", time.perf_counter())
            return handle

        Context.decode, Engine.submit = timed_decode, timed_submit  # type: ignore[method-assign]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noting() -> Any:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                self.marks = {"body": time.perf_counter()}
            return message

        await self._app(scope, noting, send)


def conversation(rng: random.Random, words: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": prose(rng, words)}]
    for i in range(10):
        role = "user" if i % 2 == 0 else "assistant"
        messages.append({"role": role, "content": prose(rng, 60)})
    messages.append({"role": "user", "content": prose(rng, 30)})
    return {"messages": messages, "tools": tools(rng, 20), "max_tokens": 4, "temperature": 0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--words", type=int, default=1500, help="of the system message")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--face", default="/v1/chat/completions")
    given = parser.parse_args()
    body = conversation(random.Random(1), given.words)
    profile = cProfile.Profile()
    with (
        Model.load(demo_model_path()) as model,
        Engine(model, EngineConfig(ctx_size=8192)) as engine,
    ):
        clock = Clock(create_app(engine, model, Settings()))
        with serving(clock) as url, httpx.Client(base_url=url, timeout=300) as client:
            spans: list[dict[str, float]] = []
            for i in range(given.passes + 2):
                answer = client.post(given.face, json=body)
                answer.raise_for_status()
                usage = answer.json()["usage"]
                if i >= 2:
                    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] == 1
                    spans.append({k: 1000 * (v - clock.marks["body"]) for k, v in clock.marks.items()})
            if given.profile:
                from onceread.server import chat_turn

                made = chat_turn.ChatTurn.request

                def profiled(turn: chat_turn.ChatTurn) -> Any:
                    return profile.runcall(made, turn)

                chat_turn.ChatTurn.request = profiled  # type: ignore[method-assign]
                for _ in range(10):
                    client.post(given.face, json=body)
                pstats.Stats(profile).sort_stats("cumulative").print_stats(25)
    print(f"{usage['prompt_tokens']} tokens, all but one cached; milliseconds from the body's last byte")
    for name in ("tokens", "engine", "decode"):
        values = [span[name] for span in spans]
        print(f"  {name:8} median {statistics.median(values):6.1f}   worst {max(values):6.1f}")


if __name__ == "__main__":
    main()
