"""What becomes of Anthropic's messages on their way into a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.anthropic_app import COUNT, USER, App, F, G
from tests.server.test_tools import ODD, ODD_NAMES
from tests.server.tool_templates import CONTROL, QWEN

from onceread.chat.builtin import CHATML
from onceread.native.model import MemoryKind
from onceread.native.params import Constraint

KEEP = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def use(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": arguments}


def result(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


@pytest.fixture
def app() -> App:
    return App(QWEN)


def prompt(app: App, *messages: Any, **body: Any) -> list[str]:
    """The prompt's messages, as (role and text), without the opening of the reply."""
    app.ask(messages=list(messages), **body)
    *parts, last = app.prompt.split("<|im_start|>")[1:]
    assert last == "assistant\n"
    return [part.removesuffix("<|im_end|>\n").replace("\n", " ", 1) for part in parts]


def test_text_and_blocks(app: App) -> None:
    assert prompt(app, USER, system="Be brief.") == ["system Be brief.", "user Hi"]
    blocks = [text("Be"), text("brief.", **KEEP)]
    assert prompt(
        app, {"role": "user", "content": [text("a"), text(""), text("b", **KEEP)]}, system=blocks
    ) == [
        "system Be\nbrief.",
        "user a\n\nb",
    ]


def test_a_block_that_changes_with_every_request_is_left_out(app: App) -> None:
    changes = text("x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=00000;")
    assert prompt(app, USER, system=[changes, text("Be brief.")]) == ["system Be brief.", "user Hi"]
    assert prompt(app, USER, system=[changes]) == ["user Hi"]
    assert prompt(app, USER, system="") == ["user Hi"]


def test_a_tool_result_comes_before_the_text_beside_it(app: App) -> None:
    history = [
        USER,
        {"role": "assistant", "content": [text("So."), use("1", x=1), use("2", x=2)]},
        {
            "role": "user",
            "content": [
                text("Now"),
                result("1", "42"),
                result("2", [text("a"), text("b")], is_error=True),
                text("go on."),
            ],
        },
    ]
    call = '<tool_call>\n{"name": "f", "arguments": {"x": %d}}\n</tool_call>'
    assert prompt(app, *history) == [
        "user Hi",
        f"assistant So.\n{call % 1}\n{call % 2}",
        "user <tool_response>42</tool_response>",
        "user <tool_response>Error: a\nb</tool_response>",
        "user Now\ngo on.",
    ]


def test_an_empty_result(app: App) -> None:
    history = [USER, {"role": "assistant", "content": [use("1")]}]
    empty = {"type": "tool_result", "tool_use_id": "1"}
    assert (
        prompt(app, *history, {"role": "user", "content": [empty]})[-1]
        == "user <tool_response></tool_response>"
    )


def test_messages_of_one_role_in_a_row_are_one(app: App) -> None:
    said = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [text("b"), text("c")]}]
    assert prompt(app, USER, USER, *said, USER) == ["user Hi\nHi", "assistant abc", "user Hi"]


def test_system_messages_on_the_way(app: App) -> None:
    late = {"role": "system", "content": "Be brief."}
    assert prompt(app, USER, late, USER) == ["user Hi", "system Be brief.", "user Hi"]
    assert prompt(app, late, USER, system="Be kind.") == ["system Be kind.\nBe brief.", "user Hi"]


def test_thoughts_go_back_as_reasoning(app: App) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "whoever signed it"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    history = [USER, {"role": "assistant", "content": [redacted, thought, text("Yes.")]}, USER]
    assert prompt(app, *history)[1] == "assistant <think>\nHm.\n</think>\n\nYes."


def test_a_final_assistant_message_is_continued(app: App) -> None:
    app.says.text = "lo"
    message = app.ask(messages=[USER, {"role": "assistant", "content": [text("Hel")]}])
    assert app.prompt.endswith("<|im_start|>assistant\nHel")
    assert message["content"] == [{"type": "text", "text": "lo", "citations": None}]


@pytest.mark.parametrize(
    ("choice", "constrained", "many"),
    [
        ({"type": "auto"}, False, True),
        ({"type": "any"}, True, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, False),
        ({"type": "tool", "name": "g"}, True, False),
        ({"type": "none"}, False, True),
    ],
    ids=["auto", "any", "one only", "named", "none"],
)
def test_tool_choice(app: App, choice: Any, constrained: bool, many: bool) -> None:
    app.says.text = '<tool_call>{"name":"g"}</tool_call><tool_call>{"name":"g"}</tool_call>'
    message = app.ask(tools=[F, G], tool_choice=choice)
    constraint = app.engine.requests[0].sampling.constraint
    assert (constraint is not None) == constrained
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    assert len(calls) == (0 if choice["type"] == "none" else 2 if many else 1)
    app.ask(tools=[F, G])
    assert app.engine.requests[0].prompt == app.engine.requests[1].prompt


