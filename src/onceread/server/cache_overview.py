"""``GET /cache`` and ``GET /cache/tree``: what is stored, in numbers and path by path."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from onceread.cache.contract import TierStats
from onceread.server.auth import Caller, authenticate
from onceread.server.cache_access import store_of, visible, why_off
from onceread.server.cache_schemas import (
    KEY_SAYS,
    MAX_PAGE,
    SALT_SAYS,
    ContextBody,
    KeyName,
    Overview,
    PathList,
    PromptTokensBody,
    Salt,
    TierBody,
    TiersBody,
    path_list,
)
from onceread.server.openapi import errors
from onceread.server.state import state_of
from onceread.server.threads import wait_in_thread
from onceread.server.usage import CachedBySourceBody

router = APIRouter(tags=["Cache"])


@router.get(
    "/cache", summary="The cache in numbers", dependencies=[Depends(authenticate)], responses=errors(401, 503)
)
async def read_cache(request: Request) -> Overview:
    """Budgets, sizes and hits of each tier, for all namespaces together."""
    state = state_of(request)
    serving = state.serving()
    engine = serving.engine
    cache = await state.cache.read()
    stats = engine.stats()
    prompt = stats.prompt_tokens_total
    return Overview(
        tiers=TiersBody(
            memory=_tier(cache.memory, prompt),
            disk=_tier(cache.disk, prompt),
            shared=_tier(cache.shared, prompt),
        ),
        context=ContextBody(cells=stats.cells_total, used=stats.cells_used, residents=stats.residents),
        prompt_tokens=PromptTokensBody(
            total=prompt,
            evaluated=stats.prompt_evaluated_total,
            by_source=CachedBySourceBody(
                context=stats.cached_context_total,
                memory=stats.cached_memory_total,
                disk=stats.cached_disk_total,
                shared=0,
                moved=stats.cached_moved_total,
            ),
        ),
        unwritten_bytes=cache.unwritten_bytes,
        oldest_unwritten_s=round(cache.oldest_unwritten_s, 3),
        exported_chunks=cache.exported_chunks_total,
        refused_chunks=cache.refused_chunks_total,
        split_chunks=cache.split_chunks_total,
        exported_checkpoints=cache.exported_checkpoints_total,
        refused_checkpoints=cache.refused_checkpoints_total,
        detail=why_off(state) if engine.store is None else None,
    )


@router.get("/cache/tree", summary="The stored paths", responses=errors(400, 401, 403, 404, 503))
async def read_tree(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    cache_salt: Annotated[Salt | None, Query(description=SALT_SAYS)] = None,
    key: Annotated[KeyName | None, Query(description=KEY_SAYS)] = None,
    caller: Caller = Depends(authenticate),  # noqa: B008
) -> PathList:
    """The paths of the caller's namespace, the last used first; with the admin key those of all."""
    state = state_of(request)
    store = store_of(state, state.serving())
    namespaces = visible(caller, key, cache_salt)
    listing = partial(store.paths, namespaces, limit, after or None)
    return path_list(await wait_in_thread(listing))


def _tier(tier: TierStats, prompt_tokens: int) -> TierBody:
    return TierBody(
        state=tier.state,
        budget_bytes=tier.budget,
        bytes=tier.bytes,
        pinned_bytes=tier.pinned_bytes,
        chunks=tier.chunks,
        tokens=tier.tokens,
        hit_tokens=tier.hit_tokens_total,
        hit_rate=round(tier.hit_tokens_total / prompt_tokens, 4) if prompt_tokens else 0.0,
        evictions=tier.evictions_total,
        damaged=tier.damaged_total,
        checkpoints=tier.checkpoints,
        checkpoint_bytes=tier.checkpoint_bytes,
    )
