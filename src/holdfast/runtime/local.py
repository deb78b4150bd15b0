"""`LocalRuntime`: a working directory on this machine, with a terminal, files, search, and their
tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.runtime.command_host import PlainHost
from holdfast.runtime.environment import child_environment
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime, ProcessPlace
from holdfast.runtime.paths import Paths, with_home
from holdfast.tools.launch import PlainLauncher


class LocalRuntime(FolderRuntime):
    """A working directory on this machine, and a shell for each conversation that works in it.

    Commands run unboxed: they have all rights of this process's user. `SandboxedRuntime` confines
    them.

    Thread-safe; a context manager; closed at the latest when the interpreter exits. No process is
    started before the first command. Raises `ConfigurationError` (a `ValueError`) that names the
    invalid argument.

    Args:
        workdir: An existing folder. None makes a temporary folder that `close` removes. If this
            process is killed, the next one that makes a runtime removes the folder if it is empty.
            Otherwise the folder is named once in the log.
        allow_outside: Folders outside of `workdir` that the file tools may use; True for any. Shell
            commands have all rights of this process's user.
        env: Environment variables of commands; others of this process are not passed on
            (`child_environment`).
        shell: The name or path of bash.
        output_limit: The maximum number of characters of an answer; longer outputs go to a file.
        command_timeout: Seconds after which a command is ended, unless its call sets a timeout.
        text_files: Reads and writes text files for the file tools, such as the buffers of an
            editor; None for the disk.
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
        text_files: TextFiles | None = None,
    ) -> None:
        if isinstance(allow_outside, (str, os.PathLike)):
            raise ConfigurationError(
                f"allow_outside takes True, False or a list of folders, not {allow_outside!r}."
            )
        allowed = None
        if allow_outside is not True:
            allowed = [Path(os.path.realpath(with_home(one))) for one in allow_outside or ()]

        def make_place(workdir: Path, _: Path) -> ProcessPlace:
            variables = child_environment(workdir, env)
            return ProcessPlace(
                PlainLauncher(),
                lambda _number, _pump: PlainHost(str(workdir), variables),
                str(workdir),
                "",
                {},
                lambda readable, home: Paths(workdir, allowed, readable, home),
            )

        super().__init__(workdir, env, shell, output_limit, command_timeout, make_place, text_files)
        self._settings: dict[str, Any] = {
            "allow_outside": allow_outside,
            "shell": shell,
            "output_limit": output_limit,
            "command_timeout": command_timeout,
        }
        self._variables = dict(env or {})

    def at(self, workdir: str | os.PathLike[str], env: Mapping[str, str]) -> LocalRuntime:
        """Return a runtime with the same settings in another folder, and more variables."""
        return LocalRuntime(workdir, env={**self._variables, **env}, **self._settings)
