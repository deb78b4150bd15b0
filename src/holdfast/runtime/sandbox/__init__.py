"""The sandbox: commands run in a box that sees the work folder, and little else of the machine."""

from holdfast.runtime.sandbox.runtime import SandboxedRuntime
from holdfast.runtime.sandbox.settings import Mount, SandboxLimits, SandboxUnavailable

__all__ = ["Mount", "SandboxLimits", "SandboxUnavailable", "SandboxedRuntime"]
