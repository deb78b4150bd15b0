"""`FileUndo`: snapshots of the work folder around the calls that may write, and the files of an
earlier state put back (`Conversation.rewind`)."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.rewound import PutBack, Rewound
from holdfast.conversation.status import ConversationStatus
from holdfast.errors import ConfigurationError, Conflict, RuntimeFault, ToolNotFound
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.paths import with_home
from holdfast.runtime.snapshots import FileState, Snapshot, Snapshots, repository_of
from holdfast.tools import ToolManager

if TYPE_CHECKING:
    from holdfast.conversation.conversation import Conversation

_log = logging.getLogger("holdfast")

MB = 1024 * 1024
_REST_SECONDS = 10.0  # seconds for which a run that has just ended may still come to rest


class FileUndo:
    """Snapshots of a conversation's work folder, for `Conversation(undo=FileUndo(folder))`.

    A snapshot is taken before and after each call of a tool that is not read-only. So a rewind
    undoes the changes of calls, and leaves changes from elsewhere. A conversation without undo has
    no cost. Thread-safe; may be shared by conversations.

    Args:
        folder: The folder for snapshots, outside of any work folder; made at the first use.
        max_files: A work folder with more files gets no snapshots.
        max_file_bytes: Larger files are left out.
        max_bytes: The size on disk of the snapshots of one work folder, beyond which the oldest are
            dropped.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_files: int = 50_000,
        max_file_bytes: int = 10 * MB,
        max_bytes: int = 1024 * MB,
    ) -> None:
        self._folder = Path(os.path.realpath(with_home(folder)))
        self._bounds = max_files, max_file_bytes, max_bytes
        self._lock = threading.Lock()
        self._places: dict[Path, Snapshots] = {}
        self._failed: set[Path] = set()

    def place(self, runtime: object) -> Snapshots:
        """Return the snapshots of a runtime's work folder. Raises `ConfigurationError` without git,
        or for a runtime whose files are not on this machine."""
        if not isinstance(runtime, FolderRuntime):
            raise ConfigurationError(
                "undo needs a runtime with a work folder on this machine, such as"
                f" LocalRuntime(folder), not {type(runtime).__name__}."
            )
        with self._lock:
            snapshots = self._places.get(runtime.workdir)
            if snapshots is None:
                snapshots = self._places[runtime.workdir] = self.snapshots(runtime.workdir)
            return snapshots

    def snapshots(self, workdir: Path) -> Snapshots:
        """Return the snapshots of a work folder. Raises `ConfigurationError` without git."""
        return Snapshots(self._folder, Path(os.path.realpath(workdir)), *self._bounds)

    def forget(self, workdir: str | os.PathLike[str]) -> None:
        """Delete all snapshots of a work folder, such as one that is deleted itself."""
        folder = Path(os.path.realpath(with_home(workdir)))
        with self._lock:
            self._places.pop(folder, None)
        shutil.rmtree(repository_of(self._folder, folder), ignore_errors=True)

    def watch(
        self,
        call: ToolCall,
        key: str,
        tools: ToolManager,
        runtime: object,
        work: Callable[[], ToolResult],
    ) -> ToolResult:
        """Run a call, between two snapshots if its tool may write. `key` identifies the call. A
        snapshot that fails is logged, and does not stop the call."""
        place = self.place(runtime)
        with self._lock:
            off = runtime.workdir in self._failed if isinstance(runtime, FolderRuntime) else True
        if off or _is_read_only(tools, call.name):
            return work()
        name = hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()
        if place.load(f"{name}/before") is None:  # otherwise it is a further attempt
            self._take(place, f"{name}/before", runtime)
        try:
            return work()
        finally:
            self._take(place, f"{name}/after", runtime)

    def _take(self, place: Snapshots, name: str, runtime: object) -> None:
        try:
            place.take(name)
        except RuntimeFault as error:
            assert isinstance(runtime, FolderRuntime)
            with self._lock:
                self._failed.add(runtime.workdir)
            _log.warning("Calls in %s can no longer be undone: %s", runtime.workdir, error)

    def rewind(
        self, conversation: Conversation, runtime: object, seq: int, options: Mapping[str, Any]
    ) -> Rewound[Conversation]:
        """Fork a conversation and put its files back; see `Conversation.rewind`."""
        check_rests(conversation)
        fork = conversation.fork(seq, **options)
        try:
            return Rewound(fork, self.put_back(conversation, runtime, seq))
        except BaseException:
            fork.close()
            raise

    def put_back(self, conversation: Conversation, runtime: object, seq: int) -> PutBack:
        """Give the files that calls after event `seq` have changed their content of that time.
        Raises `Conflict` while the conversation runs."""
        check_rests(conversation)
        place, tools = self.place(runtime), conversation.agent.tools
        events = conversation.get_history()
        calls = {
            call.id: call
            for event in events
            if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade)
            for call in event.calls
        }
        started: dict[str, str] = {}  # call ids by key, in order
        for event in events:
            if isinstance(event, ev.ToolCallStarted) and event.seq > seq and not event.runner:
                started.setdefault(event.idempotency_key, event.call_id)
        outside: Counter[str] = Counter()
        unknown: list[str] = []
        pairs: list[tuple[Snapshot, Snapshot | None]] = []
        for key, call_id in started.items():
            name = calls[call_id].name if call_id in calls else ""
            if _is_read_only(tools, name):
                continue
            if _reaches_out(tools, name):
                outside[name] += 1
            digest = hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()
            before = place.load(f"{digest}/before")
            if before is None:
                unknown.append(call_id)
            else:
                pairs.append((before, place.load(f"{digest}/after")))
        now = place.take()
        outcome = _put_back(place, pairs, now)
        return msgspec.structs.replace(
            outcome, without_snapshot=tuple(unknown), outside=dict(outside), left_out=now.left_out
        )


