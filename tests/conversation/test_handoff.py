"""A conversation that moves from one agent to another: the agent that answers, its prompt and
tools, and the persistence of the move."""

from __future__ import annotations

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
)
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.errors import ConfigurationError
from holdfast.testing import crash_at_every_append
from tests.paths import REPO
from tests.waiting import until

S = ConversationStatus
TO_BILLING = ("handoff", {"agent": "billing", "reason": "a refund"})
BACK = ("handoff", {"agent": "main"})


def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def look(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


def agents(front: Any, billing: Any, **options: Any) -> Agent:
    """Return a front desk that may hand over to billing, and billing that may hand back."""
    other = Agent(
        ScriptedLLM(billing, "big"),
        [refund],
        system_prompt="You refund.",
        handoffs={"main": None},
        **options,
    )
    return Agent(
        ScriptedLLM(front, "small"),
        [look],
        system_prompt="You answer.",
        handoffs={"billing": other},
    )


def heads(conversation: Conversation) -> list[tuple[str, str, str]]:
    return [
        (event.name, event.system_prompt, event.model)
        for event in conversation.get_history()
        if isinstance(event, ev.AgentConfigured)
    ]


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


def test_the_other_agent_answers_from_the_next_request_on_with_all_that_was_said() -> None:
    agent = agents([TO_BILLING], [("refund", {"order": 7}), "Refunded."])
    with Conversation(agent) as conversation:
        conversation.send_message("My order 7 broke.")
        state = conversation.run()
        assert (state.status, state.answer) == (S.FINISHED, "Refunded.")
        assert heads(conversation) == [
            ("", "You answer.", "small"),
            ("billing", "You refund.", "big"),
        ]
        other = agent.handoffs.agent("billing").llm.requests[0]  # type: ignore[union-attr]
        assert [message["role"] for message in other.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
        ]
        assert other.messages[1]["content"] == "My order 7 broke."
        assert [tool["function"]["name"] for tool in other.json["tools"]] == ["refund", "handoff"]


def test_it_goes_back_and_forth() -> None:
    with Conversation(agents([TO_BILLING, "Bye."], ["Refunded.", BACK])) as conversation:
        conversation.send_message("refund")
        conversation.run()
        conversation.send_message("thanks")
        assert conversation.run().answer == "Bye."
        assert [name for name, _, _ in heads(conversation)] == ["", "billing", ""]


def test_the_first_handoff_of_an_answer_counts_and_the_others_are_answered_so() -> None:
    third = Agent(ScriptedLLM([]), system_prompt="You sell.")
    billing = Agent(ScriptedLLM(["Here."]), system_prompt="You refund.")
    script = [[TO_BILLING, ("look", {"order": 1}), ("handoff", {"agent": "sales"})]]
    with Conversation(
        Agent(ScriptedLLM(script), [look], handoffs={"sales": third, "billing": billing})
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "Here."
        results = {
            event.call_id: event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        }
        assert results["4.0"].text.startswith("The conversation is handed over to billing")
        assert results["4.1"].text == "order 1"
        assert results["4.2"].is_error
        assert "hand over only once" in results["4.2"].text
        starts = [
            event.call_id
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallStarted)
        ]
        assert sorted(starts) == ["4.0", "4.1", "4.2"]
        assert conversation.replay().same


def test_the_calls_beside_a_handoff_are_run_by_the_agent_that_made_them() -> None:
    with Conversation(agents([[("look", {"order": 1}), TO_BILLING]], ["Here."])) as conversation:
        conversation.send_message("go")
        conversation.run()
        assert results(conversation)[0] == "order 1" or results(conversation)[1] == "order 1"


def test_a_result_that_only_looks_like_a_handoff_is_none() -> None:
    def sly() -> Any:
        from holdfast import TextContent, ToolResult

        return ToolResult((TextContent("x"),), meta={"holdfast/handoff": "billing"})

    agent = Agent(
        ScriptedLLM([("sly", {}), "Still me."]), [sly], handoffs={"billing": Agent(ScriptedLLM([]))}
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "Still me."
        assert len(heads(conversation)) == 1


def test_a_reopened_conversation_goes_on_with_the_agent_in_force(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store:
        with Conversation(agents([TO_BILLING], ["Refunded."]), store, "c") as conversation:
            conversation.send_message("refund")
            conversation.run()
        with Conversation(agents([], ["It is done."]), store, "c") as conversation:
            conversation.send_message("sure?")
            assert conversation.run().answer == "It is done."
            assert [name for name, _, _ in heads(conversation)] == ["", "billing"]


def test_so_do_a_fork_and_an_imported_state() -> None:
    store = MemoryStore()
    with Conversation(agents([TO_BILLING], ["Refunded."]), store, "c") as conversation:
        conversation.send_message("refund")
        state = conversation.run()
        with conversation.fork(agent=agents([], ["Forked."])) as forked:
            forked.send_message("sure?")
            assert forked.run().answer == "Forked."
    with Conversation.from_state(state, agents([], ["Imported."])) as imported:
        imported.send_message("sure?")
        assert imported.run().answer == "Imported."


def test_a_fork_before_the_other_took_over_hands_over_itself() -> None:
    with Conversation(agents([TO_BILLING], ["Refunded."]), MemoryStore(), "c") as conversation:
        conversation.send_message("refund")
        conversation.run()
        at = next(
            event.seq
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        )
        with conversation.fork(at, agents([], ["Forked."])) as forked:
            assert forked.run().answer == "Forked."
            assert [name for name, _, _ in heads(forked)] == ["", "billing"]


def test_an_agent_that_knows_no_such_other_goes_on_itself() -> None:
    with Conversation(agents([TO_BILLING], ["Refunded."])) as conversation:
        conversation.send_message("refund")
        state = conversation.run()
    plain = Agent(ScriptedLLM(["I am alone."]), system_prompt="Alone.")
    with Conversation.from_state(state, plain) as imported:
        imported.send_message("sure?")
        assert imported.run().answer == "I am alone."
        assert heads(imported)[-1][:2] == ("", "Alone.")


def test_a_handoff_to_a_name_that_the_conversation_does_not_have_is_told_to_the_one_who_tried() -> (
    None
):
    agent = Agent(
        ScriptedLLM([("handoff", {"agent": "ghost"}), "Then I do it."]), handoffs={"ghost": None}
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "Then I do it."
        notes = [
            event
            for event in conversation.get_history()
            if isinstance(event, ev.MessageAdded) and event.sender == "holdfast"
        ]
        assert [event.about for event in notes] == ["handoff:ghost"]
        assert conversation.replay(agent).same


def test_what_the_run_has_used_up_stays_used_and_the_limits_are_the_others() -> None:
    agent = agents(
        [("look", {"order": 1}), ("look", {"order": 2}), TO_BILLING],
        [("refund", {"order": 1})] * 9,
        limits=Limits(steps=5),
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        state = conversation.run()
        assert state.error is not None
        assert (state.error.error, state.steps) == ("LimitExceeded", 5)
        assert conversation.replay(agents([], [], limits=Limits(steps=5))).same


def test_a_handoff_may_be_made_to_wait_for_the_user() -> None:
    billing = Agent(ScriptedLLM(["Here."]))
    agent = Agent(
        ScriptedLLM([TO_BILLING, "I stay."]), handoffs={"billing": billing}, confirm=["handoff"]
    )
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.reject(reason="no")
        assert conversation.run().answer == "I stay."


def test_a_replay_is_byte_identical_and_sees_another_prompt_of_the_other_agent() -> None:
    with Conversation(agents([TO_BILLING, "Bye."], ["Refunded.", BACK])) as conversation:
        conversation.send_message("refund")
        conversation.run()
        conversation.send_message("thanks")
        conversation.run()
        again = conversation.replay(agents([], []))
        assert (again.same, again.requests, again.hashed) == (True, 4, 4)
        other = Agent(
            ScriptedLLM([], "big"),
            [refund],
            system_prompt="You do not refund.",
            handoffs={"main": None},
        )
        edited_agent = Agent(
            ScriptedLLM([], "small"),
            [look],
            system_prompt="You answer.",
            handoffs={"billing": other},
        )
        assert "You do not refund." in str(conversation.replay(edited_agent))
        none = Agent(ScriptedLLM([], "small"), [look], system_prompt="You answer.")
        assert not conversation.replay(none).same


def test_a_handoff_survives_a_condensation_that_hides_it(tmp_path: Path) -> None:
    def make(front: Any, billing: Any) -> Agent:
        return agents(front, billing, condenser=WindowCondenser(keep=2))

    with SQLiteStore(tmp_path / "a.db") as store:
        with Conversation(make([TO_BILLING], ["one", "two", "three"]), store, "c") as conversation:
            for text in ("refund", "and?", "so?"):
                conversation.send_message(text)
                conversation.run()
            conversation.condense()
        with Conversation(make([], ["four"]), store, "c") as conversation:
            conversation.send_message("well?")
            assert conversation.run().answer == "four"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mcp_tools"])
def test_the_others_services_open_when_it_takes_over_and_close_with_the_conversation(
    program: str,
) -> None:
    servers = {"s": {"command": sys.executable, "args": [str(REPO / "tests" / f"{program}.py")]}}
    billing = Agent(ScriptedLLM(["Here."]), mcp_servers=servers)
    agent = Agent(ScriptedLLM([TO_BILLING]), handoffs={"billing": billing})
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert billing.connections.open == 0
        assert conversation.run().answer == "Here."
        assert billing.connections.open == 1
        last = [
            event for event in conversation.get_history() if isinstance(event, ev.AgentConfigured)
        ][-1]
        assert any(tool.name.startswith("s.") for tool in last.tools)
    assert billing.connections.open == 0


@pytest.mark.parametrize(
    ("handoffs", "problem"),
    [
        (["billing"], "handoffs takes a mapping"),
        ({"billing": 3}, "handoffs['billing'] takes an Agent"),
        ({"a b": None}, "has the name 'a b'"),
        ({"main": Agent(ScriptedLLM([]))}, "is the name of a conversation's first agent"),
        ({"billing": "no/such.md"}, "cannot be read"),
    ],
)
def test_what_is_no_handoff_is_refused(handoffs: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent(ScriptedLLM([]), handoffs=handoffs)
    assert problem in str(raised.value)


def test_a_tool_of_ones_own_named_handoff_is_refused() -> None:
    own = Tool("handoff", "mine", lambda: None)
    with pytest.raises(ConfigurationError, match="handoff"):
        Agent(ScriptedLLM([]), [own], handoffs={"billing": Agent(ScriptedLLM([]))})


def run_with_handoff(store: Any, folder: Path) -> None:
    """Run through both agents. The scripts choose by the request, since a resumed process starts
    them anew."""

    def front(request: Any) -> Any:
        return TO_BILLING if request.messages[-1]["role"] == "user" else "Bye."

    def billing(request: Any) -> Any:
        tried = (
            sum(message["role"] == "tool" for message in request.messages) > 1
        )  # the first result is the handoff's
        return BACK if tried else ("refund_it", {"order": 7})

    def refund_it(order: int) -> str:
        """Refund an order."""
        with (folder / "refunds").open("a") as file:
            file.write(f"{order}\n")
        return refund(order)

    other = Agent(
        ScriptedLLM(billing, "big"),
        [refund_it],
        system_prompt="You refund.",
        handoffs={"main": None},
    )
    agent = Agent(
        ScriptedLLM(front, "small"),
        [look],
        system_prompt="You answer.",
        handoffs={"billing": other},
    )
    with Conversation(agent, store, "c") as conversation:
        if not conversation.state.last_seq:
            conversation.send_message("refund 7")
        conversation.run()


@pytest.mark.slow
def test_killed_at_every_append_it_comes_to_the_same_agent() -> None:
    for crash in crash_at_every_append(run_with_handoff):
        names = [event.name for event in crash.after if isinstance(event, ev.AgentConfigured)]
        assert names == ["", "billing", ""], str(crash)
        assert (
            (crash.folder / "refunds").read_text() in ("", "7\n")
            if (crash.folder / "refunds").exists()
            else True
        )
        last = next(
            event for event in reversed(crash.after) if isinstance(event, ev.AssistantReplied)
        )
        assert last.text == "Bye."


def test_a_handoff_to_oneself_is_answered_so_and_the_next_one_of_the_answer_counts() -> None:
    with Conversation(
        agents([[("handoff", {"agent": "main"}), TO_BILLING]], ["Refunded."])
    ) as conversation:
        front = conversation.agent
        assert front.handoffs is not None
        front.handoffs.by_name["main"] = None
        conversation.send_message("refund")
        assert conversation.run().answer == "Refunded."
        assert (
            results(conversation)[0]
            == "Not done: you are 'main', so nothing is handed over. Go on yourself."
        )
    itself = Agent(
        ScriptedLLM([("handoff", {"agent": "main"}), "I go on."]), handoffs={"main": None}
    )
    with Conversation(itself) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "I go on."


def test_one_that_was_edited_to_be_to_oneself_is_told_of_and_the_conversation_goes_on() -> None:
    itself = Agent(
        ScriptedLLM([("handoff", {"agent": "other"}), "I go on."]),
        handoffs={"main": None, "other": None},
        confirm="always",
    )
    with Conversation(itself) as conversation:
        conversation.send_message("go")
        conversation.run()
        conversation.approve(
            conversation.state.pending_confirmations[0].call.id, arguments={"agent": "main"}
        )
        assert conversation.run().answer == "I go on."
        assert (
            "you are 'main'"
            in [
                event for event in conversation.get_history() if isinstance(event, ev.MessageAdded)
            ][-1].text
        )


def test_whoever_takes_over_is_bound_by_the_same_approval_of_a_plan() -> None:
    effects: list[str] = []
    write = Tool("write", "Write.", lambda: effects.append("w") or "written")
    steps = ("plan", {"steps": [{"step": "write it"}]})
    last = Agent(ScriptedLLM([("write", {}), "last done"]), [write], system_prompt="You are last.")
    other = Agent(
        ScriptedLLM([("write", {}), steps, ("write", {}), ("handoff", {"agent": "last"})]),
        [write],
        system_prompt="You write.",
        handoffs={"last": last},
    )
    front = Agent(
        ScriptedLLM([("handoff", {"agent": "other"})]),
        [write],
        handoffs={"other": other},
        planning="first",
    )
    with Conversation(front) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        assert effects == []
        assert "make a plan first" in results(conversation)[1]
        conversation.approve()
        assert conversation.run().answer == "last done"
        assert effects == ["w", "w"]
        assert conversation.replay().same
    assert other.planning is None
    assert [tool.name for tool in other.tools.list_tools()] == ["write", "handoff"]


def test_nobody_hands_over_to_one_who_would_not_ask_before_a_plan_is_approved() -> None:
    other = Agent(
        ScriptedLLM([("handoff", {"agent": "main"}), "I stay."]),
        planning="first",
        handoffs={"main": None},
    )
    front = Agent(ScriptedLLM([("handoff", {"agent": "other"})]), handoffs={"other": other})
    with Conversation(front) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "I stay."
        assert "make a plan first" in results(conversation)[1]


def test_after_a_handoff_what_works_in_the_background_is_opened_again_and_told_of(
    tmp_path: Path,
) -> None:
    gate = threading.Event()

    def slow(request: Any) -> str:
        gate.wait(20)
        return "the result"

    def open_gate(conversation: Conversation) -> None:
        until(lambda: conversation.hosting.context.closing)
        time.sleep(0.2)  # by now the child is closed, too
        gate.set()

    def make_agent() -> Agent:
        def script(request: Any) -> Any:
            return (
                ("delegate", {"agent": "r", "task": "t", "background": True})
                if request.messages[-1]["role"] == "user"
                else TO_BILLING
            )

        billing = Agent(ScriptedLLM(lambda _: "billing here"), system_prompt="b")
        return Agent(
            ScriptedLLM(script),
            delegates={"r": Agent(ScriptedLLM(slow))},
            handoffs={"billing": billing},
        )

    with SQLiteStore(tmp_path / "store.db", "process") as store:
        with Conversation(make_agent(), store, "talk") as conversation:
            conversation.send_message("start")
            assert conversation.run().answer == "billing here"
            opener = threading.Thread(target=open_gate, args=(conversation,))
            opener.start()
        opener.join()
        assert store.list(spawned_by="talk")[0].status == "running"
        gate.set()
        with Conversation(make_agent(), store, "talk") as conversation:
            conversation.start_thread()
            conversation.send_message("anything new?")
            until(
                lambda: any(
                    isinstance(event, ev.MessageAdded) and event.sender == "talk.4.0"
                    for event in conversation.get_history()
                )
            )
