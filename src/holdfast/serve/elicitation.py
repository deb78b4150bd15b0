"""Questions of tools to the user of an MCP client.

Up to 2025-11-25 a question is a request to the client (`elicitation/create`). Since 2026-07-28 it
is a result of the call, which the client repeats with the answer; the call waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import ToolError
from holdfast.tools.context import CallQuestion

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext

_MAX_SECONDS = 3600.0  # that a question waits for its user
_YES: dict[str, Any] = {"type": "object", "properties": {}}  # the form of a question for a yes


class McpQuestions:
    """The questions of one call, for `ToolContext(asks=)`. `question` is set to the question that
    a modern client must get as the call's result; `renew` replaces it."""

    def __init__(self, context: ServerRequestContext[Any], modern: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._modern = modern
        capabilities = context.session.client_capabilities
        self._offered = capabilities is not None and capabilities.elicitation is not None
        self._answer: Future[Any] = Future()
        self.declined = False  # the last question, in so many words: not dismissed, not timed out
        self.question: asyncio.Future[dict[str, Any]] = self._loop.create_future()

    @property
    def reachable(self) -> bool:
        """True if the client can ask its user."""
        return self._offered and (self._modern or self._context.session.can_send_request)

    def ask(self, question: CallQuestion) -> dict[str, Any] | None:
        """See `Asks.ask`. A page is named in the message."""
        if not self.reachable:
            return None
        text = f"{question.message} {question.url}".strip()
        form = question.schema or _YES
        answer = self._answer = Future()
        self.declined = False
        request: Future[Any] | None = None
        if self._modern:
            self._loop.call_soon_threadsafe(self.question.set_result, form_request(text, form))
        else:
            session, id = self._context.session, self._context.request_id
            work = session.elicit_form(text, form, related_request_id=id)
            request = asyncio.run_coroutine_threadsafe(work, self._loop)
            request.add_done_callback(partial(_pass_on, answer))
        with contextlib.ExitStack() as stack:
            for flag in question.flags:
                stack.callback(flag.add_callback(answer.cancel))
            try:
                reply = answer.result(min(question.timeout or _MAX_SECONDS, _MAX_SECONDS))
            except (CancelledError, FutureTimeout):
                if request is not None:
                    request.cancel()
                return None
            except Exception as error:
                raise ToolError(f"The user could not be asked: {error}") from error
        action, content = reply
        self.declined = action == "decline"
        return dict(content or {}) if action == "accept" else None

    def renew(self, response: Any) -> None:
        """Take a modern client's response. Runs on the loop's thread."""
        self.question = self._loop.create_future()
        if not self._answer.done():
            self._answer.set_result((response.action, response.content))


def form_request(text: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """Return a question as the request that a client's user is asked by."""
    params = {"mode": "form", "message": text, "requestedSchema": schema or _YES}
    return {"method": "elicitation/create", "params": params}


def _pass_on(answer: Future[Any], request: Future[Any]) -> None:
    with contextlib.suppress(Exception):  # the answer was cancelled meanwhile
        if request.cancelled():
            answer.cancel()
        elif (error := request.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result((request.result().action, request.result().content))
