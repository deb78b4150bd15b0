"""autogen-agentchat + autogen-ext[openai]: an AssistantAgent. A crash: its state is saved by the
program, between runs (`save_state`)."""

import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


def make(url, tool):
    client = OpenAIChatCompletionClient(model="mock", base_url=url, api_key="none", model_info=INFO)
    return lambda: AssistantAgent("bench", client, tools=[tool], max_tool_iterations=sys.maxsize)


async def ask(agent, text):
    fresh = agent()
    await fresh.run(task=text)
    return fresh
