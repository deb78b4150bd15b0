"""The location of a callback that another process imports, and the values that cross to it."""

from __future__ import annotations

import ast
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
from holdfast.tools.isolation.call import ProcessCall
from holdfast.tools.isolation.messages import SCRIPT, IsolatedCall, frame, lookup

# Time to clean up for a callback that takes a context. The manager waits one second.
GRACE_SECONDS = 0.5

Validate = Callable[[dict[str, Any]], dict[str, Any]]


class _JsonArguments(dict[str, Any]):
    """Checked arguments that are JSON values only, so that they cross without loss."""


class Isolated:
    """The location of a tool's callback for another process, and the way to run one call there.

    Made together with the tool. Raises `ConfigurationError` for a callback that another process
    cannot import.
    """

    def __init__(
        self, tool: str, callback: Callable[..., Any], takes_context: bool, has_schema: bool
    ) -> None:
        self._tool = tool
        self._callback = callback
        self._takes_context = takes_context  # only then can the callback notice a cancel
        self._has_schema = has_schema  # True if the signature defines the arguments' types
        self._home, self._qualname = _address(tool, callback)
        home = sys.modules[self._home]
        self._module, self._script = self._home, ""
        if self._home in ("__main__", SCRIPT):
            self._module, self._script = _main(tool, home)
        # Inside a decorator the name does not exist yet; then the first use runs `check`.
        initializing = getattr(home.__spec__, "_initializing", False)
        if self._home != "__main__" and not _is_importing_callback() and not initializing:
            self.check()

    def check(self) -> None:
        """Raise `ConfigurationError` if the callback's name leads to another object."""
        module = sys.modules[self._home]
        try:
            target = lookup(module, self._qualname)
        except AttributeError:
            target = None
        if target != self._callback:
            raise ConfigurationError(
                f"Tool {self._tool!r}: isolation='process' imports the callback by its name, but"
                f" {self._qualname!r} in {module.__name__!r} is"
                f" {'not there' if target is None else 'something else'}. Give a function under the"
                " name that it was defined with."
            )

    def validate(self, validate: Validate) -> Validate:
        """Wrap an argument check. Arguments that the check converts to other objects cross
        unconverted; the callback's process converts them again."""

        def checked(arguments: dict[str, Any]) -> dict[str, Any]:
            converted = validate(arguments)
            return _JsonArguments(converted) if _plain(converted) else arguments

        return checked

    def call(
        self, arguments: dict[str, Any], context: ToolContext, timeout: float | None
    ) -> ToolResult:
        """Run the callback in a new process. When this method returns, that process and everything
        that it started have ended.

        Raises `ToolTimeout` after `timeout` seconds; `ToolCancelled`; and `ToolError` for the
        callback's exception (in the words of `ToolManager`) or a process that ended without an
        answer.
        """
        if _is_importing_callback():
            raise ToolError(
                f"{self._tool!r} was not run: {self._module or self._script!r} calls it while it is"
                " being imported, and the process of the call imports it too. Move that call under"
                " `if __name__ == '__main__':`.",
                retryable=False,
                max_retries=0,
            )
        context.cancelled.raise_if_set()
        marks = context.process_environment()
        request = IsolatedCall(
            self._tool,
            self._module,
            self._script,
            self._qualname,
            dict(arguments),
            self._has_schema and not isinstance(arguments, _JsonArguments),
            context.conversation_id,
            context.call_id,
            context.attempt,
            self._takes_context,
            marks,
        )
        try:
            data = frame(request)
        except Exception as error:  # a caller may bypass the manager's check
            raise ToolValidationError(
                f"{self._tool!r} was not run: its arguments are not JSON: {error}"
            ) from None
        grace = GRACE_SECONDS if self._takes_context else 0.0
        return ProcessCall(self._tool, context, timeout, grace).run(data, marks)


# --- what another process can import ---


def _address(tool: str, callback: Any) -> tuple[str, str]:
    module: Any = getattr(callback, "__module__", None)
    qualname: Any = getattr(callback, "__qualname__", None)
    fault = ""
    if inspect.ismethod(callback) and not isinstance(callback.__self__, type):
        fault = "is a method of an object, which another process does not have"
    elif not isinstance(module, str) or not isinstance(qualname, str):
        fault = f"is a {type(callback).__name__}, which has no name to import it by"
    elif "<lambda>" in qualname:
        fault = "is a lambda"
    elif "<locals>" in qualname:
        fault = "is defined inside of a function"
    elif module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is None:
        fault = f"is of {module!r}, which is no module that another process could import"
    if fault:
        raise ConfigurationError(
            f"Tool {tool!r}: isolation='process' runs the callback in another process, which"
            f" imports it by its name; {callback!r} {fault}. Give a function defined at the top of"
            " a module."
        )
    return module, qualname


def _main(tool: str, main: ModuleType) -> tuple[str, str]:
    """Return (module, script): the way in which another process imports the program that `python
    -m module` or `python script` runs here. One of the two is ""."""
    path = getattr(main, "__file__", None)
    if main.__name__ == SCRIPT and path is not None:
        return "", path
    if path is None or not _has_main_guard(Path(path)):
        where = "no file" if path is None else f"{path}, which has no `if __name__ == '__main__':`"
        raise ConfigurationError(
            f"Tool {tool!r}: isolation='process' has another process import the callback; it is"
            f" defined in {where}. Move it to a module of its own, or move the program's actions"
            " under `if __name__ == '__main__':`, so that the import does not repeat them."
        )
    return (main.__spec__.name, "") if main.__spec__ is not None else ("", os.path.abspath(path))


def _is_importing_callback() -> bool:
    """Return True in the process of a call while it still imports the callback's module."""
    return getattr(sys.modules.get("__main__"), "importing_callback", False)


def _has_main_guard(path: Path) -> bool:
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [ast.unparse(node.test) for node in body if isinstance(node, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


def _plain(value: Any) -> bool:
    """Return True if a value survives JSON unchanged."""
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
