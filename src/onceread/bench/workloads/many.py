"""Workloads of many conversations: over one system prompt, of many characters, at once."""

from __future__ import annotations

from dataclasses import dataclass

from onceread.bench.workloads.contract import Chat, Stage, Workload, Writer


@dataclass(frozen=True, kw_only=True)
class SharedSystem(Workload):
    """More conversations than the server has slots, all over one system prompt, in turns."""

    kind = "more conversations than slots"
    system: int
    conversations: int
    turns: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        system = write.prose(self.system)
        chats = [Chat(stage, system, f"chat {i + 1}") for i in range(self.conversations)]
        for turn in range(self.turns):
            for chat in chats:
                chat.say("turn" if turn else "first", write.question(self.message), self.reply)


@dataclass(frozen=True, kw_only=True)
class Rotation(Workload):
    """Characters with a description each, visited one after the other, again and again."""

    kind = "characters in rotation"
    characters: int
    description: int
    rounds: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        chats = [
            Chat(stage, write.prose(self.description), f"character {i + 1}") for i in range(self.characters)
        ]
        for turn in range(self.rounds):
            for chat in chats:
                chat.say("visit" if turn else "first", write.question(self.message), self.reply)


@dataclass(frozen=True, kw_only=True)
class ConcurrentStreams(Workload):
    """Several clients at once over one system prompt."""

    kind = "concurrent streams"
    system: int
    streams: int
    turns: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        system = write.prose(self.system)
        chats = [Chat(stage, system, f"stream {i + 1}") for i in range(self.streams)]
        for turn in range(self.turns):
            label = "at once" if turn else "first, at once"
            answers = stage.together(
                [chat.asking(label, write.question(self.message), self.reply) for chat in chats]
            )
            for chat, answer in zip(chats, answers, strict=True):
                chat.replied(answer)


@dataclass(frozen=True, kw_only=True)
class Restart(Workload):
    """Some conversations, then the server is stopped and started, and all of them go on."""

    kind = "restart in the middle"
    conversations: int
    history: int
    turns: int  # after the restart
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        chats = [Chat(stage, write.prose(self.history), f"chat {i + 1}") for i in range(self.conversations)]
        for chat in chats:
            chat.say("before", write.question(self.message), self.reply)
        stage.restart()
        for turn in range(self.turns):
            for chat in chats:
                label = "after the restart" if turn else "first after the restart"
                chat.say(label, write.question(self.message), self.reply)
