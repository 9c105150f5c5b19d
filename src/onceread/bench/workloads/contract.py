"""What a workload is: a script of conversations, played on a stage that asks a server, or counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from onceread.bench.texts import Corpus

Message = dict[str, str]  # role and content


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a conversation as its client sends it, and how long the reply is to be, in tokens."""

    label: str  # what kind of request this is, for the tables
    messages: tuple[Message, ...]
    reply: int
    conversation: str = "chat"


class Stage(Protocol):
    """Where a workload is played."""

    def ask(self, ask: Ask) -> str:
        """Send it and wait for the reply's text."""

    def together(self, asks: Sequence[Ask]) -> list[str]:
        """Send them at once and wait for all replies."""

    def restart(self) -> None:
        """Stop the server as its operator would, and start it again in the same folder."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The base of all. Fields are sizes, in tokens where nothing else is said; they come from workloads.yaml."""

    kind: ClassVar[str]
    name: str
    about: str
    seed: int = 1

    def play(self, stage: Stage, write: Writer) -> None:
        """Act it out. Everything but the replies depends on the seed alone."""
        raise NotImplementedError

    @classmethod
    def sizes(cls) -> set[str]:
        """The fields that a workload of this class may be given."""
        return {field.name for field in fields(cls)} - {"name", "about"}


class Writer:
    """Writes the clients' part: seeded, so that every server gets the same."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.rng = random.Random(seed)
        self._corpus = corpus

    def prose(self, tokens: int) -> str:
        return self._corpus.prose(self.rng, tokens)

    def code(self, tokens: int) -> str:
        return self._corpus.code(self.rng, tokens)

    def question(self, tokens: int) -> str:
        """Something to ask: a passage, and what to do with it."""
        return f"{self.prose(tokens)}\n\nWhat does this mean in practice?"


class Chat:
    """A conversation on its client's side, which sends all of it with every request."""

    def __init__(self, stage: Stage, system: str, name: str = "chat") -> None:
        self.stage = stage
        self.name = name
        self.messages: list[Message] = [{"role": "system", "content": system}]

    def say(self, label: str, text: str, reply: int) -> str:
        """A turn: the user's message and the reply, which stays in the history."""
        answer = self.stage.ask(self.asking(label, text, reply))
        self.replied(answer)
        return answer

    def asking(self, label: str, text: str, reply: int) -> Ask:
        """The request of a turn, for whoever sends several at once."""
        self.messages.append({"role": "user", "content": text})
        return Ask(label, tuple(self.messages), reply, self.name)

    def again(self, label: str, reply: int) -> str:
        """Ask for another reply to the same messages."""
        del self.messages[-1]
        answer = self.stage.ask(Ask(label, tuple(self.messages), reply, self.name))
        self.replied(answer)
        return answer

    def replied(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def branch(self, keep: int) -> Chat:
        """The same conversation, with the first ``keep`` messages only."""
        other = Chat(self.stage, "", self.name)
        other.messages = list(self.messages[:keep])
        return other


def seeded(workload: Workload, corpus: Corpus) -> Writer:
    """The writer of this workload's texts."""
    return Writer(corpus, workload.seed)


def made(cls: type[Workload], given: dict[str, Any]) -> Workload:
    """One workload from its data. Raises ValueError for a size that its class does not know."""
    unknown = set(given) - cls.sizes() - {"name", "about"}
    if unknown:
        raise ValueError(f"workload {given['name']}: {min(unknown)} is not a size of {cls.kind}")
    return cls(**given)
