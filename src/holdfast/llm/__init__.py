"""Models: `LLM` over HTTP, `ScriptedLLM` for tests, and what an agent needs of any (`Model`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.llm.client import LLM
    from holdfast.llm.completion import Completion, Delta
    from holdfast.llm.model import Model
    from holdfast.llm.scripted import ScriptedLLM
    from holdfast.llm.transcript import Transcript

__all__ = ["LLM", "Completion", "Delta", "Model", "ScriptedLLM", "Transcript"]

_ROOMS = {
    "LLM": "client",
    "Completion": "completion",
    "Delta": "completion",
    "Model": "model",
    "ScriptedLLM": "scripted",
    "Transcript": "transcript",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
