"""Workspaces: folders `root/{tenant}/{id}`, and folders of the operator, in which tools work, each
with a runtime while it is in use."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from holdfast.errors import ConfigurationError, Conflict, ConversationNotFound
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.folder import FolderRuntime
from holdfast.server.host_settings import HostSettings
from holdfast.server.limits import checked_id
from holdfast.server.records import Records
from holdfast.server.runtimes import WorkspaceRuntimes


class _Open(ObjectStruct):
    lock: threading.Lock  # held while a runtime is created
    runtimes: dict[bool, FolderRuntime] = {}  # by whether it is in a sandbox
    users: int = 0
    used: float = 0.0

    def close(self) -> None:
        with ExitStack() as stack:
            for runtime in self.runtimes.values():
                stack.callback(runtime.close)


class Workspaces(ObjectStruct):
    """The workspaces of all tenants. Thread-safe. A runtime is created when it is first used, and
    closed when it is idle. No client can remove the folders of the settings."""

    _settings: HostSettings
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _open: dict[tuple[str, str], _Open] = {}
    _closed: bool = False

    def create(self, tenant: str, id: str | None = None) -> str:
        """Create a folder and return its id. Raises `Conflict` if it is taken, and `TooMany`."""
        id = f"w-{os.urandom(8).hex()}" if id is None else checked_id(id, "workspace")
        if (tenant, id) in self._settings.folders:
            raise _conflict(id)
        if self._settings.root is None:
            raise ConfigurationError(
                "This server has no workspaces, since its store is shared with other servers. Its"
                " operator can give all of them one folder with --root. Without it, agents need"
                " tools that work elsewhere."
            )
        folder = self._settings.root / checked_id(tenant, "tenant")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        count = sum(not entry.name.startswith("~") for entry in os.scandir(folder))
        message = f"Tenant {tenant!r} would have too many workspaces"
        self._settings.bounds.check("workspaces", count + 1, message)
        try:
            (folder / id).mkdir(mode=0o700)
        except FileExistsError:
            raise _conflict(id) from None
        return id

    def list(self, tenant: str) -> list[tuple[str, Path | None]]:
        """Return the ids of a tenant's workspaces, by id, each with its folder if the operator has
        named one. The operator's workspaces come first."""
        folders = {
            id: path for (owner, id), path in self._settings.folders.items() if owner == tenant
        }
        own: list[str] = []
        if self._settings.root is not None:
            with suppress(FileNotFoundError):
                for entry in os.scandir(self._settings.root / checked_id(tenant, "tenant")):
                    if not entry.name.startswith("~") and entry.is_dir(follow_symlinks=False):
                        own.append(entry.name)
        return [*sorted(folders.items()), *((id, None) for id in sorted(own) if id not in folders)]

    @property
    def runtimes(self) -> WorkspaceRuntimes:
        """The kind of runtime that workspaces have."""
        return self._settings.runtimes

    @property
    def creatable(self) -> bool:
        """True if clients may create workspaces."""
        return self._settings.root is not None

    def check(self, tenant: str, id: str) -> Path:
        """Return the folder of a tenant's workspace. Raises `ConversationNotFound`."""
        if (fixed_folder := self._settings.folders.get((tenant, id))) is not None:
            return fixed_folder
        if self._settings.root is None:
            raise _not_found(id)
        try:
            folder = (
                self._settings.root / checked_id(tenant, "tenant") / checked_id(id, "workspace")
            )
        except ConfigurationError:
            raise _not_found(id) from None
        if folder.is_symlink() or not folder.is_dir():
            raise _not_found(id)
        return folder

    def check_undo(self, tenant: str, id: str) -> None:
        """Raise `ConfigurationError` unless snapshots of a workspace can be kept."""
        if not id:
            raise ConfigurationError(
                "undo keeps snapshots of a workspace, and this conversation has none. Name one with"
                " `workspace`, or leave undo out."
            )
        self.runtimes.undo.snapshots(self.check(tenant, id))

    def enter(self, tenant: str, id: str, boxed: bool = False) -> FolderRuntime:
        """Return the runtime, in a sandbox if all have one or with `boxed`. The runtime is open
        until `leave`. Raises `ConversationNotFound` and `SandboxUnavailable`."""
        folder, entry = self._enter(tenant, id)
        try:
            with entry.lock:
                if boxed not in entry.runtimes:
                    entry.runtimes[boxed] = self.runtimes.open(folder, boxed)
                return entry.runtimes[boxed]
        except BaseException:
            self.leave(tenant, id)
            raise

    def hold(self, tenant: str, id: str) -> Path:
        """Return the folder, kept until `leave`, for a runtime elsewhere. Raises
        `ConversationNotFound`."""
        return self._enter(tenant, id)[0]

    def _enter(self, tenant: str, id: str) -> tuple[Path, _Open]:
        folder = self.check(tenant, id)
        with self._lock:
            if self._closed:
                raise ConfigurationError("This server is closing.")
            entry = self._open.setdefault((tenant, id), _Open(threading.Lock()))
            entry.users += 1
            return folder, entry

    def leave(self, tenant: str, id: str) -> None:
        with self._lock:
            entry = self._open.get((tenant, id))
            if entry is not None:
                entry.users -= 1
                entry.used = self._settings.clock()

    def delete(self, tenant: str, id: str) -> None:
        """Remove the files. Raises `Conflict` while they are in use, and `ConversationNotFound`."""
        folder = self.check(tenant, id)
        if (tenant, id) in self._settings.folders:
            raise Conflict(f"Workspace {id!r} is a folder of the server's operator, and stays.")
        with self._lock:
            entry = self._open.get((tenant, id))
            if entry is not None and entry.users:
                raise Conflict(
                    f"Workspace {id!r} is in use. Close the conversations that work there first."
                )
            self._open.pop((tenant, id), None)
            trash = folder.with_name(f"~{os.urandom(8).hex()}")  # not a valid id
            folder.rename(trash)  # prevents that the workspace is opened again
        if entry is not None:
            entry.close()
        shutil.rmtree(trash, ignore_errors=True)
        if self.runtimes.undo_folder:
            self.runtimes.undo.forget(folder)

    def tend(self) -> None:
        """Close runtimes that have been unused for long."""
        now, closing = self._settings.clock(), list[_Open]()
        with self._lock:
            for key, one in list(self._open.items()):
                if not one.users and now - one.used >= self._settings.idle:
                    closing.append(self._open.pop(key))
        for one in closing:
            one.close()

    def count(self) -> int:
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        """Close all runtimes; the folders stay. Idempotent."""
        with self._lock:
            self._closed = True
            closing = list(self._open.values())
            self._open.clear()
        for one in closing:
            with suppress(OSError):
                one.close()


def check_shared(root: Path, records: Records) -> None:
    """Raise `ConfigurationError` unless `root` is the folder of all servers with these records. A
    file in it names the records."""
    marker = root / ".holdfast-servers"
    token = os.urandom(16)
    with suppress(FileNotFoundError):
        token = marker.read_bytes()
    if records.fact("root", token) != token:
        raise ConfigurationError(
            f"--root: the folder {str(root)!r} is not the one that the other servers of this store"
            " use. Mount the same folder on each, or leave --root out everywhere."
        )
    marker.write_bytes(token)


def _conflict(id: str) -> Conflict:
    return Conflict(f"Workspace {id!r} already exists. Use another id.")


def _not_found(id: str) -> ConversationNotFound:
    return ConversationNotFound(f"No workspace {id[:200]!r} on this server.")
