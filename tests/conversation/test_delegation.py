"""Delegation of work to other agents: blocking, in the background, reported, collected,
cancelled, and recovered after a crash."""

from __future__ import annotations

import gc
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
)
from holdfast import events as ev
from holdfast.agent.delegation import CHILD, CHILDREN, Delegates
from holdfast.commands import Approve, Send
from holdfast.conversation.delegation_state import DelegatedChild
from holdfast.conversation.journal import Journal
from holdfast.conversation.replay import replay
from holdfast.errors import ConfigurationError
from holdfast.testing import crash_at_every_append
from tests import forks
from tests.leftovers import Owned
from tests.paths import REPO
from tests.samples import in_sample
from tests.waiting import until

S = ConversationStatus


def give(task: str, agent: str = "researcher", **more: Any) -> tuple[str, dict[str, Any]]:
    return "delegate", {"agent": agent, "task": task, **more}


def finder(**options: Any) -> Agent:
    return Agent(
        ScriptedLLM(lambda request: f"found {request.text}"),
        system_prompt="You find things.\nMore.",
        **options,
    )


def lead(script: Any, delegates: Any = None, **options: Any) -> Agent:
    return Agent(
        ScriptedLLM(script),
        delegates={"researcher": finder()} if delegates is None else delegates,
        **options,
    )


def results(conversation: Conversation) -> list[ev.ToolCallFinished]:
    return [event for event in conversation.get_history() if isinstance(event, ev.ToolCallFinished)]


def answer_text(text: str) -> str:
    """Return the text of a child's answer without the line that has its id."""
    answer, _, address = text.rpartition("\n")
    assert re.fullmatch(r"\[\w+: conversation \S+\]", address), text
    return answer


def messages_of_others(conversation: Conversation) -> list[ev.MessageAdded]:
    """Return the messages that came from other conversations."""
    return [
        event
        for event in conversation.get_history()
        if isinstance(event, ev.MessageAdded) and event.sender not in ("user", "holdfast")
    ]


# --- blocking ---


def test_the_answer_of_the_child_is_the_result_and_its_meta_says_what_it_took() -> None:
    with Conversation(lead([give("x"), "done"]), id="top") as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "done"
        [event] = results(conversation)
        assert event.result.text == "found x\n[researcher: conversation top.4.0]"
        child = event.result.meta[CHILD]
        assert (child["id"], child["agent"], child["status"], child["steps"]) == (
            "top.4.0",
            "researcher",
            "finished",
            1,
        )
        [listed] = conversation.children
        assert (listed.id, listed.spawned_by) == ("top.4.0", "top:4.0")
        first = conversation.store.read("top.4.0")[0]
        assert isinstance(first, ev.MessageAdded)
        assert (first.text, first.sender) == ("x", "top")


def test_the_tool_says_who_there_is_by_the_first_line_of_the_prompt() -> None:
    tool = lead([]).tools.get("delegate")
    assert "- researcher: You find things." in tool.description
    assert "More." not in tool.description


