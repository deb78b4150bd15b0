"""`Box`: programs in a box with separate outputs, in the form that third-party suites need."""

import os
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from holdfast import SandboxedRuntime


class ProgramEnd(NamedTuple):
    """The end of a program; `code` is None if it was killed at its timeout."""

    code: int | None
    stdout: bytes
    stderr: bytes


class Box:
    """A runtime whose programs run in the background of one shell, beside each other. Their inputs
    and outputs are files below the work folder."""

    def __init__(self) -> None:
        mechanism = os.environ.get("JUDGED_MECHANISM", "auto")
        self.runtime = SandboxedRuntime(mechanism=mechanism, command_timeout=600)
        self.workdir = str(self.runtime.workdir)
        self._files = self.runtime.workdir / ".judge"
        self._files.mkdir()
        status = os.stat(self.workdir)  # Landlock's boxes of root have another user
        os.chown(self._files, status.st_uid, status.st_gid)
        self._numbers = count()

    def run(
        self,
        argv: Sequence[str],
        data: bytes = b"",
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> ProgramEnd:
        """Run a program; end it after `timeout` seconds, or when `cancelled` is set."""
        path = self._files / str(next(self._numbers))
        Path(f"{path}.argv").write_bytes(b"".join(one.encode() + b"\0" for one in argv))
        Path(f"{path}.in").write_bytes(data)
        exports = "".join(
            f"export {name}={shlex.quote(one)}\n" for name, one in (env or {}).items()
        )
        Path(f"{path}.sh").write_text(
            f"mapfile -d '' argv < {path}.argv\n{exports}cd {shlex.quote(cwd)} || exit 1\n"
            f'exec "${{argv[@]}}" < {path}.in > {path}.out 2> {path}.err\n'
        )
        command = (
            f"(cd {self.workdir}; setsid bash {path}.sh & echo $! > {path}.group; wait $!;"
            f" echo $? > {path}.new; mv {path}.new {path}.code) > /dev/null 2>&1 < /dev/null &"
        )
        started = self.runtime.run_command(command)
        assert started.meta["exitCode"] == 0, started.text
        until = None if timeout is None else time.monotonic() + timeout
        code: int | None = None
        while True:
            if Path(f"{path}.code").exists():
                code = int(Path(f"{path}.code").read_text())
                break
            ended = until is not None and time.monotonic() > until
            if ended or (cancelled is not None and cancelled.is_set()):
                self.runtime.run_command(f"kill -KILL -- -$(cat {path}.group)")
                break
            time.sleep(0.005)
        parts = [Path(f"{path}.{name}") for name in ("out", "err")]
        return ProgramEnd(code, *(one.read_bytes() if one.exists() else b"" for one in parts))

    def close(self) -> None:
        """End all programs of the box."""
        self.runtime.close()
