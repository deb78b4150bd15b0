"""A judge of the shell rules: a bubblewrap box in which real bash runs the commands that the rules
call low or medium.

`Judge` is this side of the box, `shell_box` the program inside. The box has no network, sees the
system's programs read-only, and writes to a tmpfs alone, so that a hostile command harms nothing
but its own box.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import holdfast

TESTS = Path(__file__).parent
SOURCE = Path(holdfast.__file__).parents[1]
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/outside/bin"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/java-17-openjdk", "/etc/ssl/certs")
_TMPFS_BYTES = 256_000_000


@functools.cache
def missing() -> str:
    """Return the reason why no box can run here, or ""."""
    if sys.platform != "linux":
        return "bubblewrap is for Linux"
    for program in ("bwrap", "bash", "git"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run([*_box(), "--", "/bin/true"], capture_output=True, text=True)
    return f"bwrap makes no box here: {tried.stderr.strip()}" if tried.returncode else ""


def _box() -> list[str]:
    command = [
        "bwrap",
        "--unshare-all",
        "--as-pid-1",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--cap-drop",
        "ALL",
    ]
    command += ["--new-session", "--die-with-parent", "--clearenv", "--hostname", "box"]
    command += ["--size", str(_TMPFS_BYTES), "--tmpfs", "/"]
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            command += ["--ro-bind", path, path]
    for path in _CONFIGURATION:
        command += ["--ro-bind-try", path, path]
    return [*command, "--proc", "/proc", "--dev", "/dev", "--chdir", "/"]


class Fault(NamedTuple):
    """A script with an effect that its level excludes."""

    script: list[str]
    levels: list[str]
    effects: dict[str, list[str]]

    def __str__(self) -> str:
        return f"{self.levels[-1]}: {json.dumps(self.script)} -> {json.dumps(self.effects)}"


class Judge:
    """A box that is running. A context manager; not thread-safe.

    Args:
        rules: The rules to judge, as `module:name` of a class. `low` and `medium` give every command
            that level, as a negative control.
        source: The folder that `holdfast` is imported from.
        env: Variables of the commands, over the runtime's own.
        programs: A folder of more programs, searched last.
        planted: False leaves the secrets and traps out of the work folder, for harmless commands.
    """

    def __init__(
        self,
        rules: str = "holdfast.agent.security:RiskRules",
        source: Path = SOURCE,
        env: dict[str, str] | None = None,
        programs: Path | None = None,
        planted: bool = True,
    ) -> None:
        self.counts: dict[str, int] = {}
        # Everything that the program in the box needs is in a folder of its own, beside the world that
        # commands see.
        binds = {
            sys.base_prefix: "python",
            sysconfig.get_path("purelib"): "packages",
            str(source): "src",
            str(TESTS / "shell_box.py"): "box.py",
        }
        if programs is not None:
            binds[str(programs)] = "programs"
        path = PATH if programs is None else f"{PATH}:/judge/programs"
        command = [*_box(), "--dir", "/judge", "--dir", "/judge/tmp"]
        for real, name in binds.items():
            command += ["--ro-bind", real, f"/judge/{name}"]
        for name, value in {
            "PYTHONPATH": "/judge/src:/judge/packages",
            "LD_LIBRARY_PATH": "/judge/python/lib",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": path,
            "HOME": "/home/agent",
            "LANG": "C.UTF-8",
            "TMPDIR": "/judge/tmp",
        }.items():
            command += ["--setenv", name, value]
        settings = {"rules": rules, "planted": planted, "env": {"PATH": path, **(env or {})}}
        python = "/judge/python/bin/" + os.path.basename(os.path.realpath(sys.executable))
        self._box = subprocess.Popen(
            [*command, "--", python, "/judge/box.py", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._box.stdout is not None
        line = self._box.stdout.readline()
        if not line:
            raise RuntimeError(f"The box ended with exit code {self._box.wait()}.")
        return json.loads(line)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._box.stdin is not None
        self._box.stdin.write(json.dumps(request) + "\n")
        self._box.stdin.flush()
        return self._answer()

    def levels(self, commands: Sequence[str]) -> list[str]:
        """Return the levels that the rules give commands in the box's work folder. Nothing is run."""
        return self._ask({"do": "judge", "commands": list(commands)})["levels"]

    def alone(self, scripts: Sequence[Sequence[str]], together: bool = False) -> list[Fault]:
        """Run scripts, each in a fresh shell. A script is one command, or several that share the
        shell.

        `together` judges all commands of a script before the first runs, like the calls of one
        answer.
        """
        results = self._ask(
            {"do": "alone", "scripts": [list(script) for script in scripts], "together": together}
        )["results"]
        for result in results:
            for level in result["levels"]:
                self.counts[level] = self.counts.get(level, 0) + 1
        return [_fault(result) for result in results if result["fault"]]

    def grouped(self, commands: Sequence[str]) -> list[Fault]:
        """Run single commands, a dozen to a shell. This is quicker, and finds the effects of one
        command on the next."""
        report = self._ask({"do": "grouped", "commands": list(commands)})
        for level, count in report["counts"].items():
            self.counts[level] = self.counts.get(level, 0) + count
        return [_fault(result) for result in report["faults"]]

    def anyway(self, commands: Sequence[str]) -> list[dict[str, Any]]:
        """Run commands whatever their level, to check that the box notices their effects."""
        return self._ask({"do": "anyway", "commands": list(commands)})["results"]

    def close(self) -> None:
        """End the box and everything in it."""
        self._box.kill()
        self._box.wait()
        for stream in (self._box.stdin, self._box.stdout):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _fault(result: dict[str, Any]) -> Fault:
    return Fault(result["script"], result["levels"], result["fault"])


def corpus(name: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a file in `tests/data`, each with the text before its tab.

    A command of several lines is a JSON string. Empty lines and lines that begin with `## ` are
    skipped.
    """
    for line in (TESTS / "data" / name).read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("## "):
            continue
        note, tab, command = line.partition("\t")
        if not tab:
            note, command = "", line
        yield (
            note,
            json.loads(command) if command.startswith('"') and command.endswith('"') else command,
        )
