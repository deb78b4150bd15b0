"""Hooks that call a model or an agent: verdicts, their cost, failures, and a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Hook,
    Limits,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    ToolContext,
    ToolManager,
    load_agent,
)
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.agent.serial_form import tools_of
from holdfast.content import Usage
from holdfast.conversation.totals import totals
from holdfast.errors import ConfigurationError, HookDenied
from holdfast.llm.completion import Completion
from holdfast.server.local import LocalServer
from holdfast.store import MemoryStore
from holdfast.tools.hooks import Add, Deny
from tests import forks
from tests.waiting import until

ADD = ("add", {"a": 1, "b": 2})


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Priced(ScriptedLLM):
    """A scripted model with a usage and a price."""

    def completion(self, *arguments: Any, **more: Any) -> Completion:
        return replace(super().completion(*arguments, **more), usage=Usage(1000, 10), cost=0.25)

    def cost(self, usage: Usage) -> float | None:
        return 0.25

    def parameters(self) -> dict[str, Any]:
        return {"max_output_tokens": 10}


def says(decision: str, reason: str = "", context: str = "") -> str:
    fields = {"decision": decision, "reason": reason, "context": context}
    return json.dumps({key: value for key, value in fields.items() if value})


def judge(*answers: Any) -> Priced:
    return Priced([*answers], "judge")


def run(script: list[Any], *hooks: Hook, **more: Any) -> Conversation:
    conversation = Conversation(Agent(Priced(script), [add], hooks=hooks, **more), id="c")
    conversation.send_message("go")
    conversation.run()
    return conversation


def notes(conversation: Conversation) -> list[ev.NoteRecorded]:
    return [one for one in conversation.get_history() if isinstance(one, ev.NoteRecorded)]


def result(conversation: Conversation) -> str:
    events = [one for one in conversation.get_history() if isinstance(one, ev.ToolCallFinished)]
    return events[0].result.text


# --- prompts ---


def test_a_model_denies_a_call_by_the_rule_of_a_prompt() -> None:
    requests: list[Any] = []

    def answer(request: Any) -> str:
        requests.append(request)
        return says("deny", "no sums here")

    hook = Hook(prompt="Nothing may be added.", llm=Priced(answer, "judge"), tools="add")
    with run([ADD, "done"], hook) as conversation:
        assert result(conversation).endswith("its hook prompt denied it: no sums here")
        [system, question] = requests[0].messages
    assert "Nothing may be added." in system["content"]
    assert '"decision": "allow" | "deny"' in system["content"]
    mark = system["content"] and question["content"].split("----- DATA ")[1][:16]
    assert question["content"].count(mark) == 2
    assert '"name":"add","arguments":{"a":1,"b":2}' in question["content"]


def test_a_verdict_and_its_cost_are_journaled_and_count_in_the_totals() -> None:
    hook = Hook(prompt="Small sums alone.", llm=judge(says("allow", "it is small")))
    with run([ADD, "done"], hook) as conversation:
        paid, verdict = notes(conversation)
        state = conversation.state
        whole = totals(conversation.store, "c").whole
    assert (paid.about, paid.model, paid.usage, paid.cost) == (
        "llm:other",
        "judge",
        Usage(1000, 10),
        0.25,
    )
    assert (verdict.about, verdict.text) == ("hook:prompt", "allowed: it is small")
    assert verdict.details == {
        "on": "tool",
        "when": "before",
        "decision": "allow",
        "model": "judge",
    }
    assert (state.usage, state.cost) == (Usage(3000, 30), 0.75)
    assert (whole.usage, whole.cost) == (Usage(3000, 30), 0.75)


def test_the_agents_own_model_judges_without_another_one() -> None:
    hook = Hook(prompt="Nothing.", on="stop")
    with run(["half", says("deny", "finish it"), "whole", says("allow")], hook) as conversation:
        assert conversation.state.answer == "whole"
        assert [one.about for one in notes(conversation)] == ["llm", "hook:prompt"] * 2


def test_the_cost_of_verdicts_counts_in_the_limits_of_a_run_and_of_a_tree() -> None:
    for limits in ({"limits": Limits(cost=0.6)}, {"tree_limits": Limits(cost=0.6)}):
        agent_limits: Any = limits
        hook = Hook(prompt="Nothing.", llm=judge(*[says("allow")] * 9))
        calls = [ADD, ("add", {"a": 2, "b": 2}), ("add", {"a": 3, "b": 2}), "done"]
        with run(calls, hook, **agent_limits) as conversation:
            state = conversation.state
        assert state.status is ConversationStatus.ERROR
        assert state.error is not None
        assert state.error.error == "LimitExceeded"
        assert state.steps < 4


def test_a_model_without_a_known_price_is_refused_with_a_limit_of_costs() -> None:
    class Unpriced(ScriptedLLM):
        def cost(self, usage: Usage) -> float | None:
            return None

    hook = Hook(prompt="Nothing.", llm=Unpriced([], "judge"))
    with pytest.raises(ConfigurationError, match="price of 'judge' is not known"):
        Agent(Priced([]), hooks=[hook], limits=Limits(cost=1.0))


@pytest.mark.parametrize(
    ("on", "when", "can_deny", "can_add"),
    [
        ("message", "before", True, True),
        ("model", "before", True, True),
        ("model", "after", True, False),
        ("tool", "before", True, True),
        ("tool", "after", True, True),
        ("stop", "before", True, False),
        ("condensation", "before", True, True),
        ("start", "before", False, True),
        ("end", "before", False, False),
    ],
)
@pytest.mark.parametrize("kind", ["prompt", "agent"])
def test_a_prompt_and_an_agent_judge_at_every_place(
    on: Any, when: Any, can_deny: bool, can_add: bool, kind: str
) -> None:
    schemas: list[Any] = []

    def answer(request: Any) -> Any:
        text = request.json["messages"][0]["content"]
        schemas.append((text, request.tools))
        more = {"context": "Mind it."} if can_add else {}
        return ("finish", {"decision": "allow", "reason": "fine", **more})

    def spoken(request: Any) -> str:
        return json.dumps(answer(request)[1])

    options: dict[str, Any] = {"prompt": "Be kind."}
    if kind == "prompt":
        options["llm"] = Priced(spoken, "judge")
    else:
        options["agent"] = Agent(Priced(answer, "judge"))
    condenser = WindowCondenser(keep=2)
    agent = Agent(
        Priced([ADD, "done", "more"]), [add], hooks=[Hook(on=on, when=when, **options)],
        condenser=condenser,
    )  # fmt: skip
    with Conversation(agent, id="c") as conversation:
        for text in ("go", "on"):
            conversation.send_message(text)
            conversation.run()
        conversation.condense()
        conversation.run()
    verdicts = [one for one in notes(conversation) if "decision" in one.details]
    assert {one.about for one in verdicts} == {f"hook:{kind}"}
    assert {(one.details["on"], one.details["when"]) for one in verdicts} == {(on, when)}
    assert not [one for one in notes(conversation) if "failed" in one.text]
    text, tools = schemas[0]
    if kind == "prompt":
        assert ('"allow" | "deny"' in text) is can_deny
        assert ("a text to add" in text) is can_add
    else:
        properties = tools[0].input_schema["properties"]
        assert properties["decision"]["enum"] == ["allow", "deny"][: 1 + can_deny]
        assert ("context" in properties) is can_add


@pytest.mark.parametrize(
    "answers",
    [
        ["I think this is fine.", "Sure."],
        ['{"decision": "maybe", "reason": ""}', "{}"],
        [says("allow", context="x") + "!", '{"decision": "allow", "extra": 1}'],
        [RuntimeError("no network")],
    ],
)
def test_a_model_that_gives_no_verdict_denies(answers: list[Any]) -> None:
    with run([ADD, "done"], Hook(prompt="Fine?", llm=judge(*answers))) as conversation:
        assert "its hook prompt failed" in result(conversation)
        failed = [one for one in notes(conversation) if one.details.get("failed")]
        assert len(failed) == 1


def test_a_model_is_told_once_that_its_answer_has_another_form() -> None:
    texts: list[str] = []

    def answer(request: Any) -> str:
        texts.append(request.text)
        return says("allow") if len(texts) > 1 else "Yes, do it."

    with run([ADD, "done"], Hook(prompt="Fine?", llm=Priced(answer, "judge"))) as conversation:
        assert result(conversation) == "3"
    assert "Your last answer was not taken" in texts[1]


def test_a_slow_model_denies_after_the_timeout_and_an_interrupt_ends_it() -> None:
    slow = ScriptedLLM([says("allow")] * 2, "judge", delay=60)
    with run([ADD, "done"], Hook(prompt="Fine?", llm=slow, timeout=0.05)) as conversation:
        assert "it gave no verdict within 0.05 s" in result(conversation)
    agent = Agent(ScriptedLLM([ADD, "done"]), [add], hooks=[Hook(prompt="Fine?", llm=slow)])
    with Conversation(agent) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: conversation.state.pending_calls)
        conversation.interrupt()
        conversation.wait(10)
        assert conversation.status is ConversationStatus.PAUSED


def test_more_data_than_a_model_can_look_at_is_denied() -> None:
    def page() -> str:
        """Read a page."""
        return "x" * 500_000

    hook = Hook(prompt="Is it clean?", when="after", llm=judge(says("allow")))
    agent = Agent(ScriptedLLM([("page", {}), "done"]), [page], hooks=[hook])
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert "bytes to judge are more than 400,000" in result(conversation)


def test_a_managers_hook_may_have_a_prompt_too() -> None:
    manager = ToolManager([add], hooks=[Hook(prompt="No sums.", llm=judge(says("deny", "no")))])
    with Conversation(Agent(ScriptedLLM([ADD, "done"]), manager)) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert "its hook prompt denied it: no" in result(conversation)
    alone = ToolManager([add], hooks=[Hook(prompt="No sums.")])
    from holdfast import ToolCall

    assert "there is no model to ask" in alone.run(ToolCall("1", "add", {"a": 1, "b": 1})).text


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt": "x", "command": ["true"]}, "either a command"),
        ({"prompt": "x", "before": add}, "either a command"),
        ({"llm": ScriptedLLM([]), "before": add}, "the model that judges by a prompt"),
        ({"prompt": "x", "llm": "gpt-5"}, "llm takes an LLM"),
        ({"agent": "reviewer"}, "agent takes an Agent"),
        ({"agent": Agent(ScriptedLLM([]), output_type={"type": "object"})}, "without an output"),
        ({"prompt": "x", "on": "stop", "when": "after"}, "there is no after"),
        ({"prompt": "x", "format": "claude-code"}, "is for a command"),
        ({"command": ["x"], "format": "claude-code", "on": "model"}, "no event for the place"),
        ({"command": ["x"], "format": "claude"}, "format takes one of"),
        ({}, "a command, a prompt or an agent"),
    ],
)
def test_a_hook_of_two_kinds_or_none_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Agent(ScriptedLLM([]), hooks=[Hook(**fields)])


# --- agents ---


def test_an_agent_judges_with_its_tools_in_a_child_conversation() -> None:
    def look(name: str) -> str:
        """Look at a file."""
        return f"{name} is a secret"

    reviewer = Agent(
        Priced([("look", {"name": "a"}), ("finish", {"decision": "deny", "reason": "secret"})]),
        [look],
    )
    hook = Hook(agent=reviewer, prompt="No secrets.", name="review")
    with run([ADD, "done"], hook) as conversation:
        assert result(conversation).endswith("its hook review denied it: secret")
        [child] = conversation.children
        [note] = notes(conversation)
        whole = totals(conversation.store, "c").whole
    assert child.id.startswith("c.4.0-hook-review-")
    assert note.details["child"] == child.id
    assert (note.about, note.text) == ("hook:review", "denied: secret")
    assert whole.cost == 4 * 0.25
    assert conversation.state.cost == 2 * 0.25


def test_an_agent_that_gives_no_verdict_denies() -> None:
    stuck = Agent(ScriptedLLM([RuntimeError("broken")]))
    with run([ADD, "done"], Hook(agent=stuck)) as conversation:
        assert "its hook agent failed: its agent in c.4.0-hook-agent-" in result(conversation)


def test_an_agent_that_takes_too_long_denies() -> None:
    slow = Agent(ScriptedLLM([("finish", {"decision": "allow", "reason": ""})], delay=60))
    with run([ADD, "done"], Hook(agent=slow, timeout=0.1)) as conversation:
        assert "it gave no verdict within 0.1 s" in result(conversation)


def test_the_budget_of_a_tree_holds_for_an_agent_that_judges() -> None:
    many = [("look", {})] * 20

    def look() -> str:
        """Look."""
        return "nothing"

    reviewer = Agent(Priced([*many]), [look])
    with run([ADD, "done"], Hook(agent=reviewer), tree_limits=Limits(cost=1.0)) as conversation:
        whole = totals(conversation.store, "c").whole
    assert whole.cost is not None
    assert whole.cost <= 1.0


# --- children of other hooks ---


@pytest.mark.parametrize("on", ["message", "start", "model", "stop", "condensation", "end"])
def test_a_function_may_spawn_at_every_place(on: Any) -> None:
    helper = Agent(ScriptedLLM(lambda request: "looked"))
    lines: list[str] = []

    def look(subject: Any, context: ToolContext) -> None:
        with context.spawn(helper, "Look.") as child:
            lines.append(f"{child.id} {child.run().answer}")

    agent = Agent(ScriptedLLM(["a", "b"]), hooks=[Hook(look, on=on)], condenser=WindowCondenser())
    with Conversation(agent, id="c") as conversation:
        for text in ("go", "on"):
            conversation.send_message(text)
            conversation.run()
        conversation.condense()
        conversation.run()
    assert lines
    assert len(set(lines)) == len(lines)
    for line in lines:
        assert line.startswith(f"c.hook-{on}-")
        assert line.endswith(" looked")
    assert {child.status for child in conversation.children} == {"finished"}


def test_two_messages_at_one_point_of_the_journal_have_children_of_their_own() -> None:
    ids: list[str] = []

    def look(incoming: Any, context: ToolContext) -> Deny:
        with context.spawn(Agent(ScriptedLLM(["x"])), incoming.text, name="look") as child:
            child.run()
            ids.append(child.id)
        return Deny("no")

    agent = Agent(ScriptedLLM([]), hooks=[Hook(look, on="message")])
    with Conversation(agent) as conversation:
        for text in ("one", "two"):
            with pytest.raises(HookDenied):
                conversation.send_message(text)
        texts = [
            event.text
            for id in ids
            for event in conversation.store.read(id)
            if isinstance(event, ev.MessageAdded)
        ]
    assert texts == ["one", "two"]


def test_equal_messages_are_judged_each_by_itself() -> None:
    both = Barrier(2)
    no, yes = [("finish", {"decision": it, "reason": "r"}) for it in ("deny", "allow")]

    def answer(request: Any) -> Any:
        both.wait(30)
        return yes

    reviewer = Agent(ScriptedLLM([no, yes, answer, answer]))
    agent = Agent(ScriptedLLM([]), hooks=[Hook(agent=reviewer, on="message")])
    with Conversation(agent) as conversation:
        with pytest.raises(HookDenied):
            conversation.send_message("go")
        conversation.send_message("go")  # the denied message leaves no trace here
        with ThreadPoolExecutor() as pool:
            list(pool.map(conversation.send_message, ["stop", "stop"]))
        texts = [e.text for e in conversation.get_history() if isinstance(e, ev.MessageAdded)]
    assert texts == ["go", "stop", "stop"]


PROGRAM = """
import os, signal, sys
from holdfast import Agent, Conversation, Hook, ScriptedLLM, SQLiteStore

