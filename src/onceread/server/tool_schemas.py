"""Tools in the bodies of chat requests: what a client offers, and what it wants of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from onceread.server.body import RequestModel
from onceread.server.errors import invalid

MAX_TOOLS = 1024
NAME = r"^[A-Za-z0-9_.:/-]{1,128}$"  # templates print names as they are

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class FunctionDefinition(RequestModel):
    """A function that the model may call."""

    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Honoured where tool_choice forces a call.")


class Tool(RequestModel):
    """A tool that the model may call: a function."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """The tool as templates know it."""
        said = self.function
        function: dict[str, Any] = {**(said.model_extra or {}), "name": said.name}
        if said.description is not None:
            function["description"] = said.description
        function["parameters"] = _NO_PARAMETERS if said.parameters is None else said.parameters
        return {"type": "function", "function": function}


class FunctionName(RequestModel):
    name: str


class NamedChoice(RequestModel):
    """The one function that is to be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestModel):
    """Some of the tools. All of them stay in the prompt, so that what was read of them counts."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(RequestModel):
    """The functions that may be called. Only ``required`` is enforced, by a grammar."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


def _choice(value: object, validate: Callable[[object], Any]) -> Any:
    try:
        return validate(value)
    except ValidationError:  # one line for all the ways in which it is neither
        message = "must be none, auto, required or an object that names a function or allowed_tools"
        raise PydanticCustomError("choice", message) from None


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedChoice | AllowedChoice, WrapValidator(_choice)
]


def check_choice(tools: list[Tool], choice: ToolChoice | None) -> None:
    """Raises ApiError where tools and choice do not go together."""
    names: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.function.name in names:
            raise invalid(f"tools[{i}]: there is another tool of the name {tool.function.name}.", "tools")
        names.add(tool.function.name)
    if choice == "required" and not tools:
        raise invalid("tool_choice is required, but there are no tools.", "tool_choice")
    chosen = chosen_names(choice)
    if chosen is not None and not chosen <= names:
        raise invalid("tool_choice names a function that is not among the tools.", "tool_choice")


def chosen_names(choice: ToolChoice | None) -> set[str] | None:
    """The functions that a choice names; None if it names none."""
    match choice:
        case NamedChoice():
            return {choice.function.name}
        case AllowedChoice():
            return {tool.function.name for tool in choice.allowed_tools.tools}
        case _:
            return None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCallBody(BaseModel):
    """A call of a tool, for the client to make."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
