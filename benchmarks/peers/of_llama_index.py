"""llama-index-core + llama-index-llms-openai-like: a FunctionAgent, not streamed. A crash: a
Context is saved by the program, as JSON."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike


def make(url, tool):
    llm = OpenAILike(
        model="mock",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
    )
    return FunctionAgent(tools=[tool], llm=llm, streaming=False, timeout=None)


async def ask(agent, text):
    context = Context(agent)
    await agent.run(text, ctx=context, max_iterations=1_000_000)
    return context
