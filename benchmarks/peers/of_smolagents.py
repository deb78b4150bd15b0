"""smolagents: the ToolCallingAgent, without its console output. A crash: it keeps its memory in the
agent, and writes nothing."""

import sys

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent
from smolagents import tool as as_tool

TOOL = "look_up-final_answer"


def make(url, tool):
    agent_tool, model = as_tool(tool), OpenAIServerModel("mock", api_base=url, api_key="none")
    return lambda: ToolCallingAgent(
        [agent_tool], model, max_steps=sys.maxsize, verbosity_level=LogLevel.OFF
    )


def ask(agent, text):
    fresh = agent()
    fresh.run(text)
    return fresh
