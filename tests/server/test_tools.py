"""Tools in chat completions: offered, called, streamed, forced, and back in the history as they were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.server.fakes import FakeEngine, FakeModel, FakeVocab
from tests.server.test_streaming import stream
from tests.server.tool_templates import CONTROL, LLAMA3, MISTRAL, NAMED, QWEN

from onceread.chat.builtin import CHATML
from onceread.engine.request import DoneEvent, FinishEvent, RequestHandle, TextEvent, TokenLogprob, Usage
from onceread.server.app import create_app
from onceread.server.chat_schemas import ChatCompletion
from onceread.server.settings import Settings

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "string"}},
    "required": ["x"],
}
F = {"type": "function", "function": {"name": "f", "description": "Does.", "parameters": PARAMETERS}}
G = {"type": "function", "function": {"name": "g"}}
ASKED: dict[str, Any] = {"messages": [USER], "tools": [F, G]}


class Vocab(FakeVocab):
    """The fake one, with the control tokens of all families."""

    control_tokens = CONTROL
    marks = CONTROL
    size = 256 + len(CONTROL)

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not parse_special
        return list(text.encode() if isinstance(text, str) else text)

    def text(self, token: int) -> str:
        return {v: k for k, v in CONTROL.items()}.get(token) or chr(token)


class Serving:
    """An app over a fake engine that answers with these texts, piece by piece."""

    def __init__(self, template: str) -> None:
        self.engine = FakeEngine(self._script)
        app = create_app(self.engine, FakeModel(Vocab(), template), Settings())  # type: ignore[arg-type]
        self.client = TestClient(app, raise_server_exceptions=False)
        self.texts = [""]
        self.reason: Any = "stop"

    def says(self, *texts: str, reason: str = "stop") -> None:
        """What the model answers from now on, one text for each choice."""
        self.texts, self.reason = list(texts), reason

    def ask(self, **body: Any) -> Any:
        """The first choice."""
        answer = self.client.post(CHAT, json={**ASKED, **body})
        assert answer.status_code == 200, answer.text
        ChatCompletion.model_validate(answer.json(), strict=True)
        return answer.json()["choices"][0]

    def deltas(self, **body: Any) -> list[Any]:
        """The first choice's deltas of a stream but the first and the last, then its finish reason."""
        chunks = [chunk["choices"][0] for chunk in stream(self.client, CHAT, **{**ASKED, **body})]
        first = [choice for choice in chunks if choice["index"] == 0]
        assert first[0]["delta"]["role"] == "assistant"
        return [choice["delta"] for choice in first[1:-1]] + [first[-1]["finish_reason"]]

    @property
    def prompt(self) -> str:
        """The last one, control tokens written out."""
        return "".join(
            bytes([t]).decode("latin-1") if t < 256 else Vocab().text(t)
            for t in self.engine.requests[-1].prompt
        )

    def _script(self, _: FakeEngine, handle: RequestHandle) -> None:
        for index in range(handle.request.n):
            text = self.texts[index % len(self.texts)]
            for piece in [text[i : i + 3] for i in range(0, len(text), 3)]:
                entries = (
                    (TokenLogprob(1, piece.encode(), -0.5),) if handle.request.logprobs is not None else ()
                )
                handle.push(TextEvent(index, piece, 1, entries))
            handle.push(FinishEvent(index, self.reason))
        handle.push(DoneEvent(Usage()))


@pytest.fixture
def qwen() -> Serving:
    return Serving(QWEN)


ONE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TWO = f'Let me.\n{ONE}\n<tool_call>{{"name": "g"}}</tool_call>'


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]


def test_a_call(qwen: Serving) -> None:
    qwen.says(ONE)
    choice = qwen.ask()
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def test_a_call_in_a_stream(qwen: Serving) -> None:
    qwen.says(ONE)
    first, *more, reason = qwen.deltas()
    assert reason == "tool_calls"
    (call,) = first["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"index": 0, "type": "function", "function": {"name": "f", "arguments": ""}}
    pieces = [delta["tool_calls"][0] for delta in more]
    assert all(set(piece) == {"index", "function"} and piece["index"] == 0 for piece in pieces)
    assert len(pieces) > 1
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"x": 1}'


