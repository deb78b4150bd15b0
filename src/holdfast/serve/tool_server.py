"""The MCP server of a `ToolManager`: its list of tools, its calls and its change notifications,
for any transport."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast import __version__
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, ToolError, ToolNotFound
from holdfast.serve import shapes
from holdfast.serve.elicitation import McpQuestions
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.manager import ToolManager
from holdfast.tools.running import error_result, start_thread

if TYPE_CHECKING:
    import mcp_types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.connection import Connection
    from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

    from holdfast.serve.agent_tasks import AgentTasks

_log = logging.getLogger("holdfast.serve")

_POLL_SECONDS = 0.5  # between two checks for changed tools
# The time that a list of tools waits for services; clients give up after 30 or 60 s.
_DISCOVERY_SECONDS = 20.0
# The time that calls have to honour their cancellation; a client kills its server after 2 s.
_SHUTDOWN_SECONDS = 1.0
# Progress messages that wait to be sent. Of more the oldest are dropped, since only the latest
# matter.
_MAX_QUEUED_MESSAGES = 100


class _UnknownTool(Exception):
    """An unknown tool, which is an error of the protocol and not of a call."""


class _LiveCall(NamedTuple):
    """A call whose thread runs: its outcome, its questions, its cancellation and its progress."""

    done: asyncio.Future[dict[str, Any] | BaseException]
    questions: McpQuestions
    cancelled: Cancellation
    progress: _Progress | None


class ToolServer:
    """A manager behind an MCP `Server`. To the tools all clients together are one conversation:
    they share its shell and its context. Call `begin` before the server runs and `end` after. The
    server itself uses `lifespan`."""

    def __init__(
        self,
        manager: ToolManager,
        name: str,
        instructions: str | None,
        max_calls: int,
        runtime: object | None,
        tasks: AgentTasks | None = None,
    ) -> None:
        if isinstance(max_calls, bool) or not isinstance(max_calls, int) or max_calls < 1:  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"max_calls takes a number of calls from 1, not {max_calls!r}."
            )
        self._manager = manager
        self._runtime = runtime
        self._tasks = tasks
        self._id = f"mcp-{secrets.token_hex(6)}"
        self._calls = 0
        self._running: set[Cancellation] = set()
        self._asking: dict[str, _LiveCall] = {}  # that wait for an answer of a modern client
        self._cleanups: dict[object, Callable[[], None]] = {}
        self._slots = asyncio.Semaphore(max_calls)
        self._threads: set[threading.Thread] = set()  # of running calls
        self._outputs = shapes.Outputs()
        self._definitions_cache: tuple[object, dict[bool, dict[str, Any]]] = (None, {})
        self._discovered = threading.Event()
        self._ended = False
        # Clients that get change notifications without a subscription.
        self._connections: set[Connection] = set()
        self.server = self._make_server(name, instructions)

    def _make_server(self, name: str, instructions: str | None) -> Server[Any]:
        import mcp_types
        from mcp.server import NotificationOptions, Server
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

        class _Server(Server[Any]):
            """A server that announces changes of its tool list on every transport."""

            def create_initialization_options(
                self, notification_options: Any = None, *args: Any, **options: Any
            ) -> Any:
                announced = notification_options or NotificationOptions(tools_changed=True)
                return super().create_initialization_options(announced, *args, **options)

        self._bus: InMemorySubscriptionBus = InMemorySubscriptionBus()
        self._listen: ListenHandler = ListenHandler(self._bus)
        server = _Server(
            name,
            version=__version__,
            instructions=instructions,
            lifespan=lambda _: self.lifespan(),
            get_tool_input_schema=lambda tool: (
                self._manager.get_schema(tool) if self._manager.exists(tool) else None
            ),
            on_list_tools=self._list,
            on_call_tool=cast("Any", self._call),
            on_subscriptions_listen=self._listen,
        )
        server.add_notification_handler(
            "notifications/initialized", mcp_types.NotificationParams, self._initialized
        )
        if self._tasks is not None:
            self._tasks.add_to(server)
        return server

    # --- lifecycle ---

    def begin(self) -> None:
        """Start to use the manager, and ask its services for their tools."""
        self._manager.opened()
        start_thread(self._discover, "holdfast-serve-discover")

    def _discover(self) -> None:
        try:
            self._manager.discover()
        except Exception:
            _log.exception("the services could not be asked for their tools")
        finally:
            self._discovered.set()

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[dict[str, Any]]:
        """Notify clients of changes of the tools while the server runs."""
        watch = asyncio.create_task(self._watch())
        try:
            yield {}
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    def cancel(self) -> None:
        """Cancel every call and close the streams of subscribers. Runs on the loop's thread."""
        self._listen.close()
        for cancelled in list(self._running):
            cancelled.cancel()

    def end(self) -> None:
        """Stop using the manager: wait briefly for running calls, then run the tools' cleanups.
        Blocks a few seconds. Idempotent."""
        if self._ended:
            return
        self._ended = True
        for cancelled in list(self._running):
            cancelled.cancel()
        running = self._join(_SHUTDOWN_SECONDS)
        while self._cleanups:
            _, cleanup = self._cleanups.popitem()
            try:
                cleanup()
            except Exception:
                _log.exception("a tool's cleanup failed")
        try:
            self._manager.closed()
        except Exception:
            _log.exception("the tools could not be closed")
        if running and (running := self._join(0.1)):
            _log.warning("%d calls did not stop when asked to, and end with this process", running)

    def _join(self, seconds: float) -> int:
        """Wait for the threads of calls. Return the number of threads that still run."""
        deadline = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        return len(self._threads)

    # --- the list ---

    async def _list(
        self, context: ServerRequestContext[Any], params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise _invalid_params(f"unknown cursor {params.cursor!r}: the list has one page")
        deadline = time.monotonic() + _DISCOVERY_SECONDS
        while not self._discovered.is_set() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        # The server accepts a dict in place of a model, and converts it to the client's protocol
        # version.
        return cast("Any", self._definitions(_is_modern(context)))

    def _definitions(self, modern: bool) -> dict[str, Any]:
        definitions = self._manager.definitions()  # the same object until the tools change
        if self._definitions_cache[0] is not definitions:
            self._definitions_cache = (definitions, {})
        lists = self._definitions_cache[1]
        if modern not in lists:
            # No caching: the next request must see the tools that `find_tools` added. Other
            # protocol versions leave these keys out.
            lists[modern] = {
                "tools": [shapes.definition(tool, modern) for tool in self._manager.list_tools()],
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
            }
        return lists[modern]

    async def _initialized(self, context: ServerRequestContext[Any], _: Any) -> None:
        connection = context.session._connection  # pyright: ignore[reportPrivateUsage]: there is no other signal of a connection's end
        if connection not in self._connections:
            self._connections.add(connection)
            connection.exit_stack.callback(self._connections.discard, connection)

    async def _watch(self) -> None:
        """Notify clients of changes. A manager has no notification; its definitions stay the
        same object until a change."""
        from mcp.server.subscriptions import ToolsListChanged

        previous = self._manager.definitions()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                definitions = self._manager.definitions()
                if definitions is previous:
                    continue
                previous = definitions
                await self._bus.publish(ToolsListChanged())
                for connection in list(self._connections):
                    await connection.send_tool_list_changed()
            except Exception:
                _log.exception("Clients could not be notified that the tools have changed")

    # --- calls ---

    async def _call(
        self, context: ServerRequestContext[Any], params: mcp_types.CallToolRequestParams
    ) -> dict[str, Any]:
        if params.request_state is not None:
            call = self._take_answer(params)
            return await self._wait_for_outcome(call, params.name, context)
        if self._tasks is not None and params.name == self._tasks.tool.name:
            task = await self._tasks.begin(context, params.arguments or {})
            if task is not None:
                return task
        loop = asyncio.get_running_loop()
        done: asyncio.Future[dict[str, Any] | BaseException] = loop.create_future()
        cancelled = Cancellation()
        questions = McpQuestions(context, _is_modern(context))
        self._calls += 1
        wants_progress = context.meta and context.meta.get("progress_token") is not None
        progress = _Progress(loop) if wants_progress else None
        tool_context = ToolContext(
            self._id,
            str(self._calls),
            cancelled=cancelled,
            runtime=self._runtime,
            on_close=self._cleanups.setdefault,
            progress=(lambda _: None) if progress is None else progress.report,
            asks=questions,
        )
        modern = _is_modern(context)

        def finish(outcome: dict[str, Any] | BaseException) -> None:
            self._slots.release()
            if not done.done():
                done.set_result(outcome)

        def work() -> None:
            thread = threading.current_thread()
            self._threads.add(thread)
            try:
                outcome = self._answer(params.name, params.arguments or {}, tool_context, modern)
            # Also SystemExit: an exception of a tool ends only its call.
            except BaseException as error:
                outcome = error
            self._threads.discard(thread)
            # The slot is free when the thread ends, even if no client waits for the call any more.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(finish, outcome)

        call = _LiveCall(done, questions, cancelled, progress)
        self._running.add(cancelled)
        try:
            await self._slots.acquire()
            try:
                start_thread(work, "holdfast-serve-call")
            except RuntimeError:
                self._slots.release()
                raise
        except BaseException:
            self._end(call)
            raise
        return await self._wait_for_outcome(call, params.name, context)

    def _end(self, call: _LiveCall) -> None:
        self._running.discard(call.cancelled)
        if not call.done.done() or call.done.cancelled():
            call.cancelled.cancel()

    def _take_answer(self, params: mcp_types.CallToolRequestParams) -> _LiveCall:
        """Return the call that a modern client's answer belongs to."""
        call = self._asking.pop(params.request_state or "", None)
        if call is None:
            raise _invalid_params("the question is over; call the tool again")
        response = (params.input_responses or {}).get("answer")
        if response is None or not hasattr(response, "action"):
            self._asking[params.request_state or ""] = call
            raise _invalid_params("inputResponses lacks the response to `answer`")
        call.questions.renew(response)
        return call

    async def _wait_for_outcome(
        self, call: _LiveCall, name: str, context: ServerRequestContext[Any]
    ) -> dict[str, Any]:
        """Return the result of a call, or its question to the user of a modern client."""
        done, modern, question_ready = call.done, _is_modern(context), call.questions.question
        sending = None
        if call.progress is not None:
            sending = asyncio.create_task(
                call.progress.send_until(done, context.session.report_progress)
            )
        try:
            await asyncio.wait({done, question_ready}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                state = secrets.token_hex(16)
                self._asking[state] = call
                requests = {"answer": question_ready.result()}
                question = {"inputRequests": requests, "requestState": state}
                return {"resultType": "input_required", **question}
            if sending is not None:
                await sending
        except BaseException:
            self._end(call)
            raise
        finally:
            if sending is not None:
                sending.cancel()
        self._end(call)
        outcome = done.result()
        if isinstance(outcome, _UnknownTool):
            raise _invalid_params(str(outcome))
        if isinstance(outcome, BaseException):
            _log.error("%r failed", name, exc_info=outcome)
            failure = ToolError(f"{name!r} failed: {type(outcome).__name__}")
            return shapes.result(error_result(failure), None, modern)
        return outcome

    def _answer(
        self, name: str, arguments: dict[str, Any], context: ToolContext, modern: bool
    ) -> dict[str, Any]:
        """Run one call on a worker's thread. Raises `_UnknownTool`."""
        if context.cancelled:
            raise ToolError(f"{name!r} was cancelled before it began.")
        try:
            tool = self._manager.get(name)
        except ToolNotFound as error:
            raise _UnknownTool(str(error)) from None
        except ToolError as error:
            return shapes.result(error_result(error), None, modern)
        result = self._manager.run(ToolCall(context.call_id, tool.name, arguments), context)
        if problem := self._outputs.problem(tool, result):
            failure = ToolError(f"{name!r} was run, but {problem}. Its answer:", retryable=False)
            answer = shapes.result(error_result(failure), tool, modern)
            answer["content"] += shapes.result(result, tool, modern)["content"]
            return answer
        return shapes.result(result, tool, modern)


def _is_modern(context: ServerRequestContext[Any]) -> bool:
    return context.protocol_version >= "2026-07-28"


def _invalid_params(message: str) -> Exception:
    """Return the protocol's error for a request with invalid parameters."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, message)


class _Progress:
    """A queue of progress messages from a tool's thread to the client, in order and before the
    result."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[int, str]] = deque(maxlen=_MAX_QUEUED_MESSAGES)
        self._number = 0
        self._more = asyncio.Event()

    def report(self, message: str) -> None:
        """Queue a message of a tool's `report_progress`."""
        self._number += 1  # the protocol requires rising numbers; the total is unknown
        self._queue.append((self._number, message))
        if not self._more.is_set():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._more.set)

    async def send_until(self, done: asyncio.Future[Any], send: Callable[..., Any]) -> None:
        """Send queued messages until the call is done."""
        done.add_done_callback(lambda _: self._more.set())
        while True:
            await self._more.wait()
            self._more.clear()
            while self._queue:
                number, message = self._queue.popleft()
                await send(number, None, message)
            if done.done():
                return
