"""Questions aside: the model answers a question about the conversation, and the conversation
continues unchanged."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    Limits,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolCall,
    ToolContext,
)
from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import Usage
from holdfast.conversation.fold import fold
from holdfast.conversation.totals import totals
from holdfast.errors import (
    BadResponse,
    Cancelled,
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    HoldfastError,
    LimitExceeded,
    LLMError,
    ServerError,
)
from holdfast.llm.completion import Completion
from holdfast.store.check import check
from tests import forks
from tests.waiting import until

S = ConversationStatus


class Gate:
    """A tool that waits until it is opened."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()

    def work(self, what: str) -> str:
        """Works."""
        self.entered.set()
        assert self.open.wait(30)
        return f"{what} is done"


def messages(llm: ScriptedLLM, number: int) -> list[dict[str, Any]]:
    return msgspec.json.decode(llm.requests[number].body)["messages"]


def outcomes(events: Any) -> list[ev.AsideAnswered]:
    return [event for event in events if isinstance(event, ev.AsideAnswered)]


def conversation_at_rest(*answers: Any, **options: Any) -> tuple[Conversation, ScriptedLLM]:
    """Return a conversation at rest after one answer, and its model."""
    llm = ScriptedLLM(["hello", *answers])
    conversation = Conversation(Agent(llm, **options))
    conversation.send_message("hi")
    conversation.run()
    return conversation, llm


def test_at_rest_the_request_is_the_next_one_with_the_question_at_its_end() -> None:
    conversation, llm = conversation_at_rest("I greeted you.", "bye")
    with conversation:
        answer = conversation.ask("What did you do?")
        assert (answer.text, answer.model) == ("I greeted you.", "scripted")
        assert answer.usage.output_tokens > 0
        question, reply = conversation.get_history()[-2:]
        assert isinstance(question, ev.AsideAsked)
        assert isinstance(reply, ev.AsideAnswered)
        assert (question.question, question.aside, reply.aside) == (
            "What did you do?",
            *(answer.id,) * 2,
        )
        assert (question.head, question.based_on) == (3, 5)
        assert conversation.status is S.FINISHED
        conversation.send_message("go")
        assert conversation.run().answer == "bye"
        aside, after = messages(llm, 1), messages(llm, 2)
        assert aside[:-1] == after[:-1]  # the cached prefix holds; the question is gone
        assert aside[-1]["content"].endswith("What did you do?")
        assert after[-1]["content"] == "go"
        heads = [msgspec.json.decode(one.body) for one in llm.requests]
        assert [one.get("tools") for one in heads] == [heads[0].get("tools")] * 3
        compared = conversation.replay(conversation.agent)
        assert (compared.same, compared.hashed) == (True, 2)


def test_during_a_call_the_request_ends_before_its_answer_and_the_question_names_it() -> None:
    gate = Gate()

    def look() -> str:
        """Looks."""
        return "it is there"

    llm = ScriptedLLM([("look", {}), ("work", {"what": "B"}), "I do B.", "done"])
    with Conversation(Agent(llm, [look, gate.work])) as conversation:
        conversation.send_message("Look, then do B.")
        conversation.start_thread()
        assert gate.entered.wait(30)
        assert conversation.ask("What are you doing?").text == "I do B."
        assert conversation.status is S.RUNNING
        gate.open.set()
        conversation.wait(30)
        assert conversation.state.answer == "done"
        request = messages(llm, 2)
        assert [one["role"] for one in request] == ["system", "user", "assistant", "tool", "user"]
        assert 'work {"what":"B"}' in request[-1]["content"]
        assert request[:-1] == messages(llm, 3)[:4]
        assert conversation.replay().same


def test_a_model_that_calls_a_tool_is_asked_once_more_and_nothing_is_run() -> None:
    ran: list[str] = []

    def work(what: str) -> str:
        """Works."""
        ran.append(what)
        return what

    conversation, llm = conversation_at_rest(("work", {"what": "X"}), "Nothing.", tools=[work])
    with conversation:
        before = conversation.state.usage
        assert conversation.ask("What now?").text == "Nothing."
        [outcome] = outcomes(conversation.get_history())
        assert (outcome.ignored, ran) == (("work",), [])
        assert messages(llm, 2)[-1]["content"].startswith("Not run")
        assert conversation.state.usage == before + outcome.usage
        assert not conversation.state.pending_confirmations