def test_two_calls_and_what_stands_before(qwen: Serving) -> None:
    qwen.says(TWO)
    message = qwen.ask()["message"]
    assert (message["content"], called(message)) == ("Let me.", [("f", '{"x": 1}'), ("g", "{}")])
    assert message["tool_calls"][0]["id"] != message["tool_calls"][1]["id"]
    deltas = [delta["tool_calls"][0] for delta in qwen.deltas()[:-1] if "tool_calls" in delta]
    assert [(d["index"], d["function"]["name"]) for d in deltas if "id" in d] == [(0, "f"), (1, "g")]


def test_at_most_one_call(qwen: Serving) -> None:
    qwen.says(TWO)
    assert called(qwen.ask(parallel_tool_calls=False)["message"]) == [("f", '{"x": 1}')]


def test_a_named_function_is_called_once_unless_more_are_asked_for(qwen: Serving) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    qwen.says(TWO)
    assert called(qwen.ask(tool_choice=named)["message"]) == [("f", '{"x": 1}')]
    assert called(qwen.ask(tool_choice=named, parallel_tool_calls=True)["message"]) == [
        ("f", '{"x": 1}'),
        ("g", "{}"),
    ]


def test_choices_have_calls_of_their_own(qwen: Serving) -> None:
    qwen.says(ONE, "No.")
    body = {**ASKED, "n": 2}
    one, two = qwen.client.post(CHAT, json=body).json()["choices"]
    assert (one["finish_reason"], two["finish_reason"]) == ("tool_calls", "stop")
    assert two["message"] == {"role": "assistant", "content": "No.", "refusal": None}


BROKEN = '<tool_call>\n{"name": "f", "arguments": {"x": 1,}}\n</tool_call>'


def test_what_turns_out_to_be_no_call_is_text(qwen: Serving) -> None:
    qwen.says(BROKEN)
    choice = qwen.ask()
    assert (choice["message"]["content"], choice["finish_reason"]) == (BROKEN, "stop")
    assert "tool_calls" not in choice["message"]
    *deltas, reason = qwen.deltas()
    assert ("".join(delta.get("content", "") for delta in deltas), reason) == (BROKEN, "stop")


def test_what_is_cut_behind_a_whole_call_does_not_undo_it(qwen: Serving) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    qwen.says(call + " And then I", reason="length")
    choice = qwen.ask()
    assert (called(choice["message"]), choice["finish_reason"]) == ([("f", '{"x": 1}')], "tool_calls")
    qwen.says(call + '<tool_call>{"name": "f", "arguments": {"x": 2', reason="length")
    assert qwen.ask()["finish_reason"] == "length"


def test_a_call_cut_by_the_limit(qwen: Serving) -> None:
    qwen.says('<tool_call>{"name": "f", "arguments": {"x": "ab', reason="length")
    choice = qwen.ask()
    assert (called(choice["message"]), choice["finish_reason"]) == ([("f", '{"x": "ab')], "length")


def test_without_tools_the_same_text_is_content(qwen: Serving) -> None:
    qwen.says(ONE)
    for body in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        choice = qwen.ask(**body)
        assert (choice["message"]["content"], choice["finish_reason"]) == (ONE, "stop")


def test_no_choice_leaves_the_tools_in_the_prompt_and_bars_the_mark() -> None:
    mistral = Serving(MISTRAL)
    mistral.ask()
    free = mistral.prompt
    mistral.ask(tool_choice="none")
    assert mistral.prompt == free
    assert mistral.engine.requests[1].sampling.logit_bias == ((CONTROL["[TOOL_CALLS]"], float("-inf")),)


def test_control_tokens_that_the_parser_must_see() -> None:
    for template, names in ((MISTRAL, ["[TOOL_CALLS]", "[ARGS]"]), (LLAMA3, ["<|python_tag|>"]), (QWEN, [])):
        serving = Serving(template)
        serving.ask()
        serving.ask(tools=None)
        with_tools, without = serving.engine.requests
        assert with_tools.spelled == {CONTROL[name] for name in names}
        assert without.spelled == frozenset()