def check_rests(conversation: Conversation) -> None:
    """Raise `Conflict` while a conversation runs. A run that has just ended gets the time to come
    to rest."""
    deadline = time.monotonic() + _REST_SECONDS
    while conversation.status is not ConversationStatus.RUNNING and time.monotonic() < deadline:
        if conversation.hosting.resting:
            return
        time.sleep(0.01)
    raise Conflict(
        f"rewind: conversation {conversation.id!r} is running, and its calls may change"
        " files; interrupt it and wait first."
    )


def _put_back(
    place: Snapshots, pairs: Sequence[tuple[Snapshot, Snapshot | None]], now: Snapshot
) -> PutBack:
    if not pairs:
        return PutBack()
    first: dict[str, FileState] = {}
    last: dict[str, FileState] = {}
    modes: dict[str, int] = {}
    added: set[str] = set()
    removed: set[str] = set()
    for index, (before, after) in enumerate(pairs):
        # Without its end, the call was killed: what the next call found counts as its work.
        end = after or (pairs[index + 1][0] if index + 1 < len(pairs) else now)
        for path, (old, new) in place.changes(before, end).items():
            if path not in first and path in before.modes:
                modes[path] = before.modes[path]
            first.setdefault(path, old)
            last[path] = new
        added |= {*end.folders} - {*before.folders}
        removed |= {*before.folders} - {*end.folders}
    present = place.files(now)
    targets: dict[str, FileState] = {}
    conflicts: list[str] = []
    for path, state in first.items():
        current = present.get(path, FileState())
        if current == state:
            continue
        if current == last[path]:
            targets[path] = state
        else:
            conflicts.append(path)
    empty = pairs[0][0].folders
    failed = place.put_back(targets, modes, added - {*empty}, removed & {*empty}, empty)
    restored = [path for path in targets if path not in failed]
    return PutBack(tuple(sorted(restored)), tuple(sorted(conflicts)), tuple(sorted(failed)))


def _is_read_only(tools: ToolManager, name: str) -> bool:
    try:
        return tools.get(name).annotations.read_only
    except ToolNotFound:
        return False


def _reaches_out(tools: ToolManager, name: str) -> bool:
    try:
        return tools.get(name).annotations.open_world
    except ToolNotFound:
        return True