def test_a_model_that_only_calls_tools_gives_no_answer() -> None:
    calls = ToolCall("", "work", {"what": "X"})
    conversation, _ = conversation_at_rest(calls, calls, "later")
    with conversation:
        with pytest.raises(BadResponse, match="called tools"):
            conversation.ask("What now?")
        [outcome] = outcomes(conversation.get_history())
        assert (outcome.error, outcome.ignored) == ("BadResponse", ("work", "work"))
        assert outcome.usage.input_tokens > 0
        conversation.send_message("go")
        assert conversation.run().answer == "later"


def test_an_error_of_the_model_is_raised_and_the_conversation_goes_on() -> None:
    def fail(_: Any) -> Completion:
        raise ServerError("The provider is down.", status=500)

    conversation, _ = conversation_at_rest(fail, "later")
    with conversation:
        with pytest.raises(ServerError, match="down"):
            conversation.ask("Well?")
        assert conversation.status is S.FINISHED
        conversation.send_message("go")
        assert conversation.run().answer == "later"


def test_what_cannot_be_asked_is_refused_before_anything_is_journaled() -> None:
    with Conversation(Agent(ScriptedLLM(["x"]))) as conversation:
        with pytest.raises(ConfigurationError, match="empty"):
            conversation.ask(" ")
        with pytest.raises(ConfigurationError, match="question"):
            conversation.ask(7)  # pyright: ignore[reportArgumentType]: a caller's mistake
        with pytest.raises(Conflict, match="not asked anything yet"):
            conversation.ask("Well?")
        assert not conversation.get_history()


def test_eight_questions_are_answered_at_once_and_no_more() -> None:
    waits = threading.Event()

    def late(_: Any) -> Completion:
        assert waits.wait(30)
        return Completion("ok")

    conversation, _ = conversation_at_rest(*[late] * 9)
    with conversation:
        replies: list[str] = []
        threads = [
            threading.Thread(target=lambda: replies.append(conversation.ask("Well?").text))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(fold(conversation.get_history()).asides.pending) == 8)
        with pytest.raises(Conflict, match="8 are being answered"):
            conversation.ask("One more?")
        waits.set()
        for thread in threads:
            thread.join(30)
        assert replies == ["ok"] * 8
        assert conversation.ask("One more?").text == "ok"


def test_a_timeout_cancels_the_question() -> None:
    llm = Waiting(["hello"])
    with Conversation(Agent(llm)) as conversation:
        conversation.send_message("hi")
        conversation.run()
        llm.waits = True
        with pytest.raises(ConversationBusy, match=r"within 0\.05 s"):
            conversation.ask("Well?", timeout=0.05)
        [outcome] = until(lambda: outcomes(conversation.get_history()))
        assert outcome.error == "Cancelled"


class Waiting(ScriptedLLM):
    """A model that blocks each call while `waits` is true, until the call is cancelled."""

    waits = False

    def completion(self, *arguments: Any, cancelled: Any = None, **more: Any) -> Completion:
        if self.waits:
            assert cancelled.wait(30)
            raise Cancelled("cancelled")
        return super().completion(*arguments, cancelled=cancelled, **more)


def test_close_ends_a_question_and_says_so() -> None:
    llm, store = Waiting(["hello"]), MemoryStore()
    conversation = Conversation(Agent(llm), store, id="c")
    conversation.send_message("hi")
    conversation.run()
    llm.waits = True
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            conversation.ask("Well?")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: fold(store.read("c")).asides.pending)
    conversation.close()
    thread.join(30)
    assert [type(one) for one in raised] == [ConversationClosed]
    [outcome] = outcomes(store.read("c"))
    assert outcome.error == "ConversationClosed"
    assert "closed before" in outcome.failed
    assert not [one for one in threading.enumerate() if one.name.startswith("holdfast-aside")]


def test_the_cost_counts_in_the_totals_and_in_the_limits_of_a_run() -> None:
    gate, store = Gate(), MemoryStore()

    def priced(text: str, cost: float) -> Callable[[Any], Completion]:
        return lambda _: Completion(text, usage=Usage(10, 5), cost=cost, model="m")

    llm = ScriptedLLM([("work", {"what": "A"}), priced("one", 0.5), "never"])
    agent = Agent(llm, [gate.work], limits=Limits(tokens=400))
    with Conversation(agent, store) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert gate.entered.wait(30)
        before = conversation.state.cost or 0.0
        assert conversation.ask("Well?").cost == 0.5
        assert (conversation.state.cost or 0.0) - before == 0.5
        assert totals(store, conversation.id).own.cost == conversation.state.cost
        gate.open.set()
        conversation.wait(30)


