"""`FolderRuntime`: a working directory with a terminal, files, search, and their tools.

The kinds of runtime on this machine differ in how they start processes, and in the paths that these
see.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError
from holdfast.processes import OwnerProcess
from holdfast.runtime import clone
from holdfast.runtime.command_host import CommandHost
from holdfast.runtime.editors import Editor, choose_tools, editor_for
from holdfast.runtime.environment import child_environment
from holdfast.runtime.files import Files, TextFiles
from holdfast.runtime.microagents import Microagent, load_microagents
from holdfast.runtime.paths import Paths, with_home
from holdfast.runtime.pump import Pump
from holdfast.runtime.search import Search
from holdfast.runtime.terminal import Terminal
from holdfast.temporary import TemporaryFolder
from holdfast.tools.context import Cancellation
from holdfast.tools.launch import Launcher

if TYPE_CHECKING:
    from holdfast.tools import Tool

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessPlace:
    """The place in which a runtime's processes run."""

    launcher: Launcher
    """Starts git and hook commands."""
    make_host: Callable[[int, Pump], CommandHost]
    """Returns the host for the commands of the shell with this number."""
    workdir: str
    """The path of the work folder there."""
    home: str
    """The home folder there; "" for the one in the user database."""
    variables: Mapping[str, str]
    """Variables of commands there. The caller's variables override them."""
    make_paths: Callable[[Sequence[Path], str], Paths]
    """Returns the paths of the file tools, from further folders for reading and the home folder."""


