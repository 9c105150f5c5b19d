"""Workloads of agents and of long documents.

Tools and calls are plain text here, as agents send them that bring a protocol of their own: servers render the
API's ``tools`` differently for one and the same model, and then the prompts could not be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceread.bench.workloads.contract import Chat, Stage, Workload, Writer


@dataclass(frozen=True, kw_only=True)
class AgentSession(Workload):
    """An agent with instructions and tools; sub-agents and requests for a title come in between."""

    kind = "agent with tools, sub-agents, side requests"
    instructions: int
    tools: int  # how many
    tool: int  # tokens of each
    steps: int
    result: int
    reply: int
    sub_agents: int
    sub_steps: int

    def play(self, stage: Stage, write: Writer) -> None:
        tools = [f"Tool {i + 1}:\n{write.code(self.tool)}" for i in range(self.tools)]
        main = Chat(stage, "\n\n".join([write.prose(self.instructions), *tools]), "agent")
        later = {self.steps * (i + 1) // (self.sub_agents + 1): i for i in range(self.sub_agents)}
        for step in range(self.steps):
            text = f"Result:\n{write.code(self.result)}" if step else write.question(self.result)
            main.say("step" if step else "first", text, self.reply)
            if step == 0:
                title = Chat(stage, "You find titles. Say in five words what this is about.", "title")
                title.say("side request", text, self.reply // 2)
            if step in later:
                self._sub_agent(stage, write, tools, later[step])

    def _sub_agent(self, stage: Stage, write: Writer, tools: list[str], i: int) -> None:
        system = "\n\n".join([write.prose(self.instructions // 4), *tools[:2]])
        sub = Chat(stage, system, f"sub-agent {i + 1}")
        for _ in range(self.sub_steps):
            sub.say("sub-agent", write.question(self.result // 2), self.reply)


@dataclass(frozen=True, kw_only=True)
class LongDocument(Workload):
    """One long document, and questions about it that know nothing of each other."""

    kind = "long document, many questions"
    document: int
    questions: int
    message: int
    reply: int

    def play(self, stage: Stage, write: Writer) -> None:
        document = write.prose(self.document)
        for i in range(self.questions):
            chat = Chat(stage, f"Answer from this document.\n\n{document}", f"question {i + 1}")
            chat.say("question" if i else "first", write.question(self.message), self.reply)