def test_no_question_is_asked_beyond_the_limits_of_a_run() -> None:
    gate = Gate()
    llm = ScriptedLLM([("work", {"what": "A"}), "one", "two"])
    with Conversation(Agent(llm, [gate.work], limits=Limits(tokens=1))) as conversation:
        conversation.send_message("go")
        conversation.start_thread()
        assert gate.entered.wait(30)
        with pytest.raises(LimitExceeded, match="tokens"):
            conversation.ask("Well?")
        assert len(llm.requests) == 1
        gate.open.set()
        conversation.wait(30)


class Bounded(ScriptedLLM):
    """A model with a known maximum length of answers."""

    def parameters(self) -> dict[str, Any]:
        return {"max_output_tokens": 50}


def test_a_question_reserves_from_the_budget_of_the_tree_also_before_the_first_run(
    tmp_path: Path,
) -> None:
    def agent(answer: str, tokens: int) -> Agent:
        return Agent(Bounded([answer]), tree_limits=Limits(tokens=tokens))

    with SQLiteStore(tmp_path / "s.db") as store:
        with Conversation(agent("hello", 100_000), store, id="c") as conversation:
            conversation.send_message("hi")
            conversation.run()
            usage = conversation.state.usage
        used = usage.input_tokens + usage.output_tokens
        with (
            Conversation(agent("never", used + 100), store, id="c") as conversation,
            pytest.raises(LimitExceeded, match="tree"),
        ):
            conversation.ask("Well?")
        with Conversation(agent("aside", 2 * used + 300), store, id="c") as conversation:
            answer = conversation.ask("Well?")
            questions = [e for e in conversation.get_history() if isinstance(e, ev.AsideAsked)]
            took = answer.usage.input_tokens + answer.usage.output_tokens
            assert questions[-1].reserved_tokens >= took
            # its reservation is settled; there is no budget for a second one
            with pytest.raises(LimitExceeded) as raised:
                conversation.ask("Well?")
            assert str(used + took) in str(raised.value).replace(",", "")


def test_secrets_are_masked_in_the_question_and_the_answer() -> None:
    llm = ScriptedLLM(["hello", "It is hunter2hunter2."])
    with Conversation(Agent(llm), secrets={"KEY": "hunter2hunter2"}) as conversation:
        conversation.send_message("hi")
        conversation.run()
        answer = conversation.ask("Is it hunter2hunter2?")
        assert "hunter2hunter2" not in answer.text
        data = b"".join(event.to_json() for event in conversation.get_history())
        assert b"hunter2hunter2" not in data
        assert b"hunter2hunter2" not in llm.requests[1].body


