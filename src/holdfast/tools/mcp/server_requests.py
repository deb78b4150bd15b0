"""The requests of an MCP server to its client: for the user's input (elicitation), a model's
completion (sampling), and the folders to work in (roots).

The owner's code computes each answer on a separate thread, never on the loop thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.content import Content, Message
from holdfast.errors import ConfigurationError, ToolCancelled
from holdfast.tools.arguments import refuse_async, wrong
from holdfast.tools.context import Cancellation
from holdfast.tools.mcp.results import block_of
from holdfast.tools.question_forms import default_values

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")
ElicitationAnswer = dict[str, Any] | bool | None
Roots = Iterable[str | PathLike[str]] | Callable[[], Iterable[str | PathLike[str]]]

_log = logging.getLogger(__name__)


class Elicitation(msgspec.Struct, frozen=True):
    """A server's question to the user."""

    server: str
    """The id of the server that asks. Show it, so that the user does not take the question for one
    of your application."""
    message: str
    schema: dict[str, Any] | None = None
    """The form to fill in, as a JSON Schema of flat properties. Either `schema` or `url` is set."""
    url: str | None = None
    """A page to visit."""
    cancelled: Cancellation = msgspec.field(default_factory=Cancellation)
    """Set when the answer is no longer wanted."""


Elicit = Callable[[Elicitation], ElicitationAnswer]


class RequestHandlers(msgspec.Struct, frozen=True):
    """The owner's answers to requests of servers. Equal hooks may share a connection."""

    elicit: Elicit | None = None
    sample: Any = None
    """An object with `completion(messages, system=, cancelled=)`, such as a `Model`."""
    roots: Roots | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` for a hook of the wrong kind."""
        if self.elicit is not None and not callable(self.elicit):
            raise wrong("MCPClient: elicit", "a function of an Elicitation", self.elicit)
        refuse_async("MCPClient: elicit", self.elicit)
        refuse_async("MCPClient: roots", self.roots)
        if self.sample is not None and not callable(getattr(self.sample, "completion", None)):
            raise ConfigurationError(
                "MCPClient: sample takes an LLM or another object with completion(), not"
                f" {type(self.sample).__name__}."
            )
        if self.roots is not None and (
            isinstance(self.roots, str)
            or not (callable(self.roots) or isinstance(self.roots, Iterable))  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        ):
            form = "a list of folders or a function that returns one"
            raise wrong("MCPClient: roots", form, self.roots)


async def on_thread(work: Callable[[], T]) -> T:
    """Await the owner's code on a thread. After a cancel the thread runs on to its end."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()

    def settle(outcome: Callable[[], T]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop and the waiting coroutine have ended
            loop.call_soon_threadsafe(settle, future.result)

    threading.Thread(target=run, name="holdfast-mcp-hook", daemon=True).start()
    return (await done)()


# --- elicitation ---


async def answer_elicitation(
    server: str, elicit: Elicit | None, params: mcp_types.ElicitRequestParams
) -> mcp_types.ElicitResult:
    """Return the user's answer. Without a hook the answer is "decline". A hook that raises gives
    "cancel", which is MCP's word for no answer."""
    from mcp_types import ElicitResult

    # Refuse file:, javascript: and every other scheme that a handler is registered for.
    if elicit is None or (
        params.mode == "url" and not params.url.startswith(("https://", "http://"))
    ):
        return ElicitResult(action="decline")
    if params.mode == "url":
        question = Elicitation(server, params.message, url=params.url)
    else:
        question = Elicitation(server, params.message, params.requested_schema)
    try:
        answer = await on_thread(lambda: elicit(question))
        if answer is None or answer is False:
            return ElicitResult(action="decline")
        if question.schema is None:
            return ElicitResult(action="accept")
        values: dict[str, Any] = {} if answer is True else answer
        return ElicitResult(action="accept", content={**default_values(question.schema), **values})
    except Exception as error:
        if not isinstance(error, ToolCancelled):
            _log.warning(
                "MCP server %r: its question to the user got no answer: elicit raised %s.",
                server,
                type(error).__name__,
                exc_info=True,
            )
        return ElicitResult(action="cancel")
    finally:
        question.cancelled.cancel()


# --- sampling ---

_MCP_STOP_REASONS = {"stop": "endTurn", "length": "maxTokens"}


async def answer_sampling(
    server: str,
    model: Any,
    params: mcp_types.CreateMessageRequestParams,
    used: Callable[[str, Any], None] = lambda model, usage: None,
) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
    """Return a text completion of the owner's model. The owner chooses the model and its
    parameters, not the server. `used(model, usage)` is called with the usage of the completion."""
    import mcp_types

    try:
        messages = [
            Message(tuple([_block(block) for block in one.content_as_list]), one.role)
            for one in params.messages
        ]
    except ValueError as error:
        return mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=str(error))
    cancelled = Cancellation()
    _log.info("MCP server %r requests a completion of %d messages.", server, len(messages))
    try:
        completion = await on_thread(
            lambda: model.completion(messages, system=params.system_prompt, cancelled=cancelled)
        )
    except Exception as error:
        kind = type(error).__name__
        _log.warning(
            "MCP server %r: the completion that it requested failed: %s.",
            server,
            kind,
            exc_info=True,
        )
        problem = f"The model failed: {kind}"
        return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=problem)
    finally:
        cancelled.cancel()
    name = str(completion.model or getattr(model, "model", "") or "unknown")
    used(name, completion.usage)
    return mcp_types.CreateMessageResult(
        role="assistant",
        content=mcp_types.TextContent(text=completion.text),
        model=name,
        stop_reason=_MCP_STOP_REASONS.get(completion.stop_reason, completion.stop_reason),
    )


def _block(block: Any) -> Content:
    if block.type not in ("text", "image", "audio"):
        raise ValueError(f"Sampling takes text, images and audio here, not {block.type!r}.")
    return block_of(block)


# --- roots ---


async def answer_roots(roots: Roots) -> mcp_types.ListRootsResult:
    """Return the folders as absolute `file://` URLs."""
    from mcp_types import ListRootsResult

    folders = await on_thread(lambda: list(roots() if callable(roots) else roots))
    paths = [Path(folder).absolute() for folder in folders]
    entries = [{"uri": path.as_uri(), "name": path.name} for path in paths]
    return ListRootsResult.model_validate({"roots": entries})
