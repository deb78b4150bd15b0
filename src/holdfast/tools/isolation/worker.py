"""The worker of an isolated call: it imports and runs the callback, and sends the outcome."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.content import ToolResult
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, ToolError
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.isolation import messages
from holdfast.tools.isolation.messages import IsolatedCall, IsolatedFailure, WorkerMessage
from holdfast.tools.results import clean
from holdfast.tools.running import attempt, checked_arguments, start_thread
from holdfast.tools.tool import Tool

_MAX_TRACEBACK_CHARS = 10_000


class _Context(ToolContext):
    """The context of a call in its own process, without what only the parent has."""

    def __init__(
        self,
        request: IsolatedCall,
        cancelled: Cancellation,
        tell: Callable[[str], None],
        cleanups: dict[object, Callable[[], None]],
    ) -> None:
        super().__init__(
            request.conversation_id,
            request.call_id,
            request.attempt,
            cancelled,
            None,
            tell,
            cleanups.__setitem__,
            lambda: request.marks,
        )
        self._tool = request.tool

    @property
    def runtime(self) -> object | None:
        """Raises `ToolError`: this process has no runtime."""
        raise self._missing("context.runtime", "Use files and processes directly, or make")

    @runtime.setter
    def runtime(self, value: object | None) -> None:
        """Ignore the value, which is always None here."""

    def output(self, call_id: str) -> ToolResult:
        """Raises `ToolError`: this process has no journal."""
        raise self._missing("context.output")

    def secret(self, name: str) -> str:
        """Raises `ToolError`: this process has no secrets of the conversation."""
        raise self._missing("context.secret")

    def spawn(self, *_: Any, **__: Any) -> Any:
        """Raises `ToolError`: this process has no store."""
        raise self._missing("context.spawn", "Use Conversation(agent), or make")

    def wake_at(self, *_: Any, **__: Any) -> Any:
        """Raises `ToolError`: this process has no journal."""
        raise self._missing("context.wake_at")

    def _missing(self, what: str, advice: str = "Make") -> ToolError:
        return ToolError(
            f"{self._tool!r} runs in a process of its own (isolation='process'), where there is"
            f" no {what}. {advice} the tool without isolation.",
            retryable=False,
            max_retries=0,
        )


def work(channel: int) -> None:
    """Serve the one call that arrives over `channel`, and end this process."""
    lock = threading.Lock()

    def send(message: msgspec.Struct) -> None:
        data = memoryview(messages.frame(message))
        with lock:  # a callback may report from several threads
            while data:
                data = data[os.write(channel, data) :]

    first = _receive(channel)
    if first is None:
        os._exit(1)
    request = msgspec.json.decode(first, type=IsolatedCall)
    cleanups: dict[object, Callable[[], None]] = {}

    def tell(message: str) -> None:
        send(messages.IsolatedProgress(clean(message)))

    try:
        result = _run(request, channel, tell, cleanups)
        outcome: WorkerMessage = messages.IsolatedAnswer(result)
    except ToolError as error:
        outcome = _refusal(error)
    for cleanup in reversed(cleanups.values()):
        try:
            cleanup()
        except Exception as error:
            print(f"cleaning up: {describe_error(error)}", file=sys.stderr)  # noqa: T201
    for stream in (sys.stdout, sys.stderr):
        # A callback may have closed the stream or replaced it by None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    send(outcome)
    # A finished call ends even if threads of it go on.
    os._exit(0)


def _receive(channel: int) -> bytes | None:
    """Return the next message; None at the channel's end."""
    data = b""
    size = 4
    while len(data) < size:
        more = os.read(channel, min(size - len(data), 1 << 20))
        if not more:
            return None
        data += more
        if len(data) == 4:
            size = 4 + int.from_bytes(data, "big")
    return data[4:]


def _run(
    request: IsolatedCall,
    channel: int,
    tell: Callable[[str], None],
    cleanups: dict[object, Callable[[], None]],
) -> ToolResult:
    tool = Tool(request.tool, "", _callback(request))
    arguments = request.arguments
    if request.convert_arguments:
        arguments = checked_arguments(tool, arguments)
    cancelled = Cancellation()

    def listen() -> None:
        if _receive(channel) is not None:  # the only message after the request is a cancel
            cancelled.cancel()

    if request.takes_context:
        threading.Thread(target=listen, name="holdfast-cancel", daemon=True).start()
    return attempt(tool, arguments, _Context(request, cancelled, tell, cleanups), start_thread)


def _callback(request: IsolatedCall) -> Callable[..., Any]:
    main: Any = sys.modules["__main__"]
    try:
        if request.script:
            module = _import_script(request.script)
        else:
            module = importlib.import_module(request.module)
        return messages.lookup(module, request.qualname)
    except Exception as error:
        source = request.script or request.module
        raise ToolError(
            f"{request.tool!r} was not run: its process cannot import {request.qualname!r} from"
            f" {source!r}: {describe_error(error)}",
            retryable=False,
            max_retries=0,
        ) from error
    finally:
        main.importing_callback = False


def _import_script(path: str) -> Any:
    """Import a script as a module, without running its `__main__` part."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    loader = SourceFileLoader(messages.SCRIPT, path)
    spec = spec_from_loader(messages.SCRIPT, loader)
    if spec is None:
        raise ConfigurationError(f"{path} cannot be loaded.")
    module = sys.modules[messages.SCRIPT] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _refusal(error: ToolError) -> IsolatedFailure:
    import traceback

    trace = clean("".join(traceback.format_exception(error.__cause__ or error)))
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ == ToolError.__module__)
    return IsolatedFailure(
        next(kinds).__name__,
        clean(str(error)),
        error.error_type,
        error.retryable,
        error.max_retries,
        error.backoff,
        error.retry_after,
        trace[-_MAX_TRACEBACK_CHARS:],
    )
