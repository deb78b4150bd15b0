"""The program of a worker: one conversation over a `PipeStore`. The main thread drives the
conversation; other threads execute requests."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import queue
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast import commands as cmd
from holdfast.agent.form import ToolForm
from holdfast.errors import ConfigurationError
from holdfast.server import building
from holdfast.server.building import AgentParts, BuiltAgent
from holdfast.server.live import LocalConversation
from holdfast.server.policy import Policy
from holdfast.server.records import DEFAULT, ConversationOptions, ConversationRecord
from holdfast.server.workers import messages as ms
from holdfast.server.workers.link import InvalidMessage, WorkerLink
from holdfast.server.workers.pipestore import PipeStore

FAULTS = "faults"  # the file in a worker's folder for Python's fault handler

_REQUEST_THREADS = 8  # more than one, because clients' hooks may delay a request

_decoder = msgspec.msgpack.Decoder(ms.FromServer)


def work(channel: int) -> None:
    """Serve the server at the other end of a socket, then end this process."""
    os.set_inheritable(channel, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    try:
        Worker(socket.socket(fileno=channel)).run()
    finally:
        os._exit(70)


class _Narrowed(Policy):
    """A policy that also refuses modules known to kill or hang the process that imports them."""

    def __init__(
        self, patterns: Sequence[str], refused: dict[str, str], import_timeout: float
    ) -> None:
        super().__init__(patterns, entry_points=False, import_timeout=import_timeout)
        self._refused = refused

    def refusal(self, module: str) -> str:
        """Return the reason why a module may not be imported, or "" if it may."""
        return self._refused.get(module) or super().refusal(module)


class _Announcer:
    """A module finder that finds nothing, but reports which of `names` are about to be imported."""

    def __init__(self, names: set[str], tell: Callable[[str], None]) -> None:
        self._names = names
        self._tell = tell

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, always."""
        if name in self._names:
            self._names.discard(name)
            self._tell(name)
        return None


