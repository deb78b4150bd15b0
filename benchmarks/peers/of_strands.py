"""strands-agents[openai]: no console output; it streams always. The crash with its
FileSessionManager, which saves each message as it is added."""

from strands import Agent
from strands import tool as as_tool
from strands.models.openai import OpenAIModel


def make(url, tool):
    agent_tool, model = (
        as_tool(tool),
        OpenAIModel(client_args={"base_url": url, "api_key": "none"}, model_id="mock"),
    )
    return lambda **more: Agent(model=model, tools=[agent_tool], callback_handler=None, **more)


def ask(agent, text):
    fresh = agent()
    fresh(text)
    return fresh


def crash(url, folder, effect, again):
    from strands.session.file_session_manager import FileSessionManager

    agent = make(url, effect)(
        agent_id="work", session_manager=FileSessionManager(session_id="work", storage_dir=folder)
    )
    return agent("Go on." if again else "Do it.")
