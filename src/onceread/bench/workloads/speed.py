"""Workloads that show how fast a server reads and writes, and how soon a known prompt starts."""

from __future__ import annotations

from dataclasses import dataclass

from onceread.bench.workloads.contract import Chat, Stage, Workload, Writer


@dataclass(frozen=True, kw_only=True)
class ColdPrompt(Workload):
    """One prompt that nobody has seen; then its next turn from wherever the server has it."""

    kind = "cold single prompt"
    prompt: int
    message: int
    reply: int
    other: int  # tokens of another chat, which takes its place in between

    def play(self, stage: Stage, write: Writer) -> None:
        chat = Chat(stage, write.prose(self.prompt))
        chat.say("cold", write.prose(self.message), self.reply)
        chat.say("next turn", write.prose(self.message), self.reply)
        for i in range(2):
            Chat(stage, write.prose(self.other), f"other {i + 1}").say("other", write.prose(8), self.reply)
        chat.say("next turn, others since", write.prose(self.message), self.reply)
        stage.restart()
        chat.say("next turn, after a restart", write.prose(self.message), self.reply)


@dataclass(frozen=True, kw_only=True)
class PureDecode(Workload):
    """One stream that writes, fresh and after other conversations were served; a cold prompt then, too."""

    kind = "pure decode"
    prompt: int
    reply: int
    others: int  # conversations in between
    other: int
    other_reply: int
    cold: int

    def play(self, stage: Stage, write: Writer) -> None:
        question = write.question(self.prompt)
        Chat(stage, "You explain.", "fresh").say("decode, fresh", question, self.reply)
        Chat(stage, write.prose(self.cold), "cold").say("prefill, fresh", write.prose(8), 2)
        for i in range(self.others):
            chat = Chat(stage, "You help with Python.", f"other {i + 1}")
            chat.say("other", write.question(self.other), self.other_reply)
        Chat(stage, "You explain.", "later").say(
            "decode, after others", write.question(self.prompt), self.reply
        )
        Chat(stage, write.prose(self.cold), "cold later").say("prefill, after others", write.prose(8), 2)
