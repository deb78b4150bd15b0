"""`/v1/models` and `/v1/chat/completions`: the server's agents for clients that speak OpenAI's Chat
Completions."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from holdfast import errors
from holdfast import events as ev
from holdfast.llm.completion import Delta
from holdfast.server import chats, openai
from holdfast.server.answers import error_answer
from holdfast.server.feed import Reader
from holdfast.server.guard import Refused
from holdfast.server.openai import ChatRequest, Progress, Published, Turn
from holdfast.server.routes import Routes
from holdfast.server.service import Service, gone

_log = logging.getLogger("holdfast.server")

CONVERSATION = "x-holdfast-conversation"  # the header that tells which conversation answers
_PING = 10.0  # seconds of silence after which a comment tells that the stream lives
_MEDIA = "application/json"
_NO_RETRY = {
    "x-should-retry": "false"
}  # clients of that API ask again by themselves, and a turn that was begun may have done much
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_MODEL: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}


def add(routes: Routes, agents: Mapping[str, Published]) -> None:
    """Add them."""
    service = routes.service

    @routes.add(
        "GET",
        "/v1/models",
        "The agents, as models",
        client=False,
        tag="openai",
        schema={
            "type": "object",
            "required": ["object", "data"],
            "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
        },
    )
    async def list_models(request: Request) -> Response:
        """As OpenAI's API lists its models."""
        found = {"object": "list", "data": [_model(agent) for agent in agents.values()]}
        return Response(msgspec.json.encode(found), media_type=_MEDIA)

    @routes.add(
        "GET",
        "/v1/models/{model}",
        "One of them",
        schema=_MODEL,
        client=False,
        also=(404,),
        tag="openai",
    )
    async def get_model(request: Request, model: str) -> Response:
        """As OpenAI's API."""
        agent = agents.get(model)
        return (
            _unknown(model, agents)
            if agent is None
            else Response(msgspec.json.encode(_model(agent)), media_type=_MEDIA)
        )

    @routes.add(
        "POST",
        "/v1/chat/completions",
        "Ask an agent",
        schema={"type": "object", "required": ["id", "object", "choices"]},
        also=(400, 404, 409, 413, 422, 503),
        client=False,
        tag="openai",
        example={"model": "coder", "messages": [{"role": "user", "content": "Hi"}]},
        takes=ChatRequest,
    )
    async def create_chat_completion(request: Request) -> Response:
        """As OpenAI's Chat Completions, plain or streamed. The agent's tools run here; those of the
        request are the client's, and come back as `tool_calls`."""
        asked = await service.json(request, ChatRequest, largest=None)
        agent = agents.get(asked.model)
        if agent is None:
            return _unknown(asked.model, agents)
        try:
            turn = openai.understood(asked, agent)
        except RecursionError:
            return _error(400, "The request is nested too deep.", "invalid_request_error")
        except Exception as error:
            return _failed(error)
        chat = Chat(service, service.caller(request).tenant, agent, turn)
        try:
            await chat.begin()
        except Refused:
            raise
        except Exception as error:
            response = _failed(error)
            response.headers.update(_NO_RETRY if chat.placed else {})
            return response
        headers = {CONVERSATION: chat.place.id}
        if asked.stream:
            usage = bool(asked.stream_options and asked.stream_options.include_usage)
            return StreamingResponse(
                chat.streamed(usage),
                media_type="text/event-stream",
                headers={**headers, "x-accel-buffering": "no"},
            )
        response = await chat.whole(request)
        response.headers.update(headers)
        return response


