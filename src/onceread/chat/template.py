"""A model's chat template: from messages to text and control tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2

from onceread.chat.builtin import CHATML, find_template
from onceread.chat.errors import TemplateError, TemplateUnusable
from onceread.chat.formats import format_of
from onceread.chat.guard import ControlStrings, Guard
from onceread.chat.rendered import Rendered
from onceread.chat.sandbox import RaisedByTemplate, Sandbox, run

if TYPE_CHECKING:
    from onceread.native.model import Model
    from onceread.native.vocabulary import Vocabulary

Message = Mapping[str, Any]

_RESERVED = frozenset({"messages", "bos_token", "eos_token", "add_generation_prompt", "tools", "documents"})
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_ERROR = 2000


class ChatTemplate:
    """A compiled template, ready to render. Thread-safe."""

    def __init__(
        self,
        source: str,
        *,
        control_tokens: Mapping[str, int],
        bos_token: str = "",
        eos_token: str = "",
        stops: tuple[str, ...] = (),
    ) -> None:
        """``stops`` end a reply as text, since no token of the model does.

        Raises TemplateUnusable if the source does not compile.
        """
        self.source = source
        self.stops = stops
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        # Most templates print whatever role they get; one that handles `developer` says the word.
        self._knows_developer = re.search(r"""["']developer["']""", source) is not None
        try:
            sandbox = Sandbox()
            self._template = sandbox.from_string(source)
            literals = {str(const.value) for const in sandbox.parse(source).find_all(jinja2.nodes.Const)}
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateUnusable(f"the chat template does not compile: {_line(error)}") from error
        self._control = ControlStrings(control_tokens, literals)

    @classmethod
    def of_model(cls, model: Model, template: str | None = None) -> ChatTemplate:
        """The template that is given (by name, as a file or written out), else the model's own, else ChatML.

        Raises TemplateUnusable.
        """
        source = find_template(template) if template is not None else model.chat_template or CHATML
        return cls.of_source(model, source)

    @classmethod
    def of_source(cls, model: Model, source: str) -> ChatTemplate:
        """A template for a model's vocabulary. Raises TemplateUnusable."""
        vocab = model.vocab
        known = format_of(source)
        return cls(
            source,
            control_tokens=vocab.control_tokens,
            bos_token=vocab.text(vocab.bos) if vocab.bos >= 0 else "",
            eos_token=vocab.text(vocab.eos) if vocab.eos >= 0 else "",
            stops=tuple([end for end in known.ends if not _ends(vocab, end)]) if known else (),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The conversation as the model should see it.

        ``add_generation_prompt`` opens the assistant's turn at the end.
        ``continue_final_message`` leaves the last message open instead, right after its text,
        so that the reply goes on where it stops. ``variables`` are the template's own
        (``{"enable_thinking": False}``). No string in any of them turns into control tokens; only
        the roles that all templates know are the template's to make some of.

        Raises TemplateError with the template's own words if it refuses the messages.
        """
        variables = variables or {}
        if reserved := _RESERVED.intersection(variables):
            raise TemplateError(f"{min(reserved)!r} can't be set as a variable of the chat template")
        if continue_final_message and add_generation_prompt:
            raise TemplateError("a message can't be continued and a new one begun at the same time")
        said = [[dict(message) for message in messages], list(tools or ()), dict(variables)]
        guard = Guard(self._control, said, self.source)
        guarded = [self._guarded(message, guard) for message in messages]
        if continue_final_message:
            if not guarded:
                raise TemplateError("there is no message to continue")
            # The end of the text is marked with a character of its own, and the output cut there.
            # Looking for the text itself would fail where templates trim it or repeat it.
            guarded[-1]["content"] = str(guarded[-1].get("content") or "") + guard.end
        output = self._run(
            guard,
            {
                "tools": guard.mark(list(tools)) if tools else None,
                "documents": None,
                **{name: guard.mark(value) for name, value in variables.items()},
                **self._tokens,
                "messages": guarded,
                "add_generation_prompt": add_generation_prompt,
            },
        )
        if continue_final_message:
            output, found, _ = output.rpartition(guard.end)
            if not found:
                raise TemplateError("the chat template hides the final message, so it can't be continued")
        return Rendered(guard.segments(output))

    def _guarded(self, message: Message, guard: Guard) -> dict[str, Any]:
        guarded = {key: guard.mark(value) for key, value in message.items()}
        if message.get("role") in _ROLES:
            # Templates put control strings together of them: "<|" + role + "|>".
            guarded["role"] = message["role"]
        if guarded.get("role") == "developer" and not self._knows_developer:
            guarded["role"] = "system"
        return guarded

    def _run(self, guard: Guard, variables: Mapping[str, Any]) -> str:
        try:
            return run(self._template, variables)
        except RaisedByTemplate as error:
            said = guard.unmark(str(error))[:_MAX_ERROR]
            raise TemplateError(said or "the chat template refused these messages") from None
        except Exception as error:  # the template is a program of somebody else's
            said = guard.unmark(_line(error))
            raise TemplateError(f"the chat template failed on these messages: {said}") from error


def _ends(vocab: Vocabulary, text: str) -> bool:
    """Does the model end its replies with a token that is written so?"""
    token = vocab.control_tokens.get(text)
    return token is not None and vocab.is_eog(token)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    where = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return text[:_MAX_ERROR] + where
