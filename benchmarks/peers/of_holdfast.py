"""Holdfast, in memory; the crash with its SQLite store."""

from holdfast import LLM, Agent, Conversation, Limits


def make(url, tool):
    return Agent(LLM("mock", base_url=url, stream=False), [tool], limits=Limits(steps=None))


def ask(agent, text):
    conversation = Conversation(agent)
    conversation.send_message(text)
    state = conversation.run()
    assert state.status == "finished", state.error
    return conversation


def crash(url, folder, effect, again):
    from holdfast import SQLiteStore

    agent = Agent(LLM("mock", base_url=url), [effect])
    with Conversation(agent, SQLiteStore(f"{folder}/journal.db"), id="work") as conversation:
        if not again:
            conversation.send_message("Do it.")
        return conversation.run().status