def test_logprobs_of_calls_are_all_there(qwen: Serving) -> None:
    qwen.says(ONE)
    whole = qwen.ask(logprobs=True)["logprobs"]["content"]
    chunks = stream(qwen.client, CHAT, **ASKED, logprobs=True)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part for entry in part["content"]] == whole
    assert "".join(entry["token"] for entry in whole) == ONE


class TestOrder:
    def test_tools_and_keys_in_any_order_make_one_prompt(self, qwen: Serving) -> None:
        turned = {
            "function": {
                "strict": True,
                "parameters": {
                    "required": ["x"],
                    "properties": {"y": {"type": "string"}, "x": {"type": "integer"}},
                    "type": "object",
                },
                "description": "Does.",
                "name": "f",
            },
            "type": "function",
        }
        qwen.ask()
        first = qwen.prompt
        qwen.ask(tools=[G, turned])
        assert qwen.prompt == first
        assert (
            '{"type": "function", "function": {"name": "f", "description": "Does.", "parameters": {' in first
        )

    def test_models_without_tools_are_told_in_the_system_message(self) -> None:
        plain = Serving(CHATML)
        plain.ask(messages=[{"role": "system", "content": "Be brief."}, USER])
        assert plain.prompt.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
        assert '\n{"type": "function", "function": {"name": "g", "parameters": {' in plain.prompt

    def test_models_without_system_messages_are_told_in_the_first(self) -> None:
        template = CHATML.replace(
            "{%- for message in messages -%}",
            "{%- for message in messages -%}{%- if message.role == 'system' -%}"
            "{{- raise_exception('no system') -}}{%- endif -%}",
        )
        plain = Serving(template)
        plain.ask()
        assert plain.prompt.startswith("<|im_start|>user\n# Tools\n")
        assert plain.prompt.endswith("</tool_call>\n\nHi<|im_end|>\n<|im_start|>assistant\n")


ODD = [
    # (template, what the model wrote, how the same is rendered otherwise)
    (
        QWEN,
        'So.\n\n<tool_call>{"arguments":{"y":"é","x":1},"name":"f"}\n</tool_call>',
        'So.\n<tool_call>\n{"name": "f", "arguments": {"x": 1, "y": "é"}}\n</tool_call>',
    ),
    (
        QWEN,
        f'<tool_call>\n{{"name":"f", "arguments":{{"x":1,"y":"é"}}}}</tool_call>  {ONE}',
        f'<tool_call>\n{{"name": "f", "arguments": {{"x": 1, "y": "é"}}}}\n</tool_call>\n{ONE}',
    ),
    (CHATML, 'So. <tool_call>{"arguments":{"y":"é","x":1},"name":"f"} </tool_call>', ""),
    (
        LLAMA3,
        '{"type": "function", "name":"f","parameters":{"y":"é","x":1}}',
        '{"name": "f", "parameters": {"x": 1, "y": "é"}}',
    ),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"arguments":{"y":"é","x":1},"name":"f"}]',
        '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1, "y": "é"}, "id": "',
    ),
    (NAMED, '[TOOL_CALLS]f[ARGS]{"y":"é","x":1}', '[TOOL_CALLS]f[ARGS]{"x": 1, "y": "é"}'),
]
ODD_NAMES = ["qwen", "qwen, two calls", "generic", "llama3", "mistral", "mistral, named"]


def brought_back(message: dict[str, Any], change: Callable[[Any], Any] = lambda arguments: arguments) -> Any:
    """The history with ``message`` and results, its arguments as another program would write them."""
    calls = []
    for call in message["tool_calls"]:
        arguments = change(json.loads(call["function"]["arguments"]))
        text = json.dumps(arguments, sort_keys=True, indent=1)
        calls.append({**call, "function": {"arguments": text, "name": call["function"]["name"]}})
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "42"} for call in calls]
    return [USER, {"role": "assistant", "content": message["content"], "tool_calls": calls}, *results]


