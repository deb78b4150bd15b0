"""`holdfast replay`: runs conversations again without model or tools, and shows differences."""

from __future__ import annotations

import importlib
import os
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from holdfast import events as ev
from holdfast.agent import Agent
from holdfast.cli.console import Console
from holdfast.cli.conversation_ids import find_in_file
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import importable, path_of
from holdfast.cli.places import is_sqlite, open_store
from holdfast.cli.signals import Signals
from holdfast.cli.text import counted, one_line, plain
from holdfast.conversation.replay import replay as run_again
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError, StoreError
from holdfast.store.transfer import Exported, read_exported
from holdfast.testing.suite import JournalOutcome, JournalSuite, SuiteReport, keep_connected


class _Recording(NamedTuple):
    id: str
    number: int
    total: int  # 0 if not known before the end
    events: Sequence[ev.AnyEvent] | StoreError


def replay(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Replay the conversations of a file. Raises `UsageError`, `HoldfastError`."""
    console = Console(env)
    with Signals() as signals, closing(console), signals.prompting():
        return _replay(options, console)


def _replay(options: Namespace, console: Console) -> Exit:
    if os.path.isdir(options.file):
        return _replay_folder(options, console)
    stored = is_sqlite(options.file)
    failed, count, differ = False, 0, 0
    agent = None if options.agent is None else load(options.agent)
    with keep_connected(agent):
        for id, number, total, events in _in_store(options) if stored else _in_export(options):
            count += 1
            of = f" ({number} of {total})" if total > 1 else ""
            console.status(f"replaying {one_line(id)}{of}")
            if isinstance(events, StoreError):
                console.error(f"{id}: {events}")
                failed = True
                continue
            differ += not _same(console, id, events, agent)
            if console.broken:
                return console.loss
    console.status("")
    if not count and not stored:
        neither = "neither a store nor the output of `holdfast export`"
        raise UsageError(f"{options.file!r} is empty: {neither}")
    if not count:
        console.error(f"there is no conversation in {options.file!r} yet.")
    if count > 1:
        verb = "differs" if differ == 1 else "differ"
        differences = f", {differ:,} of them {verb}" if differ else ""
        console.notice(f"{counted(count, 'conversation')}{differences}.", "dim")
    return Exit.FAILED if differ or failed else Exit.FINISHED


def _replay_folder(options: Namespace, console: Console) -> Exit:
    if options.id is not None:
        raise UsageError(f"{options.file!r} is a folder; an id needs the file of its conversation")
    agent = None if options.agent is None else load(options.agent)
    began, outcomes = time.monotonic(), list[JournalOutcome]()
    with JournalSuite(options.file) as suite, keep_connected(agent):
        for outcome in suite.outcomes(agent):
            outcomes.append(outcome)
            console.status(
                f"replaying {one_line(outcome.journal)} ({len(outcomes)} of {len(suite)})"
            )
    console.status("")
    report = SuiteReport(tuple(outcomes), time.monotonic() - began)
    styles = {"  +": "add", "  -": "remove", "  @": "dim"}
    for line in plain(str(report)).split("\n"):
        console.line(line, styles.get(line[:3], "plain"))
    return console.loss if console.broken else Exit.FINISHED if report.same else Exit.FAILED


def _same(console: Console, id: str, events: Sequence[ev.AnyEvent], agent: Agent | None) -> bool:
    result = run_again(events, agent)
    difference = result.difference
    if difference is None:
        compared = f", {result.hashed:,} of them compared byte by byte" if result.hashed else ""
        requests = counted(result.requests, "model request")
        console.line(f"{one_line(id)}: same, {requests}{compared}")
        return True
    where = f"request {difference.request}, event {difference.seq} of {len(events)}"
    console.line(f"{one_line(id)}: differs at {where}:", "error")
    styles = {"+": "add", "-": "remove"}
    for line in plain(difference.text).split("\n"):
        console.line(f"  {line}", styles.get(line[:1], "dim"))
    return False


def _in_store(options: Namespace) -> Iterator[_Recording]:
    with open_store(options.file, read_only=True) as store:
        entries = store.list()
        if options.id is not None:
            entries = [find_in_file(entries, options.id, options.file)]
        for number, entry in enumerate(entries, 1):
            try:
                events: Sequence[ev.AnyEvent] | StoreError = store.read(entry.id)
            except StoreError as error:  # a damaged conversation does not stop the others
                events = error
            yield _Recording(entry.id, number, len(entries), events)


def _in_export(options: Namespace) -> Iterator[_Recording]:
    with path_of(options.file).open("rb") as lines:
        if options.id is None:
            for number, exported in enumerate(_read(lines, options.file), 1):
                yield _Recording(exported.header.id, number, 0, exported.events)
            return
        matches = {
            exported.header.id: exported
            for exported in _read(lines, options.file)
            if exported.header.id.startswith(options.id)
        }
        entries = [exported.summary for exported in matches.values()]
        id = find_in_file(entries, options.id, options.file).id
        yield _Recording(id, 1, 1, matches[id].events)


def _read(lines: Iterable[bytes], file: str) -> Iterator[Exported]:
    try:
        yield from read_exported(lines)
    except ConfigurationError as error:
        raise UsageError(
            f"{file!r} is neither a store nor the output of `holdfast export`: {error}"
        ) from error
    except OSError as error:
        raise UsageError(f"{file!r} cannot be read: {error.strerror}") from error


def load(spec: str) -> Agent:
    """Return the agent that `MODULE:NAME` names, or its function returns. Raises `UsageError`."""
    target = import_object(spec)
    try:
        if not isinstance(target, Agent) and callable(target) and not isinstance(target, type):
            target = target()
    except (Exception, SystemExit) as error:  # the function may raise anything
        raise _failed(spec, error) from error
    if not isinstance(target, Agent):
        raise UsageError(
            f"--agent {spec} is a {type(target).__name__}; it takes an Agent or a function without"
            " parameters that returns one"
        )
    return target


def import_object(spec: str) -> Any:
    """Return the object that `MODULE:NAME` names. Raises `UsageError`."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise UsageError(f"--agent takes MODULE:NAME, such as my_agents:reviewer, not {spec!r}")
    importable(os.getcwd())
    try:
        target: Any = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except (Exception, SystemExit) as error:  # the module may raise anything
        raise _failed(spec, error) from error
    return target


def _failed(spec: str, error: BaseException) -> UsageError:
    return UsageError(f"--agent {spec}: {one_line(describe_error(error))}")
