"""What an agent's session costs, request by request, beside what it could cost at best.

    python -m tests.oracle.agent_costs MODEL.gguf [--tools 24] [--turns 15]

Long instructions and many tools, turns of forced tool calls and their results, the calls' arguments written anew by
the client; in between a request for a title and two sub-agents with instructions of their own. Over the HTTP API.
"Ideal" for a turn is what its prompt has beyond what was computed for the turn before it, and for a conversation's
first turn the naive twin's: the tokens that nobody read, and one more for its logits.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.agentlike import prose, tools
from fastapi.testclient import TestClient

from onceread.engine.engine import Engine, EngineConfig
from onceread.engine.request import Request, RequestHandle
from onceread.native.model import Model
from onceread.server.app import create_app
from onceread.server.settings import Settings
from tests.oracle.reference import Trace, recording
from tests.oracle.twin import Twin

ANSWER = 24  # tokens of a reply that calls nothing


class Cost(NamedTuple):
    """One request."""

    what: str
    prompt: int
    evaluated: int
    ideal: int


@dataclass
class Asked:
    """A request that the engine got, and what it did with it."""

    request: Request
    handle: RequestHandle
    traces: dict[tuple[int, int], Trace] = field(repr=False)

    @property
    def computed(self) -> tuple[int, ...]:
        """The tokens that the context has of it now."""
        trace = self.traces[id(self.handle), 0]
        return (*trace.prompt, *trace.tokens)


class Agent:
    """One conversation. The client keeps calls as objects and writes their JSON anew for every request."""

    def __init__(self, session: Session, name: str, system: str, offered: list[dict[str, Any]]) -> None:
        self._session = session
        self.name = name
        self._tools = offered
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        self._computed: int | None = None

    def ask(self, text: str, *, calls: bool) -> None:
        """A message of the user's, the reply to it, and the results of what that calls."""
        self._messages.append({"role": "user", "content": text})
        self._turn(calls=calls)

    def go_on(self, *, calls: bool) -> None:
        """The next step, after results."""
        self._turn(calls=calls)

    def _turn(self, *, calls: bool) -> None:
        body: dict[str, Any] = {"messages": [_written_anew(m) for m in self._messages], "tools": self._tools}
        forced = {"tool_choice": "required", "parallel_tool_calls": False}
        body |= forced if calls else {"tool_choice": "none", "max_tokens": ANSWER}
        message, self._computed = self._session.send(self.name, body, self._computed)
        self._messages.append(message)
        for call in message.get("tool_calls") or []:
            result = prose(self._session.rng, 15)
            self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def _written_anew(message: dict[str, Any]) -> dict[str, Any]:
    """The message as another JSON library would write its calls' arguments."""
    if not message.get("tool_calls"):
        return message
    made = []
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        written = json.dumps(dict(reversed(arguments.items())), separators=(",", ":"), ensure_ascii=True)
        made.append({**call, "function": {**call["function"], "arguments": written}})
    return {**message, "tool_calls": made}


class Session:
    """A server and everything that is asked of it."""

    def __init__(self, client: TestClient, engine: Engine, seed: int) -> None:
        self._client = client
        self._engine = engine
        self._twin = Twin()
        self._asked: list[Asked] = []
        self.rng = random.Random(seed)
        self.costs: list[Cost] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        submit = self._engine.submit

        def noted(request: Request, *args: Any, **more: Any) -> RequestHandle:
            handle = submit(request, *args, **more)
            self._asked.append(Asked(request, handle, traces))
            return handle

        with recording(positions=1 << 30, logits=False) as traces:
            self._engine.submit = noted  # type: ignore[method-assign]
            try:
                yield
            finally:
                self._engine.submit = submit  # type: ignore[method-assign]

    def send(self, what: str, body: dict[str, Any], before: int | None) -> tuple[dict[str, Any], int]:
        """The reply's message, and how many tokens of this conversation were computed by now."""
        body = {"temperature": 0.7, "seed": self.rng.randrange(1 << 30), "prompt_cache_key": "agent", **body}
        answer = self._client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        self._engine.clear({"nobody"})  # what follows the reply is done
        asked, usage = self._asked[-1], said["usage"]
        prompt = usage["prompt_tokens"]
        evaluated = prompt - usage["prompt_tokens_details"]["cached_tokens"]
        ideal = self._twin.evaluated(asked.request.prompt) if before is None else prompt - before
        self.costs.append(Cost(what, prompt, evaluated, ideal))
        self._twin.read(asked.computed)
        return said["choices"][0]["message"], len(asked.computed)


def costs(
    model: Model, engine: Engine, *, template: str | None = None, n_tools: int, words: int, turns: int
) -> list[Cost]:
    """Run a session of an agent with ``turns`` steps."""
    client = TestClient(create_app(engine, model, Settings(chat_template=template)))
    session = Session(client, engine, seed=5)
    rng = session.rng
    offered = tools(rng, n_tools)
    with session.watching():
        main = Agent(session, "agent", prose(rng, words), offered)
        helpers = [
            Agent(session, f"sub-agent {i + 1}", prose(rng, words // 6), offered[:4]) for i in range(2)
        ]
        for turn in range(turns):
            if turn % 5 == 0:
                main.ask(prose(rng, 30), calls=True)
            else:
                main.go_on(calls=turn % 5 < 4)
            if turn == 0:
                title = Agent(session, "title", "Say in five words what this is about.", [])
                title.ask(prose(rng, 30), calls=False)
            for i, helper in enumerate(helpers):
                if turn == 4 * (i + 1):
                    helper.ask(prose(rng, 30), calls=True)
                    helper.go_on(calls=True)
                    helper.go_on(calls=False)
    return session.costs


def over(found: list[Cost]) -> float:
    """The share that was evaluated beyond the ideal."""
    ideal = sum(cost.ideal for cost in found)
    return (sum(cost.evaluated for cost in found) - ideal) / ideal


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=int, default=24)
    parser.add_argument("--words", type=int, default=1200)
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    with (
        Model.load(given.model) as model,
        Engine(model, EngineConfig(ctx_size=16384, cache_ram=2**30)) as engine,
    ):
        found = costs(model, engine, n_tools=given.tools, words=given.words, turns=given.turns)
    print("| request | prompt | evaluated | ideal |\n| --- | ---: | ---: | ---: |")
    for cost in found:
        print(f"| {cost.what} | {cost.prompt} | {cost.evaluated} | {cost.ideal} |")
    print(f"\n{over(found):.2%} beyond the ideal")


if __name__ == "__main__":
    main()
