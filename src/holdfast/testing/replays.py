"""`assert_replays`: a recorded conversation as a regression test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast, get_args

from holdfast.agent.agent import Agent
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.replay import replay
from holdfast.conversation.state import ConversationState
from holdfast.errors import ConfigurationError, StoreError
from holdfast.events import AnyEvent
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.transfer import read_exported

Recorded = str | os.PathLike[str] | ConversationState | Conversation | Iterable[AnyEvent]

_EVENTS = get_args(AnyEvent)
_SQLITE = b"SQLite format 3\0"


def assert_replays(recorded: Recorded, agent: Agent | None = None) -> None:
    """Assert that recorded conversations would take the same course today:
    `assert_replays("recorded/refund.jsonl", make_agent())`.

    Every model request is built again by the present version of Holdfast and, if given, by `agent`
    (its prompt, tools, model and limits). No model is called and no tool runs (see
    `Conversation.replay`). `recorded` is a file written by `holdfast export`, an `SQLiteStore`'s
    file (which is not modified), a `ConversationState`, a `Conversation`, or a list of events.

    Raises `AssertionError` with the first difference of each conversation: recorded lines are
    marked with `-`, present ones with `+`. Raises it also if there is no model request at all,
    which would prove nothing. Raises `ConfigurationError` for an invalid recording, and
    `StoreError` for a file that cannot be read; both name the file.
    """
    if not (agent is None or isinstance(cast(object, agent), Agent)):
        raise ConfigurationError(f"assert_replays: agent takes an Agent or None, not {agent!r}.")
    differences: list[str] = []
    conversations = requests = 0
    for name, events in _conversations(recorded):
        result = replay(events, agent)
        conversations += 1
        requests += result.requests
        if result.difference is not None:
            differences.append(f"{name} does not replay the same: {result}")
    if differences:
        raise AssertionError("\n\n".join(differences))
    if not requests:
        what = "no conversation" if not conversations else "no model request"
        where = recorded if isinstance(recorded, str | os.PathLike) else "the recording"
        raise AssertionError(f"There is {what} in {os.fspath(where)}, so nothing was compared.")


def _conversations(recorded: Recorded) -> Iterator[tuple[str, Sequence[AnyEvent]]]:
    """Yield a name and the events of each conversation."""
    match recorded:
        case ConversationState():
            yield f"Conversation {recorded.id!r}", recorded.events
        case Conversation():
            yield f"Conversation {recorded.id!r}", recorded.get_history()
        case str() | os.PathLike():
            path = Path(recorded)
            try:
                with path.open("rb") as file:
                    stored = file.read(len(_SQLITE)) == _SQLITE
                conversations = _read_store(path) if stored else _read_exported(path)
                yield from (
                    (f"{path}, conversation {id!r}", events) for id, events in conversations
                )
            except OSError as error:  # a StoreError is one too
                why = str(error) if isinstance(error, StoreError) else error.strerror or str(error)
                raise StoreError(f"assert_replays: {path}: {why}") from error
            except ValueError as error:
                raise ConfigurationError(f"assert_replays: {path}: {error}") from error
        case _:
            events = list(recorded) if isinstance(cast(object, recorded), Iterable) else None
            if events is None or not all(
                isinstance(cast(object, event), _EVENTS) for event in events
            ):
                what = "a file, a ConversationState, a Conversation or events"
                raise ConfigurationError(
                    f"assert_replays: recorded takes {what}, not {recorded!r:.200}."
                )
            yield "The conversation", events


def _read_exported(path: Path) -> Iterator[tuple[str, Sequence[AnyEvent]]]:
    with path.open("rb") as lines:
        for exported in read_exported(lines):
            yield exported.header.id, exported.events


def _read_store(path: Path) -> Iterator[tuple[str, Sequence[AnyEvent]]]:
    # A copy: a recording under version control must not be migrated, nor get files beside it.
    with tempfile.TemporaryDirectory(prefix="holdfast-replay-") as folder:
        for end in ("", "-wal"):
            beside = path.with_name(path.name + end)
            if beside.exists():
                shutil.copyfile(beside, Path(folder, "store.db" + end))
        copy = Path(folder, "store.db")
        try:
            with SQLiteStore(copy, "process") as store:
                for summary in reversed(store.list()):
                    yield summary.id, store.read(summary.id)
        except StoreError as error:
            raise StoreError(str(error).replace(str(copy), str(path))) from error
