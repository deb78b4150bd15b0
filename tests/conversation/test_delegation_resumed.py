"""Children that get further work by the id that the model knows; descriptions of agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, ScriptedLLM, SQLiteStore, load_agent
from holdfast import events as ev
from holdfast.agent.agents_files import SubAgent
from holdfast.agent.delegation import Delegates
from holdfast.agent.limits import Limits
from holdfast.errors import ConfigurationError
from holdfast.store import MemoryStore
from tests import forks
from tests.waiting import until

CHILD = "top.4.0"


def give(task: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "delegate", {"agent": "researcher", "task": task, **more}


def memory(request: Any) -> str:
    """Answer with the texts of all messages of the user."""
    texts = [one["content"] for one in request.messages if one["role"] == "user"]
    return f"heard {' and '.join(texts)}"


def lead(script: Any, child: Any = memory, **more: Any) -> Agent:
    return Agent(ScriptedLLM(script), delegates={"researcher": Agent(ScriptedLLM(child))}, **more)


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def run(script: Any, **more: Any) -> list[str]:
    with Conversation(lead(script, **more), id="top") as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
        return results(conversation)


def test_a_finished_child_goes_on_with_its_memory() -> None:
    first, second = run([give("one"), give("two", resume=CHILD), "done"])
    assert first == f"heard one\n[researcher: conversation {CHILD}]"
    assert second == f"heard one and two\n[researcher: conversation {CHILD}]"


def test_a_child_goes_on_in_the_background() -> None:
    collect = ("delegate_collect", {"ids": [CHILD]})
    answers = [give("one"), give("two", resume=CHILD, background=True), collect, "done"]
    replies = run(answers)
    assert replies[1].startswith(
        f"researcher works on it in the background, in the conversation {CHILD}"
    )
    assert replies[2].startswith("heard one and two")


def test_a_child_that_came_to_a_limit_goes_on() -> None:
    child = Agent(ScriptedLLM([("look", {}), "seen"]), [look], limits=Limits(steps=1))
    agent = Agent(
        ScriptedLLM([give("one"), give("go on", resume=CHILD), "done"]),
        delegates={"researcher": child},
    )
    with Conversation(agent, id="top") as conversation:
        conversation.send_message("go")
        conversation.run()
        first, second = results(conversation)
    assert "came to a limit" in first
    assert first.endswith(f"[researcher: conversation {CHILD}]")
    assert second.startswith("seen")


def look() -> str:
    """Look."""
    return "nothing"


def test_an_unknown_child_and_the_agent_of_another_one_are_named() -> None:
    other = ("delegate", {"agent": "writer", "task": "x", "resume": CHILD})
    script = [give("one"), give("two", resume="top.9"), other, "done"]
    agent = Agent(
        ScriptedLLM(script),
        delegates={name: Agent(ScriptedLLM(memory)) for name in ("researcher", "writer")},
    )
    with Conversation(agent, id="top") as conversation:
        conversation.send_message("go")
        conversation.run()
        _, unknown, wrong = results(conversation)
    assert "You gave no work to a conversation 'top.9'. There are: top.4.0 (researcher)." in unknown
    assert "The conversation 'top.4.0' is of the agent 'researcher'." in wrong


def test_send_to_names_the_known_conversations_when_it_misses() -> None:
    send = ("send_to", {"conversation": "researcher", "text": "x"})
    _, missed = run([give("one"), send, "done"])
    assert missed.endswith("There are: top.4.0 (researcher).")


def test_a_child_that_still_works_is_not_resumed() -> None:
    go, in_model_call = Event(), Event()

    def slow(request: Any) -> str:
        in_model_call.set()
        assert go.wait(30)
        return "done"

    def script(request: Any) -> Any:
        answers = [give("one", background=True), give("two", resume=CHILD), "done"]
        return answers[min(2, sum(one["role"] == "assistant" for one in request.messages))]

    with Conversation(lead(script, slow), id="top") as conversation:
        conversation.send_message("go")
        conversation.run()
        assert "researcher still works in top.4.0" in results(conversation)[1]
        assert in_model_call.wait(30)
        go.set()


def test_two_calls_of_one_answer_do_not_resume_the_same_child() -> None:
    both = [give("two", resume=CHILD), give("three", resume=CHILD)]
    replies = run([give("one"), both, "done"])
    assert sum("still works" in text for text in replies) <= 1
    assert any(text.startswith("heard one and t") for text in replies)


def test_a_fork_cannot_go_on_with_the_children_of_its_origin() -> None:
    store = MemoryStore()
    script = [give("one"), "done"]
    with Conversation(lead(script), store, "top") as conversation:
        conversation.send_message("go")
        conversation.run()
        with conversation.fork(
            agent=lead([give("two", resume=CHILD), "done"]), id="fork"
        ) as forked:
            forked.send_message("on")
            forked.run()
            assert "You gave no work" in results(forked)[-1]


def test_a_reopened_parent_knows_its_children() -> None:
    store = MemoryStore()
    with Conversation(lead([give("one"), "done"]), store, "top") as conversation:
        conversation.send_message("go")
        conversation.run()
    for number in (2, 3):
        agent = lead([give(str(number), resume=CHILD), "done"])
        with Conversation(agent, store, "top") as conversation:
            conversation.send_message("on")
            conversation.run()
            assert results(conversation)[-1].startswith("heard one and 2")
    assert len(store.list(spawned_by="top")) == 1


def test_a_reopened_parent_lets_a_resumed_child_go_on_in_the_background() -> None:
    store, entered = MemoryStore(), Event()

    class Hangs(ScriptedLLM):
        def completion(self, *arguments: Any, **more: Any) -> Any:
            if self.requests:
                entered.set()
                more["cancelled"].wait(60)
            return super().completion(*arguments, **more)

    first = Agent(
        ScriptedLLM([give("one"), give("two", resume=CHILD, background=True), "meanwhile"]),
        delegates={"researcher": Agent(Hangs(["one is done", "never"]))},
    )
    with Conversation(first, store, "top") as conversation:
        conversation.send_message("go")
        conversation.run()
        assert entered.wait(30)
    with Conversation(lead(lambda request: "noted"), store, "top") as conversation:
        conversation.start_thread()
        until(
            lambda: any(
                event.sender == CHILD and "heard one and two" in event.text
                for event in conversation.get_history()
                if isinstance(event, ev.MessageAdded)
            )
        )


PROGRAM = """
import os, signal, sys, time
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore

