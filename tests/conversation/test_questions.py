"""Questions of running calls to the user: journaled, answered from any thread or process,
withdrawn, and not left pending after a kill."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolContext,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.conversation.questions import TAKEN_BACK
from holdfast.errors import ConfigurationError, NotPending
from holdfast.store import Store
from holdfast.store.base import Batch
from holdfast.tools import Cancellation, ToolAnnotations
from holdfast.tools.question_forms import mask_secrets
from tests import forks
from tests.paths import REPO
from tests.waiting import until

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "default": 3},
        "key": {"type": "string", "format": "password"},
    },
    "required": ["name"],
}
S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


def asking(schema: dict[str, Any] | None = FORM, **options: Any) -> Tool:
    def greet(context: ToolContext) -> str:
        """Greets."""
        return f"heard {context.ask('Who are you?', schema, **options)}"

    return Tool.from_function(greet, parallel=True)


def agent_of(*tools: Any, calls: int = 1) -> Agent:
    return Agent(ScriptedLLM([[(tools[0].name, {})] * calls, "Done.", "Again."]), tools)


def running_conversation(agent: Agent, store: Store | None = None, **options: Any) -> Conversation:
    conversation = Conversation(agent, store, "c", **{"on_question": "wait", **options})
    conversation.start_thread()
    conversation.send_message("go")
    return conversation


def pending(conversation: Conversation, count: int = 1) -> list[ev.Question]:
    return until(
        lambda: (
            questions
            if len(questions := [question for _, question in conversation.state.pending_questions])
            == count
            else None
        )
    )


def decisions(conversation: Conversation) -> list[ev.DecisionMade]:
    return [event for event in conversation.get_history() if isinstance(event, ev.DecisionMade)]


def results(conversation: Conversation) -> list[str]:
    return [
        event.result.text
        for event in conversation.get_history()
        if isinstance(event, ev.ToolCallFinished)
    ]


# --- who answers ---


def test_a_conversation_that_was_told_of_nobody_declines_at_once_and_journals_nothing() -> None:
    with running_conversation(agent_of(asking()), on_question=None) as conversation:
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard None"]
        assert decisions(conversation) == []
    assert ToolContext().ask("Anybody?") is None


def test_a_question_that_waits_is_journaled_and_so_is_its_answer(store: Store) -> None:
    with running_conversation(agent_of(asking(asker="desk")), store) as conversation:
        [question] = pending(conversation)
        state = conversation.state
        [(call_id, _)] = state.pending_questions
        assert question == ev.Question(f"{call_id}?1", "Who are you?", FORM, "", "desk")
        assert (state.status, state.pending_confirmations) == (S.RUNNING, ())
        assert (
            ConversationState.from_json(state.to_json()).pending_questions
            == state.pending_questions
        )
        conversation.answer(values={"name": "Ada", "key": "hunter2"}, by="ada")
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard {'name': 'Ada', 'size': 3, 'key': 'hunter2'}"]
        ask, answer = decisions(conversation)
        assert (ask.decision, ask.call_id, ask.by, ask.reason, ask.question) == (
            "ask",
            call_id,
            "desk",
            "Who are you?",
            question,
        )
        assert (answer.decision, answer.call_id, answer.by, answer.question_id) == (
            "approve",
            call_id,
            "ada",
            question.id,
        )
        assert answer.arguments == {"name": "Ada", "size": 3, "key": "***"}
        assert conversation.state.pending_questions == ()
        assert ev.decode(ev.encode(ask)) == ask


def test_the_tool_asks_where_nobody_else_is_named_and_no_form_is_a_yes() -> None:
    with running_conversation(agent_of(asking(None))) as conversation:
        assert [question.asker for question in pending(conversation)] == ["greet"]
        with pytest.raises(ConfigurationError, match="it has no form"):
            conversation.answer(values={"a": 1})
        conversation.answer()
        conversation.wait(25)
        assert results(conversation) == ["heard {}"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (True, "name is required. It takes: name, size, key"),
        ({"name": "x", "sise": 1}, "sise is not one of its fields"),
        ({"name": "x", "size": "large"}, "size: 'large' is not of type 'integer'"),
        ({"name": "x", "key": 271828}, "key: the value does not fit"),
        ({"name": object()}, "takes JSON values"),
        ("Ada", "takes a dict of the form's values"),
    ],
)
def test_values_that_do_not_fit_the_form_are_refused_and_the_question_still_waits(
    values: Any, problem: str
) -> None:
    with running_conversation(agent_of(asking())) as conversation:
        pending(conversation)
        with pytest.raises(ConfigurationError, match=problem) as refused:
            conversation.answer(values=values)
        assert "271828" not in str(refused.value)
        conversation.answer(values={"name": "Ada", "size": "7"})
        conversation.wait(25)
        assert results(conversation) == ["heard {'name': 'Ada', 'size': 7}"]


def test_of_several_questions_one_must_say_which(store: Store) -> None:
    with running_conversation(agent_of(asking(), calls=2), store) as conversation:
        first, second = pending(conversation, 2)
        with pytest.raises(
            ConfigurationError, match=r"Several questions wait.* These do: .*\?1, .*\?1"
        ):
            conversation.answer(values={"name": "Ada"})
        conversation.answer(second.id, {"name": "second"})
        with pytest.raises(NotPending, match="does not wait for an answer"):
            conversation.answer(second.id, {"name": "late"})
        conversation.decline(first.id, "not today")
        conversation.wait(25)
        assert sorted(results(conversation)) == [
            "heard None",
            "heard {'name': 'second', 'size': 3}",
        ]
        [declined] = [event for event in decisions(conversation) if event.decision == "reject"]
        assert (declined.question_id, declined.by, declined.reason) == (
            first.id,
            "user",
            "not today",
        )
        with pytest.raises(NotPending, match="No question waits"):
            conversation.decline()


def test_many_threads_that_answer_at_once_give_one_answer() -> None:
    with running_conversation(agent_of(asking())) as conversation:
        [question] = pending(conversation)
        start, accepted = threading.Barrier(8), list[int]()

        def answer(number: int) -> None:
            start.wait()
            try:
                conversation.answer(question.id, {"name": str(number)})
            except NotPending:
                return
            accepted.append(number)

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        conversation.wait(25)
        [number] = accepted
        assert results(conversation) == [f"heard {{'name': '{number}', 'size': 3}}"]


# --- a function that answers ---


def test_a_function_is_asked_on_the_calls_thread_while_nothing_is_locked() -> None:
    observations: list[Any] = []

    def answer(question: ev.Question) -> dict[str, Any]:
        other = threading.Thread(
            target=lambda: observations.append(conversation.state.pending_questions)
        )
        other.start()  # another thread can look: nothing is locked
        other.join(20)
        observations.append(threading.current_thread())
        return {"name": question.asker}

    tool_threads: list[threading.Thread] = []

    def greet(context: ToolContext) -> str:
        """Greets."""
        tool_threads.append(threading.current_thread())
        return str(context.ask("Who?", FORM))

    with running_conversation(
        agent_of(Tool.from_function(greet)), on_question=answer
    ) as conversation:
        conversation.wait(25)
        assert len(observations[0]) == 1
        assert observations[1:] == tool_threads
        assert [(event.decision, event.by) for event in decisions(conversation)] == [
            ("ask", "greet"),
            ("approve", "on_question"),
        ]
        assert results(conversation) == ["{'name': 'greet', 'size': 3}"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "the user declined"),
        (False, "the user declined"),
        (OSError("x"), "on_question raised OSError"),
        ({"size": 1}, "does not fit"),
    ],
)
def test_what_is_no_answer_declines_and_the_journal_says_why(answer: Any, reason: str) -> None:
    def on_question(question: ev.Question) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with running_conversation(agent_of(asking()), on_question=on_question) as conversation:
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard None"]
        declined = decisions(conversation)[-1]
        assert (declined.decision, declined.by) == ("reject", "on_question")
        assert reason in declined.reason


@pytest.mark.parametrize("wrong", ["ask", 1, object()])
def test_on_question_takes_a_function_wait_or_nothing(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="on_question takes"):
        Conversation(agent_of(asking()), on_question=wrong)


# --- questions that end otherwise ---


def test_a_question_that_nobody_answers_in_time_is_declined() -> None:
    with running_conversation(agent_of(asking(timeout=0.05))) as conversation:
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard None"]
        assert [
            (event.decision, event.by, event.reason) for event in decisions(conversation)[1:]
        ] == [("reject", "holdfast", "no answer within 0.05 s")]


def test_a_question_that_is_taken_back_waits_no_more() -> None:
    flag = Cancellation()
    with running_conversation(agent_of(asking(cancelled=flag))) as conversation:
        pending(conversation)
        flag.cancel()
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard None"]
        assert "withdrawn" in decisions(conversation)[-1].reason


def test_an_interrupt_ends_the_question_and_its_call(store: Store) -> None:
    with running_conversation(agent_of(asking()), store) as conversation:
        pending(conversation)
        conversation.interrupt()
        assert conversation.wait(25) is S.PAUSED
        assert conversation.state.pending_questions == ()
        [result] = [
            event.result
            for event in conversation.get_history()
            if isinstance(event, ev.ToolCallFinished)
        ]
        assert result.error is not None
        assert result.error.type == "cancelled"


def test_an_interrupt_withdraws_the_question_in_its_own_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, batches = MemoryStore(), list[list[str]]()
    append = store.append

    def noted(lease: Any, batch: Batch) -> Any:
        batches.append([type(event).__name__ for event in batch.events])
        return append(lease, batch)

    monkeypatch.setattr(store, "append", noted)
    with running_conversation(agent_of(asking()), store) as conversation:
        pending(conversation)
        conversation.interrupt()
        assert conversation.wait(25) is S.PAUSED
        assert ["StatusChanged", "DecisionMade"] in batches
        assert decisions(conversation)[-1].reason == TAKEN_BACK


def test_closing_ends_the_question_at_once(store: Store) -> None:
    conversation = running_conversation(agent_of(asking()), store)
    pending(conversation)
    began = time.monotonic()
    conversation.close(20)
    assert time.monotonic() - began < 10
    assert ConversationState("c", store.read("c")).pending_questions == ()


@pytest.mark.slow
def test_a_tools_own_timeout_does_not_run_while_the_user_is_asked() -> None:
    def greet(context: ToolContext) -> str:
        """Greets."""
        answer = str(context.ask("Who?", FORM))
        if answer != "None":
            context.cancelled.wait(20)
        return answer

    tool = Tool.from_function(greet, timeout=0.3)
    with running_conversation(agent_of(tool)) as conversation:
        [question] = pending(conversation)
        assert not threading.Event().wait(0.6)  # twice the timeout
        assert [one.id for _, one in conversation.state.pending_questions] == [question.id]
        conversation.answer(values={"name": "x"})
        conversation.wait(25)
        assert (
            "did not answer within 0.3 s" in results(conversation)[0]
        )  # only the time after the answer counts


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "file:///etc/passwd"}, "http:// or https://"),
        ({"url": "https://a.example", "schema": FORM}, "no schema beside it"),
        ({"schema": {"type": "string"}}, "JSON Schema of an object"),
        ({"schema": {"properties": {"a": {"type": "strin"}}}}, "schema cannot be used"),
        ({"schema": {"properties": {"a": 1}}}, "not a mapping of names to schemas"),
        ({"schema": {"description": "x" * 200_000}}, "at most"),
    ],
)
def test_what_is_no_form_or_address_is_the_tools_mistake(
    options: dict[str, Any], problem: str
) -> None:
    def greet(context: ToolContext) -> str:
        """Greets."""
        return str(context.ask("Who?", **options))

    with running_conversation(agent_of(Tool.from_function(greet))) as conversation:
        assert conversation.wait(25) is S.FINISHED
        assert problem in results(conversation)[0]
        assert decisions(conversation) == []


def test_an_async_tool_is_told_how_to_ask() -> None:
    async def greet(context: ToolContext) -> str:
        """Greets."""
        import asyncio

        try:
            context.ask("Who?")
        except Exception as error:
            return f"{error} {await asyncio.to_thread(context.ask, 'Who?')}"
        return "held up"

    with running_conversation(agent_of(Tool.from_function(greet))) as conversation:
        pending(conversation)
        conversation.answer()
        conversation.wait(25)
        assert "asyncio.to_thread(context.ask" in results(conversation)[0]
        assert results(conversation)[0].endswith(" {}")


def test_a_call_that_asks_for_ever_is_declined_in_the_end() -> None:
    def greet(context: ToolContext) -> int:
        """Greets."""
        return sum(context.ask("Again?") is not None for _ in range(150))

    with running_conversation(
        agent_of(Tool.from_function(greet)), on_question=lambda question: True
    ) as conversation:
        conversation.wait(25)
        assert results(conversation) == ["100"]


def test_a_fork_taken_while_a_question_waits_has_none(store: Store) -> None:
    with running_conversation(agent_of(asking()), store) as conversation:
        pending(conversation)
        with conversation.fork(id="f") as forked:
            assert forked.state.pending_questions == ()
        conversation.answer(values={"name": "x"})
        conversation.wait(25)


# --- secrets ---


def test_secret_values_are_in_no_file_of_the_store(tmp_path: Path) -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "writeOnly": True},
            "b": {"format": "password"},
            "c": {"type": "string"},
        }
    }

    def greet(context: ToolContext) -> str:
        """Greets."""
        answer = context.ask("Who?", schema)
        return "" if answer is None else str([len(value) for value in answer.values()])

    with (
        SQLiteStore(tmp_path / "s.db") as store,
        running_conversation(agent_of(Tool.from_function(greet)), store) as conversation,
    ):
        [question] = pending(conversation)
        conversation.answer(
            question.id, {"a": "planted-7a61-a", "b": "planted-7a61-b", "c": "open"}
        )
        conversation.wait(25)
        assert results(conversation) == ["[14, 14, 4]"]
    assert not any(b"planted-7a61" in path.read_bytes() for path in tmp_path.iterdir())
    assert mask_secrets(schema, {"a": 1, "c": 2, "d": 3}) == {"a": "***", "c": 2, "d": 3}


# --- other processes ---

POST = """
import sys
from holdfast import SQLiteStore
from holdfast.commands import Answer
with SQLiteStore(sys.argv[1]) as store:
    for values in ({"name": 1}, {"name": "posted"}):
        store.post("c", Answer(sys.argv[2], values, by="elsewhere"))
