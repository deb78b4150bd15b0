"""`LocalRuntime`: a working directory on this machine, with a terminal, files, search, and the tools that offer them to a model."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError
from holdfast.processes import OwnerProcess
from holdfast.runtime import clone
from holdfast.runtime.environment import child_environment
from holdfast.runtime.files import Files
from holdfast.runtime.microagents import Microagent, load_microagents
from holdfast.runtime.paths import Paths, with_home
from holdfast.runtime.search import Search
from holdfast.runtime.terminal import Terminal
from holdfast.temporary import TemporaryFolder
from holdfast.tools.context import Cancellation

if TYPE_CHECKING:
    from holdfast.tools import Tool

_log = logging.getLogger(__name__)


class LocalRuntime:
    """A working directory on this machine, and a shell for each conversation that works in it.

    `workdir=None` makes a temporary folder, removed at `close`. If this process is killed, the next one that makes a runtime removes
    the folder when it is empty, and else names it once in the log. The file tools work inside of it, and in the folders that
    `allow_outside` names (`True`: anywhere); shell commands can do whatever this process's user can. They see none of this process's
    environment variables but what `env` gives them: see `child_environment`. `shell` is bash, by name or path.
    `output_limit` is the number of characters of an answer; longer outputs are in a file. `command_timeout` is in seconds.

    Thread-safe; a context manager; closed at the latest when the interpreter exits. Nothing is started before the first command. Raises `ConfigurationError` (a `ValueError`)
    naming the argument that does not fit.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str] | None = None,
        *,
        allow_outside: bool | Sequence[str | os.PathLike[str]] = False,
        env: Mapping[str, str] | None = None,
        shell: str = "bash",
        output_limit: int = 30_000,
        command_timeout: float = 120.0,
    ) -> None:
        if workdir is not None and not os.path.isdir(with_home(workdir)):
            what = "is a file" if os.path.exists(with_home(workdir)) else "does not exist"
            raise ConfigurationError(f"workdir takes an existing folder; {os.fspath(workdir)!r} {what}.")
        if isinstance(allow_outside, (str, os.PathLike)):
            raise ConfigurationError(f"allow_outside takes True, False or a list of folders, not {allow_outside!r}.")
        if output_limit < 1000:
            raise ConfigurationError(f"output_limit takes at least 1000 characters, not {output_limit!r}.")
        if not command_timeout > 0:
            raise ConfigurationError(f"command_timeout takes seconds, more than 0, not {command_timeout!r}.")
        # Ours alone: pipes, the outputs that are too long to show, and the workdir if none was given.
        self._temporary = TemporaryFolder(work="" if workdir is not None else "workdir")
        self._folder = self._temporary.path
        if workdir is None:
            self.workdir = self._folder / "workdir"
            self.workdir.mkdir()
        else:
            self.workdir = Path(os.path.realpath(with_home(workdir)))
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._tools: list[Tool] | None = None
        self._clones: list[Path] = []
        self._closed = False
        try:
            self._env = child_environment(self.workdir, env)
        except ConfigurationError:
            self._temporary.close()
            raise
        allowed = allow_outside if isinstance(allow_outside, bool) else [Path(os.path.realpath(with_home(p))) for p in allow_outside]
        self.terminal = Terminal(self.workdir, self._folder, self._env, shell, output_limit, command_timeout)
        self.paths = Paths(self.workdir, allowed, readable=[self.terminal.outputs], home=self._env["HOME"])
        self.files = Files(self.paths, output_limit, self.terminal.outputs)
        self.search = Search(self.paths, self._env, output_limit)
        # A program that ends without `close` leaves no folder and no shell behind either.
        atexit.register(self.close)

    # --- what a program calls ---

    def run_command(
        self, command: str, timeout: float | None = None, *, conversation_id: str = "", cancelled: Cancellation | None = None
    ) -> ToolResult:
        """Run a command in the conversation's shell, and wait for it. Equivalent to a call of the terminal tool.

        A command that fails is no error: `meta["exitCode"]` tells, and the text ends with it. `is_error` is true if the command
        could not be run, timed out (`timeout` seconds; default: `command_timeout`) or was cancelled.
        """
        return self.terminal.run(command, conversation_id, timeout=timeout, cancelled=cancelled)

    def read_file(self, path: str | os.PathLike[str]) -> str:
        """A text file's content, as `Path.read_text()` without translation of line ends. UTF-8, UTF-16 by its mark, else Latin-1.

        Raises `RuntimeFault` (an `OSError`) if it is missing (also a `FileNotFoundError`), binary or too large, `PathRefused` if outside.
        """
        return self.files.read_text(path)

    def write_file(self, path: str | os.PathLike[str], text: str) -> None:
        """Make or overwrite a text file in UTF-8: whole or not at all. Parents are made; mode is kept.

        Raises `RuntimeFault` (an `OSError`) if it cannot be written, `PathRefused` if it is outside of the workdir.
        """
        self.files.write_text(path, text)

    def clone_repo(
        self,
        repo: str,
        *,
        branch: str | None = None,
        target: str | os.PathLike[str] | None = None,
        timeout: float = 600.0,
    ) -> Path:
        """`git clone` of `owner/name` on GitHub, a URL, `user@host:path` or a local path into `target`; the folder it is in.

        `target` is relative to the workdir; by default the repository's name. `timeout` is in seconds. git asks for nothing:
        put a token into the URL, or credentials into `env`. Raises `RuntimeFault` (an `OSError`) with git's message.
        """
        url = clone.repository_url(repo, self.workdir)
        where = self.paths.resolve(clone.folder_name(url) if target is None else target, write=True)
        cloned = clone.clone(repo, branch, where, self.workdir, self._env, timeout)
        with self._lock:
            self._clones.append(cloned)
        return cloned

    def load_microagents(self, folder: str | os.PathLike[str] | None = None) -> list[Microagent]:
        """Return the microagents and skills of the workdir, or of a folder that may also be directly full of them.

        Those of a repository within the workdir are read by naming its folder; the log says so if a clone has some. See
        `holdfast.runtime.load_microagents`.
        """
        if folder is None:
            self._tell_of_clones()
            return load_microagents(self.workdir, loose=False)
        return load_microagents(self.workdir / with_home(folder, self._env["HOME"]))

    def _tell_of_clones(self) -> None:
        """Log the clones whose microagents `load_microagents()` does not read."""
        with self._lock:
            clones = [path for path in dict.fromkeys(self._clones) if path != self.workdir]
        for path in clones:
            if (count := len(load_microagents(path, loose=False))) and path.is_relative_to(self.workdir):
                name = str(path.relative_to(self.workdir))
                _log.warning(
                    "load_microagents() reads those of %s. The clone in %r has %d: load_microagents(%r) reads them.",
                    self.workdir, name, count, name,
                )  # fmt: skip

    # --- what an agent is given ---

    @property
    def tools(self) -> list[Tool]:
        """The tools by which a model works here: terminal, terminal_input, read_file, write_file, edit_file, glob, grep. A new list."""
        with self._lock:
            if self._tools is None:
                from holdfast.runtime.builtin import make_tools

                self._tools = make_tools(self, self.terminal, self.files, self.search)
            return list(self._tools)

    def get_tools(self) -> list[Tool]:
        """The same as `tools`."""
        return self.tools

    # --- the end ---

    def process_groups(self) -> list[int]:
        """The ids of the process groups that live here, each shell's first."""
        return self.terminal.process_groups()

    def close_conversation(self, conversation_id: str) -> None:
        """End the shell of one conversation and all that it started. Idempotent; its next command gets a new shell."""
        self.terminal.close_conversation(conversation_id)

    def close(self) -> None:
        """End all commands and all that they started, and remove what was temporary. Idempotent; does nothing in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self.terminal.close()
        self._temporary.close()

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalRuntime({str(self.workdir)!r})"
