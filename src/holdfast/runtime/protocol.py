"""`Runtime`: the interface between agents and programs and the place where commands run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from holdfast.content import ToolResult
from holdfast.runtime.microagents import Microagent

if TYPE_CHECKING:
    from holdfast.tools import Tool


@runtime_checkable
class Runtime(Protocol):
    """A place with files and a shell. `LocalRuntime` is this machine; sandboxes and containers are
    others."""

    @property
    def tools(self) -> list[Tool]:
        """The tools with which an agent works in this place."""
        ...

    def get_tools(self) -> list[Tool]:
        """Return the same list as `tools`."""
        ...

    def run_command(
        self, command: str, timeout: float | None = None, *, conversation_id: str = ""
    ) -> ToolResult:
        """Run a shell command and return its result, which also reports failures."""
        ...

    def read_file(self, path: str | os.PathLike[str]) -> str:
        """Return a text file's content."""
        ...

    def write_file(self, path: str | os.PathLike[str], text: str) -> None:
        """Create or overwrite a text file."""
        ...

    def clone_repo(
        self, repo: str, *, branch: str | None = None, target: str | os.PathLike[str] | None = None
    ) -> Path:
        """Clone a git repository and return its folder."""
        ...

    def load_microagents(self, folder: str | os.PathLike[str] | None = None) -> list[Microagent]:
        """Return the microagents of the working directory."""
        ...

    def process_groups(self) -> list[int]:
        """Return the process groups that run in this place for this process."""
        ...

    def close(self) -> None:
        """End everything that runs in this place."""
        ...
