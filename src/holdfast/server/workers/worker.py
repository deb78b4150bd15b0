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
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from holdfast import commands as cmd
from holdfast.agent.serial_form import ToolForm
from holdfast.conversation.rewound import PutBack
from holdfast.errors import Conflict
from holdfast.runtime.folder import FolderRuntime
from holdfast.server import agents
from holdfast.server.agents import AgentParts, BuiltAgent
from holdfast.server.local_conversation import LocalConversation
from holdfast.server.policy import Policy
from holdfast.server.records import (
    DEFAULT,
    HOSTED,
    IDLE,
    RUN,
    ConversationOptions,
    ConversationRecord,
)
from holdfast.server.workers.channel import (
    AgentReport,
    InvalidMessage,
    Order,
    WorkerChannel,
    WorkerState,
    callable_methods,
    form_of,
)
from holdfast.server.workers.pipe_store import PipeStore

FAULTS = "faults"  # the file in a worker's folder for Python's fault handler

_REQUEST_THREADS = 8  # more than one, because clients' hooks may delay a request


def work(channel: int) -> None:
    """Serve the server at the other end of a socket, then end this process."""
    os.set_inheritable(channel, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    try:
        WorkerSide(socket.socket(fileno=channel)).run()
    finally:
        os._exit(70)


class _Narrowed(Policy):
    """A policy that also refuses modules known to kill or hang the process that imports them."""

    def __init__(
        self,
        patterns: Sequence[str],
        refused: dict[str, str],
        import_timeout: float,
        programs: bool,
        hook_commands: bool,
    ) -> None:
        super().__init__(patterns, False, import_timeout, programs, hook_commands)
        self._refused = refused

    def refusal(self, module: str) -> str:
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

    def __init__(self, channel: WorkerChannel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, if the server accepts it at once."""
        try:
            self._channel.nudge("log", record.levelno, self.format(record)[:4000])
        except Exception:
            self.handleError(record)


class WorkerSide:
    """The worker's side of the connection. `run` belongs to the main thread. An error of the
    socket, or a lack of memory for a thread, ends the process. The server calls the methods of
    `METHODS`."""

    def __init__(self, connection: socket.socket) -> None:
        self._channel = WorkerChannel(connection, METHODS, self._handle)
        self._drives: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers of calls of `drive`
        self._requests = ThreadPoolExecutor(_REQUEST_THREADS, "holdfast-asked")
        self._lock = threading.Lock()
        self._states = 0
        self._store: PipeStore | None = None
        self._runtime: FolderRuntime | None = None
        self._live: LocalConversation | None = None

    def run(self) -> None:
        """Listen on a thread and drive on this one, until the server is gone or closes the
        conversation."""
        logging.getLogger("holdfast").addHandler(_Log(self._channel))
        logging.getLogger("holdfast").propagate = False
        threading.Thread(target=self._listen, name="holdfast-link", daemon=True).start()
        while True:
            self._answer(self._drives.get(), self.drive)

    def _listen(self) -> None:
        try:
            self._channel.listen()
        except InvalidMessage:
            os._exit(70)
        except BaseException:  # out of memory
            os._exit(73)
        os._exit(0)

    def _handle(self, number: int | None, method: str, arguments: tuple[Any, ...]) -> None:
        """Handle a call on the listening thread, without waiting."""
        work = partial(METHODS[method].function, self, *arguments)
        if method in ("ping", "hand_over"):
            work()
        elif number is None:
            self._requests.submit(work)
        elif method == "drive":
            self._drives.put(number)
        elif method == "close":
            target = partial(self._end, number, work)
            threading.Thread(target=target, name="holdfast-close", daemon=True).start()
        else:
            self._requests.submit(self._answer, number, work)

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            self._channel.answer(number, work, self._state)
        except OSError:
            os._exit(0)

    def _end(self, number: int, work: Callable[[], Any]) -> None:
        self._answer(number, work)
        os._exit(0)

    # --- methods that the server calls ---

    def ping(self) -> None:
        """Give a sign of life."""
        self._channel.nudge("pong")

    def drain(self) -> None:
        """Let the conversation read its inbox."""
        if self._store is not None:
            self._store.notify()

    def hand_over(self) -> None:
        """End `drive` at the next step boundary."""
        if self._live is not None:
            self._live.hand_over()

    def drive(self) -> bool:
        """See `LocalConversation.drive`, as for the methods without a docstring."""
        return self._conversation().drive()

    def check(self, order: Order) -> AgentReport:
        return self._build(order)[1]

    def open(self, order: Order, hosted: bool) -> AgentReport:
        if self._live is not None:
            raise Conflict("This worker already has a conversation.")
        # The server reads crash reports from this file.
        faulthandler.enable(open(Path(order.folder) / FAULTS, "w"))  # noqa: SIM115
        built, report = self._build(order)
        self._store = PipeStore(self._channel, order.id)
        options = msgspec.json.decode(order.options, type=ConversationOptions)
        record = ConversationRecord(
            0, DEFAULT, order.id, "", 0, "", False, b"", b"", options, None, datetime.now(UTC)
        )
        undo = order.runtimes.undo if options.undo else None
        live = LocalConversation(
            record, built, self._store, self._runtime, self._note, self._leave, undo=undo
        )
        live.resume(HOSTED if hosted else IDLE)
        self._live = live
        return msgspec.structs.replace(report, status=live.status.value)

    def execute(self, command: bytes, key: str | None) -> None:
        self._conversation().execute(cmd.decode(command), key)

    def finish_inbox(self) -> None:
        self._conversation().finish_inbox()

    def begin(self, hosted: bool) -> None:
        self._conversation().begin(hosted)

    def go_on(self) -> None:
        self._conversation().resume(RUN)

    def report_state(self) -> None:
        """Do nothing; the answer's state is what the server needs."""

    def pending_confirmations(self) -> list[tuple[str, str]]:
        return self._conversation().pending_confirmations()

    def put_back(self, seq: int) -> PutBack:
        return self._conversation().put_back(seq)

    def check_rests(self) -> None:
        self._conversation().check_rests()

    def write_title(self) -> str:
        return self._conversation().write_title()

    def set_tools(self, order: Order) -> AgentReport:
        built, report = self._build(order)
        live = self._conversation()
        live.set_tools(live.record, built)
        return report

    def use(self, order: Order) -> AgentReport:
        built, report = self._build(order)
        live = self._conversation()
        live.use(live.record, built)
        return report

    def set_secrets(self, order: Order) -> None:
        live = self._conversation()
        live.set_secrets(live.record, self._build(order)[0])

    def close(self, timeout: float) -> None:
        """Close the conversation. The process exits after the answer."""
        if self._live is not None:
            self._live.close(timeout)

    # --- the conversation ---

    def _build(self, order: Order) -> tuple[BuiltAgent, AgentReport]:
        sys.path[:] = order.path
        options = msgspec.json.decode(order.options, type=ConversationOptions)
        if self._runtime is None and order.workdir:
            # The runtime's own files are in this worker's folder, which the server removes if this
            # process cannot.
            tempfile.tempdir = order.folder
            try:
                self._runtime = order.runtimes.open(order.workdir, options.boxed)
            finally:
                tempfile.tempdir = None
        tools = msgspec.json.decode(order.tools, type=list[ToolForm])
        parts = AgentParts(DEFAULT, json.loads(order.form), order.secrets, tools, options)
        allowed = order.programs, order.hook_commands
        policy = _Narrowed(order.patterns, order.refused, order.import_timeout, *allowed)
        # All modules that the client names, in its tools or in the agent's form.
        names = {
            *options.modules.values(),
            *(tool.module for tool in tools),
            *_modules_in(parts.form),
        }
        names.discard("")
        announcer = _Announcer(names, lambda module: self._channel.signal("importing", module))
        sys.meta_path.insert(0, announcer)
        try:
            runtime_tools = [] if self._runtime is None else self._runtime.all_tools
            built = agents.build_agent(parts, runtime_tools, policy, order.variables)
        finally:
            sys.meta_path.remove(announcer)
            self._channel.signal("importing", "")
        prefix, threads = "holdfast-import ", [one.name for one in threading.enumerate()]
        stuck = [name.removeprefix(prefix) for name in threads if name.startswith(prefix)]
        return built, AgentReport(built.standings, built.warnings, stuck)

    def _conversation(self) -> LocalConversation:
        if self._live is None:
            raise Conflict("This worker has no conversation yet.")
        return self._live

    def _note(self, kind: str, make: Callable[[], bytes]) -> None:
        self._channel.signal("transient", kind, make())

    def _leave(self) -> None:
        if self._runtime is not None:
            self._runtime.close()

    def _state(self) -> WorkerState | None:
        live = self._live
        if live is None:
            return None
        with self._lock:  # numbers the states in the order in which they are taken
            self._states += 1
            threads = [] if live.busy else threading.enumerate()
            failure = live.failure
            return WorkerState(
                at=self._states,
                running=live.running,
                has_work=live.has_work,
                left=sum(one.name.startswith("holdfast-call-") for one in threads),
                offers=[(one.call_id, one.runner, one.timeout) for one in live.offers()],
                failure=None if failure is None else form_of(failure),
                children=live.children_busy,
            )


METHODS = callable_methods(
    WorkerSide,
    "ping drain hand_over drive check open execute finish_inbox begin go_on report_state"
    " pending_confirmations put_back check_rests write_title set_tools use set_secrets close",
)
"""The methods that the server may call."""


def _modules_in(form: Any) -> set[str]:
    """Return the modules of all strings of the form `module:qualname`, at any depth."""
    if isinstance(form, dict):
        return {name for value in form.values() for name in _modules_in(value)}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(form, list):
        return {name for value in form for name in _modules_in(value)}  # pyright: ignore[reportUnknownVariableType]
    module, colon, _ = form.partition(":") if isinstance(form, str) else ("", "", "")
    return {module} if colon and module.replace(".", "a").isidentifier() else set()
