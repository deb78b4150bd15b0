"""langgraph + langchain-openai: the prebuilt ReAct agent, no tracing. The crash with SqliteSaver,
each step saved before the next (durability="sync")."""

import warnings

from langchain_openai import ChatOpenAI

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langgraph.prebuilt import create_react_agent


def make(url, tool, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(
            ChatOpenAI(model="mock", base_url=url, api_key="none", use_responses_api=False),
            [tool],
            **more,
        )


def ask(agent, text):
    return agent.invoke({"messages": [("user", text)]}, {"recursion_limit": 1_000_000})


def crash(url, folder, effect, again):
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(f"{folder}/checkpoints.db") as saver:
        agent = make(url, effect, checkpointer=saver)
        start = None if again else {"messages": [("user", "Do it.")]}
        return agent.invoke(start, {"configurable": {"thread_id": "work"}}, durability="sync")[
            "messages"
        ][-1].content