def look() -> str:
    "Look."
    with open(sys.argv[2], "a") as file:
        file.write("looked\\n")
    return "seen"

def answer(request):
    if len(request.messages) < 3:
        return ("look", {})
    if len(sys.argv) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return ("finish", {"decision": "deny" if first() else "allow", "reason": "r"})

def first():
    return False

reviewer = Agent(ScriptedLLM(answer), [look])
agent = Agent(ScriptedLLM(["done"] * 3), hooks=[Hook(agent=reviewer, on="stop")])
with Conversation(agent, SQLiteStore(sys.argv[1]), "c") as conversation:
    if not conversation.get_history():
        conversation.send_message("go")
    print(conversation.run().status)
"""


@pytest.mark.slow
def test_a_judging_agent_continues_after_a_kill(tmp_path: Path) -> None:
    program, store, log = tmp_path / "program.py", tmp_path / "store.db", tmp_path / "log"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        return forks.run(
            [sys.executable, str(program), str(store), str(log), *more],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )

    assert start("kill").returncode == -signal.SIGKILL
    again = start()
    assert again.stdout == "finished\n", again.stderr
    assert log.read_text() == "looked\n"  # the child had called `look` before, and was found again
    with SQLiteStore(store) as opened:
        assert len(opened.list(spawned_by="c")) == 1


# --- configuration ---


def test_hooks_by_model_and_agent_can_be_configured(tmp_path: Path) -> None:
    reviewer = {"model": {"use": "scripted", "parameters": {"script": []}}, "system_prompt": "R."}
    mapping = {
        "model": {"use": "scripted", "parameters": {"script": ["done"]}},
        "hooks": [
            {"on": "stop", "prompt": "All tests pass."},
            {"on": "tool", "prompt": "Fine?", "timeout": 5, "when": "both",
             "model": {"use": "scripted", "parameters": {"script": [], "model": "judge"}}},
            {"on": "message", "agent": reviewer, "prompt": "Kind?"},
            {"on": "tool", "command": ["guard"], "format": "openhands"},
        ],
        "tools": {"hooks": [{"prompt": "No deletion.", "tools": "x.*"}]},
    }  # fmt: skip
    agent = load_agent(mapping)
    for one in (agent, Agent.from_json(agent.to_json())):
        stop, call, message, command = one.hooks
        assert (stop.prompt, stop.llm, stop.timeout) == ("All tests pass.", None, None)
        assert (call.llm.model, call.timeout, call.when) == ("judge", 5, "both")
        assert "R." in message.agent.system_prompt
        assert command.format == "openhands"
        assert one.tools.rules.hooks[0].prompt == "No deletion."
    with pytest.raises(ConfigurationError, match="a hook has a command, or before and after"):
        load_agent({**mapping, "hooks": [{"prompt": "x", "command": ["y"]}]})
    with pytest.raises(ConfigurationError, match="unknown key 'agent'"):
        load_agent({**mapping, "tools": {"hooks": [{"agent": reviewer}]}})


def test_an_added_text_of_a_verdict_reaches_the_model() -> None:
    hook = Hook(prompt="Help.", on="model", llm=judge(*[says("allow", context="Be brief.")] * 2))
    with run(["done"], hook) as conversation:
        texts = [
            event.text
            for event in conversation.get_history()
            if isinstance(event, ev.MessageAdded) and event.sender == "holdfast"
        ]
    assert texts == ["Be brief."]
    assert Add("x") == Add("x")


def test_a_store_in_memory_keeps_the_children_of_hooks() -> None:
    store = MemoryStore()
    reviewer = Agent(ScriptedLLM([("finish", {"decision": "allow", "reason": "ok"})]))
    agent = Agent(ScriptedLLM(["done"]), hooks=[Hook(agent=reviewer, on="stop")])
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
    [child] = store.list(spawned_by="c")
    assert child.status == "finished"


def test_the_tools_of_a_hooks_agent_travel_with_it() -> None:
    def probe() -> str:
        """Look."""
        return ""

    reviewer = Agent(ScriptedLLM([]), [probe])
    agent = Agent(ScriptedLLM([]), hooks=[Hook(agent=reviewer, on="stop")])
    assert [form.name for form in tools_of(agent)] == ["probe"]


@pytest.mark.slow
def test_a_server_asks_models_and_agents_and_runs_commands_if_allowed(tmp_path: Path) -> None:
    yes = json.dumps({"decision": "allow", "reason": "kind"})
    reviewer = Agent(ScriptedLLM([("finish", {"decision": "allow", "reason": "whole"})]))
    log = tmp_path / "log"
    agent = Agent(
        ScriptedLLM(["done"]),
        hooks=[
            Hook(prompt="Be kind.", on="message", llm=ScriptedLLM([yes], "judge")),
            Hook(agent=reviewer, on="stop"),
            Hook(command=["sh", "-c", f"cat > {log}"], on="stop", format="claude-code"),
        ],
    )
    with (
        LocalServer(allow_hook_commands=True) as server,
        RemoteWorkspace(server.url, server.key) as space,
        RemoteConversation(agent, space) as conversation,
    ):
        conversation.send_message("go")
        state = conversation.run()
    assert state.status is ConversationStatus.FINISHED
    noted = [
        event.text
        for event in state.events
        if isinstance(event, ev.NoteRecorded) and event.about.startswith("hook:")
    ]
    assert noted == ["allowed: kind", "allowed: whole"]
    assert json.loads(log.read_text())["hook_event_name"] == "Stop"
    with (
        LocalServer() as server,
        RemoteWorkspace(server.url, server.key) as space,
        pytest.raises(ConfigurationError, match="allow-hook-commands"),
    ):
        RemoteConversation(agent, space).send_message("go")


def test_a_hook_on_stop_shows_a_model_the_latest_events_of_a_long_conversation() -> None:
    def long() -> str:
        """Long."""
        return "x" * 30_000

    hook = Hook(on="stop", prompt="All is done.", llm=judge(says("allow")))
    llm = ScriptedLLM([*[("long", {})] * 15, "all done"])
    with Conversation(Agent(llm, [long], hooks=[hook], stuck=None)) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is ConversationStatus.FINISHED
    [request] = hook.llm.requests
    assert "all done" in str(request.messages)
    assert len(str(request.messages)) < 450_000
