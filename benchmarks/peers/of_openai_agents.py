"""openai-agents: the Chat Completions model class, since base_url is no OpenAI server; tracing off.
The crash with its SQLiteSession."""

import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


def make(url, tool):
    model = OpenAIChatCompletionsModel("mock", AsyncOpenAI(base_url=url, api_key="none"))
    return Agent("bench", model=model, tools=[function_tool(tool)])


async def ask(agent, text):
    result = await Runner.run(agent, text, max_turns=sys.maxsize)
    return result.to_input_list()


async def crash(url, folder, effect, again):
    session = SQLiteSession("work", f"{folder}/session.db")
    if again:
        print(
            [item.get("type", item.get("role")) for item in await session.get_items()],
            file=sys.stderr,
        )
    result = await Runner.run(make(url, effect), "Go on." if again else "Do it.", session=session)
    return result.final_output
