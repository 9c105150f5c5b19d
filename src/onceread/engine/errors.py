"""What can go wrong for one request, by name. The faces turn each into their API's own error shape."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all that the engine refuses or fails with."""


class ContextLengthExceeded(EngineError, ValueError):
    """The prompt leaves no room for a single token of reply."""

    def __init__(self, n_prompt: int, limit: int) -> None:
        # Not every client looks at the code: LangChain knows it by "prompt is too long", LiteLLM by the beginning.
        super().__init__(
            f"This model's maximum context length is {limit} tokens, and the prompt is too long: "
            f"it has {n_prompt}, and must leave room for at least one token of reply."
        )
        self.n_prompt = n_prompt
        self.limit = limit


class InputTooLong(ContextLengthExceeded):
    """One of the inputs to be embedded is longer than the model takes."""

    def __init__(self, index: int, n_input: int, limit: int) -> None:
        super().__init__(n_input, limit)
        self.args = (
            f"Inputs to be embedded have at most {limit} tokens here, and the input at index {index} has {n_input}.",
        )


class QueueFull(EngineError):
    """More requests wait than ``--queue-limit`` allows. Try again after ``retry_after`` seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        who = "1 request is" if waiting == 1 else f"{waiting} requests are"
        super().__init__(f"{who} already waiting; try again in {retry_after} s.")
        self.waiting = waiting
        self.retry_after = retry_after


class Cancelled(EngineError):
    """The client went away."""


class ShuttingDown(EngineError):
    """The server is going down; what was not finished within the grace period ends here."""


class InvalidRequest(EngineError):
    """The engine can't run this request as it stands. ``param`` names what is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ExactUnavailable(EngineError):
    """Exact mode is not to be had with this model or these settings."""


class MovedUnavailable(EngineError):
    """State of this model, or with these settings, can't be moved to other positions."""


class EngineFailed(EngineError):
    """llama.cpp failed under this request; the message says how."""
