"""`holdfast worker` and `holdfast fleet status`: the workers of a store."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import threading
from argparse import Namespace
from collections.abc import Generator, Mapping

import msgspec

from holdfast.agent.load import load_agent
from holdfast.cli.arenas import limit_arenas
from holdfast.cli.console import Console, log_to_stderr
from holdfast.cli.environment import not_set
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import naming, path_of
from holdfast.cli.signals import Signals
from holdfast.cli.text import table
from holdfast.conversation import Conversation
from holdfast.fleet import Bell, FleetBackend, TableBackend, Worker
from holdfast.fleet.backend import DEFAULT_QUEUE
from holdfast.fleet.ready import ReadyServer
from holdfast.fleet.status import FleetStatus, fleet_status
from holdfast.runtime import LocalRuntime
from holdfast.server.sockets import address
from holdfast.store import PostgresStore, SQLiteStore, Store
from holdfast.store.place import is_postgres

_POLL_SECONDS = 0.2  # between two checks for signals


def worker(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Drive conversations until a signal. Raises `UsageError`, `HoldfastError`."""
    with naming("--ready"):
        ready = None if options.ready is None else address(options.ready)
    limit_arenas(env)
    log_to_stderr(env, "%(asctime)s holdfast: %(message)s")
    console = Console(env, out=sys.stderr)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        store, backend = stack.enter_context(_open(options))
        folder = "." if options.workdir is None else options.workdir
        runtime = stack.enter_context(LocalRuntime(path_of(folder)))
        variables = _variables(options, env)
        with naming("--agent"):
            agent = load_agent(path_of(options.agent), variables=variables, runtime=runtime)

        def open(id: str) -> Conversation:
            return Conversation(agent, store, id, runtime=runtime)

        serving = Worker(
            store,
            open,
            backend,
            queue=options.queue or DEFAULT_QUEUE,
            concurrency=options.concurrency,
            tenant_limit=options.tenant_limit,
        )
        if ready is not None:
            try:
                server = ReadyServer(*ready, lambda: serving.ready)
            except OSError as error:
                raise UsageError(f"--ready: {options.ready}: {error.strerror}") from None
            stack.callback(server.close)
            console.notice(f"GET /ready is answered at http://{ready[0]}:{server.port}")
        serving.start()
        console.notice(f"Worker {serving.label} serves queue {serving.queue!r}. Ctrl-C ends it.")
        waiting = threading.Event()
        while not signals.pending:
            waiting.wait(_POLL_SECONDS)
        console.notice(f"Draining, for {options.grace:g} s at most.")
        ended = serving.close(options.grace)
        code = signals.ending or Exit.INTERRUPTED
    if not ended:
        console.notice("Calls were interrupted; their conversations continue elsewhere.")
    return code


def fleet(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Print the state of a fleet. Raises `UsageError`, `HoldfastError`."""
    with _open(options) as (_, backend):
        status = fleet_status(backend, options.queue)
    if options.json:
        print(msgspec.json.encode(status).decode())
    else:
        print("\n".join(_lines(status)))
    return Exit.FINISHED


def _lines(status: FleetStatus) -> list[str]:
    queue = status.queue
    lines = [
        f"{status.serving} of {len(status.workers)} workers serve; {status.running} conversations"
        f" run, {status.leases} leases; {status.rate:.1f} runs/s",
        f"{queue.waiting} wakes wait (the oldest for {queue.oldest_seconds:.1f} s),"
        f" {queue.claimed} are claimed, {queue.later} are set for later",
    ]
    if status.workers:
        head = ("worker", "queue", "state", "seen", "running", "open", "runs", "runs/s")
        rows = [
            (
                one.label,
                one.queue,
                one.state,
                f"{one.silent:.0f} s ago",
                f"{one.counts.running}/{one.counts.concurrency}",
                str(one.counts.held),
                str(one.counts.runs),
                f"{one.counts.rate:.1f}",
            )
            for one in status.workers
        ]
        lines += table([head, *rows])
    for title, name in (("takeovers", "takeovers"), ("ended as poison", "poisoned")):
        count = sum(getattr(one.counts, name) for one in status.workers)
        if count:
            lines.append(f"{title}: {count}")
    return lines


@contextlib.contextmanager
def _open(options: Namespace) -> Generator[tuple[Store, FleetBackend]]:
    postgres = is_postgres(options.store)
    installed = importlib.util.find_spec("procrastinate") is not None
    kind = options.backend or ("procrastinate" if postgres and installed else "table")
    if kind == "procrastinate" and not postgres:
        raise UsageError("--backend procrastinate needs a store in Postgres")
    with contextlib.ExitStack() as stack:
        if not postgres:
            path = path_of(options.store).absolute()
            backend: FleetBackend = TableBackend(path)
            stack.callback(backend.close)
            store: Store = stack.enter_context(SQLiteStore(path, bell=Bell(backend)))
        else:
            dsn, schema = options.store, options.schema
            if kind == "procrastinate":
                # an optional package, which fleets on SQLite do without
                module = importlib.import_module("holdfast.fleet.procrastinate")
                backend = module.ProcrastinateBackend(dsn, schema=schema)
            else:
                backend = TableBackend(dsn, schema=schema)
            stack.callback(backend.close)
            size = max(4, getattr(options, "concurrency", 4))
            store = stack.enter_context(
                PostgresStore(dsn, schema=schema, pool_size=size, bell=Bell(backend))
            )
        yield store, backend


def _variables(options: Namespace, env: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for text in options.variable:
        name, equals, value = text.partition("=")
        if not equals and name not in env:
            raise not_set(name, "--variable")
        variables[name] = value if equals else env[name]
    return variables
