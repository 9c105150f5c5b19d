"""What a request has to cost at least: the prompt tokens that nobody read before, by lists of tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onceread.chat.prompt import PromptTokenizer
from onceread.chat.template import ChatTemplate

if TYPE_CHECKING:
    from onceread.native.model import Model

Tokens = tuple[int, ...]


class Twin:
    """A reader who forgets nothing and has room for everything."""

    def __init__(self) -> None:
        self._paths: list[Tokens] = []
        self._stored = 0

    @property
    def distinct(self) -> int:
        """Tokens of all that was read, what is common counted once."""
        return self._stored

    def evaluated(self, prompt: Tokens) -> int:
        """Tokens of ``prompt`` that must be computed, the one for its logits included."""
        return len(prompt) - min(self._known(prompt), len(prompt) - 1)

    def read(self, tokens: Tokens) -> None:
        """``tokens`` are known from now on."""
        self._stored += len(tokens) - self._known(tokens)
        self._paths.append(tokens)

    def _known(self, tokens: Tokens) -> int:
        return max((common(path, tokens) for path in self._paths), default=0)


def common(a: Tokens, b: Tokens) -> int:
    """How many tokens two paths have in common from their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # equal up to low; slices compare at C's speed
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Prompter:
    """Conversations as tokens, by the model's own template and vocabulary."""

    def __init__(self, model: Model) -> None:
        self.vocab = model.vocab
        self._template = ChatTemplate.of_model(model)
        self._tokenizer = PromptTokenizer(model.vocab)

    def prompt(self, messages: Sequence[dict[str, Any]]) -> Tokens:
        """What a server reads before it replies."""
        return self._tokenizer.chat(self._template.render(messages))

    def text(self, text: str) -> Tokens:
        """A reply's text, as its tokens would be in the next prompt."""
        return tuple(self.vocab.tokenize(text, add_special=False, parse_special=False))
