"""The kind of runtime that a server's workspaces have: plain, or in a sandbox."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.conversation.undo import MB, FileUndo
from holdfast.errors import ConfigurationError
from holdfast.runtime import LocalRuntime, SandboxedRuntime
from holdfast.runtime.folder import FolderRuntime
from holdfast.temporary import TemporaryFolder

_MAX_UNDO_BYTES = 256 * MB  # on disk, for one workspace


class WorkspaceRuntimes(msgspec.Struct, frozen=True):
    """The settings of the runtimes of workspaces.

    Args:
        sandboxed: True if each conversation has a sandbox of its own in its workspace. Otherwise
            those have one that ask for it.
        network: Patterns of the hosts that commands in a sandbox can reach; none: no network.
        undo_folder: The snapshots of workspaces are below this folder; "" keeps none.
    """

    sandboxed: bool = False
    network: tuple[str, ...] = ()
    undo_folder: str = ""

    @property
    def undo(self) -> FileUndo:
        """The snapshots of workspaces. Raises `ConfigurationError` if the server keeps none."""
        if not self.undo_folder:
            raise ConfigurationError("undo: this server has no folder for snapshots of files.")
        return FileUndo(self.undo_folder, max_bytes=_MAX_UNDO_BYTES)

    def open(self, folder: str | Path, boxed: bool = False) -> FolderRuntime:
        """Return a new runtime in a folder, in a sandbox if all have one or with `boxed`. Raises
        `SandboxUnavailable`."""
        if not (boxed or self.sandboxed):
            return LocalRuntime(folder)
        return SandboxedRuntime(folder, network=list(self.network) or "none")

    def check(self, boxed: bool = False) -> None:
        """Raise `SandboxUnavailable` if no such runtime can be made here, and `ConfigurationError`
        for an invalid pattern."""
        with self.temporary(boxed):
            pass

    @contextmanager
    def temporary(self, boxed: bool = False) -> Generator[FolderRuntime]:
        """Yield a new runtime in a temporary folder."""
        folder = TemporaryFolder()
        try:
            with self.open(folder.path, boxed) as runtime:
                yield runtime
        finally:
            folder.close()