def test_another_process_asks_through_the_inbox(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    agent = Agent(ScriptedLLM(["hello", "aside"]))
    with (
        SQLiteStore(path) as mine,
        SQLiteStore(path) as theirs,
        Conversation(agent, mine, id="c") as conversation,
        Conversation(Agent(ScriptedLLM([])), theirs, id="c") as other,
    ):
        conversation.send_message("hi")
        conversation.run()
        assert other.ask("Well?", timeout=30).text == "aside"
        assert not other.hosting.has_lease


def test_a_refused_question_of_another_process_is_raised_there(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with (
        SQLiteStore(path) as mine,
        SQLiteStore(path) as theirs,
        Conversation(Agent(ScriptedLLM([])), mine, id="c") as conversation,
        Conversation(Agent(ScriptedLLM([])), theirs, id="c") as other,
    ):
        conversation.send_message("hi")
        with pytest.raises(Conflict, match="not asked anything yet"):
            other.ask("Well?", timeout=30)


def test_whoever_asks_takes_over_when_the_owner_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with SQLiteStore(path) as mine, SQLiteStore(path) as theirs:
        with Conversation(Agent(ScriptedLLM(["hello"])), mine, id="c") as first:
            first.send_message("hi")
            first.run()
        posted = threading.Event()
        lease = mine.acquire("c", posted.set)  # an owner that never reads its inbox
        replies: list[str] = []
        with Conversation(Agent(ScriptedLLM(["from here"])), theirs, id="c") as other:
            thread = threading.Thread(target=lambda: replies.append(other.ask("Well?").text))
            thread.start()
            assert posted.wait(30)
            mine.release(lease)
            thread.join(30)
        assert replies == ["from here"]


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore

    def die(_):
        os.kill(os.getpid(), signal.SIGKILL)

    llm = ScriptedLLM(["hello", die])
    with SQLiteStore(sys.argv[1]) as store, Conversation(Agent(llm), store, id="c") as conversation:
        conversation.send_message("hi")
        conversation.run()
        conversation.ask("Well?")
    """
)


@pytest.mark.slow
def test_after_kill_9_in_a_question_its_outcome_is_unknown_and_the_conversation_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    ended = forks.run([sys.executable, "-c", KILLED, str(path)], timeout=60)
    assert ended.returncode == -9
    with SQLiteStore(path) as store:
        assert fold(store.read("c")).asides.pending
        with Conversation(Agent(ScriptedLLM(["again"])), store, id="c") as conversation:
            conversation.send_message("go")
            assert conversation.run().answer == "again"
            [outcome] = outcomes(conversation.get_history())
            assert outcome.error == "ConversationClosed"
            assert "process that asked ended" in outcome.failed
            assert outcome.cost is None
            assert conversation.replay().same
    report = check(path)
    assert report.sound, report


def test_a_fork_and_a_copy_settle_a_question_that_is_still_open_there() -> None:
    llm, store = Waiting(["hello", "fork", "copy"]), MemoryStore()
    with Conversation(Agent(llm), store, id="c") as conversation:
        conversation.send_message("hi")
        conversation.run()
        llm.waits = True
        thread = threading.Thread(target=lambda: _quietly(conversation))
        thread.start()
        until(lambda: fold(store.read("c")).asides.pending)
        state = ConversationState.from_json(conversation.state.to_json())
        copy = Conversation.from_state(state, Agent(ScriptedLLM(["copy"])))
        for other in (conversation.fork(agent=Agent(ScriptedLLM(["fork"]))), copy):
            with other:
                [outcome] = outcomes(other.get_history())
                assert "continued from" in outcome.failed
                other.send_message("go")
                assert other.run().answer in ("fork", "copy")
    thread.join(30)


def _quietly(conversation: Conversation) -> None:
    try:
        conversation.ask("Well?")
    except (ConversationClosed, LLMError):
        pass


def test_a_condensed_conversation_forgets_no_open_question() -> None:
    llm, store = Waiting(["hello"]), MemoryStore()
    with Conversation(Agent(llm), store, id="c") as conversation:
        conversation.send_message("hi")
        conversation.run()
        llm.waits = True
        thread = threading.Thread(target=lambda: _quietly(conversation))
        thread.start()
        before = until(lambda: fold(store.read("c")).asides.pending)
        whole = fold(store.read("c"))
        after = type(whole).after(whole.checkpoint(), lambda seq: store.read("c", seq - 1, 1)[0])
        assert after.asides.pending == before
    thread.join(30)


def test_check_finds_an_outcome_without_a_question(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    agent = Agent(ScriptedLLM(["hello"]))
    with SQLiteStore(path) as store, Conversation(agent, store, id="c") as conversation:
        conversation.send_message("hi")
        conversation.run()
        with conversation.hosting.journal as journal:
            journal.add(ev.AsideAnswered, aside="x", text="?")
    report = check(path)
    assert "unknown question aside 'x'" in str(report.findings)


def test_a_tool_of_the_conversation_may_ask_aside() -> None:
    replies: list[str] = []

    def look(context: ToolContext) -> str:
        """Looks."""
        replies.append(conversation.ask("What next?").text)
        return replies[-1]

    llm = ScriptedLLM([("look", {}), "Rest.", "done"])
    with Conversation(Agent(llm, [look])) as conversation:
        conversation.send_message("go")
        assert conversation.run().answer == "done"
        assert replies == ["Rest."]


def test_a_command_with_a_key_asks_once() -> None:
    conversation, llm = conversation_at_rest("aside", "never")
    with conversation:
        conversation.execute(cmd.Ask("Well?", "a1"), "k")
        until(lambda: outcomes(conversation.get_history()))
        conversation.execute(cmd.Ask("Well?", "a1"), "k")
        assert len(outcomes(conversation.get_history())) == 1
        assert len(llm.requests) == 2


class _Exits(ScriptedLLM):
    """A model that raises `SystemExit` on its thread when it gets a question aside."""

    exits = False

    def completion(self, *arguments: Any, **more: Any) -> Completion:
        if self.exits:
            raise SystemExit("no key")
        return super().completion(*arguments, **more)


def test_a_model_that_exits_has_its_question_answered_with_the_failure() -> None:
    llm = _Exits(["done"])
    with Conversation(Agent(llm)) as conversation:
        conversation.send_message("go")
        conversation.run()
        llm.exits = True
        with pytest.raises(HoldfastError, match="no key"):
            conversation.ask("how?", timeout=5)
        last = conversation.get_history()[-1]
        assert isinstance(last, ev.AsideAnswered)
        assert last.failed == "no key"