def test_tools_are_those_of_chat_completions(app: App) -> None:
    app.ask(tools=[{**G, "type": "custom", **KEEP}, F], system="Be brief.")
    ours = app.prompt
    tools = [
        {
            "type": "function",
            "function": {
                "name": t["name"],
                "description": t.get("description"),
                "parameters": t["input_schema"],
            },
        }
        for t in (F, G)
    ]
    messages = [{"role": "system", "content": "Be brief."}, USER]
    app.client.post("/v1/chat/completions", json={"messages": messages, "tools": tools})
    assert app.prompt == ours


def test_tools_that_run_elsewhere_are_skipped_and_named(app: App) -> None:
    others = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "odd\r\nname"},
    ]
    answer = app.post(tools=[*others, F])
    assert (
        answer.headers["x-onceread-warning"] == "skipped tools: bash_20250124, odd??name, web_search_20250305"
    )
    assert "web_search" not in app.prompt
    app.ask(tools=[F])
    assert app.engine.requests[0].prompt == app.engine.requests[1].prompt
    both = app.post(tools=others, unheard_of=1).headers["x-onceread-warning"]
    assert both.startswith("ignored parameters: unheard_of; skipped tools: bash")


@pytest.mark.parametrize(
    ("thinking", "opened"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
        (None, False),
    ],
    ids=["enabled", "adaptive", "disabled", "left out"],
)
def test_thinking_is_a_variable_of_the_template(app: App, thinking: Any, opened: bool) -> None:
    app.ask(thinking=thinking)
    assert app.prompt.endswith("<think>\n") == opened


def test_models_that_do_not_think_are_not_changed_by_it() -> None:
    plain = App(CHATML)
    plain.ask(thinking={"type": "enabled", "budget_tokens": 1024})
    plain.ask()
    assert plain.engine.requests[0].prompt == plain.engine.requests[1].prompt


@pytest.mark.parametrize(("effort", "said"), [("low", "low"), ("high", "high"), ("max", "high")])
def test_effort_is_a_variable_of_the_template(effort: str, said: str) -> None:
    app = App("{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}")
    app.ask(output_config={"effort": effort})
    assert app.prompt == f"Hi|{said}|"


def test_parameters_reach_the_engine(app: App) -> None:
    app.ask(
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        min_p=0.1,
        repeat_penalty=1.5,
        seed=5,
        stop_sequences=["x", "yy"],
        max_tokens=9,
        metadata={"user_id": "user_1_session_2"},
        cache_salt="salt",
        service_tier="auto",
        context_management={"edits": []},
    )
    (request,) = app.engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.5, 0.1)
    assert (sampling.repeat_penalty, sampling.seed) == (1.5, 5)
    assert (request.stop, request.max_tokens, request.n) == (("x", "yy"), 9, 1)
    assert request.session == "user_1_session_2"
    assert "salt" in request.namespace
    assert app.post(metadata={"user_id": None}).status_code == 200


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_schema_for_the_reply(app: App, place: str) -> None:
    wanted = {"type": "json_schema", "schema": F["input_schema"]}
    app.ask(**{place: {"format": wanted} if place == "output_config" else wanted})
    constraint = app.engine.requests[0].sampling.constraint
    assert constraint == Constraint("json_schema", json.dumps(F["input_schema"]), "output_config.format")


def test_counting_says_what_the_prompt_costs(app: App) -> None:
    asked: Any = {
        "system": [text("Be brief.", **KEEP)],
        "tools": [F, G],
        "tool_choice": {"type": "any"},
        "messages": [
            USER,
            {"role": "assistant", "content": [use("1", x=1)]},
            {"role": "user", "content": [result("1", "42")]},
        ],
        "thinking": {"type": "adaptive"},
    }
    counted = app.post(COUNT, max_tokens=None, **asked)
    assert counted.json() == {"input_tokens": len(app.ask(**asked) and app.engine.requests[-1].prompt)}
    assert len(app.engine.requests) == 1
    much = app.post(COUNT, messages=[{"role": "user", "content": "x" * 500}])
    assert much.json()["input_tokens"] > app.engine.limit


WRITTEN = [
    'So.\n\n<tool_call>{"arguments":{"y":"é","x":1},"name":"f"}\n</tool_call>',
    '<tool_call>\n{"name":"f", "arguments":{"x":1,"y":"a"}}</tool_call>  <tool_call>{"name": "g"}</tool_call>',
    "\n\nJust text.\n\nOf two paragraphs.",
    "<think>\nHm.\n</think>\n\nYes.",
    '<think>\nHm.\n</think>\n\n\n<tool_call>{"name":"f","arguments":{"x":  1}}</tool_call>',
]


