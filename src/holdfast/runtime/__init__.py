"""The places where commands run and files are: `LocalRuntime`, this machine, `SandboxedRuntime`,
boxes on it, and the `Runtime` protocol for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.editors import editor_for
from holdfast.runtime.local import LocalRuntime
from holdfast.runtime.microagents import Microagent, load_microagents
from holdfast.runtime.protocol import Runtime

if TYPE_CHECKING:
    from holdfast.runtime.sandbox import (
        Mount,
        SandboxedRuntime,
        SandboxLimits,
        SandboxUnavailable,
    )

__all__ = [
    "LocalRuntime",
    "Microagent",
    "Mount",
    "Runtime",
    "SandboxLimits",
    "SandboxUnavailable",
    "SandboxedRuntime",
    "editor_for",
    "load_microagents",
]

# Imported when they are used.
_SANDBOX = ("Mount", "SandboxLimits", "SandboxUnavailable", "SandboxedRuntime")


def __getattr__(name: str) -> Any:
    if name not in _SANDBOX:
        raise AttributeError(f"module 'holdfast.runtime' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module("holdfast.runtime.sandbox"), name)
    return value