class _Log(logging.Handler):
    """A log handler that sends records to the server."""

    def __init__(self, link: WorkerLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, if the server accepts it at once."""
        try:
            self._link.nudge(ms.Logged(record.levelno, self.format(record)[:4000]))
        except Exception:
            self.handleError(record)


class Worker:
    """The worker's side of the connection. `run` belongs to the main thread. An error of the
    socket, or a lack of memory for a thread, ends the process."""

    def __init__(self, channel: socket.socket) -> None:
        self._link = WorkerLink(channel, _decoder, self._handle)
        self._drives: queue.SimpleQueue[ms.Drive] = queue.SimpleQueue()
        self._requests = ThreadPoolExecutor(_REQUEST_THREADS, "holdfast-asked")
        self._lock = threading.Lock()
        self._states = 0
        self._store: PipeStore | None = None
        self._runtime: Any = None
        self._live: LocalConversation | None = None

    def run(self) -> None:
        """Listen on a thread and drive on this one, until the server is gone or closes the
        conversation."""
        logging.getLogger("holdfast").addHandler(_Log(self._link))
        logging.getLogger("holdfast").propagate = False
        threading.Thread(target=self._listen, name="holdfast-link", daemon=True).start()
        while True:
            request = self._drives.get()
            self._answer(request.number, lambda: self._conversation().drive())

    def _listen(self) -> None:
        try:
            self._link.listen()
        except InvalidMessage:
            os._exit(70)
        except BaseException:  # out of memory
            os._exit(73)
        os._exit(0)

    def _handle(self, message: Any) -> None:
        """Handle a message on the listening thread, without waiting."""
        match message:
            case ms.Ping():
                self._link.nudge(ms.Pong())
            case ms.Drive():
                self._drives.put(message)
            case ms.NewCommands():
                self._requests.submit(self._drain)
            case ms.YieldRun():
                if self._live is not None:
                    self._live.hand_over()
            case ms.Close():
                threading.Thread(
                    target=self._close, args=(message,), name="holdfast-close", daemon=True
                ).start()
            case _:
                self._requests.submit(self._answer, message.number, lambda: self._do(message))

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            self._link.answer(number, work, self._state)
        except OSError:
            os._exit(0)

    def _drain(self) -> None:
        store = self._store
        if store is not None:
            store.notify()

    def _do(self, message: Any) -> Any:
        match message:
            case ms.Check(_, order):
                built, stuck = self._build(order)
                return ms.AgentReport(built.standings, built.warnings, stuck)
            case ms.Open(_, order, hosted):
                return self._open(order, hosted)
            case ms.Obey(_, command, key):
                self._conversation().obey(cmd.decode(command), key)
            case ms.Begin(_, hosted):
                self._conversation().begin(hosted)
            case ms.ContinueRun():
                self._conversation().running = True
            case ms.SetTools(_, order):
                built, stuck = self._build(order)
                live = self._conversation()
                live.set_tools(live.record, built)
                return ms.AgentReport(built.standings, built.warnings, stuck)
            case _:
                pass
        return None

    # --- the conversation ---

    def _build(self, order: ms.Order) -> tuple[BuiltAgent, list[str]]:
        """Return the agent, and the modules whose import did not end."""
        sys.path[:] = order.path
        if self._runtime is None and order.workdir:
            from holdfast.runtime import LocalRuntime

            # The runtime's own files are in this worker's folder, which the server removes if this
            # process cannot.
            tempfile.tempdir = order.folder
            try:
                self._runtime = LocalRuntime(order.workdir)
            finally:
                tempfile.tempdir = None
        tools = msgspec.json.decode(order.tools, type=list[ToolForm])
        options = msgspec.json.decode(order.options, type=ConversationOptions)
        wanted = AgentParts(DEFAULT, json.loads(order.form), order.secrets, tools, options)
        policy = _Narrowed(order.patterns, order.refused, order.import_timeout)
        # All modules that the client names, in its tools or in the agent's form.
        names = {
            module
            for module in (
                *options.modules.values(),
                *(tool.module for tool in tools),
                *_named(wanted.form),
            )
            if module
        }
        announcer = _Announcer(names, lambda module: self._link.send(ms.Importing(module)))
        sys.meta_path.insert(0, announcer)
        try:
            built = building.build(
                wanted,
                [] if self._runtime is None else self._runtime.tools,
                policy,
                order.variables,
            )
        finally:
            sys.meta_path.remove(announcer)
            self._link.send(ms.Importing(""))
        prefix = "holdfast-import "
        return built, [
            one.name[len(prefix) :] for one in threading.enumerate() if one.name.startswith(prefix)
        ]

    def _open(self, order: ms.Order, hosted: bool) -> ms.AgentReport:
        if self._live is not None:
            raise ConfigurationError("This worker already has a conversation.")
        # The server reads crash reports from this file.
        faulthandler.enable(open(Path(order.folder) / FAULTS, "w"))  # noqa: SIM115
        built, stuck = self._build(order)
        self._store = PipeStore(self._link, order.id)
        options = msgspec.json.decode(order.options, type=ConversationOptions)
        record = ConversationRecord(
            0, DEFAULT, order.id, "", 0, "", False, b"", b"", options, None, datetime.now(UTC)
        )
        live = LocalConversation(record, built, self._store, self._runtime, self._note, self._leave)
        live.hosted = hosted
        self._live = live
        return ms.AgentReport(built.standings, built.warnings, stuck, live.status.value)

    def _conversation(self) -> LocalConversation:
        if self._live is None:
            raise ConfigurationError("This worker has no conversation yet.")
        return self._live

    def _note(self, kind: str, make: Callable[[], bytes]) -> None:
        self._link.send(ms.Notice(kind, make()))

    def _leave(self) -> None:
        if self._runtime is not None:
            self._runtime.close()

    def _state(self) -> ms.WorkerState | None:
        live = self._live
        if live is None:
            return None
        with self._lock:  # numbers the states in the order in which they are taken
            self._states += 1
            left = (
                0
                if live.busy
                else sum(one.name.startswith("holdfast-call-") for one in threading.enumerate())
            )
            failure = live.failure
            offers = [(one.call_id, one.runner, one.timeout) for one in live.offers()]
            return ms.WorkerState(
                self._states,
                live.running,
                live.has_work,
                left,
                offers,
                None if failure is None else ms.fault_of(failure),
                live.children_busy,
            )

    def _close(self, message: ms.Close) -> None:
        def close() -> None:
            if self._live is not None:
                self._live.close(message.timeout)

        self._answer(message.number, close)
        os._exit(0)


def _named(form: Any) -> set[str]:
    """Return the modules of all strings of the form `module:qualname`, at any depth."""
    if isinstance(form, dict):
        return {name for value in form.values() for name in _named(value)}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(form, list):
        return {name for value in form for name in _named(value)}  # pyright: ignore[reportUnknownVariableType]
    module, colon, _ = form.partition(":") if isinstance(form, str) else ("", "", "")
    return {module} if colon and module.replace(".", "a").isidentifier() else set()
