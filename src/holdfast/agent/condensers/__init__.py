"""Condensers, which shorten long conversations: a window, trimmed tool outputs, a model's
summary, a provider's compaction, and a pipeline of several."""

from holdfast.agent.condenser import Condensed, Condenser
from holdfast.agent.condensers.compaction import CompactionCondenser
from holdfast.agent.condensers.condenser_input import CondenserInput, Piece
from holdfast.agent.condensers.outputs import ToolOutputCondenser, read_output
from holdfast.agent.condensers.pipeline import Pipeline
from holdfast.agent.condensers.summary import LLMCondenser
from holdfast.agent.condensers.window import WindowCondenser

SHIPPED = {
    "window": WindowCondenser,
    "tool_output": ToolOutputCondenser,
    "llm": LLMCondenser,
    "compaction": CompactionCondenser,
    "pipeline": Pipeline,
}
"""The condenser classes by their names in `load_agent` documents."""

__all__ = [
    "SHIPPED",
    "CompactionCondenser",
    "Condensed",
    "Condenser",
    "CondenserInput",
    "LLMCondenser",
    "Piece",
    "Pipeline",
    "ToolOutputCondenser",
    "WindowCondenser",
    "read_output",
]