def child(request):
    asked = [one["content"] for one in request.messages if one["role"] == "user"]
    if len(asked) > 1 and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"heard {' and '.join(asked)}"

def script(request):
    done = sum(one["role"] == "assistant" for one in request.messages)
    more = {"resume": "top.4.0"} if done else {}
    if done > 1:
        return "done"
    return ("delegate", {"agent": "researcher", "task": ["one", "two"][done], **more})

agent = Agent(ScriptedLLM(script), delegates={"researcher": Agent(ScriptedLLM(child))})
with Conversation(agent, SQLiteStore(sys.argv[1]), "top") as conversation:
    if not conversation.get_history():
        conversation.send_message("go")
    print(conversation.run().status)
    found = [e.result.text for e in conversation.get_history() if e.type == "toolResult"]
    print(found[-1])
"""


@pytest.mark.slow
def test_a_resumed_child_is_told_its_task_once_after_a_kill(tmp_path: Path) -> None:
    program, store = tmp_path / "program.py", tmp_path / "store.db"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(store), *more]
        return forks.run(
            command, capture_output=True, text=True, env=environment, timeout=60, check=False
        )

    assert start("kill").returncode == -signal.SIGKILL
    again = start()
    assert again.stdout.splitlines() == [
        "finished",
        "heard one and two",
        "[researcher: conversation top.4.0]",
    ], again.stderr
    with SQLiteStore(store) as opened:
        messages = [event for event in opened.read(CHILD) if isinstance(event, ev.MessageAdded)]
    assert [event.text for event in messages] == ["one", "two"]


# --- descriptions ---


def listing(delegates: Any) -> str:
    agent = Agent(ScriptedLLM([]), delegates=delegates)
    return agent.tools.get("delegate").description.partition("Agents:\n")[2]


def test_agents_are_described_by_themselves_or_by_their_owner() -> None:
    plain = Agent(ScriptedLLM([]), system_prompt="You read.\nAnd more.")
    described = plain.replace(description="Reads pages.")
    assert listing({"a": plain}) == "- a: You read."
    assert listing({"a": described}) == "- a: Reads pages."
    assert listing({"a": (described, "Looks things up.")}) == "- a: Looks things up."
    assert listing({"a": (SubAgent("a", "b", "P."), "c")}) == "- a: c"
    assert listing(Delegates({"a": (plain, "Looks up.")})) == "- a: Looks up."
    owner = Agent(ScriptedLLM([]), delegates={"a": (plain, "x")}, handoffs={"b": (plain, "y")})
    for one in (owner, owner.replace(limits=Limits(steps=3)), Agent.from_json(owner.to_json())):
        assert "- a: x" in one.tools.get("delegate").description
        assert "- b: y" in one.tools.get("handoff").description
    assert Agent.from_json(described.to_json()).description == "Reads pages."


@pytest.mark.parametrize("given", [("x",), (None, "x"), ("a", 3), (1, "x")])
def test_a_wrong_description_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="delegates"):
        Agent(ScriptedLLM([]), delegates={"a": given})


def test_a_description_can_be_configured() -> None:
    model = {"use": "scripted", "parameters": {"script": []}}
    form = {"model": model, "delegates": {"a": {"model": model, "description": "Reads."}}}
    assert "- a: Reads." in load_agent(form).tools.get("delegate").description