"""


def test_another_process_answers_through_the_inbox(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        running_conversation(agent_of(asking()), store) as conversation,
    ):
        [question] = pending(conversation)
        forks.run(
            [sys.executable, "-c", POST, str(tmp_path / "s.db"), question.id],
            check=True,
            timeout=60,
        )
        assert conversation.wait(25) is S.FINISHED
        assert results(conversation) == ["heard {'name': 'posted', 'size': 3}"]
        assert decisions(conversation)[-1].by == "elsewhere"
    assert "a posted Answer was dropped: its values do not fit the form" in caplog.text


def test_a_posted_none_declines_and_what_comes_too_late_is_dropped() -> None:
    with MemoryStore() as store, running_conversation(agent_of(asking()), store) as conversation:
        [question] = pending(conversation)
        store.post("c", cmd.Answer(question.id, None, "busy"))
        assert conversation.wait(25) is S.FINISHED
        assert (decisions(conversation)[-1].decision, decisions(conversation)[-1].reason) == (
            "reject",
            "busy",
        )
        seq = conversation.state.last_seq
        store.post("c", cmd.Answer(question.id, {"name": "late"}))
        conversation.hosting.drain_inbox()
        assert conversation.state.last_seq == seq


KILLED = """
import sys, threading
sys.path.insert(0, sys.argv[3])
from tests.conversation.test_questions import repeatable, agent_of, running_conversation
from holdfast import SQLiteStore
running_conversation(agent_of(repeatable(sys.argv[2] == "repeated")), SQLiteStore(sys.argv[1]))
threading.Event().wait()
"""


def repeatable(may: bool) -> Tool:
    def greet(context: ToolContext) -> str:
        """Greets."""
        return f"attempt {context.attempt} heard {context.ask('Who?', FORM)}"

    return Tool.from_function(greet, annotations=ToolAnnotations(idempotent=may))


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["repeated", "unknown"])
def test_no_question_is_left_pending_by_a_kill(tmp_path: Path, outcome: str) -> None:
    path, root = tmp_path / "s.db", str(REPO)
    process = forks.Popen([sys.executable, "-c", KILLED, str(path), outcome, root])
    try:
        with SQLiteStore(path) as store:
            until(lambda: any(isinstance(event, ev.DecisionMade) for event in store.read("c")))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            agent = Agent(ScriptedLLM(["Done."]), [repeatable(outcome == "repeated")])
            with Conversation(agent, store, "c", on_question="wait") as conversation:
                [(_, dead)] = (
                    conversation.state.pending_questions
                )  # the pending question is the journal's; no process waits for the answer
                with pytest.raises(NotPending, match="does not wait for an answer"):
                    conversation.answer(dead.id, {"name": "x"})
                conversation.start_thread()
                if outcome == "repeated":
                    until(
                        lambda: (
                            [one.id for _, one in conversation.state.pending_questions]
                            == [dead.id.replace("?1", "?2")]
                        )
                    )
                    conversation.answer(values={"name": "Ada"})
                assert conversation.wait(25) is S.FINISHED
                assert conversation.state.pending_questions == ()
                problem = (
                    "attempt 2 heard {'name': 'Ada', 'size': 3}"
                    if outcome == "repeated"
                    else "outcome is unknown"
                )
                assert problem in results(conversation)[0]
    finally:
        process.kill()
        process.wait()