class TestHistory:
    @pytest.mark.parametrize(("template", "written", "otherwise"), ODD, ids=ODD_NAMES)
    def test_a_call_is_rendered_as_it_was_written(self, template: str, written: str, otherwise: str) -> None:
        serving = Serving(template)
        serving.says(written)
        serving.ask()
        begun = serving.prompt
        back = brought_back(serving.ask()["message"])
        serving.ask(messages=back)
        raw = serving.prompt.encode("latin-1").decode()
        assert raw.startswith(begun + written)
        # Under an id that was not issued, as after a restart, it is the template's.
        known = {message["tool_call_id"] for message in back[2:]}
        unknown = json.loads(json.dumps(back).replace(min(known), "abcde6789"))
        serving.ask(messages=unknown)
        assert not serving.prompt.encode("latin-1").decode().startswith(begun + written)
        assert otherwise in serving.prompt.encode("latin-1").decode() or len(known) > 1

    @pytest.mark.parametrize(
        "change",
        [lambda a: {**a, "x": 2}, lambda a: {**a, "x": True}, lambda a: {**a, "z": None}, lambda _: {}],
        ids=["another value", "true is not 1", "one more", "none"],
    )
    def test_a_call_that_says_something_else_is_not(self, qwen: Serving, change: Any) -> None:
        qwen.says(ODD[0][1])
        back = brought_back(qwen.ask()["message"], change)
        qwen.ask(messages=back)
        assert json.loads(back[1]["tool_calls"][0]["function"]["arguments"]) == change({"y": "é", "x": 1})
        assert '"arguments":{' not in qwen.prompt
        assert '"arguments": {' in qwen.prompt

    def test_calls_of_other_namespaces_are_unknown(self, qwen: Serving) -> None:
        qwen.says(ODD[0][1])
        back = brought_back(qwen.ask()["message"])
        qwen.ask(messages=back, cache_salt="other")
        assert '"arguments":{' not in qwen.prompt

    def test_no_arguments_at_all(self, qwen: Serving) -> None:
        qwen.says('<tool_call>{"name":"g"}</tool_call>')
        (call,) = qwen.ask()["message"]["tool_calls"]
        for call_id in (call["id"], "other"):
            made = {"id": call_id, "function": {"name": "g", "arguments": ""}}
            qwen.ask(messages=[USER, {"role": "assistant", "tool_calls": [made]}])
        known, unknown = (bytes(t for t in r.prompt if t < 256) for r in qwen.engine.requests[1:])
        assert b'<tool_call>{"name":"g"}</tool_call>' in known
        assert b'{"name": "g", "arguments": {}}' in unknown

    def test_streams_issue_calls_too(self, qwen: Serving) -> None:
        qwen.says(ODD[0][1])
        call_id = next(d["tool_calls"][0]["id"] for d in qwen.deltas() if "tool_calls" in d)
        call = {"id": call_id, "function": {"name": "f", "arguments": '{"x": 1, "y": "é"}'}}
        qwen.ask(messages=[USER, {"role": "assistant", "content": "So.", "tool_calls": [call]}])
        assert '"arguments":{' in qwen.prompt

    def test_ids_of_other_servers_become_what_mistral_takes(self) -> None:
        serving = Serving(MISTRAL)
        call = {"id": "call_0123456789", "function": {"name": "f", "arguments": "{}"}}
        history = [
            USER,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0123456789", "content": "1"},
        ]
        serving.ask(messages=history)
        first, second = (part[:9] for part in serving.prompt.split('id": "')[1:])
        assert first == second
        assert first.isalnum()

    def test_the_ids_that_the_model_gave_are_its_own(self) -> None:
        serving = Serving(MISTRAL)
        serving.says('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "AbCdEf123"}]')
        message = serving.ask()["message"]
        assert message["tool_calls"][0]["id"] != "AbCdEf123"
        serving.ask(messages=brought_back(message))
        assert serving.prompt.count('id": "AbCdEf123"') == 2

    def test_several_calls_without_ids_get_theirs(self) -> None:
        serving = Serving(MISTRAL)
        serving.says('[TOOL_CALLS][{"name":"f","arguments":{"x":1}},{"name":"g"}]')
        message = serving.ask()["message"]
        serving.ask(messages=brought_back(message))
        for call in message["tool_calls"]:
            assert serving.prompt.count(call["id"]) == 2

    def test_no_mark_is_left(self, qwen: Serving) -> None:
        qwen.says(ODD[0][1])
        back = brought_back(qwen.ask()["message"])
        back[1]["content"] = "\U000187f7 is a letter"
        qwen.ask(messages=back)
        raw = qwen.prompt.encode("latin-1").decode()
        assert [c for c in raw if ord(c) > 0x12000] == ["\U000187f7"]

    def test_typed_control_tokens_in_calls_stay_text(self, qwen: Serving) -> None:
        qwen.says('<tool_call>{"name": "f", "arguments": {"y":"<|im_end|>"}}</tool_call>')
        qwen.ask(messages=brought_back(qwen.ask()["message"]))
        assert '"y":"<|im_end|>"' in qwen.prompt
        assert qwen.engine.requests[-1].prompt.count(CONTROL["<|im_end|>"]) == 4

    def test_results_without_tools_reach_a_plain_model_in_words(self) -> None:
        plain = Serving(CHATML)
        call = {"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}
        results = [{"role": "tool", "tool_call_id": "1", "content": content} for content in ("a", "b")]
        plain.ask(messages=[USER, {"role": "assistant", "tool_calls": [call]}, *results], tools=None)
        assert plain.prompt == (
            "<|im_start|>user\nHi<|im_end|>\n"
            f"<|im_start|>assistant\n{ONE}<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\na\n</tool_response>\n"
            "<tool_response>\nb\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        )


NAMED_F = {"type": "function", "function": {"name": "f"}}


class TestForced:
    @pytest.mark.parametrize("template", [QWEN, LLAMA3, CHATML], ids=["qwen", "llama3", "generic"])
    @pytest.mark.parametrize("choice", ["required", NAMED_F], ids=["required", "named"])
    def test_a_grammar_makes_the_reply_a_call(self, template: str, choice: Any) -> None:
        serving = Serving(template)
        serving.ask()
        serving.ask(tool_choice=choice)
        free, forced = serving.engine.requests
        assert free.sampling.constraint is None
        assert forced.prompt == free.prompt
        constraint = forced.sampling.constraint
        assert constraint is not None
        assert (constraint.kind, constraint.param, constraint.after) == ("lark", "tool_choice", "")
        assert ('"g\\"' in constraint.text) == (choice == "required")

    @pytest.mark.parametrize(
        ("template", "written"),
        [
            (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]'),
            (NAMED, '[TOOL_CALLS]f[ARGS]{"x": 1}'),
        ],
        ids=["mistral", "mistral, named"],
    )
    def test_marks_are_tokens_of_the_vocabulary(self, template: str, written: str) -> None:
        serving = Serving(template)
        serving.says(written)
        message = serving.ask(tool_choice="required")["message"]
        constraint = serving.engine.requests[0].sampling.constraint
        assert constraint is not None
        assert f"<[{CONTROL['[TOOL_CALLS]']}]>" in constraint.text
        assert called(message) == [("f", '{"x": 1}')]
        serving.ask(messages=brought_back(message))
        assert f"[/INST]{written}" in serving.prompt

    @pytest.mark.parametrize("mode", ["auto", "required"])
    def test_some_of_the_tools_may_be_called_and_all_stay_in_the_prompt(self, mode: str) -> None:
        serving = Serving(LLAMA3)
        serving.ask()
        names = {"mode": mode, "tools": [NAMED_F]}
        choice = {"type": "allowed_tools", "allowed_tools": names}
        serving.says('{"name": "g", "parameters": {}}')
        assert "tool_calls" not in serving.ask(tool_choice=choice)["message"]
        serving.says('{"name": "f", "parameters": {"x": 1}}')
        assert called(serving.ask(tool_choice=choice)["message"]) == [("f", '{"x": 1}')]
        free, allowed = serving.engine.requests[:2]
        assert allowed.prompt == free.prompt
        constraint = allowed.sampling.constraint
        assert (constraint is not None) == (mode == "required")
        assert constraint is None or '"g\\"' not in constraint.text

    def test_thinking_that_the_prompt_begins_may_go_on(self, qwen: Serving) -> None:
        for asked in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
            qwen.ask(**asked, chat_template_kwargs={"enable_thinking": True})
            constraint = qwen.engine.requests[-1].sampling.constraint
            assert constraint is not None
            assert constraint.after == "</think>"

    def test_a_format_for_the_answer_leaves_the_choice_to_call(self, qwen: Serving) -> None:
        schema = {"type": "object", "properties": {"answer": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        qwen.ask(response_format=wanted)
        either = qwen.engine.requests[-1].sampling.constraint
        assert either is not None
        assert (either.kind, either.param) == ("lark", "response_format")
        assert "| otherwise" in either.text
        qwen.ask(response_format=wanted, tool_choice="none")
        only = qwen.engine.requests[-1].sampling.constraint
        assert only is not None
        assert only.kind == "json_schema"
        qwen.ask(response_format=wanted, tool_choice="required")
        forced = qwen.engine.requests[-1].sampling.constraint
        assert forced is not None
        assert "otherwise" not in forced.text

    def test_what_can_not_be_enforced_is_refused(self, qwen: Serving) -> None:
        odd = {"type": "object", "properties": {"x": {"not": {}}}}
        strict = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
        answer = qwen.client.post(CHAT, json={**ASKED, "tools": [strict], "tool_choice": "required"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": odd}}
        answer = qwen.client.post(CHAT, json={**ASKED, "response_format": wanted})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


THOUGHT = "<think>\nHm.\n</think>\n\nYes."


class TestReasoning:
    def test_whole_and_streamed(self, qwen: Serving) -> None:
        qwen.says(THOUGHT)
        message = qwen.ask()["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
        *deltas, reason = qwen.deltas(tools=None)
        assert reason == "stop"
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
        assert "".join(delta.get("content", "") for delta in deltas) == "Yes."

    def test_tags_that_the_template_opens(self, qwen: Serving) -> None:
        qwen.says("Hm.\n</think>\n\n" + ONE)
        message = qwen.ask(chat_template_kwargs={"enable_thinking": True})["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", None)
        assert called(message) == [("f", '{"x": 1}')]

    def test_it_can_stay_in_the_content(self, qwen: Serving) -> None:
        qwen.says(THOUGHT)
        message = qwen.ask(reasoning_format="none")["message"]
        assert message == {"role": "assistant", "content": THOUGHT, "refusal": None}

    def test_models_that_do_not_think_may_write_the_tags(self) -> None:
        plain = Serving(CHATML)
        plain.says(THOUGHT)
        assert plain.ask()["message"]["content"] == THOUGHT

    def test_it_is_accepted_back_and_costs_nothing(self, qwen: Serving) -> None:
        written = f"{THOUGHT}\n\n\n{ONE}"
        qwen.says(written)
        message = qwen.ask()["message"]
        begun = qwen.prompt
        history = brought_back(message)
        history[1]["reasoning_content"] = message["reasoning_content"]
        qwen.ask(messages=history)
        assert qwen.prompt.startswith(begun + written)

    def test_a_message_that_is_continued_inside_of_the_tags(self, qwen: Serving) -> None:
        qwen.says("m.</think>Yes.")
        history = [USER, {"role": "assistant", "content": "<think>H"}]
        message = qwen.ask(messages=history, continue_final_message=True)["message"]
        assert (message["reasoning_content"], message["content"]) == ("m.", "Yes.")


def test_warming_reads_what_a_chat_with_tools_begins_with(qwen: Serving) -> None:
    system = {"role": "system", "content": "Be brief."}
    qwen.ask(messages=[system, USER])
    chat = qwen.prompt
    qwen.client.post("/cache/warm", json={"messages": [system], "tools": [G, F]})
    warmed = qwen.prompt
    assert "# Tools" in warmed
    assert chat.startswith(warmed)