class FolderRuntime:
    """A working directory, and a shell for each conversation that works in it.

    Thread-safe; a context manager; closed at the latest when the interpreter exits. No process is
    started before the first command. Raises `ConfigurationError` (a `ValueError`) that names the
    invalid argument.

    Args:
        workdir: An existing folder. None makes a temporary folder that `close` removes.
        env: Environment variables of commands.
        shell: The name or path of bash.
        output_limit: The maximum number of characters of an answer.
        command_timeout: Seconds after which a command is ended.
        make_place: Returns the place of the runtime's processes, from the work folder and the
            runtime's private temporary folder.
        text_files: Reads and writes text files for the file tools; None for the disk.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        shell: str,
        output_limit: int,
        command_timeout: float,
        make_place: Callable[[Path, Path], ProcessPlace],
        text_files: TextFiles | None = None,
    ) -> None:
        if workdir is not None and not os.path.isdir(with_home(workdir)):
            what = "is a file" if os.path.exists(with_home(workdir)) else "does not exist"
            raise ConfigurationError(
                f"workdir takes an existing folder; {os.fspath(workdir)!r} {what}."
            )
        if output_limit < 1000:
            raise ConfigurationError(
                f"output_limit takes at least 1000 characters, not {output_limit!r}."
            )
        if not command_timeout > 0:
            raise ConfigurationError(
                f"command_timeout takes seconds, more than 0, not {command_timeout!r}."
            )
        # A private folder: scripts, long outputs, and the workdir if none was given.
        self._temporary = TemporaryFolder(work="" if workdir is not None else "workdir")
        folder = self._temporary.path
        if workdir is None:
            self.workdir = folder / "workdir"
            self.workdir.mkdir()
        else:
            self.workdir = Path(os.path.realpath(with_home(workdir)))
        self._process = OwnerProcess()
        self._lock = threading.Lock()
        self._tools: tuple[list[Tool], list[Tool]] | None = None
        self._clones: list[Path] = []
        self._closed = False
        try:
            place = make_place(self.workdir, folder)
            home = {"HOME": place.home} if place.home else {}
            variables = {**home, **place.variables, **(env or {})}
            self._env = child_environment(self.workdir, variables)
        except BaseException:
            self._temporary.close()
            raise
        self.launcher = place.launcher
        """Starts the processes of hook commands."""
        self.home = place.home
        """The home folder of commands; "" for the one in the user database."""
        self.workdir_visible = place.workdir
        """The path of the work folder for commands."""
        self.terminal = Terminal(
            Path(place.workdir),
            folder,
            self._env,
            shell,
            output_limit,
            command_timeout,
            place.make_host,
        )
        outputs = self.terminal.outputs
        self.paths = place.make_paths([outputs], self._env["HOME"])
        self.files = Files(self.paths, output_limit, outputs, text_files)
        self.search = Search(self.paths, self._env, output_limit, self.launcher)
        # A program that ends without `close` must not leave a folder or a shell behind.
        atexit.register(self.close)

    def run_command(
        self,
        command: str,
        timeout: float | None = None,
        *,
        conversation_id: str = "",
        cancelled: Cancellation | None = None,
    ) -> ToolResult:
        """Run a command in a shell, and wait for it, as the terminal tool does.

        A command that fails is not an error: `meta["exitCode"]` has its exit code, and the text
        ends with it. `is_error` is true if the command could not be run, was cancelled, or timed
        out.

        Args:
            command: The command, or a script of several lines.
            timeout: Seconds; None for `command_timeout`.
            conversation_id: The conversation in whose shell the command runs.
            cancelled: Ends the command when it is set.
        """
        return self.terminal.run(command, conversation_id, timeout=timeout, cancelled=cancelled)

    def read_file(self, path: str | os.PathLike[str]) -> str:
        """Return a text file's content with its original line ends. The encoding is UTF-8, UTF-16
        by its mark, else Latin-1. Raises `RuntimeFault` (an `OSError`) if the file is missing (also
        a `FileNotFoundError`), binary or too large; `PathRefused` if it is outside."""
        return self.files.read_text(path)

    def write_file(self, path: str | os.PathLike[str], text: str) -> None:
        """Create or overwrite a text file in UTF-8, atomically. Missing parent folders are created;
        the mode is kept. Raises `RuntimeFault` (an `OSError`) if the file cannot be written,
        `PathRefused` if it is outside of the workdir."""
        self.files.write_text(path, text)

    def clone_repo(
        self,
        repo: str,
        *,
        branch: str | None = None,
        target: str | os.PathLike[str] | None = None,
        timeout: float = 600.0,
    ) -> Path:
        """Clone a git repository, and return its folder.

        The program git does not prompt: put a token into the URL, or credentials into `env`. Raises
        `RuntimeFault` (an `OSError`) with git's message.

        Args:
            repo: `owner/name` on GitHub, a URL, `user@host:path` or a local path.
            branch: A branch or tag; None for the repository's default branch.
            target: The folder, relative to the workdir; None for the repository's name.
            timeout: Seconds.
        """
        url = clone.repository_url(repo, self.workdir)
        where = self.paths.resolve(clone.folder_name(url) if target is None else target, write=True)
        clone.clone(
            repo, branch, where, self.workdir, self._env, timeout, self.launcher, self.paths.visible
        )
        with self._lock:
            self._clones.append(where)
        return where

    def load_microagents(self, folder: str | os.PathLike[str] | None = None) -> list[Microagent]:
        """Return the microagents and skills of the workdir, or of a folder. A given folder may also
        contain microagents directly. To read those of a repository within the workdir, pass its
        folder; the log says so if a clone has some. See `holdfast.runtime.load_microagents`."""
        if folder is None:
            self._tell_of_clones()
            return load_microagents(self.workdir, loose=False)
        return load_microagents(self.workdir / with_home(folder, self._env["HOME"]))

    def _tell_of_clones(self) -> None:
        """Log the clones whose microagents `load_microagents()` does not read."""
        with self._lock:
            clones = dict.fromkeys(path for path in self._clones if self.workdir in path.parents)
        for path in clones:
            if count := len(load_microagents(path, loose=False)):
                name = str(path.relative_to(self.workdir))
                _log.warning(
                    f"load_microagents() reads those of {self.workdir}. The clone in {name!r} has"
                    f" {count}: load_microagents({name!r}) reads them."
                )

    @property
    def tools(self) -> list[Tool]:
        """A new list of the tools with which a model works here."""
        return list(self._made_tools()[0])

    def get_tools(self) -> list[Tool]:
        """Return the same list as `tools`."""
        return self.tools

    @property
    def all_tools(self) -> list[Tool]:
        """A new list of `tools` and of the tools that an agent has only on request
        (`tools_for`)."""
        usual, more = self._made_tools()
        return [*usual, *more]

    def _made_tools(self) -> tuple[list[Tool], list[Tool]]:
        """Return the usual tools and the others, which are made at the first use."""
        with self._lock:
            if self._tools is None:
                from holdfast.runtime.builtin import BuiltinTools

                tools = BuiltinTools(self, self.terminal, self.files, self.search)
                self._tools = tools.usual(), tools.more()
            return self._tools

    def tools_for(
        self, model: str, *, editor: Editor | None = None, also: Iterable[str] = ()
    ) -> list[Tool]:
        """Return the tools of `tools`, but with the edit tools that the model was trained with.

        Args:
            model: The model's name, such as `claude-sonnet-4-5`; see `editor_for`.
            editor: The edit tools to give, regardless of the model.
            also: Names of further tools among `all_tools`.

        Raises `ConfigurationError` for a name that does not exist.
        """
        every = {tool.name: tool for tool in self.all_tools}
        return choose_tools(every, editor or editor_for(model), also)

    def process_groups(self) -> list[int]:
        """Return the ids of the living process groups, each shell's first."""
        return self.terminal.process_groups()

    def close_conversation(self, conversation_id: str) -> None:
        """End the shell of one conversation and all its processes; its next command gets a new
        shell. Idempotent."""
        self.terminal.close_conversation(conversation_id)

    def close(self) -> None:
        """End all commands and remove temporary files. Idempotent; not in a forked child."""
        if not self._process.here:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self.terminal.close()
        self._temporary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.workdir)!r})"
