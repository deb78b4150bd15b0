"""The workers of a host. Conversations run in them, agents of new requests are first built in
others, and all workers are monitored."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast.agent.agent import Agent
from holdfast.conversation import ConversationStatus
from holdfast.errors import ConfigurationError
from holdfast.llm.scripted import ScriptedLLM
from holdfast.server.agents import AgentParts, BuiltAgent
from holdfast.server.forms import own_variables
from holdfast.server.host_settings import HostSettings
from holdfast.server.records import DEFAULT, RUN, ConversationRecord
from holdfast.server.workers.channel import AgentReport, Order
from holdfast.server.workers.deaths import Deaths, WorkerDied
from holdfast.server.workers.processes import WorkerProcesses
from holdfast.server.workers.worker_conversation import (
    Patience,
    WorkerConnection,
    WorkerConversation,
)

if TYPE_CHECKING:
    from holdfast.server.notifying_store import NotifyingStore

_log = logging.getLogger("holdfast")

W = TypeVar("W", bound=WorkerConnection)

_TICK_SECONDS = 0.5  # the period in which workers are checked
# A check after this time is late: the machine is busy, or this process was suspended.
_LATE_SECONDS = 3.0
# A module that killed its importer is not imported again for new requests during this time.
_HARMFUL_SECONDS = 60.0
_MAX_HARMFUL = 1000  # the number of such modules that are remembered
_MAX_TRIES = 20  # the number of workers that one request's imports may kill

_VARIABLE = re.compile(rb"\$\{([A-Za-z_][A-Za-z0-9_]*)")


class WorkerPool:
    """The worker processes of a host. Thread-safe. All methods except `close` may block for as long
    as imports do."""

    def __init__(self, store: NotifyingStore, settings: HostSettings, deaths: Deaths) -> None:
        memory = settings.worker_memory
        if memory and memory < 256:
            raise ConfigurationError(
                "worker_memory takes 0 or at least 256 MB, because an empty worker already needs"
                f" about 100 MB; not {memory!r}."
            )
        self._store = store
        self._settings = settings
        self._deaths = deaths
        self._patience = settings.patience or Patience()
        self._lock = threading.Lock()
        self._talks: set[WorkerConnection] = set()
        # Modules that kill or hang their importer: how, and when that was observed.
        self._harms: dict[str, tuple[str, float]] = {}
        self._stop = threading.Event()
        self._timer: threading.Thread | None = None
        self.processes = WorkerProcesses(memory * 1024 * 1024)

    def check(self, parts: AgentParts, workdir: str) -> BuiltAgent:
        """Build an agent in a temporary worker, so that its code is imported neither here nor in a
        conversation's worker. The returned agent is a stand-in. Raises the errors of building
        it."""
        tried = time.monotonic()
        refused = {
            module: how
            for module, (how, at) in self._harms.items()
            if tried - at < _HARMFUL_SECONDS
        }

        def make(order: Order) -> AgentReport:
            talk = self._start(WorkerConnection("(to be)", self.processes.start(), self._patience))
            try:
                return self._blame_imports(
                    talk, order, lambda order: talk.channel.call("check", order, type=AgentReport)
                )
            finally:
                self._end(talk)

        report = self._try_order(self._order("(to be)", parts, workdir, refused), make)
        with self._lock:
            for module in {one.module for one in report.standings} - refused.keys():
                if module in self._harms and self._harms[module][1] < tried:
                    del self._harms[module]
        return BuiltAgent(Agent(ScriptedLLM([])), {}, report.standings, report.warnings)

    def open(
        self,
        record: ConversationRecord,
        parts_of: Callable[[ConversationRecord], AgentParts],
        workdir: str,
        note: Callable[[str, Callable[[], bytes]], None],
        leave: Callable[[], None],
    ) -> WorkerConversation:
        """Open a conversation in a worker of its own. `leave` is called when the conversation is
        closed, not if this method raises. Raises the errors of building the agent, and
        `WorkerDied`."""
        id = record.store_id

        def order_of(record: ConversationRecord) -> Order:
            refused = {module: how for module, (how, _) in self._harms.items()}
            return self._order(id, parts_of(record), workdir, refused)

        def make(order: Order) -> AgentReport:
            nonlocal live
            process, moved = self.processes.start(), partial(self._deaths.reset, id)
            live = self._start(
                WorkerConversation(
                    record, process, self._store, self._patience, order_of, note, leave, moved
                )
            )
            try:
                report = self._blame_imports(live, order, live.open)
            except BaseException:
                self._end(live)
                raise
            if report.stuck:
                self._end(live)  # otherwise that import would continue beside the conversation
            return report

        live: WorkerConversation | None = None
        agent_report = self._try_order(order_of(record), make)
        assert live is not None
        for warning in agent_report.warnings:
            _log.warning("conversation %s: %s", id, warning)
        if record.driven == RUN and live.status is ConversationStatus.RUNNING:
            try:
                live.channel.call("go_on")
            except BaseException:
                self._end(live)
                raise
        return live

    # --- workers ---

    def _try_order(self, order: Order, make: Callable[[Order], AgentReport]) -> AgentReport:
        """Return the result of `make` for an order, without the modules that turn out to kill or
        hang their importer."""
        for _ in range(_MAX_TRIES):
            try:
                report = make(order)
            except _HarmfulImport as harmed:
                if harmed.module in order.refused:
                    raise harmed.died from None
                how = f"the process that imported the module {harmed.module!r} {harmed.died.how}"
                harms = {harmed.module: how}
            else:
                if not report.stuck:
                    return report
                late = "the import of the module {!r} did not end in time"
                harms = {module: late.format(module) for module in report.stuck}
            now = time.monotonic()
            with self._lock:
                if len(self._harms) >= _MAX_HARMFUL:
                    self._harms.clear()
                self._harms.update({module: (how, now) for module, how in harms.items()})
            order = msgspec.structs.replace(order, refused={**order.refused, **harms})
        raise ConfigurationError(
            f"More than {_MAX_TRIES} of the modules named for tools killed the process that"
            " imported them."
        )

    def _blame_imports(
        self, talk: WorkerConnection, order: Order, ask: Callable[[Order], AgentReport]
    ) -> AgentReport:
        """Return the result of `ask` for an order in the worker's folder. If the worker dies
        during an import, blame the module."""
        try:
            return ask(msgspec.structs.replace(order, folder=str(talk.process.folder)))
        except WorkerDied as died:
            if talk.imported:
                raise _HarmfulImport(talk.imported, died) from None
            raise

    def _start(self, talk: W) -> W:
        with self._lock:
            self._talks.add(talk)
            if self._timer is None and not self._stop.is_set():
                self._timer = threading.Thread(
                    target=self._tend, name="holdfast-workers-timer", daemon=True
                )
                self._timer.start()
        talk.start()
        return talk

    def _end(self, talk: WorkerConnection) -> None:
        talk.end(0.0)
        with self._lock:
            self._talks.discard(talk)

    def _tend(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            late, last = now - last > _LATE_SECONDS, now
            with self._lock:
                self._talks = {talk for talk in self._talks if not talk.ended.is_set()}
                talks = list(self._talks)
            for talk in talks:
                try:
                    talk.tend(now, late)
                except Exception:
                    _log.exception("conversation %s: checking its worker failed", talk.id)

    # --- orders ---

    def _order(self, id: str, parts: AgentParts, workdir: str, refused: dict[str, str]) -> Order:
        """Return the order for a worker, with only those variables that the agent uses and may
        have."""
        form = parts.form
        if parts.tenant == DEFAULT:
            names = {name.decode() for name in _VARIABLE.findall(msgspec.json.encode(form))}
            variables = {
                name: value for name, value in self._settings.variables.items() if name in names
            }
        else:
            form, variables = own_variables(form, self._settings.variables)
        policy = self._settings.policy
        below = [f"{package}.*" for package in policy.packages]
        return Order(
            id=id,
            form=msgspec.json.encode(form),
            secrets=dict(parts.secrets),
            variables=variables,
            tools=msgspec.json.encode(parts.tools),
            options=msgspec.json.encode(parts.options),
            patterns=[*policy.patterns, *policy.packages, *below],
            refused=refused,
            import_timeout=policy.import_timeout,
            programs=policy.programs,
            hook_commands=policy.hook_commands,
            workdir=workdir,
            runtimes=self._settings.runtimes,
            folder="",
            path=[entry for entry in cast("list[Any]", sys.path) if isinstance(entry, str)],
        )

    # --- monitoring and shutdown ---

    def count(self) -> int:
        return len(self.processes.pids())

    def close(self) -> None:
        """End all workers and the fork server. Idempotent."""
        self._stop.set()
        self.processes.close()
        with self._lock:
            talks, timer = list(self._talks), self._timer
        for talk in talks:
            talk.end(0.0)
        if timer is not None:
            timer.join()


class _HarmfulImport(Exception):
    """A worker died while it imported a module."""

    def __init__(self, module: str, died: WorkerDied) -> None:
        self.module = module
        self.died = died
