"""What an agent is: its prompt, its limits, what it is shown, and one step."""

from holdfast.agent.agent import Agent
from holdfast.agent.limits import Limits
from holdfast.agent.stuck import StuckDetector

__all__ = ["Agent", "Limits", "StuckDetector"]
