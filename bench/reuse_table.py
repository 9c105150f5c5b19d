"""What a chat costs, turn by turn: prompt tokens, how many were evaluated, and how many were new.

    python bench/reuse_table.py

Starts a server of its own and talks to it as a chat client does, sending the whole history each time.
"New" is counted from the text alone: what the prompt has beyond the last prompt and the reply to it, as far
as that was evaluated (the last sampled token of a reply is not, until it comes back).
"""

from __future__ import annotations

from typing import Any

import openai

from live_server import live_server

QUESTIONS = (
    "What is a lighthouse?", "Who built the first one?", "What did the keepers eat?",
    "How does a lens bend light?", "Tell me a short story about a storm.", "What was the keeper's name?",
    "Name three colours of the sea.", "How far can a beam be seen?", "Who pays for the oil?", "Say goodbye.",
)  # fmt: skip


class Client:
    """One conversation, its history kept on the client's side."""

    def __init__(self, api: openai.OpenAI, system: str) -> None:
        self.api = api
        self.messages: list[Any] = [{"role": "system", "content": system}]

    def ask(self, messages: list[Any], max_tokens: int = 24) -> tuple[str, int, int]:
        """(reply, prompt tokens, evaluated)."""
        done = self.api.chat.completions.create(
            model="demo", messages=messages, max_tokens=max_tokens, temperature=0
        )
        assert done.usage is not None
        details = done.usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else 0
        return (
            done.choices[0].message.content or "",
            done.usage.prompt_tokens,
            done.usage.prompt_tokens - (cached or 0),
        )

    def say(self, text: str) -> tuple[int, int]:
        self.messages.append({"role": "user", "content": text})
        reply, prompt, evaluated = self.ask(self.messages)
        self.messages.append({"role": "assistant", "content": reply})
        return prompt, evaluated


def main() -> None:
    with live_server("--ctx-size", "8192") as url:
        api = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        print("| turn | prompt tokens | evaluated |\n| --- | ---: | ---: |")
        chat = Client(api, "You are a lighthouse keeper who answers in one short sentence.")
        for i, question in enumerate(QUESTIONS):
            prompt, evaluated = chat.say(question)
            print(f"| {i + 1} | {prompt} | {evaluated} |")
        last = chat.messages[:-1]
        _, prompt, evaluated = chat.ask(last)
        print(f"| regenerate the last reply | {prompt} | {evaluated} |")
        for edit in ("Say farewell.", "Say good night.", "Say nothing."):
            _, prompt, evaluated = chat.ask([*last[:-1], {"role": "user", "content": edit}])
            print(f"| edit the last message: {edit!r} | {prompt} | {evaluated} |")
        _, prompt, evaluated = chat.ask(last)
        print(f"| back to the first branch | {prompt} | {evaluated} |")

        print("\n| 12 conversations in rotation | prompt tokens | evaluated |\n| --- | ---: | ---: |")
        chats = [
            Client(api, f"You are character number {i} of a long play about the sea.") for i in range(12)
        ]
        for turn, question in enumerate(QUESTIONS[:3]):
            costs = [c.say(question) for c in chats]
            print(f"| round {turn + 1} | {sum(c[0] for c in costs)} | {sum(c[1] for c in costs)} |")


if __name__ == "__main__":
    main()
