"""Workloads of a single conversation."""

from __future__ import annotations

from dataclasses import dataclass

from onceread.bench.workloads.contract import Chat, Stage, Workload, Writer


@dataclass(frozen=True, kw_only=True)
class ChatGrowth(Workload):
    """A chat that grows, turn by turn."""

    kind = "chat growth"
    system: int
    turns: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        chat = Chat(stage, write.prose(self.system))
        for _ in range(self.turns):
            chat.say("turn", write.question(self.message), self.reply)


@dataclass(frozen=True, kw_only=True)
class EditRegenerateBranch(Workload):
    """Other replies, edits of the last message and of one in the middle, and back to the older branch."""

    kind = "edit, regenerate, branch"
    system: int
    turns: int
    message: int
    reply: int
    times: int  # of each change

    def play(self, stage: Stage, write: Writer) -> None:
        chat = Chat(stage, write.prose(self.system))
        for _ in range(self.turns):
            chat.say("turn", write.question(self.message), self.reply)
        for _ in range(self.times):
            chat.again("regenerate", self.reply)
        for _ in range(self.times):
            chat.branch(len(chat.messages) - 2).say("edit the last", write.question(self.message), self.reply)
        middle = 1 + 2 * (self.turns // 2)
        for _ in range(self.times):
            chat.branch(middle).say("edit in the middle", write.question(self.message), self.reply)
        chat.say("back to the first branch", write.question(self.message), self.reply)


@dataclass(frozen=True, kw_only=True)
class PastTheLimit(Workload):
    """A client that drops the oldest turns behind the system prompt once the conversation is too long."""

    kind = "past the context limit"
    system: int
    window: int  # characters that the client sends at most
    turns: int  # once it trims
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        chat = Chat(stage, write.prose(self.system))
        while not self._trim(chat):
            chat.messages.append({"role": "user", "content": write.question(self.message)})
            chat.replied(write.prose(self.message))
        for turn in range(self.turns):
            chat.messages.append({"role": "user", "content": write.question(self.message)})
            self._trim(chat)
            text = chat.messages.pop()["content"]
            chat.say("trimmed" if turn else "first", text, self.reply)

    def _trim(self, chat: Chat) -> bool:
        """Did turns have to go?"""
        trimmed = False
        while sum(len(m["content"]) for m in chat.messages) > self.window and len(chat.messages) > 3:
            del chat.messages[1:3]
            trimmed = True
        return trimmed


@dataclass(frozen=True, kw_only=True)
class ChangingTimestamp(Workload):
    """A clock in the middle of the system prompt that shows another time at every turn."""

    kind = "changing timestamp"
    before: int
    behind: int
    turns: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        head, rest = write.prose(self.before), write.prose(self.behind)
        chat = Chat(stage, "")
        for turn in range(self.turns):
            minute, second = divmod(754 + 97 * turn, 60)
            clock = f"The time is 9:{minute:02}:{second:02}."
            chat.messages[0] = {"role": "system", "content": f"{head}\n\n{clock}\n\n{rest}"}
            chat.say("first" if turn == 0 else "another time", write.question(self.message), self.reply)
