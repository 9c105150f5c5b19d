"""Ollama's API: chat and generate, and what it tells of models."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from onceread.chat.callreader import parse_object
from onceread.chat.toolcalls import CallEnded, Content, Event, Reasoning
from onceread.engine.request import Completed, DoneEvent, FinishEvent, TextEvent, Usage
from onceread.engine.request import Request as EngineRequest
from onceread.server.answering import Answering
from onceread.server.auth import Caller, authenticate
from onceread.server.body import read_body
from onceread.server.chat_turn import ChatTurn
from onceread.server.ollama_schemas import OllamaChat, OllamaError, OllamaGenerate, OllamaReply
from onceread.server.openapi import takes
from onceread.server.reply_reader import ReplyReader
from onceread.server.responding import respond
from onceread.server.session_hint import session_of
from onceread.server.state import Serving, state_of
from onceread.server.text_completions import engine_requests
from onceread.server.text_schemas import CompletionRequest

_VERSION = "0.11.0"  # of the API that is spoken here: clients refuse to talk to older ones
_LINES = "application/x-ndjson"
_ERRORS: dict[int | str, dict[str, Any]]
_ERRORS = {status: {"model": OllamaError} for status in (400, 401, 413, 415, 500, 503)}
_REPLIES: dict[int | str, dict[str, Any]] = {200: {"model": OllamaReply, "content": {_LINES: {}}}}
router = APIRouter(prefix="/api", tags=["Ollama"], responses=_ERRORS)


@router.post("/chat", response_model=None, responses=_REPLIES, openapi_extra=takes(OllamaChat))
async def chat(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """The assistant's next message, in JSON lines unless ``stream`` is false."""
    return await _answer(request, caller, await read_body(request, OllamaChat))


@router.post("/generate", response_model=None, responses=_REPLIES, openapi_extra=takes(OllamaGenerate))
async def generate(request: Request, caller: Caller = Depends(authenticate)) -> Response:  # noqa: B008
    """The answer to one prompt, or how it goes on, in JSON lines unless ``stream`` is false."""
    return await _answer(request, caller, await read_body(request, OllamaGenerate))


async def _answer(request: Request, caller: Caller, body: OllamaChat | OllamaGenerate) -> Response:
    state = state_of(request)
    serving = state.serving()
    asked, said = body.asked(), _Said(serving.name, isinstance(body, OllamaChat))
    whose = caller.namespace(), session_of(request)
    if asked is None:
        return JSONResponse({**said.part(done=True), "done_reason": "load"})
    prepare: Callable[[], list[EngineRequest]]
    reader: Callable[[], ReplyReader]
    if isinstance(asked, CompletionRequest):
        prepare = partial(engine_requests, asked, serving, state.settings, *whose)
        reader = partial(ReplyReader, None, serving.issued, "", short_ids=False)
    else:
        turn = ChatTurn(asked, serving, whose[0], state.settings, whose[1])
        prepare, reader = lambda: [turn.request()], turn.reader
    answering = Answering(serving.engine, state.metrics, "prompt")
    return await respond(
        request,
        body,
        answering,
        prepare,
        chunks=lambda: _lines(answering, reader(), said),
        whole=lambda answers: _whole(answers[0], reader(), said),
        end=b"",
        failed=lambda error: _line({"error": error.message}),
        media_type=_LINES,
    )


@dataclass
class _Said:
    """The reply in Ollama's words: in a message for chat, bare for generate."""

    model: str
    in_message: bool
    began: int = field(default_factory=time.monotonic_ns)

    def part(self, content: str = "", *, done: bool = False, **more: Any) -> dict[str, Any]:
        now = datetime.now(timezone.utc).isoformat()
        reply: dict[str, Any] = {"response": content, **more}
        if self.in_message:
            reply = {"message": {"role": "assistant", "content": content, **more}}
        return {"model": self.model, "created_at": now, **reply, "done": done}

    def end(self, reason: str, usage: Usage) -> dict[str, Any]:
        return {
            "done_reason": reason,
            "total_duration": time.monotonic_ns() - self.began,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_cached_count": usage.cached_tokens,
            "prompt_eval_duration": round(usage.prompt_seconds * 1e9),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(usage.decode_seconds * 1e9),
        }

    def told(self, event: Event, reply: ReplyReader) -> dict[str, Any] | None:
        match event:
            case Content(text):
                return self.part(text)
            case Reasoning(text):
                return self.part(thinking=text)
            case CallEnded(index, _):
                return self.part(tool_calls=[_call(reply, index)])
        return None


def _whole(answer: Completed, reply: ReplyReader, said: _Said) -> dict[str, Any]:
    reply.write(answer.texts[0])
    reply.finish(answer.reasons[0])
    more: dict[str, Any] = {"thinking": reply.reasoning} if reply.reasoning else {}
    if calls := [_call(reply, index) for index, call in reply.calls.items() if call.ended]:
        more["tool_calls"] = calls
    return {**said.part(reply.content, done=True, **more), **said.end(answer.reasons[0], answer.usage)}


async def _lines(answering: Answering, reply: ReplyReader, said: _Said) -> AsyncIterator[bytes]:
    reason = "stop"
    async for batch in answering.events():
        parts: list[dict[str, Any] | None] = []
        for _, event in batch:
            if isinstance(event, TextEvent):
                parts += [said.told(read, reply) for read in reply.write(event.text)]
            elif isinstance(event, FinishEvent):
                reason = event.reason
                parts += [said.told(read, reply) for read in reply.finish(reason)]
            elif isinstance(event, DoneEvent):
                parts.append({**said.part(done=True), **said.end(reason, event.usage)})
        if any(parts):
            yield b"".join([_line(part) for part in parts if part])


def _call(reply: ReplyReader, index: int) -> dict[str, Any]:
    call = reply.calls[index]
    function = {"index": index, "name": call.name, "arguments": parse_object(call.arguments) or {}}
    return {"id": call.id, "function": function}


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@router.get("/version", dependencies=[Depends(authenticate)])
async def read_version() -> dict[str, str]:
    """The version of Ollama's API that this server follows."""
    return {"version": _VERSION}


@router.get("/tags", dependencies=[Depends(authenticate)])
async def list_models(request: Request) -> dict[str, list[dict[str, Any]]]:
    """The one model that there is."""
    serving = state_of(request).serving()
    name, size = serving.name, serving.model.size_bytes
    # Not the file's digest, which takes minutes for large ones; it tells models apart all the same.
    digest = hashlib.sha256(f"{name}\0{size}".encode()).hexdigest()
    return {"models": [{"name": name, "model": name, "size": size, "digest": digest, **_about(serving)}]}


@router.post("/show", dependencies=[Depends(authenticate)])
async def show_model(request: Request) -> dict[str, Any]:
    """What the one model is and can do, whatever the body asks for."""
    serving = state_of(request).serving()
    kind = serving.model.architecture
    info = {"general.architecture": kind, f"{kind}.context_length": serving.engine.limit}
    can = ["completion", "tools", *(["thinking"] if serving.style.think else [])]
    return {**_about(serving), "template": serving.template.source, "model_info": info, "capabilities": can}


def _about(serving: Serving) -> dict[str, Any]:
    kind, n_params = serving.model.architecture, serving.model.n_params
    details = {"format": "gguf", "family": kind, "parameter_size": f"{n_params / 1e6:.0f}M"}
    details["quantization_level"] = (serving.model.description.split() or [""])[-1]
    since = datetime.fromtimestamp(serving.since, timezone.utc)
    return {"modified_at": since.isoformat(), "details": details}
