"""crewai: an Agent asked by itself (`kickoff`), without telemetry. The crash of a Crew with its
checkpoints, at every event."""

from crewai import LLM, Agent
from crewai.tools import tool as as_tool

EVENTS = ["*"]  # the sources of events to save: calls of the model and of tools make no checkpoint


def make(url, tool, **more):
    llm = LLM(model="openai/mock", base_url=url, api_key="none")
    tools = [as_tool(tool)]
    return Agent(
        role="Helper",
        goal="Help",
        backstory="You help.",
        llm=llm,
        tools=tools,
        max_iter=1_000_000,
        verbose=False,
        **more,
    )


def ask(agent, text):
    return agent.kickoff(text)


def crash(url, folder, effect, again):
    from pathlib import Path

    from crewai import Crew, Task
    from crewai.state.checkpoint_config import CheckpointConfig

    agent = make(url, effect)
    task = Task(description="Do it.", expected_output="It is done.", agent=agent)
    crew = Crew(
        agents=[agent],
        tasks=[task],
        checkpoint=CheckpointConfig(location=f"{folder}/checkpoints", on_events=EVENTS),
    )
    if not again:
        return crew.kickoff()
    last = max(
        Path(folder, "checkpoints").rglob("*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    return crew.kickoff(
        from_checkpoint=CheckpointConfig(
            location=f"{folder}/checkpoints", on_events=EVENTS, restore_from=last
        )
    )