class Chat:
    """One request on its way: a turn of a conversation."""

    place: chats.Place
    reader: Reader

    def __init__(self, service: Service, tenant: str, agent: Published, turn: Turn) -> None:
        self._service = service
        self._host = service.host
        self._tenant = tenant
        self._agent = agent
        self._turn = turn
        self._progress = Progress(agent, turn)
        self._id = f"chatcmpl-{os.urandom(12).hex()}"
        self._created = int(time.time())
        self.placed = False  # whether it has a conversation

    async def begin(self) -> None:
        """Find or make the conversation, and set it going. Raises what the host raises."""
        self._service.check_open()
        finding = asyncio.ensure_future(
            self._service.change(chats.begin, self._host, self._tenant, self._agent, self._turn)
        )
        try:
            self.place = await asyncio.shield(finding)
        except asyncio.CancelledError:
            finding.add_done_callback(self._found_late)
            raise
        self.placed = True
        try:
            state = await self._service.read(self._host.state, self._tenant, self.place.id)
            self._progress.begin(state.at(self.place.seq), self.place.since)
            feed = await self._service.read(self._host.feed, self._tenant, self.place.id)
            self.reader = feed.subscribe(asyncio.get_running_loop())
            if self.place.run:
                await self._service.change(self._host.run, self._tenant, self.place.id)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._leave()))
            raise

    def _found_late(self, finding: asyncio.Future[chats.Place]) -> None:
        """The request was broken off: nobody waits for what was found."""
        if not finding.cancelled() and finding.exception() is None:
            self._host.chats.leave(self._tenant, finding.result().id)

    async def whole(self, request: Request) -> Response:
        """The completion, once it is there. If the client hangs up, the run is paused: nobody would
        read what it comes to."""
        work = asyncio.ensure_future(self._finished())
        left = asyncio.ensure_future(gone(request.receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refused(
                    400, "ConfigurationError", "The connection broke before there was an answer."
                )  # which nobody reads
            if (failed := await work) is not None:
                return failed
            return Response(
                msgspec.json.encode(
                    openai.completion(self._id, self._created, self._agent.name, self._progress)
                ),
                media_type=_MEDIA,
            )
        finally:
            left.cancel()
            work.cancel()
            await self._leave()

    async def _finished(self) -> Response | None:
        async for _ in self._pieces():
            pass
        return await self._failure()

    async def streamed(self, with_usage: bool) -> AsyncIterator[bytes]:
        """The answer's chunks, as its text comes."""
        model, progress = self._agent.name, self._progress
        more: dict[str, Any] = {"usage": None} if with_usage else {}
        try:
            yield openai.chunk(
                self._id, self._created, model, {"role": "assistant", "content": ""}, **more
            )
            async for piece in self._pieces():
                yield (
                    openai.chunk(self._id, self._created, model, {"content": piece}, **more)
                    if piece
                    else b": ping\n\n"
                )
            failed = await self._failure()
            if failed is not None:
                yield b"data: %b\n\n" % bytes(failed.body)
                return
            for index, call in enumerate(progress.calls):
                yield openai.chunk(
                    self._id,
                    self._created,
                    model,
                    {"tool_calls": [{"index": index, **openai.called(call)}]},
                    **more,
                )
            yield openai.chunk(self._id, self._created, model, {}, progress.finish_reason, **more)
            if with_usage:
                yield openai.chunk(self._id, self._created, model, None, usage=progress.tokens())
            yield b"data: [DONE]\n\n"
        finally:
            await asyncio.shield(asyncio.ensure_future(self._leave()))

    async def _pieces(self) -> AsyncIterator[str]:
        """The answer's text in pieces, "" where nothing came for a while; returns when the turn is
        over."""
        progress, after, whole = (
            self._progress,
            self.place.seq,
            True,
        )  # whether all pieces of the answer that is on its way were heard
        while not progress.done:
            missed = self.reader.missed
            frames, notes, ended = await self.reader.next(after, _PING)
            whole = whole and missed == self.reader.missed
            pieces = [
                piece
                for note in notes
                if note.kind == "delta" and (piece := _piece(note.data)).kind in ("text", "restart")
            ]
            for frame in frames:
                event = ev.decode(frame.data)
                if progress.done and not isinstance(event, ev.Decision):
                    break  # what follows is of a later turn
                after = frame.seq
                if isinstance(event, ev.Assistant):
                    # These are of this answer, or of the next one, of which some may be missing.
                    whole = (
                        not pieces
                        or progress.told + "".join(piece.text for piece in pieces) == event.text
                    )
                    pieces.clear()
                if text := progress.feed(event):
                    yield text
            for piece in pieces if whole else ():
                if piece.kind == "restart":
                    progress.broke()
                elif text := progress.piece(piece.text):
                    yield text
            if ended:
                return
            if not frames and not notes:
                yield ""
        if self._answered:
            await self._service.read(
                chats.remember, self._host, self._tenant, self.place, self._turn, progress
            )

    @property
    def _answered(self) -> bool:
        return self._progress.done and self._progress.status not in (
            "error",
            "stuck",
            "paused",
            "waiting_for_confirmation",
        )

    async def _failure(self) -> Response | None:
        """Why there is no answer, if there is none. No status is one that clients take for a reason
        to ask again: the model was asked again as often as the agent says, and the rest waits for
        somebody."""
        progress, id = self._progress, self.place.id
        if not progress.done:
            return _error(
                503,
                "The server ends, or the conversation was removed, before there was an answer."
                " Asked again soon it goes on.",
                "server_error",
                None,
                retry=False,
            )
        if progress.status in ("error", "stuck"):
            await self._service.read(chats.forget, self._host, self._tenant, self.place, self._turn)
        if progress.status == "error":
            error = progress.error
            kind = "LLMError" if error is None else error.error
            return _error(
                422, kind if error is None else error.message, "server_error", kind, retry=False
            )
        if progress.status == "stuck":
            return _error(
                422,
                f"The agent got stuck in the conversation {id}.",
                "server_error",
                "stuck",
                retry=False,
            )
        if progress.status == "waiting_for_confirmation":
            return _error(
                422,
                f"A call waits for approval in the conversation {id}; this API has no word for it.",
                "invalid_request_error",
                "waiting_for_confirmation",
                retry=False,
            )
        if progress.status == "paused":
            return _error(
                422,
                f"The conversation {id} was paused. Asked again soon it goes on.",
                "server_error",
                "paused",
                retry=False,
            )
        return None

    async def _leave(self) -> None:
        if (reader := getattr(self, "reader", None)) is not None:
            reader.close()
        if self._service.closing:
            return
        try:
            await self._service.change(
                chats.leave, self._host, self._tenant, self.place, self._progress.done
            )
        except errors.HoldfastError as error:
            _log.warning(
                "conversation %s: a chat client is gone, and it could not be interrupted: %s",
                self.place.id,
                error,
            )


def _piece(data: bytes) -> Delta:
    return msgspec.json.decode(data, type=Delta)


def _model(agent: Published) -> dict[str, Any]:
    return {"id": agent.name, "object": "model", "created": agent.created, "owned_by": "holdfast"}


def _unknown(name: str, agents: Mapping[str, Published]) -> Response:
    has = (
        f"It has: {', '.join(agents)}."
        if agents
        else "It has none: start it with --agent NAME=FILE."
    )
    return _error(
        404,
        f"There is no agent {name[:100]!r} on this server. {has}",
        "invalid_request_error",
        "model_not_found",
        "model",
    )


def _failed(error: Exception) -> Response:
    response = error_answer(error)
    message = msgspec.json.decode(bytes(response.body))["error"]["message"]
    status = 400 if response.status_code == 422 else response.status_code
    if isinstance(error, errors.TooMany) and error.bound != "open":
        status = 422  # it is not for this client to wait for
    return _error(
        status,
        message,
        _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error"),
    )


def _error(
    status: int,
    message: str,
    kind: str,
    code: str | None = None,
    param: str | None = None,
    retry: bool = True,
) -> Response:
    return Response(
        openai.failure(message, kind, code, param),
        status,
        None if retry else _NO_RETRY,
        media_type=_MEDIA,
    )
