"""Models: the `Model` protocol, `LLM` over HTTP, composites of models, and `ScriptedLLM` for
tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.llm.client import LLM
    from holdfast.llm.completion import Completion, Delta
    from holdfast.llm.composite import FallbackLLM, RouterLLM, RouterRequest
    from holdfast.llm.info import ModelInfo
    from holdfast.llm.litellm import LiteLLM
    from holdfast.llm.model import Model
    from holdfast.llm.named import NamedModel
    from holdfast.llm.recorded import RecordedLLM
    from holdfast.llm.scripted import ScriptedLLM
    from holdfast.llm.transcript import Transcript

__all__ = [
    "LLM",
    "Completion",
    "Delta",
    "FallbackLLM",
    "LiteLLM",
    "Model",
    "ModelInfo",
    "NamedModel",
    "RecordedLLM",
    "RouterLLM",
    "RouterRequest",
    "ScriptedLLM",
    "Transcript",
]

_MODULES = {
    **dict.fromkeys(("Completion", "Delta"), "completion"),
    **dict.fromkeys(("FallbackLLM", "RouterLLM", "RouterRequest"), "composite"),
    "LLM": "client",
    "LiteLLM": "litellm",
    "Model": "model",
    "ModelInfo": "info",
    "NamedModel": "named",
    "RecordedLLM": "recorded",
    "ScriptedLLM": "scripted",
    "Transcript": "transcript",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
