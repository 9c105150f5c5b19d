"""The bodies of ``/cache/...``: what they take and what they give."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from onceread.cache.contract import PathInfo, PathPage, Pin
from onceread.server.body import RequestModel
from onceread.server.chat_schemas import ChatMessage
from onceread.server.errors import invalid
from onceread.server.text_schemas import Prompt
from onceread.server.tool_schemas import Tools, check_choice
from onceread.server.usage import CachedBySourceBody, Timings, UsageBody

MAX_SALT = 256
MAX_KEY = 64
ID = r"^[0-9a-f]{6,64}$"
MAX_PAGE = 1000

Salt = Annotated[str, Field(max_length=MAX_SALT)]
KeyName = Annotated[str, Field(min_length=1, max_length=MAX_KEY)]
SALT_SAYS = "The namespace's salt, if it has one."
KEY_SAYS = "For the admin key: the name of the API key whose namespace it is."


def _prompt(value: object) -> Prompt | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return value
    raise PydanticCustomError("prompt_type", "must be a string or a list of token ids")


OnePrompt = Annotated[
    Prompt | None,
    PlainValidator(_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {"type": "null"},
            ]
        }
    ),
]


class NamespaceFields(RequestModel):
    """Whose part of the cache it is."""

    cache_salt: Salt | None = Field(None, description=SALT_SAYS)
    key: KeyName | None = Field(None, description=KEY_SAYS)


class ReadingFields(NamespaceFields):
    """Something to read: a raw prompt, or a conversation whose continuations will begin with it."""

    prompt: OnePrompt = Field(None, description="In its text control tokens may be written out.")
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )
    tools: Tools | None = None

    @model_validator(mode="after")
    def _tools_are_told_apart(self) -> Self:
        check_choice(self.tools or [], None)
        return self

    @property
    def source(self) -> str:
        """The parameter that the prompt came in."""
        return "prompt" if self.messages is None else "messages"

    def refuse_unless_one_of(self, *names: str) -> None:
        """Raises ApiError unless exactly one of these is given."""
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            listed = " or ".join([", ".join(names[:-1]), names[-1]])
            message = f"Give {listed}, and only one of them."
            raise invalid(message, given[1] if given else names[0], "missing_required_parameter")


class WarmRequest(ReadingFields):
    """A prompt to read now, so that whatever begins with it starts at once."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        self.refuse_unless_one_of("prompt", "messages")
        return self


class PinRequest(ReadingFields):
    """A prefix to keep whatever happens: a stored path by its id, or something that is read first."""

    name: str = Field(min_length=1, max_length=100, description="What to call it.")
    id: Annotated[str, Field(pattern=ID)] | None = Field(
        None, description="A path's id, or its beginning, from GET /cache/tree."
    )

    @field_validator("name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if not value.isprintable() or not value.strip():
            raise PydanticCustomError("unprintable", "must be printable text on one line")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        self.refuse_unless_one_of("id", "prompt", "messages")
        return self


class ClearRequest(NamespaceFields):
    """What to forget: the caller's namespace, with its salt, or everything."""

    all: bool | None = Field(None, description="Everyone's. Takes the admin key, if the server has keys.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.all and (self.cache_salt or self.key):
            raise invalid("all excludes cache_salt and key.", "all")
        return self


class TierBody(BaseModel):
    """One tier, now and since the server started."""

    state: str = Field(description="`ok`, `off` or `failed: why`.")
    budget_bytes: int
    bytes: int = Field(description="As they really lie there.")
    pinned_bytes: int
    chunks: int
    tokens: int
    hit_tokens: int = Field(description="Prompt tokens that came from it.")
    hit_rate: float = Field(description="Their share of all prompt tokens.")
    evictions: int
    damaged: int = Field(description="Chunks that were there and could not be used.")
    checkpoints: int = Field(description="Positions to go on from, where a memory can't be cut anywhere.")
    checkpoint_bytes: int = Field(description="What they take of `bytes`: at most half of the budget.")


class TiersBody(BaseModel):
    memory: TierBody
    disk: TierBody
    shared: TierBody


class ContextBody(BaseModel):
    """llama.cpp's context, where running sequences and a few finished ones are."""

    cells: int
    used: int
    residents: int


class PromptTokensBody(BaseModel):
    """Prompt tokens of all requests: computed, or known from somewhere."""

    total: int
    evaluated: int
    by_source: CachedBySourceBody


class Overview(BaseModel):
    """The cache as a whole, of all namespaces."""

    tiers: TiersBody
    context: ContextBody
    prompt_tokens: PromptTokensBody
    unwritten_bytes: int = Field(description="In RAM, and on their way to disk.")
    oldest_unwritten_s: float
    exported_chunks: int
    refused_chunks: int = Field(description="For which no tier had room.")
    split_chunks: int
    exported_checkpoints: int
    refused_checkpoints: int = Field(description="For which there was no room in RAM.")
    detail: str | None = Field(
        None, description="Why there is no cache behind the context, if there is none."
    )


class PathBody(BaseModel):
    """One path through the tree of what is stored, from its root to a leaf."""

    id: str
    namespace: str = Field(description="A hash, shortened.")
    model: str
    tokens: int
    own_tokens: int = Field(description="Those that no other path shares.")
    text: str = Field(description="Where its own part begins.")
    tail: str = Field(description="Its last words.")
    bytes_memory: int = Field(description="Of its own part.")
    bytes_disk: int
    tiers: list[str] = Field(description="Which have all of it.")
    last_used: str
    hits: int
    pins: list[str] = Field(description="Names.")


class PathList(BaseModel):
    """A page, the last used first."""

    paths: list[PathBody]
    total: int
    next: str | None = Field(description="Give it as `after` to go on; null on the last page.")


class PinBody(BaseModel):
    """A prefix that is kept whatever happens."""

    id: str
    name: str
    namespace: str = Field(description="A hash, shortened.")
    tokens: int
    bytes: int
    created: str


class PinList(BaseModel):
    pins: list[PinBody]


class Warmed(BaseModel):
    """What reading took, and whether the store has it now (else it will soon, or found no room)."""

    usage: UsageBody
    timings: Timings
    stored: bool


class Unpinned(BaseModel):
    id: str
    deleted: Literal[True] = True


class Cleared(BaseModel):
    freed_bytes: int


def path_body(path: PathInfo) -> PathBody:
    return PathBody(
        id=path.id,
        namespace=path.namespace,
        model=path.model,
        tokens=path.tokens,
        own_tokens=path.own_tokens,
        text=path.text,
        tail=path.tail,
        bytes_memory=path.bytes_memory,
        bytes_disk=path.bytes_disk,
        tiers=list(path.tiers),
        last_used=when(path.last_used),
        hits=path.hits,
        pins=list(path.pins),
    )


def path_list(page: PathPage) -> PathList:
    return PathList(paths=[path_body(path) for path in page.paths], total=page.total, next=page.next)


def pin_body(pin: Pin) -> PinBody:
    return PinBody(
        id=pin.id,
        name=pin.name,
        namespace=pin.namespace.hex()[:12],
        tokens=pin.n,
        bytes=pin.bytes,
        created=when(pin.created),
    )


def when(seconds: float) -> str:
    """Unix time as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
