"""Builds a `ToolManager` from options. Only here do a tool config and the environment meet."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from holdfast.cli.environment import shell_environment
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import folder_of, path_of
from holdfast.runtime import LocalRuntime
from holdfast.tools import ToolManager
from holdfast.tools.document import load

_MENTIONED = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)(:-)?")


class Toolset(NamedTuple):
    """A tool manager, and the runtime of its builtin tools."""

    manager: ToolManager
    runtime: LocalRuntime


@contextmanager
def toolset(config: str | None, workdir: str, env: Mapping[str, str]) -> Generator[Toolset]:
    """Yield the tools of a config, or the builtin ones. They are closed at the end, also when a
    signal ends the process. Raises `UsageError`, `ConfigurationError`."""
    folder, passed = folder_of(workdir), shell_environment(env, ())
    with _ended_by_signals(), LocalRuntime(folder, env=passed) as runtime:
        if config is None:
            manager = ToolManager(runtime.tools)
        else:
            path = path_of(config)
            found = _variables(path, env)
            for place in (os.getcwd(), str(path.resolve().parent)):
                if place not in sys.path:
                    sys.path.insert(0, place)
            manager = ToolManager.from_config(path, runtime.tools, variables=found, discover=False)
        with manager:
            yield Toolset(manager, runtime)


def _variables(path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a config mentions as `${NAME}`. Raises `UsageError`."""
    found: dict[str, str] = {}
    for text in _texts(load(path)[0]):
        for name, default in _MENTIONED.findall(text):
            if name in env:
                found[name] = env[name]
            elif not default:
                raise UsageError(
                    f"the environment variable {name}, which {str(path)!r} mentions, is not set."
                    f" Set it, or write a default: ${{{name}:-...}}"
                )
    return found


def _texts(document: Any) -> Generator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        yield from _texts([*cast("dict[str, Any]", document).values()])
    elif isinstance(document, list):
        for value in cast("list[Any]", document):
            yield from _texts(value)


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """Make SIGTERM and SIGHUP raise inside the context, so that started servers are ended."""
    codes = {signal.SIGTERM: Exit.TERMINATED, signal.SIGHUP: Exit.HUNG_UP}

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(int(codes[signal.Signals(number)]))

    before = {number: signal.signal(number, end) for number in codes}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
