"""What MCP servers may ask of us: the user's input (elicitation), a model's (sampling), and which folders to work in (roots).

Answers come from the owner's code, which runs on a thread of its own, never on the loop thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast.content import Content, Message
from holdfast.errors import ConfigurationError, ToolCancelled
from holdfast.tools.callables import refuse_async
from holdfast.tools.context import Cancellation
from holdfast.tools.forms import defaults

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")
Answer = dict[str, Any] | bool | None
Roots = Iterable[str | PathLike[str]] | Callable[[], Iterable[str | PathLike[str]]]

_log = logging.getLogger(__name__)


class Elicitation(msgspec.Struct, frozen=True):
    """What a server asks the user: `message`, and either `schema` (a form, as a JSON Schema of flat properties) or `url` (a page to visit).

    `server` is the id of who asks: show it, for it is not us. `cancelled` is raised when nobody waits for the answer any more.
    """

    server: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None
    cancelled: Cancellation = msgspec.field(default_factory=Cancellation)


Elicit = Callable[[Elicitation], Answer]


class Hooks(msgspec.Struct, frozen=True):
    """What an owner has put at the servers' service. Equal hooks may share a connection."""

    elicit: Elicit | None = None
    sample: Any = None  # whatever has `completion(messages, system=, cancelled=)`, as a `Model` has
    roots: Roots | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` naming what does not fit."""
        if self.elicit is not None and not callable(self.elicit):
            raise ConfigurationError(f"MCPClient: elicit takes a function of an Elicitation, not {self.elicit!r}.")
        refuse_async("MCPClient: elicit", self.elicit)
        refuse_async("MCPClient: roots", self.roots)
        if self.sample is not None and not callable(getattr(self.sample, "completion", None)):
            raise ConfigurationError(f"MCPClient: sample takes an LLM or what else has completion(), not {type(self.sample).__name__}.")
        if self.roots is not None and (isinstance(self.roots, str) or not (callable(self.roots) or isinstance(self.roots, Iterable))):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"MCPClient: roots takes a list of folders or a function that returns one, not {self.roots!r}.")


async def on_thread(work: Callable[[], T]) -> T:
    """Run the owner's code on a thread of its own and wait; the loop goes on. A cancel leaves the thread to its work."""
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(outcome: tuple[T | None, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = work(), None
        except BaseException as error:
            outcome = None, error
        with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever asked with it
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="holdfast-mcp-hook", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return cast("T", value)


# --- elicitation ---------------------------------------------------------------------------------


async def answer_elicitation(server: str, elicit: Elicit | None, asked: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
    """The user's answer. Nobody to ask declines; a hook that raises cancels, which is MCP's word for no answer."""
    import mcp_types

    if elicit is None:
        return mcp_types.ElicitResult(action="decline")
    if asked.mode == "url":
        if not asked.url.startswith(("https://", "http://")):  # file:, javascript:, and whatever else a handler is registered for
            return mcp_types.ElicitResult(action="decline")
        question = Elicitation(server, asked.message, url=asked.url)
    else:
        question = Elicitation(server, asked.message, asked.requested_schema)
    try:
        answer = await on_thread(lambda: elicit(question))
        if answer is None or answer is False:
            return mcp_types.ElicitResult(action="decline")
        if question.schema is None:
            return mcp_types.ElicitResult(action="accept")
        given: dict[str, Any] = {} if answer is True else answer
        return mcp_types.ElicitResult(action="accept", content={**defaults(question.schema), **given})
    except ToolCancelled:
        return mcp_types.ElicitResult(action="cancel")
    except Exception as error:
        _log.warning(
            "MCP server %r: its question to the user had no answer: elicit raised %s.", server, type(error).__name__, exc_info=True
        )
        return mcp_types.ElicitResult(action="cancel")
    finally:
        question.cancelled.cancel()


# --- sampling ------------------------------------------------------------------------------------

_STOP = {"stop": "endTurn", "length": "maxTokens"}


async def answer_sampling(
    server: str, model: Any, asked: mcp_types.CreateMessageRequestParams, used: Callable[[str, Any], None]
) -> mcp_types.CreateMessageResult | mcp_types.ErrorData:
    """A completion of the owner's model, as text. Which model, and its parameters, are the owner's to say, not the server's.
    `used(model, usage)` is told what it took."""
    import mcp_types

    try:
        messages = [Message(tuple([_block(block) for block in one.content_as_list]), one.role) for one in asked.messages]
    except ValueError as error:
        return mcp_types.ErrorData(code=mcp_types.INVALID_PARAMS, message=str(error))
    cancelled = Cancellation()
    _log.info("MCP server %r asks for a completion of %d messages.", server, len(messages))
    try:
        found = await on_thread(lambda: model.completion(messages, system=asked.system_prompt, cancelled=cancelled))
    except Exception as error:
        _log.warning("MCP server %r: the completion that it asked for failed: %s.", server, type(error).__name__, exc_info=True)
        return mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=f"The model failed: {type(error).__name__}")
    finally:
        cancelled.cancel()
    name = str(found.model or getattr(model, "model", "") or "unknown")
    used(name, found.usage)
    return mcp_types.CreateMessageResult(
        role="assistant",
        content=mcp_types.TextContent(text=found.text),
        model=name,
        stop_reason=_STOP.get(found.stop_reason, found.stop_reason),
    )


def _block(block: Any) -> Content:
    if block.type not in ("text", "image", "audio"):
        raise ValueError(f"Sampling takes text, images and audio here, not {block.type!r}.")
    from holdfast.tools.mcp.results import block_of

    return block_of(block)


# --- roots ---------------------------------------------------------------------------------------


async def answer_roots(roots: Roots) -> mcp_types.ListRootsResult:
    """The folders, as absolute `file://` addresses."""
    import mcp_types

    found = await on_thread(lambda: [Path(one).absolute() for one in (roots() if callable(roots) else roots)])
    return mcp_types.ListRootsResult(roots=[mcp_types.Root.model_validate({"uri": path.as_uri(), "name": path.name}) for path in found])
