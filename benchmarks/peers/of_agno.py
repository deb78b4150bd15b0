"""agno: no telemetry. The crash with its SqliteDb and checkpoint="tool-batch", continued as its
example of a crash does."""

from agno.agent import Agent
from agno.models.openai.like import OpenAILike


def make(url, tool, **more):
    return Agent(
        model=OpenAILike(id="mock", base_url=url, api_key="none"),
        tools=[tool],
        telemetry=False,
        **more,
    )


def ask(agent, text):
    return agent.run(text)


def crash(url, folder, effect, again):
    from agno.db.sqlite import SqliteDb

    agent = make(url, effect, db=SqliteDb(db_file=f"{folder}/agno.db"), checkpoint="tool-batch")
    if not again:
        return agent.run("Do it.", session_id="work", run_id="run-1").content
    return agent.continue_run(run_id="run-1", session_id="work").content
