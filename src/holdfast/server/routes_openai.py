"""`/v1/models` and `/v1/chat/completions`: the server's agents for clients of OpenAI's Chat
Completions API."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from holdfast import errors
from holdfast import events as ev
from holdfast.conversation.turns import Silence
from holdfast.server import openai_answers as answers
from holdfast.server.answers import answer, error_answer
from holdfast.server.chat_turns import BegunChat, HostedTurn
from holdfast.server.hosted import HostedDoor, undisturbed
from holdfast.server.openai import ChatRequest, ChatTurn, Published, parse_request
from holdfast.server.openai_answers import TurnProgress
from holdfast.server.routes import RouteTable
from holdfast.server.service import Service, unless_left
from holdfast.server.sse import TurnStream

_log = logging.getLogger("holdfast.server")

CONVERSATION = "x-holdfast-conversation"  # the header with the id of the conversation
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
    body, headers = answers.failure(message, kind, code, param), None if retry else _NO_RETRY
    return Response(body, status, headers, "application/json")


routes = RouteTable("/v1", "openai", {"client": False, "failed": failed_response})


@routes.get(
    "/models",
    "List the agents as models",
    also=(),
    schema={
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
    },
)
async def list_models(agents: Mapping[str, Published]) -> Response:
    """In the form of OpenAI's list of models."""
    models = {"object": "list", "data": [_model(agent) for agent in agents.values()]}
    return answer(models)


@routes.get("/models/{model}", "Get one agent as a model", schema=_MODEL, also=(404,))
async def get_model(agents: Mapping[str, Published], model: str) -> Response:
    """In the form of OpenAI's API."""
    if (agent := agents.get(model)) is None:
        return unknown_model(model, agents)
    return answer(_model(agent))


@routes.post(
    "/chat/completions",
    "Ask an agent",
    schema={"type": "object", "required": ["id", "object", "choices"]},
    also=(400, 404, 409, 413, 422, 503),
    largest=None,
    example={"model": "coder", "messages": [{"role": "user", "content": "Hi"}]},
)
async def create_chat_completion(
    service: Service,
    agents: Mapping[str, Published],
    request: Request,
    tenant: str,
    body: ChatRequest,
) -> Response:
    """Like OpenAI's Chat Completions, plain or streamed. The agent's tools run on the server. Tools
    of the request belong to the client, and their calls are returned as `tool_calls`."""
    agent = agents.get(body.model)
    if agent is None:
        return unknown_model(body.model, agents)
    try:
        turn = parse_request(body, agent)
    except RecursionError:
        return error_response(400, "The request is nested too deeply.", "invalid_request_error")
    chat = Chat(service, tenant, agent, turn, bool(body.stream))
    await chat.begin()
    headers = {CONVERSATION: chat.begun_chat.id}
    if body.stream:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return TurnStream(chat.streamed(usage), chat.leave, headers)
    response = await chat.whole(request)
    response.headers.update(headers)
    return response


class Chat:
    """One chat request: a turn of a conversation."""

    begun_chat: BegunChat

    def __init__(
        self, service: Service, tenant: str, agent: Published, turn: ChatTurn, streams: bool
    ) -> None:
        self._service = service
        self._model = agent.name
        door = HostedDoor(service.host, tenant, service.change, False)
        loop = asyncio.get_running_loop()
        self._hosted = HostedTurn(service.host, door, tenant, agent, turn, loop, streams)
        self._progress = TurnProgress(agent, turn)
        self._id = f"chatcmpl-{os.urandom(12).hex()}"
        self._created = int(time.time())

    async def begin(self) -> None:
        """Find or create the conversation and begin the turn. Raises the host's errors."""
        self._service.check_open()
        beginning = self._service.change(self._hosted.begin)
        chat = self.begun_chat = await undisturbed(beginning, BegunChat.leave)
        self._progress.begin(chat.before, chat.since)

    async def whole(self, request: Request) -> Response:
        """Return the completion when the turn is over. If the client disconnects, the run is
        paused."""
        try:
            if (failed := await unless_left(request, self._run_to_end())) is not None:
                return failed
            completion = answers.completion(self._id, self._created, self._model, self._progress)
            return answer(completion)
        finally:
            await self.leave()

    async def _run_to_end(self) -> Response | None:
        async for _ in self._pieces():
            pass
        return await self._failure()

    async def streamed(self, with_usage: bool) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer as its text arrives."""
        progress = self._progress
        more: dict[str, Any] = {"usage": None} if with_usage else {}

        def chunk(delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> bytes:
            return answers.chunk(self._id, self._created, self._model, delta, reason, **more)

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
                calls = [{"index": index, **answers.wire_call(call)}]
                yield chunk({"tool_calls": calls}, **more)
            yield chunk({}, progress.finish_reason, **more)
            if with_usage:
                yield chunk(None, usage=progress.tokens())
            yield b"data: [DONE]\n\n"
        finally:
            await asyncio.shield(asyncio.ensure_future(self.leave()))

    async def _pieces(self) -> AsyncIterator[str]:
        """Yield the answer's text in pieces, and "" after a time of silence. Return when the
        turn is over."""
        progress, turn = self._progress, self.begun_chat.turn
        async with aclosing(turn.items()) as items:
            async for item in items:
                later = isinstance(item, ev.Event) and not isinstance(item, ev.DecisionMade)
                if progress.done and later:
                    break  # the following events belong to a later turn
                if isinstance(item, Silence):
                    yield ""
                elif text := progress.feed(item):
                    yield text
        turn.over = turn.over or progress.done
        if progress.done and progress.status not in ("error", *_ENDS):
            await self._service.read(self._hosted.remember, self.begun_chat, progress)

    async def _failure(self) -> Response | None:
        """Return the error of a turn without an answer, or None. Clients do not retry its status by
        themselves: the agent's own retries are used up, or the conversation waits for a person."""
        progress, id = self._progress, self.begun_chat.id
        if not progress.done:
            return error_response(503, _INTERRUPTED, "server_error", retry=False)
        if progress.status in ("error", "stuck"):
            await self._service.read(self._hosted.forget, self.begun_chat)
        if progress.status == "error":
            error = progress.error
            code, message = ("LLMError",) * 2 if error is None else (error.error, error.message)
            return error_response(422, message, "server_error", code, retry=False)
        if (failure := _ENDS.get(progress.status)) is None:
            return None
        kind, message = failure
        return error_response(422, message.format(id=id), kind, progress.status, retry=False)

    async def leave(self) -> None:
        """End the client's wait. Idempotent."""
        try:
            await self.begun_chat.leave()
        except errors.HoldfastError as error:
            _log.warning(
                "conversation %s: its chat client disconnected, but the conversation could not be"
                " interrupted: %s",
                self.begun_chat.id,
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
