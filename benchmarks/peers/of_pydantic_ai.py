"""pydantic-ai-slim[openai]; no instrumentation. A crash: it keeps the history in memory; durable
execution is another product's (Temporal, DBOS, Prefect, Restate)."""

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

NO_LIMIT = UsageLimits(request_limit=None)


def make(url, tool):
    return Agent(
        OpenAIChatModel("mock", provider=OpenAIProvider(base_url=url, api_key="none")), tools=[tool]
    )


async def ask(agent, text):
    result = await agent.run(text, usage_limits=NO_LIMIT)
    return result.all_messages()
