"""The environment of child processes: a fixed minimum and the caller's additions.

No variable of this process reaches a child unasked.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import ConfigurationError, RuntimeFault

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/homebrew/bin"


def child_environment(workdir: Path, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables of commands.

    `os.environ` is not read, so that no secret of this process reaches a child unasked. PATH is the
    system's usual one. HOME and USER come from the user database. TERM is dumb and pagers are
    `cat`, so that no program waits for a key. `env` overrides these values: pass `env=os.environ`,
    or the part of it that commands may see.
    """
    variables = {
        "PATH": _DEFAULT_PATH,
        "HOME": str(workdir),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "SYSTEMD_PAGER": "",
        # A prompt on an invisible terminal would hang.
        "GIT_TERMINAL_PROMPT": "0",
        # Otherwise the output of a running Python program, which goes to a pipe, arrives in blocks
        # of 8 KB.
        "PYTHONUNBUFFERED": "1",
    }
    try:
        user = pwd.getpwuid(os.getuid())
        variables.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    except KeyError:  # a container may run under a user id without an entry
        pass
    for name, value in (env or {}).items():
        # Callers are not all typed.
        texts = isinstance(name, str) and isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not texts or "\0" in name + value or "=" in name or not name:
            raise ConfigurationError(
                f"env takes a mapping of str to str, not {name!r} with a value of type"
                f" {type(value).__name__}."
            )
        variables[name] = value
    return variables


def find_program(name: str, env: Mapping[str, str]) -> str:
    """Return the path of a program in the child's PATH. Raises `RuntimeFault`."""
    program = shutil.which(name, path=env.get("PATH", _DEFAULT_PATH))
    if program is None:
        raise RuntimeFault(
            f"There is no program {name!r} in {env.get('PATH', _DEFAULT_PATH)}. Install it, or pass"
            " env={'PATH': ...}."
        )
    return program
