"""What a request cost, in OpenAI's words and, for what they have no word for, in llama-server's."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from onceread.engine.request import Usage


class CachedBySourceBody(BaseModel):
    """Where the cached tokens came from; adds up to ``cached_tokens``."""

    context: int
    memory: int
    disk: int
    shared: int
    moved: int


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    cached_tokens_by_source: CachedBySourceBody


class UsageBody(BaseModel):
    """Tokens. For several prompts or replies, of all together; a prompt counts once however many replies."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(BaseModel):
    """Times, as llama-server gives them: ``cache_n`` prompt tokens were reused, ``prompt_n`` computed."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


def usage_body(usages: Sequence[Usage]) -> UsageBody:
    """The usage of a request that took these engine requests."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return UsageBody(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            cached_tokens_by_source=CachedBySourceBody(
                context=sum(usage.cached.context for usage in usages),
                memory=sum(usage.cached.memory for usage in usages),
                disk=sum(usage.cached.disk for usage in usages),
                shared=sum(usage.cached.shared for usage in usages),
                moved=sum(usage.cached.moved for usage in usages),
            ),
        ),
    )


def approximate_field(usages: Sequence[Usage]) -> dict[str, bool]:
    """The field ``approximate`` of an answer: true where something was moved for it, else absent."""
    return {"approximate": True} if any(usage.cached.moved or usage.moved_later for usage in usages) else {}


def timings(usages: Sequence[Usage]) -> Timings:
    """The times of the same, added up."""
    prompt_n = sum(usage.evaluated_tokens for usage in usages)
    prompt_s = sum(usage.prompt_seconds for usage in usages)
    predicted_n = sum(usage.completion_tokens for usage in usages)
    predicted_s = sum(usage.decode_seconds for usage in usages)
    return Timings(
        cache_n=sum(usage.cached_tokens for usage in usages),
        prompt_n=prompt_n,
        prompt_ms=round(prompt_s * 1000, 3),
        prompt_per_token_ms=round(_ratio(prompt_s * 1000, prompt_n), 3),
        prompt_per_second=round(_ratio(prompt_n, prompt_s), 3),
        predicted_n=predicted_n,
        predicted_ms=round(predicted_s * 1000, 3),
        predicted_per_token_ms=round(_ratio(predicted_s * 1000, predicted_n), 3),
        predicted_per_second=round(_ratio(predicted_n, predicted_s), 3),
    )


def _ratio(of: float, to: float) -> float:
    return of / to if to else 0.0
