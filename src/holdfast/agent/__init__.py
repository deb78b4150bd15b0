"""Agents: prompt, limits, the view that a model is shown, and one step of the loop."""

from holdfast.agent.agent import Agent
from holdfast.agent.limits import Limits
from holdfast.agent.stuck import StuckDetector

__all__ = ["Agent", "Limits", "StuckDetector"]
