"""google-adk + litellm, its way to a base_url: an LlmAgent, no limit of calls. The crash with its
SqliteSessionService and a resumable App."""

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai.types import Content, Part

USER, APP = "user", "bench"


def content(text):
    return Content(role="user", parts=[Part(text=text)])


def agent_of(url, tool):
    return LlmAgent(
        name="agent", model=LiteLlm("openai/mock", api_base=url, api_key="none"), tools=[tool]
    )


def make(url, tool):
    return InMemoryRunner(agent_of(url, tool), app_name=APP)


async def ask(runner, text):
    session = await runner.session_service.create_session(app_name=APP, user_id=USER)
    config = RunConfig(max_llm_calls=0)
    async for _ in runner.run_async(
        user_id=USER, session_id=session.id, new_message=content(text), run_config=config
    ):
        pass
    return session.id  # the history is in the runner's session service


async def crash(url, folder, effect, again):
    from google.adk.apps.app import App, ResumabilityConfig
    from google.adk.runners import Runner
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    service = SqliteSessionService(f"{folder}/sessions.db")
    app = App(
        name=APP,
        root_agent=agent_of(url, effect),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    runner = Runner(app=app, session_service=service)
    if again:
        session = await service.get_session(app_name=APP, user_id=USER, session_id="work")
        arguments = {"invocation_id": session.events[-1].invocation_id}
    else:
        await service.create_session(app_name=APP, user_id=USER, session_id="work")
        arguments = {"new_message": content("Do it.")}
    text = ""
    async for event in runner.run_async(user_id=USER, session_id="work", **arguments):
        text = event.content and event.content.parts and event.content.parts[0].text
    return text
