"""The worker of one isolated call: it imports the callback, runs it, and tells the parent. And the
messages that the two exchange."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.content import ToolResult
from holdfast.errors import Backoff, ConfigurationError, ToolError
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.results import clean
from holdfast.tools.running import attempt, checked, start_thread
from holdfast.tools.tool import Tool

# what a script's module is called in the worker, so that its `__main__` part is not run
SCRIPT = "__holdfast_script__"


class Request(msgspec.Struct, frozen=True):
    """One call: where its callback is found (`module`, or the file `script`), and what it is
    given."""

    tool: str
    module: str
    script: str
    qualname: str
    arguments: dict[str, Any]
    read: bool
    """Whether the arguments are still to be read into what the signature asks for."""
    conversation_id: str
    call_id: str
    attempt: int
    heeds: bool
    """Whether the callback can be told of a cancel."""
    marks: dict[str, str]


class Progress(msgspec.Struct, frozen=True, tag=True):
    """What the callback reported."""

    message: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What the callback returned."""

    result: ToolResult


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """A `ToolError`: what the callback raised, classified as it is in one process, or why it was
    not run. `kind` is the nearest of our classes."""

    kind: str
    text: str
    error_type: str
    retryable: bool
    max_retries: int
    backoff: Backoff
    retry_after: float | None
    traceback: str


Said = Progress | Answer | Refusal


def framed(message: msgspec.Struct) -> bytes:
    """A message as it goes over the channel: four bytes of length, and JSON."""
    data = msgspec.json.encode(message)
    return len(data).to_bytes(4, "big") + data


def lookup(place: Any, qualname: str) -> Any:
    """What stands at `qualname` in a module; of a `Tool` its callback. Raises `AttributeError`."""
    for name in qualname.split("."):
        place = getattr(place, name)
    return place.callback if isinstance(place, Tool) else place


class _Context(ToolContext):
    """A call's context in its own process: what the parent alone has is not here."""

    def __init__(
        self,
        request: Request,
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
        del self.runtime

    def __getattr__(self, name: str) -> Any:
        if name == "runtime":
            raise ToolError(
                f"{self._tool!r} runs in a process of its own (isolation='process'), where there is"
                " no context.runtime. Use files and processes directly, or make the tool without"
                " isolation.",
                retryable=False,
                max_retries=0,
            )
        raise AttributeError(name)


def work(channel: int) -> None:
    """Serve the one call that comes over `channel`, and end this process."""
    lock = threading.Lock()

    def send(message: msgspec.Struct) -> None:
        data = memoryview(framed(message))
        with lock:  # a callback may report from several threads
            while data:
                data = data[os.write(channel, data) :]

    first = _receive(channel)
    if first is None:
        os._exit(1)
    request = msgspec.json.decode(first, type=Request)
    cleanups: dict[object, Callable[[], None]] = {}
    try:
        said: Said = Answer(
            _run(request, channel, lambda message: send(Progress(clean(message))), cleanups)
        )
    except ToolError as error:
        said = _told(error)
    for cleanup in reversed(cleanups.values()):
        try:
            cleanup()
        except Exception as error:
            print(f"cleaning up: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (
            OSError,
            ValueError,
            AttributeError,
        ):  # a callback may have closed it, or put None in its place
            pass
    send(said)
    os._exit(
        0
    )  # neither threads that go on nor what they hold may keep a finished call from ending


def _receive(channel: int) -> bytes | None:
    """The next message; None at the channel's end."""
    data = b""
    wanted = 4
    while len(data) < wanted:
        more = os.read(channel, min(wanted - len(data), 1 << 20))
        if not more:
            return None
        data += more
        if len(data) == 4:
            wanted = 4 + int.from_bytes(data, "big")
    return data[4:]


def _run(
    request: Request,
    channel: int,
    tell: Callable[[str], None],
    cleanups: dict[object, Callable[[], None]],
) -> ToolResult:
    tool = Tool(request.tool, "", _callback(request))
    arguments = checked(tool, request.arguments) if request.read else request.arguments
    cancelled = Cancellation()

    def listen() -> None:
        if _receive(channel) is not None:  # there is but one message after the first
            cancelled.cancel()

    if request.heeds:
        threading.Thread(target=listen, name="holdfast-cancel", daemon=True).start()
    return attempt(tool, arguments, _Context(request, cancelled, tell, cleanups), start_thread)


def _callback(request: Request) -> Callable[..., Any]:
    main: Any = sys.modules["__main__"]
    try:
        found = lookup(
            _script(request.script) if request.script else importlib.import_module(request.module),
            request.qualname,
        )
    except Exception as error:
        where = request.script or request.module
        raise ToolError(
            f"{request.tool!r} was not run: its process cannot import {request.qualname!r} from"
            f" {where!r}: {type(error).__name__}: {error}",
            retryable=False,
            max_retries=0,
        ) from error
    finally:
        main.importing_callback = False
    return found


def _script(path: str) -> Any:
    """A script's module, without what it does when it is run."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    loader = SourceFileLoader(SCRIPT, path)
    spec = spec_from_loader(SCRIPT, loader)
    if spec is None:
        raise ConfigurationError(f"{path} cannot be loaded.")
    module = sys.modules[SCRIPT] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _told(error: ToolError) -> Refusal:
    import traceback

    trace = clean("".join(traceback.format_exception(error.__cause__ or error)))[-10_000:]
    ours = next(kind for kind in type(error).__mro__ if kind.__module__ == ToolError.__module__)
    return Refusal(
        ours.__name__,
        clean(str(error)),
        error.error_type,
        error.retryable,
        error.max_retries,
        error.backoff,
        error.retry_after,
        trace,
    )
