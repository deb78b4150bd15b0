"""The kind of runtime that a server's workspaces have: plain, or in a sandbox."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.runtime import LocalRuntime, SandboxedRuntime
from holdfast.runtime.folder import FolderRuntime
from holdfast.temporary import TemporaryFolder


class WorkspaceRuntimes(msgspec.Struct, frozen=True):
    """The settings of the runtimes of workspaces.

    Args:
        sandboxed: True if each conversation has a sandbox of its own in its workspace.
        network: Patterns of the hosts that commands in a sandbox can reach; none: no network.
    """

    sandboxed: bool = False
    network: tuple[str, ...] = ()

    def open(self, folder: str | Path) -> FolderRuntime:
        """Return a new runtime in a folder. Raises `SandboxUnavailable`."""
        if not self.sandboxed:
            return LocalRuntime(folder)
        return SandboxedRuntime(folder, network=list(self.network) or "none")

    def check(self) -> None:
        """Raise `SandboxUnavailable` if no such runtime can be made here, and `ConfigurationError`
        for an invalid pattern."""
        folder = TemporaryFolder()
        try:
            self.open(folder.path).close()
        finally:
            folder.close()
