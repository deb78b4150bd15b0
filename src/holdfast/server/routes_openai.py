"""`/v1/models` and `/v1/chat/completions`: the server's agents for clients of OpenAI's Chat
Completions API."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from holdfast import errors
from holdfast import events as ev
from holdfast.conversation.fold import fold
from holdfast.llm.completion import Delta
from holdfast.server import openai
from holdfast.server.answers import error_answer
from holdfast.server.chat_turns import ChatPlace, HostedTurn
from holdfast.server.feed import FeedReader
from holdfast.server.guard import RequestRefused, client_left
from holdfast.server.openai import ChatRequest, ChatTurn, Published, TurnProgress
from holdfast.server.routes import Routes
from holdfast.server.service import Service, wait_for_disconnect

_log = logging.getLogger("holdfast.server")

CONVERSATION = "x-holdfast-conversation"  # the header with the id of the conversation
_PING_SECONDS = 10.0  # silence after which a comment keeps the stream alive
_MEDIA = "application/json"
_DELTAS = msgspec.json.Decoder(Delta)
# OpenAI's clients retry by themselves, but a turn that has begun may have had side effects.
_NO_RETRY = {"x-should-retry": "false"}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_INTERRUPTED = (
    "The server is shutting down, or the conversation was removed, before the answer was complete."
    " Repeat the request soon to continue."
)
# The error's type and message for each status with which a turn ends without an answer.
_ENDS = {
    "stuck": ("server_error", "The agent got stuck in the conversation {id}."),
    "paused": (
        "server_error",
        "The conversation {id} was paused. Repeat the request soon to continue.",
    ),
    "waiting_for_confirmation": (
        "invalid_request_error",
        "A call waits for approval in the conversation {id}, which this API cannot express.",
    ),
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
    """Add the routes of OpenAI's API."""
    service, routes = routes.service, routes.under("/v1", "openai")

    @routes.get(
        "/models",
        "List the agents as models",
        client=False,
        also=(),
        schema={
            "type": "object",
            "required": ["object", "data"],
            "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
        },
    )
    async def list_models(request: Request) -> Response:
        """In the form of OpenAI's list of models."""
        found = {"object": "list", "data": [_model(agent) for agent in agents.values()]}
        return Response(msgspec.json.encode(found), media_type=_MEDIA)

    @routes.get(
        "/models/{model}", "Get one agent as a model", schema=_MODEL, client=False, also=(404,)
    )
    async def get_model(request: Request, model: str) -> Response:
        """In the form of OpenAI's API."""
        if (agent := agents.get(model)) is None:
            return unknown_model(model, agents)
        return Response(msgspec.json.encode(_model(agent)), media_type=_MEDIA)

    @routes.post(
        "/chat/completions",
        "Ask an agent",
        schema={"type": "object", "required": ["id", "object", "choices"]},
        also=(400, 404, 409, 413, 422, 503),
        client=False,
        example={"model": "coder", "messages": [{"role": "user", "content": "Hi"}]},
        takes=ChatRequest,
    )
    async def create_chat_completion(request: Request) -> Response:
        """Like OpenAI's Chat Completions, plain or streamed. The agent's tools run on the
        server. Tools of the request belong to the client, and their calls are returned as
        `tool_calls`."""
        asked = await service.json(request, ChatRequest, largest=None)
        agent = agents.get(asked.model)
        if agent is None:
            return unknown_model(asked.model, agents)
        try:
            turn = openai.parse_request(asked, agent)
        except RecursionError:
            return error_response(400, "The request is nested too deeply.", "invalid_request_error")
        except Exception as error:
            return failed_response(error)
        chat = Chat(service, service.caller(request).tenant, agent, turn)
        try:
            await chat.begin()
        except RequestRefused:
            raise
        except Exception as error:
            response = failed_response(error)
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
    """One chat request: a turn of a conversation."""

    place: ChatPlace
    reader: FeedReader | None = None

    def __init__(self, service: Service, tenant: str, agent: Published, turn: ChatTurn) -> None:
        self._service = service
        self._host = service.host
        self._tenant = tenant
        self._model = agent.name
        self._hosted = HostedTurn(service.host, tenant, agent, turn)
        self._progress = TurnProgress(agent, turn)
        self._id = f"chatcmpl-{os.urandom(12).hex()}"
        self._created = int(time.time())
        self.placed = False  # True once the request has a conversation

    async def begin(self) -> None:
        """Find or create the conversation and start its run. Raises the host's errors."""
        self._service.check_open()
        work = self._service.change(self._start, asyncio.get_running_loop())
        starting = asyncio.ensure_future(work)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(self._left_late(starting))
            starting.add_done_callback(lambda _: leaving)  # keeps it until then
            raise

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do the blocking work of `begin`."""
        place = self.place = self._hosted.begin()
        self.placed = True
        try:
            before = place.before
            if before is None:
                before = fold(self._host.state(self._tenant, place.id).events[: place.seq])
            self._progress.begin(before, place.since)
            self.reader = self._host.feed(self._tenant, place.id).subscribe(loop)
            if place.run:
                self._host.run(self._tenant, place.id)
        except BaseException:
            if self.reader is not None:
                self.reader.close()
            self._hosted.leave(place, self._progress.done)
            raise

    async def _left_late(self, starting: asyncio.Future[None]) -> None:
        """Leave the conversation that was found after the request was cancelled."""
        with suppress(Exception):  # nobody is there to be told
            await starting
            await self._leave()

    async def whole(self, request: Request) -> Response:
        """Return the completion when the turn is over. If the client disconnects, the run is
        paused."""
        work = asyncio.ensure_future(self._finished())
        disconnected = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise client_left()
            if (failed := await work) is not None:
                return failed
            found = openai.completion(self._id, self._created, self._model, self._progress)
            return Response(msgspec.json.encode(found), media_type=_MEDIA)
        finally:
            disconnected.cancel()
            work.cancel()
            await self._leave()

    async def _finished(self) -> Response | None:
        async for _ in self._pieces():
            pass
        return await self._failure()

    async def streamed(self, with_usage: bool) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer as its text arrives."""
        progress = self._progress
        more: dict[str, Any] = {"usage": None} if with_usage else {}

        def chunk(delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> bytes:
            return openai.chunk(self._id, self._created, self._model, delta, reason, **more)

        try:
            yield chunk({"role": "assistant", "content": ""}, **more)
            async for piece in self._pieces():
                yield chunk({"content": piece}, **more) if piece else b": ping\n\n"
            failed = await self._failure()
            if failed is not None:
                yield b"data: %b\n\n" % bytes(failed.body)
                return
            if progress.refusal:
                yield chunk({"refusal": progress.refusal}, **more)
            if progress.annotations:
                yield chunk({"annotations": progress.annotations}, **more)
            for index, call in enumerate(progress.calls):
                calls = [{"index": index, **openai.wire_call(call)}]
                yield chunk({"tool_calls": calls}, **more)
            yield chunk({}, progress.finish_reason, **more)
            if with_usage:
                yield chunk(None, usage=progress.tokens())
            yield b"data: [DONE]\n\n"
        finally:
            await asyncio.shield(asyncio.ensure_future(self._leave()))

    async def _pieces(self) -> AsyncIterator[str]:
        """Yield the answer's text in pieces, and "" after a time of silence. Return when the
        turn is over."""
        progress, reader, after = self._progress, self.reader, self.place.seq
        assert reader is not None  # since `begin`
        complete = True  # True while no piece of the streaming answer was missed
        while not progress.done:
            missed = reader.missed
            frames, notes, ended = await reader.next(after, _PING_SECONDS)
            complete = complete and missed == reader.missed
            deltas = [_DELTAS.decode(note.data) for note in notes if note.kind == "delta"]
            pieces = [piece for piece in deltas if piece.kind in ("text", "restart")]
            for frame in frames:
                event = ev.decode(frame.data)
                if progress.done and not isinstance(event, ev.DecisionMade):
                    break  # the following events belong to a later turn
                after = frame.seq
                if isinstance(event, ev.AssistantReplied):
                    # The pieces belong to this answer, or to the next one, of which some may be
                    # missing.
                    streamed = progress.sent + "".join(piece.text for piece in pieces)
                    complete = not pieces or streamed == event.text
                    pieces.clear()
                if text := progress.feed(event):
                    yield text
            for piece in pieces if complete else ():
                if piece.kind == "restart":
                    progress.restart()
                elif text := progress.piece(piece.text):
                    yield text
            if ended:
                return
            if not frames and not notes:
                yield ""
        if progress.status not in ("error", *_ENDS):
            await self._service.read(self._hosted.remember, self.place, progress)

    async def _failure(self) -> Response | None:
        """Return the error of a turn without an answer, or None. Clients do not retry its status by
        themselves: the agent's own retries are used up, or the conversation waits for a person."""
        progress, id = self._progress, self.place.id
        if not progress.done:
            return error_response(503, _INTERRUPTED, "server_error", retry=False)
        if progress.status in ("error", "stuck"):
            await self._service.read(self._hosted.forget, self.place)
        if progress.status == "error":
            error = progress.error
            code, message = ("LLMError",) * 2 if error is None else (error.error, error.message)
            return error_response(422, message, "server_error", code, retry=False)
        if (found := _ENDS.get(progress.status)) is None:
            return None
        kind, message = found
        return error_response(422, message.format(id=id), kind, progress.status, retry=False)

    async def _leave(self) -> None:
        if self.reader is not None:
            self.reader.close()
        if self._service.closing:
            return
        try:
            await self._service.change(self._hosted.leave, self.place, self._progress.done)
        except errors.HoldfastError as error:
            _log.warning(
                "conversation %s: its chat client disconnected, but the conversation could not be"
                " interrupted: %s",
                self.place.id,
                error,
            )


def _model(agent: Published) -> dict[str, Any]:
    return {"id": agent.name, "object": "model", "created": agent.created, "owned_by": "holdfast"}


def unknown_model(name: str, agents: Mapping[str, Published]) -> Response:
    """Return the answer to a request for an agent that the server does not publish."""
    available = f"It has: {', '.join(agents)}."
    if not agents:
        available = "It has none: start it with --agent NAME=FILE."
    message = f"There is no agent {name[:100]!r} on this server. {available}"
    return error_response(404, message, "invalid_request_error", "model_not_found", "model")


def failed_response(error: Exception) -> Response:
    """Return the answer for an exception, in the form of OpenAI's API."""
    response = error_answer(error)
    message = msgspec.json.decode(bytes(response.body))["error"]["message"]
    status = 400 if response.status_code == 422 else response.status_code
    if isinstance(error, errors.TooMany) and error.bound != "open":
        status = 422  # not 429, because waiting does not help
    other = "invalid_request_error" if status < 500 else "server_error"
    return error_response(status, message, _KINDS.get(status, other))


def error_response(
    status: int,
    message: str,
    kind: str,
    code: str | None = None,
    param: str | None = None,
    retry: bool = True,
) -> Response:
    """Return an error in the form of OpenAI's API. Without `retry`, clients do not repeat it."""
    body, headers = openai.failure(message, kind, code, param), None if retry else _NO_RETRY
    return Response(body, status, headers, _MEDIA)
