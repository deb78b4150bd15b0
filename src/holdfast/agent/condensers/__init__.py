"""What shortens long conversations: a window, the trimming of tool outputs, a model's summary, and
several of these in a row."""

from holdfast.agent.condenser import Condensed, Condenser
from holdfast.agent.condensers.outputs import ToolOutputCondenser, read_output
from holdfast.agent.condensers.pipeline import Pipeline
from holdfast.agent.condensers.summary import LLMCondenser
from holdfast.agent.condensers.window import WindowCondenser
from holdfast.agent.condensers.work import Piece, Work

SHIPPED = {
    "window": WindowCondenser,
    "tool_output": ToolOutputCondenser,
    "llm": LLMCondenser,
    "pipeline": Pipeline,
}
"""By the names that `load_agent` knows them under."""

__all__ = [
    "SHIPPED",
    "Condensed",
    "Condenser",
    "LLMCondenser",
    "Piece",
    "Pipeline",
    "ToolOutputCondenser",
    "WindowCondenser",
    "Work",
    "read_output",
]
