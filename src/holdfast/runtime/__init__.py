"""The places where commands run and files are: `LocalRuntime`, this machine, and the `Runtime`
protocol for others."""

from holdfast.runtime.local import LocalRuntime
from holdfast.runtime.microagents import Microagent, load_microagents
from holdfast.runtime.protocol import Runtime

__all__ = ["LocalRuntime", "Microagent", "Runtime", "load_microagents"]