CASES = [*((QWEN, written) for written in WRITTEN), *(case[:2] for case in ODD)]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("template", "written"), CASES, ids=["1", "2", "text", "thoughts", "thoughts and a call", *ODD_NAMES]
)
def test_the_next_turn_begins_with_all_that_was_read_and_written(
    template: str, written: str, streamed: bool
) -> None:
    app = App(template)
    app.says.text = written
    asked: Any = {"tools": [F, G]}
    content = rebuilt(app.stream(**asked)) if streamed else app.ask(**asked)["content"]
    begun = app.prompt
    results, more = [], []
    for block in content:
        if block["type"] == "tool_use":
            # As another program writes it.
            block["input"] = dict(sorted(block["input"].items(), reverse=True))
            results.append(result(block["id"], "42"))
    if not results:
        more = [text("More.")]
    history = [
        USER,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [*results, *more]},
    ]
    app.ask(messages=history, **asked)
    assert app.prompt.startswith(begun + written)


def rebuilt(events: list[Any]) -> list[Any]:
    """The content blocks that a stream told of."""
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            match delta["type"]:
                case "input_json_delta":
                    blocks[-1]["input"] = json.loads(delta["partial_json"])
                case "signature_delta":
                    blocks[-1]["signature"] = delta["signature"]
                case kind:
                    name = kind.removesuffix("_delta")
                    blocks[-1][name] += delta[name]
    return blocks


class TestBreakpoints:
    """Where the engine is asked to keep the state: up to there the prompt is what every other one begins with."""

    def kept(self, app: App, **body: Any) -> list[str]:
        app.ask(**body)
        prompt = app.engine.requests[-1].prompt
        return [spelled(prompt[:at]) for at in app.engine.requests[-1].keep_at]

    def test_none_are_asked_for(self, app: App) -> None:
        assert self.kept(app, system="Be brief.", tools=[F]) == []

    def test_in_the_system_prompt_and_behind_it(self, app: App) -> None:
        system = [text("Be brief.", **KEEP), text("Be kind.", **KEEP)]
        assert self.kept(app, system=system) == [
            "<|im_start|>system\nBe brief.",
            "<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\n",
        ]

    def test_where_any_prefix_is_kept_only_the_last_is_looked_for(self) -> None:
        app = App(memory_kind=MemoryKind.PLAIN)
        assert len(self.kept(app, system=[text("Be brief.", **KEEP), text("Be kind.", **KEEP)])) == 1

    def test_behind_the_tools(self, app: App) -> None:
        (kept,) = self.kept(app, tools=[F, {**G, **KEEP}])
        assert kept.endswith("</tool_call><|im_end|>\n<|im_start|>user\n")

    def test_in_messages(self, app: App) -> None:
        history = [
            {"role": "user", "content": [text("a", **KEEP), text("b")]},
            {"role": "assistant", "content": [text("c", **KEEP), use("1", x=1)]},
            {"role": "user", "content": [result("1", "42", **KEEP), text("d"), text("e", **KEEP), text("f")]},
        ]
        ends = [
            "<|im_start|>user\na",
            "<|im_start|>assistant\nc",
            "42</tool_response><|im_end|>\n",
            "<|im_start|>user\nd\ne",
        ]
        for kept, end in zip(self.kept(app, messages=history), ends, strict=True):
            assert kept.endswith(end)

    def test_of_many_the_last_four(self, app: App) -> None:
        system = [text(c, **KEEP) for c in "abcdef"]
        kept = self.kept(app, system=system)
        assert [k[-1] for k in kept] == ["c", "d", "e", "\n"]

    def test_for_the_whole_conversation(self, app: App) -> None:
        (kept,) = self.kept(app, **KEEP)
        assert kept == "<|im_start|>user\nHi<|im_end|>\n"

    def test_they_change_nothing_in_the_prompt(self, app: App) -> None:
        app.ask(system="Be brief. ")
        app.ask(
            system=[text("Be brief. ", **KEEP)], messages=[{"role": "user", "content": [text("Hi", **KEEP)]}]
        )
        assert app.engine.requests[0].prompt == app.engine.requests[1].prompt

    def test_where_a_template_refuses_the_part_the_rest_counts(self) -> None:
        app = App("{% if not messages[1] %}{{ raise_exception('no') }}{% endif %}" + QWEN)
        history = [
            {"role": "user", "content": [text("a", **KEEP)]},
            {"role": "assistant", "content": "b"},
            USER,
        ]
        kept = self.kept(app, messages=history, **KEEP)
        assert len(kept) == 1


def spelled(tokens: tuple[int, ...]) -> str:
    names = {number: name for name, number in CONTROL.items()}
    return b"".join(bytes([t]) if t < 256 else names[t].encode() for t in tokens).decode()
