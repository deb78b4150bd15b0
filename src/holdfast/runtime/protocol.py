"""`Runtime`: what an agent's tools and a program may ask of the place where commands run, wherever
that place is."""

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
        """The tools through which an agent works there."""
        ...

    def get_tools(self) -> list[Tool]:
        """The same list, as a method."""
        ...

    def run_command(
        self, command: str, timeout: float | None = None, *, conversation_id: str = ""
    ) -> ToolResult:
        """Run a shell command; a result that also tells of failures."""
        ...

    def read_file(self, path: str | os.PathLike[str]) -> str:
        """A text file's content."""
        ...

    def write_file(self, path: str | os.PathLike[str], text: str) -> None:
        """Make or overwrite a text file."""
        ...

    def clone_repo(
        self, repo: str, *, branch: str | None = None, target: str | os.PathLike[str] | None = None
    ) -> Path:
        """Clone a git repository; where it is."""
        ...

    def load_microagents(self, folder: str | os.PathLike[str] | None = None) -> list[Microagent]:
        """The microagents that the working directory has."""
        ...

    def process_groups(self) -> list[int]:
        """The process groups that run there on our behalf."""
        ...

    def close(self) -> None:
        """End all that runs there."""
        ...
