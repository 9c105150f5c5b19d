"""What can be wrong with a conversation, by name. Each message is one that a client may read."""

from __future__ import annotations


class ChatError(Exception):
    """Base of everything that keeps a conversation from becoming a prompt."""


class TemplateUnusable(ChatError):
    """The chat template itself can't be used: no such file or name, or it does not compile."""


class TemplateError(ChatError):
    """The template refused these messages (its own ``raise_exception``) or failed on them."""


class PromptEmpty(ChatError):
    """There is nothing to read, and this model has no token to begin with."""


class ContentInvalid(ChatError):
    """A message's content has the wrong shape."""


class ContentUnsupported(ContentInvalid):
    """A message's content is of a kind this version can't read, such as an image."""


class ConversationTooLong(ChatError):
    """A conversation does not fit even when all is dropped that may be: see shorten.py."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(
            f"the system messages and the last turn alone take {needed:,} tokens, and at most {limit:,} fit"
        )
        self.needed = needed
        self.limit = limit
