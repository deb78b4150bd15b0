"""The process tier: a tool's callback in a process of its own, which is killed with all that it
started when its time is over.

Here is what another process can import, and what crosses; `call` runs one, `child` and `worker` are
the other side.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from holdfast.content import ToolResult
from holdfast.errors import ConfigurationError, ToolError, ToolValidationError
from holdfast.tools.context import ToolContext
from holdfast.tools.isolation.worker import SCRIPT, Request, framed, lookup

# seconds that a callback which heeds `cancelled` is left to clean up; the manager waits for a
# second
GRACE = 0.5

Validate = Callable[[dict[str, Any]], dict[str, Any]]


class _Read(dict[str, Any]):
    """Checked arguments that are what the callback takes as they stand: nothing but JSON values, so
    that they cross without loss."""


class Isolated:
    """Where a tool's callback is found in another process, and how one call of it runs there.

    Made when the tool is. Raises `ConfigurationError` for a callback that another process cannot
    import.
    """

    __slots__ = (
        "_callback",
        "_heeds",
        "_home",
        "_module",
        "_qualname",
        "_reads",
        "_script",
        "_tool",
    )

    def __init__(self, tool: str, callback: Callable[..., Any], heeds: bool, reads: bool) -> None:
        self._tool = tool
        self._callback = callback
        self._heeds = heeds  # whether it is given a context, and so can know of a cancel
        self._reads = reads  # whether its signature says what its arguments are
        home, self._qualname = _address(tool, callback)
        self._home = home
        self._module, self._script = (
            _main(tool, sys.modules[home]) if home in ("__main__", SCRIPT) else (home, "")
        )
        # Under a decorator the name is not there yet; `check` comes back when the tool is first
        # used.
        if (
            home != "__main__"
            and not _importing()
            and not getattr(sys.modules[home].__spec__, "_initializing", False)
        ):
            self.check()

    def check(self) -> None:
        """Hold the callback against what is found under its name. Raises `ConfigurationError`."""
        module = sys.modules[self._home]
        try:
            found = lookup(module, self._qualname)
        except AttributeError:
            found = None
        if found != self._callback:
            raise ConfigurationError(
                f"Tool {self._tool!r}: isolation='process' imports the callback by its name, but"
                f" {self._qualname!r} in {module.__name__!r} is"
                f" {'not there' if found is None else 'something else'}. Give a function under the"
                " name that it was defined with."
            )

    def validate(self, validate: Validate) -> Validate:
        """The same check, which leaves arguments that are read into other objects as they came: the
        callback's process reads them again."""

        def checked(arguments: dict[str, Any]) -> dict[str, Any]:
            found = validate(arguments)
            return _Read(found) if _plain(found) else arguments

        return checked

    def call(
        self, arguments: dict[str, Any], context: ToolContext, timeout: float | None
    ) -> ToolResult:
        """Run the callback in a new process, and end that process and all that it started before
        this returns.

        Raises `ToolError`: what the callback raised, classified and worded as by `ToolManager`;
        `ToolTimeout` after `timeout` seconds, `ToolCancelled`, or that the process ended without an
        answer.
        """
        if _importing():
            raise ToolError(
                f"{self._tool!r} was not run: {self._module or self._script!r} calls it while it is"
                " being imported, also by the process that is to run it. Move that call under `if"
                " __name__ == '__main__':`.",
                retryable=False,
                max_retries=0,
            )
        context.cancelled.raise_if_set()
        marks = context.process_environment()
        request = Request(
            self._tool,
            self._module,
            self._script,
            self._qualname,
            dict(arguments),
            self._reads and not isinstance(arguments, _Read),
            context.conversation_id,
            context.call_id,
            context.attempt,
            self._heeds,
            marks,
        )
        try:
            data = framed(request)
        except Exception as error:  # as by a caller who passed them by the manager
            raise ToolValidationError(
                f"{self._tool!r} was not run: its arguments are not JSON: {error}"
            ) from None
        from holdfast.tools.isolation.call import ProcessCall

        return ProcessCall(self._tool, context, timeout, GRACE if self._heeds else 0.0).run(
            data, marks
        )


# --- what another process can import ---


def _address(tool: str, callback: Any) -> tuple[str, str]:
    module, qualname = (
        getattr(callback, "__module__", None),
        getattr(callback, "__qualname__", None),
    )
    why = ""
    if inspect.ismethod(callback) and not isinstance(callback.__self__, type):
        why = "is a method of an object, which another process does not have"
    elif not isinstance(module, str) or not isinstance(qualname, str):
        why = f"is a {type(callback).__name__}, which has no name to import it by"
    elif "<lambda>" in qualname:
        why = "is a lambda"
    elif "<locals>" in qualname:
        why = "is defined inside of a function"
    elif module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is None:
        why = f"is of {module!r}, which is no module that another process could import"
    if why:
        raise ConfigurationError(
            f"Tool {tool!r}: isolation='process' runs the callback in another process, which"
            f" imports it by its name; {callback!r} {why}. Give a function defined at the top of a"
            " module."
        )
    return cast(str, module), cast(str, qualname)


def _main(tool: str, main: ModuleType) -> tuple[str, str]:
    """(module, script): how another process imports what `python -m module` or `python script` runs
    here."""
    path = getattr(main, "__file__", None)
    if main.__name__ == SCRIPT and path is not None:
        return "", path
    if path is None or not _guarded(Path(path)):
        where = "no file" if path is None else f"{path}, which has no `if __name__ == '__main__':`"
        raise ConfigurationError(
            f"Tool {tool!r}: isolation='process' has another process import the callback; it is"
            f" defined in {where}. Move it to a module of its own, or what the program does under"
            " `if __name__ == '__main__':`, so that it is not done again there."
        )
    return (main.__spec__.name, "") if main.__spec__ is not None else ("", os.path.abspath(path))


def _importing() -> bool:
    """Whether this is the process of a call, and its callback's module is still being imported."""
    return getattr(sys.modules.get("__main__"), "importing_callback", False)


def _guarded(path: Path) -> bool:
    import ast

    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.If)
        and "__name__" in (words := ast.unparse(node.test))
        and "__main__" in words
        for node in body
    )


def _plain(value: Any) -> bool:
    """Whether a value is JSON and nothing more: read back, it is the same."""
    kind = cast("type[Any]", type(value))
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return -(2**63) <= value < 2**64
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(map(_plain, cast("list[Any]", value)))
    return kind is dict and all(
        type(key) is str and _plain(item) for key, item in cast("dict[Any, Any]", value).items()
    )
