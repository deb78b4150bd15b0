"""The places where commands run and files are: `LocalRuntime`, this machine, `SandboxedRuntime`,
boxes on it, and the `Runtime` protocol for others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.editors import editor_for
    from holdfast.runtime.local import LocalRuntime
    from holdfast.runtime.microagents import Microagent, load_microagents
    from holdfast.runtime.protocol import Runtime
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

# The module of each name, imported at its first use.
_MODULES = {
    "LocalRuntime": "local",
    "Microagent": "microagents",
    "Mount": "sandbox",
    "Runtime": "protocol",
    "SandboxLimits": "sandbox",
    "SandboxUnavailable": "sandbox",
    "SandboxedRuntime": "sandbox",
    "editor_for": "editors",
    "load_microagents": "microagents",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