def test_several_in_one_answer_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3)

    def meet(request: Any) -> str:
        meeting.wait(30)
        return f"met {request.text}"

    agent = lead(
        [[give("a"), give("b"), give("c")], "done"], {"researcher": Agent(ScriptedLLM(meet))}
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert sorted(answer_text(event.result.text) for event in results(conversation)) == [
            "met a",
            "met b",
            "met c",
        ]


@pytest.mark.parametrize(
    ("script", "limits", "problem"),
    [
        (
            [RuntimeError("broken")],
            Limits(),
            "researcher failed after 0 steps: RuntimeError: broken",
        ),
        (
            [("look", {})] * 3,
            Limits(steps=2),
            "researcher came to a limit and did not finish after 2 steps: LimitExceeded",
        ),
        (["", "", ""], Limits(), "researcher got stuck after 3 steps and did not finish."),
    ],
)
def test_a_child_that_does_not_finish_is_told_so(
    script: list[Any], limits: Limits, problem: str
) -> None:
    child = Agent(ScriptedLLM(script), [Tool("look", "", lambda: "seen")], limits=limits)
    with Conversation(lead([give("x"), "done"], {"researcher": child})) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        [event] = results(conversation)
        assert event.result.is_error
        assert event.result.text.startswith(problem)


def test_a_child_that_waits_for_approval_is_waited_for_and_the_progress_says_so() -> None:
    child = Agent(
        ScriptedLLM([("rm", {"path": "x"}), "removed"]),
        [Tool("rm", "", lambda path: "gone")],
        confirm="always",
    )
    progress: list[str] = []
    conversation = Conversation(
        lead([give("x"), "done"], {"researcher": child}),
        id="top",
        on_progress=lambda _, text: progress.append(text),
    )
    with conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(lambda: any("waits for the user's approval of rm" in line for line in progress))
        assert conversation.status is S.RUNNING
        [listed] = conversation.children
        assert listed.status == "waiting_for_confirmation"
        waiting = next(
            event
            for event in conversation.store.read(listed.id)
            if isinstance(event, ev.DecisionMade)
        )
        conversation.store.post(listed.id, Approve(waiting.call_id, waiting.arguments_hash))
        assert conversation.wait(30) is S.FINISHED
        assert answer_text(results(conversation)[0].result.text) == "removed"


def test_a_wait_of_a_grandchilds_child_is_progress_of_the_topmost_call_and_its_steps_are_not() -> (
    None
):
    lowest = Agent(
        ScriptedLLM([("rm", {"path": "x"}), "removed"]),
        [Tool("rm", "", lambda path: "gone")],
        confirm="always",
    )
    middle = lead([give("x"), "done"], {"researcher": lowest})
    progress: list[str] = []
    with Conversation(
        lead(
            [give("x"), "done"], {"researcher": lead([give("x"), "done"], {"researcher": middle})}
        ),
        id="top",
        on_progress=lambda _, line: progress.append(line),
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        said_so = "waits for the user's approval of rm"
        line = until(lambda: [one for one in progress if said_so in one])[0]
        id = line.partition("(")[2].partition(")")[0]
        assert id.count(".") == 6, "three calls below the topmost conversation"
        waiting = next(
            event for event in conversation.store.read(id) if isinstance(event, ev.DecisionMade)
        )
        conversation.store.post(id, Approve(waiting.call_id, waiting.arguments_hash))
        assert conversation.wait(30) is S.FINISHED
    assert not any(id in one for one in progress if "waits" not in one)


def test_an_interrupt_of_the_parent_interrupts_its_children() -> None:
    entered = threading.Event()

    def slow(request: Any) -> str:
        entered.set()
        time.sleep(0.2)
        return "late"

    child = Agent(ScriptedLLM(slow))
    with Conversation(lead([give("x"), "done"], {"researcher": child})) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert entered.wait(30)
        conversation.interrupt()
        until(lambda: bool(results(conversation)))
        assert conversation.wait(30) is S.PAUSED
        assert results(conversation)[0].result.error.type == "cancelled"  # type: ignore[union-attr]
        assert [child.status for child in conversation.children] == ["paused"]


def test_there_is_a_bound_to_how_deep_delegates_delegate(tmp_path: Path) -> None:
    (tmp_path / "deeper.md").write_text("---\nname: deeper\ndelegates: true\n---\nGo deeper.\n")
    llm = ScriptedLLM(
        lambda request: (
            give("deeper", "deeper") if request.messages[-1]["role"] == "user" else request.text
        )
    )
    agent = Agent(llm, delegates=Delegates({"deeper": tmp_path / "deeper.md"}, max_depth=2))
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert (
            "This conversation is itself a delegate, 2 levels below the root; at most 2 are allowed."
            in state.answer
        )
        assert len(conversation.store.list()) == 3


def test_there_is_a_bound_to_how_many_work_at_once() -> None:
    hold = threading.Event()
    agent = lead(
        [give("a", background=True), give("b", background=True), give("c"), "done"],
        Delegates(
            {"researcher": Agent(ScriptedLLM(lambda request: str(hold.wait(30))))}, max_running=2
        ),
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert (
            "2 agents work for this conversation; at most 2 may."
            in results(conversation)[2].result.text
        )
        hold.set()


# --- in the background ---


@pytest.mark.slow
def test_the_answer_of_one_in_the_background_comes_as_a_message_once_and_wakes_the_parent() -> None:
    hold = threading.Event()

    def slow(request: Any) -> str:
        hold.wait(30)
        return "the answer"

    def script(request: Any) -> Any:
        if "is done.]" in request.text:
            return "I have it."
        return give("x", background=True) if request.text == "go" else "Meanwhile."

    owned = Owned()
    with Conversation(
        lead(script, {"researcher": Agent(ScriptedLLM(slow))}), id="top"
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(
            lambda: conversation.state.answer == "Meanwhile." and conversation.status is S.FINISHED
        )
        hold.set()
        until(
            lambda: conversation.state.answer == "I have it." and conversation.status is S.FINISHED
        )
        [message] = messages_of_others(conversation)
        assert message.sender == "top.4.0"
        assert message.text.endswith("the answer")
        assert conversation.replay().same
    owned.wait_until_released()


def test_poll_collect_and_cancel() -> None:
    hold, never = threading.Event(), threading.Event()
    order: list[Any] = [
        give("a", background=True),
        give("b", "sleeper", background=True),
        ("delegate_poll", {}),
        ("delegate_collect", {"ids": ["top.4.0"]}),
        ("delegate_collect", {"ids": ["top.7.0"], "timeout": 0}),
        ("delegate_cancel", {"ids": ["top.7.0"]}),
        ("delegate_poll", {"ids": ["top.1.1"]}),
        "done",
    ]

    def slow(request: Any) -> str:
        hold.wait(30)
        return "the answer"

    def asleep(request: Any) -> Any:
        return ("nap", {}) if request.messages[-1]["role"] == "user" else "rested"

    def nap() -> str:
        return str(never.wait(0.5))

    def script(request: Any) -> Any:
        return order[sum(message["role"] == "assistant" for message in request.messages)]

    sleeper = Agent(ScriptedLLM(asleep, delay=0.3), [nap])
    agent = lead(script, {"researcher": Agent(ScriptedLLM(slow)), "sleeper": sleeper})
    with Conversation(
        agent, id="top", on_progress=lambda *_: hold.set()
    ) as conversation:  # `collect` names the children that it waits for
        conversation.send_message("go")
        assert conversation.run().answer == "done"
        texts = [event.result.text for event in results(conversation)]
        assert "in the conversation top.4.0" in texts[0]
        assert "researcher (top.4.0): running, 0 steps" in texts[2]
        assert "sleeper (top.7.0): running" in texts[2]
        assert answer_text(texts[3]) == "the answer"
        assert results(conversation)[3].result.meta[CHILDREN][0]["collected"] is True
        assert "no answer within 0 seconds" in texts[4]
        assert "sleeper was stopped after" in texts[5]
        assert (
            "No agent works in the background as 'top.1.1'. There are: top.4.0, top.7.0."
            in texts[6]
        )
        assert messages_of_others(conversation) == []


@pytest.mark.slow
def test_children_end_with_their_parent_or_not_by_choice() -> None:
    for detached in (False, True):
        hold, entered = threading.Event(), threading.Event()

        def slow(
            request: Any, hold: threading.Event = hold, entered: threading.Event = entered
        ) -> str:
            entered.set()
            hold.wait(30)
            return "late"

        store = MemoryStore()
        delegates = Delegates({"researcher": Agent(ScriptedLLM(slow))}, detached=detached)
        owned = Owned()
        with Conversation(
            lead([give("x", background=True), "done"], delegates), store, "top"
        ) as conversation:
            conversation.send_message("go")
            conversation.run()
            assert entered.wait(30)
            if not detached:
                hold.set()
        hold.set()
        owned.wait_until_released()
        if detached:
            assert [one.status for one in store.list(["top.4.0"])] == ["finished"]
            with Conversation(lead(["I see."], delegates), store, "top") as conversation:
                assert conversation.run().answer == "I see."
                assert [message.sender for message in messages_of_others(conversation)] == [
                    "top.4.0"
                ]


def test_a_parent_that_was_closed_and_opened_again_finds_its_children(tmp_path: Path) -> None:
    """Blocking and in the background: each child is created once, and continues."""
    hold, entered = threading.Event(), threading.Semaphore(0)

    def slow(request: Any) -> str:
        entered.release()
        hold.wait(0.3)
        return f"found {request.text}"

    def script(request: Any) -> Any:
        if request.text == "go":
            return [give("a", background=True), give("b")]
        return (
            "all done"
            if sum("found" in str(message["content"]) for message in request.messages) == 2
            else "one is missing"
        )

    def make() -> Agent:
        return lead(script, {"researcher": Agent(ScriptedLLM(slow))})

    with SQLiteStore(tmp_path / "a.db") as store:
        with Conversation(make(), store, "top") as conversation:
            conversation.start_thread()
            conversation.send_message("go")
            for _ in range(2):
                assert entered.acquire(timeout=30)
        assert all(event.call_id != "4.1" for event in _results(store))
        with Conversation(make(), store, "top") as conversation:
            conversation.start_thread()
            until(lambda: conversation.state.answer == "all done")
            conversation.wait(30)
            assert {one.id for one in conversation.children} == {"top.4.0", "top.4.1"}
            assert len(messages_of_others(conversation)) == 1


def _results(store: Any) -> list[ev.ToolCallFinished]:
    return [event for event in store.read("top") if isinstance(event, ev.ToolCallFinished)]


# --- messages ---


def test_conversations_of_one_tree_send_to_each_other_and_to_no_others() -> None:
    store = MemoryStore()
    with Conversation(Agent(ScriptedLLM([])), store, "stranger") as stranger:
        stranger.send_message("hello")

    def child(request: Any) -> Any:
        return (
            ("send_to", {"conversation": "parent", "text": "a note"})
            if request.messages[-1]["role"] == "user"
            else "done"
        )

    inner = Agent(ScriptedLLM(child), delegates={"nobody": finder()})
    order = [
        give("x"),
        ("send_to", {"conversation": "top.4.0", "text": "again"}),
        ("send_to", {"conversation": "stranger", "text": "hi"}),
    ]

    def script(request: Any) -> Any:
        answered = sum(message["role"] == "assistant" for message in request.messages)
        return order[answered] if answered < len(order) else "done"

    with Conversation(lead(script, {"researcher": inner}), store, "top") as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(
            lambda: any("is done.]" in message.text for message in messages_of_others(conversation))
        )
        conversation.wait(30)
        assert [
            message.text for message in messages_of_others(conversation) if message.text == "a note"
        ] == ["a note"] * 2
        texts = [event.result.text for event in results(conversation)]
        assert texts[1:] == [
            "Sent to top.4.0.",
            "This conversation may send to no conversation 'stranger'. There are: top.4.0"
            " (researcher).",
        ]
        received = [event for event in store.read("top.4.0") if isinstance(event, ev.MessageAdded)]
        assert [(message.text, message.sender) for message in received] == [
            ("x", "top"),
            ("again", "top"),
        ]


@pytest.mark.slow
def test_messages_stay_within_the_tenant_whatever_is_allowed() -> None:
    store = MemoryStore()
    for id in ("acme/friend", "other/foe"):
        with Conversation(Agent(ScriptedLLM([])), store, id) as there:
            there.send_message("hello")
    script = [
        [
            ("send_to", {"conversation": id, "text": "hi"})
            for id in ("acme/friend", "other/foe", "acme/none")
        ],
        "done",
    ]
    delegates = Delegates(
        {"researcher": finder()}, send_to=["acme/friend", "other/foe", "acme/none"]
    )
    with Conversation(lead(script, delegates), store, "acme/top") as conversation:
        conversation.send_message("go")
        conversation.run()
        replies = {event.call_id: event.result.text for event in results(conversation)}
        assert (
            replies["4.0"]
            == "Sent to acme/friend. It is not running now and reads the message when it continues."
        )
        listing = " There are: acme/friend, acme/none."
        assert (
            replies["4.1"] == f"This conversation may send to no conversation 'other/foe'.{listing}"
        )
        assert replies["4.2"] == f"There is no conversation 'acme/none'.{listing}"
    with Conversation(Agent(ScriptedLLM(["ok"])), store, "acme/friend") as friend:
        friend.run()
        assert [(message.text, message.sender) for message in messages_of_others(friend)] == [
            ("hi", "acme/top")
        ]


def test_who_sends_is_in_the_message() -> None:
    with Conversation(finder(), MemoryStore(), "c") as conversation:
        assert conversation.send_message("hi", sender="other").sender == "other"
        conversation.execute(Send("there", sender="third"))  # type: ignore[arg-type]
        assert [message.sender for message in messages_of_others(conversation)] == [
            "other",
            "third",
        ]
        for wrong in ("holdfast", "", 3):
            with pytest.raises(ConfigurationError, match="sender takes"):
                conversation.send_message("hi", sender=wrong)  # type: ignore[arg-type]


# --- killed ---


def work(path: Path) -> Tool:
    def note(line: str) -> str:
        """Write a line down."""
        with path.open("a") as file:
            file.write(f"{line}\n")
        return "noted"

    return Tool.from_function(note, annotations=ToolAnnotations(destructive=False))


def researcher(folder: Path) -> Agent:
    def script(request: Any) -> Any:
        last = request.messages[-1]
        return (
            ("note", {"line": last["content"]})
            if last["role"] == "user"
            else f"done with {request.messages[1]['content']}"
        )

    return Agent(ScriptedLLM(script), [work(folder / "notes")])


def blocking(store: Any, folder: Path) -> None:
    def script(request: Any) -> Any:
        return [give("a"), give("b")] if request.messages[-1]["role"] == "user" else "all done"

    with Conversation(
        lead(script, {"researcher": researcher(folder)}, parallel_calls=1), store, "top"
    ) as conversation:
        if not conversation.state.last_seq:
            conversation.send_message("go")
        conversation.run()


def effects(folder: Path) -> list[str]:
    path = folder / "notes"
    return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.proof
def test_killed_at_every_append_each_child_exists_once_and_no_effect_is_repeated() -> None:
    for crash in crash_at_every_append(blocking, points=in_sample):
        assert set(crash.after_journals) == {"top", "top.4.0", "top.4.1"}, str(crash)
        assert len(effects(crash.folder)) == len(set(effects(crash.folder))), str(crash)
        answers = [
            answer_text(event.result.text)
            for event in crash.after
            if isinstance(event, ev.ToolCallFinished)
        ]
        assert answers == ["done with a", "done with b"], str(crash)


def in_the_background(store: Any, folder: Path) -> None:
    def script(request: Any) -> Any:
        if request.messages[-1]["role"] == "user" and request.text == "go":
            return [give("a", background=True), give("b", background=True)]
        collected = any(
            "done with a" in str(message["content"]) and "done with b" in str(message["content"])
            for message in request.messages
        )
        return "all done" if collected else ("delegate_collect", {"ids": ["top.4.0", "top.4.1"]})

    with Conversation(
        lead(script, {"researcher": researcher(folder)}, parallel_calls=1), store, "top"
    ) as conversation:
        if not conversation.state.last_seq:
            conversation.send_message("go")
        conversation.run()


@pytest.mark.proof
def test_killed_at_every_append_those_in_the_background_are_collected_all_the_same() -> None:
    for crash in crash_at_every_append(in_the_background, points=in_sample):
        assert set(crash.after_journals) == {"top", "top.4.0", "top.4.1"}, str(crash)
        assert len(effects(crash.folder)) == len(set(effects(crash.folder))), str(crash)
        collected = [
            event.result.text
            for event in crash.after
            if isinstance(event, ev.ToolCallFinished) and CHILDREN in event.result.meta
        ]
        assert collected[-1:] == [
            "researcher (top.4.0):\ndone with a\n\nresearcher (top.4.1):\ndone with b"
        ], str(crash)


def five(path: str, folder: str) -> None:
    """Run a parent with five children; the test kills this program and starts it again."""
    entered = Path(folder) / "entered"

    def step(request: Any) -> Any:
        answers = [message for message in request.messages if message["role"] == "assistant"]
        if len(answers) < 4:
            time.sleep(0.05)
            return ("note", {"line": f"{request.messages[1]['content']}-{len(answers)}"})
        return f"answer of {request.messages[1]['content']}"

    def script(request: Any) -> Any:
        if request.messages[-1]["role"] == "user" and request.text == "go":
            return [give(str(number), background=number % 2 == 0) for number in range(5)]
        missing = [
            number
            for number in range(5)
            if not any(f"answer of {number}" in str(m["content"]) for m in request.messages)
        ]
        return ("delegate_collect", {}) if missing else "all done"

    def note(line: str) -> str:
        """Write a line down."""
        with entered.open("a") as file:
            file.write(f"{line}\n")
        return "noted"

    child = Agent(
        ScriptedLLM(step),
        [Tool.from_function(note, annotations=ToolAnnotations(destructive=False))],
    )
    with (
        SQLiteStore(path) as store,
        Conversation(lead(script, {"researcher": child}), store, "top") as conversation,
    ):
        if not conversation.state.last_seq:
            conversation.send_message("go")
        conversation.run()


@pytest.mark.slow
def test_a_process_that_is_killed_with_five_children_at_work_finds_all_of_them_again(
    tmp_path: Path,
) -> None:
    path, notes = str(tmp_path / "a.db"), tmp_path / "entered"
    program = [
        sys.executable,
        "-c",
        "import sys; from tests.conversation.test_delegation import five; five(*sys.argv[1:])",
        path,
        str(tmp_path),
    ]
    repo = REPO
    process = forks.Popen(program, cwd=repo)
    until(lambda: notes.exists() and len(notes.read_text().splitlines()) >= 6, seconds=60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert forks.run(program, cwd=repo, timeout=120, check=False).returncode == 0
    with SQLiteStore(path) as store:
        assert sorted(one.id for one in store.list(spawned_by="top")) == [
            f"top.4.{number}" for number in range(5)
        ]
        lines = notes.read_text().splitlines()
        assert len(lines) == len(set(lines))
        top = store.read("top")
        texts = " ".join(
            [event.text for event in top if isinstance(event, ev.MessageAdded)]
            + [e.result.text for e in top if isinstance(e, ev.ToolCallFinished)]
        )
        assert all(f"answer of {number}" in texts for number in range(5))
        assert [event.status for event in top if isinstance(event, ev.StatusChanged)][
            -1
        ] == "finished"
        for id in ("top", *(f"top.4.{number}" for number in range(5))):
            again = replay(store.read(id))
            assert again.same, f"{id}: {again}"
            assert again.hashed == again.requests > 0


def test_a_structured_answer_is_the_result(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"km": {"type": "integer"}}, "required": ["km"]}
    child = Agent(ScriptedLLM([("finish", {"km": 384400})]), output_type=schema)
    with Conversation(lead([give("x"), "done"], {"researcher": child})) as conversation:
        conversation.send_message("go")
        conversation.run()
        [event] = results(conversation)
        assert (event.result.structured_content, answer_text(event.result.text)) == (
            {"km": 384400},
            '{"km":384400}',
        )


def test_a_fork_has_none_of_the_children() -> None:
    with Conversation(
        lead([give("x", background=True), ("delegate_collect", {}), "done"]), MemoryStore(), "top"
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.wait(30)
        with conversation.fork(agent=lead([("delegate_poll", {}), "done"]), id="fork") as forked:
            forked.send_message("well?")
            forked.run()
            assert results(forked)[-1].result.text == "No agent works in the background."


@pytest.mark.parametrize(
    ("delegates", "problem"),
    [
        (["a"], "delegates takes a mapping"),
        ({"a": None}, "takes an Agent, a SubAgent, or the path of a sub-agent file"),
        ({"a": 3}, "delegates['a'] takes an Agent"),
        ({"": finder()}, "has the name ''"),
    ],
)
def test_what_are_no_delegates_is_refused(delegates: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent(ScriptedLLM([]), delegates=delegates)
    assert problem in str(raised.value)


def test_bounds_are_numbers() -> None:
    for bounds in ({"max_depth": 0}, {"max_running": True}, {"send_to": "top"}):
        with pytest.raises(ConfigurationError, match="Delegates: "):
            Delegates({"a": finder()}, **bounds)  # type: ignore[arg-type]


@pytest.mark.slow
def test_outcomes_that_a_parent_remembers_keep_no_journal_of_a_child() -> None:
    ids = ("remembered-a", "remembered-b", "remembered-c")  # ids that no other test uses
    store, agent = MemoryStore(), Agent(ScriptedLLM(["done"] * 9))
    for id in ids:
        with Conversation(agent, store, id) as child:
            child.send_message("go")
            child.run()
    del child
    with Conversation(agent, store, "parent") as parent:
        children: Any = parent.hosting.delegation().children
        children._delegated = {id: DelegatedChild("worker", True) for id in ids}
        outcomes = [children.outcome(id) for id in ids]
        assert [one.report for one in outcomes] == ["done"] * 3
        gc.collect()
        journals = [one.id for one in gc.get_objects() if type(one) is Journal]
        assert not set(ids).intersection(journals)
