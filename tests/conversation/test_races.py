"""Invariants of a conversation for any timing of its threads: races, failing stores, Ctrl-C at
any line, lost leases."""

from __future__ import annotations

import gc
import pickle
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

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
    Tool,
    ToolAnnotations,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.view import View
from holdfast.content import Usage
from holdfast.conversation import journal_lock as changed_module
from holdfast.conversation.journal_lock import JournalLock
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    Fenced,
    HoldfastError,
    StoreError,
)
from holdfast.llm.completion import Completion
from holdfast.llm.request import Prompt, RequestTarget, make_request
from holdfast.llm.scripted import ScriptedRequest
from holdfast.llm.wires import openai_chat
from tests.samples import one_in
from tests.waiting import until

S = ConversationStatus
LONG = 20.0  # seconds after which something hangs


# --- invariants of every journal ---


def check_journal(events: Sequence[ev.AnyEvent]) -> None:
    """Check a journal: it is dense. A start and a result belong to a call of an earlier answer.
    A call has one result, and its attempts are in order. Only a refused call has a result
    without a start. Nothing of a call follows its result."""
    attempts: dict[str, int] = {}
    finished: set[str] = set()
    for expected, event in enumerate(events, 1):
        assert event.seq == expected
        if isinstance(event, ev.AssistantReplied):
            assert set(attempts) == finished, "an answer while calls are open"
            assert event.based_on < event.seq
            for index, call in enumerate(event.calls):
                assert call.id == f"{event.seq}.{index}"
                attempts[call.id] = 0
        elif isinstance(event, ev.ToolCallStarted):
            assert event.call_id not in finished
            assert event.attempt == attempts[event.call_id] + 1
            attempts[event.call_id] = event.attempt
        elif isinstance(event, ev.ToolCallFinished):
            assert event.call_id in attempts
            assert event.call_id not in finished
            assert attempts[event.call_id] or (
                event.result.error and event.result.error.type == "cancelled"
            )
            finished.add(event.call_id)


def check_replay(events: Sequence[ev.AnyEvent], requests: Sequence[ScriptedRequest]) -> int:
    """Check that each answered request is, byte for byte, the view of the journal up to
    `based_on`. Answers begin with their request's number. Return the number of compared
    requests."""
    compared = 0
    for event in events:
        if isinstance(event, ev.AssistantReplied) and event.text.startswith("#"):
            request = requests[int(event.text[1:].split()[0])]
            before = events[: event.based_on]
            head = next(
                event for event in reversed(before) if isinstance(event, ev.AgentConfigured)
            )
            expected = make_request(
                RequestTarget(openai_chat, event.model, head.parameters),
                Prompt(View.of(before).ready(), head=head),
            )
            assert expected.body == request.body
            compared += 1
    return compared


def in_time(work: Callable[[], object], seconds: float = LONG) -> Any:
    """Return `work()`, run on a thread of its own; fail if it hangs."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


# --- many threads, any order ---


class World:
    """A model and tools that act at random, and a count of each attempt that really ran."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ran: Counter[tuple[str, int]] = Counter()
        self.lock = threading.Lock()
        self.conversation: Conversation | None = None
        self.quiet = False
        tools = [
            Tool("quick", "", self.quick),
            Tool("slow", "", self.slow),
            Tool("deaf", "", self.deaf),
            Tool("fails", "", self.fails),
            Tool("timed", "", self.slow, timeout=0.5),
            Tool("late", "", self.deaf, timeout=0.001),
            Tool("meddles", "", self.meddles),
            Tool("safe", "", self.fails, annotations=ToolAnnotations(idempotent=True)),
        ]
        self.names = [tool.name for tool in tools]
        self.model = ScriptedLLM(self.answer, stream=True)
        self.agent = Agent(self.model, tools, limits=Limits(steps=400), parallel_calls=3)

    def note(self, context: ToolContext) -> None:
        with self.lock:
            self.ran[context.call_id, context.attempt] += 1

    def quick(self, context: ToolContext) -> str:
        self.note(context)
        return "quick"

    def slow(self, context: ToolContext) -> str:
        self.note(context)
        context.sleep(0.003)
        return "slow"

    def deaf(self, context: ToolContext) -> str:
        self.note(context)
        time.sleep(0.003)
        return "deaf"

    def fails(self, context: ToolContext) -> str:
        self.note(context)
        raise RuntimeError("no")

    def meddles(self, context: ToolContext) -> str:
        self.note(context)
        assert self.conversation is not None
        if not self.quiet:
            self.anything(self.conversation)
        return "meddled"

    def answer(self, request: ScriptedRequest) -> Any:
        with self.lock:
            kind = self.chance.random()
            if kind < 0.15 and not self.quiet:
                raise RuntimeError("the model fails")
            if kind < 0.2:
                return ""
            if kind < 0.6 and not (self.quiet and kind < 0.5):
                calls = [
                    (self.chance.choice(self.names), {}) for _ in range(self.chance.randint(1, 5))
                ]
                return [f"#{request.number} ", *calls]
        return f"#{request.number} done"

    def anything(self, conversation: Conversation) -> None:
        with self.lock:
            what = self.chance.choice(
                [
                    "send",
                    "send",
                    "pause",
                    "resume",
                    "resume",
                    "interrupt",
                    "state",
                    "status",
                    "tools",
                ]
            )
            text = f"message {self.chance.random()}"
        match what:
            case "send":
                conversation.send_message(text)
            case "state":
                check_journal(conversation.state.events)
            case "status":
                assert conversation.status in S
            case "tools":
                self.agent.tools.register(Tool(f"extra_{text[-6:]}", "", lambda: None))
            case name:
                getattr(conversation, name)()


def stir(
    world: World, conversation: Conversation, threads: int, operations: int, run: bool
) -> list[BaseException]:
    """Let threads perform random operations on one conversation."""
    troubles: list[BaseException] = []
    again = random.Random(world.chance.random())
    waits = [again.random() * 0.004 for _ in range(threads * operations)]

    def work(number: int) -> None:
        for turn in range(operations):
            try:
                if run and turn % 3 == number % 3:
                    conversation.run()
                else:
                    world.anything(conversation)
                if turn % 5 == number:
                    conversation.wait(0.002)
            except ConversationBusy:
                pass
            except HoldfastError as error:
                if not isinstance(error, ConversationClosed | ConfigurationError):
                    troubles.append(error)
            except BaseException as error:
                troubles.append(error)
            time.sleep(waits[number * operations + turn])

    workers = [
        threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LONG)
        assert not worker.is_alive(), "an operation hangs"
    return troubles


def settle(world: World, conversation: Conversation, started: bool) -> None:
    """Continue the conversation until it has finished."""
    world.quiet = True
    for _ in range(60):
        if started:
            conversation.resume()
            status = conversation.wait(LONG)
        else:
            status = in_time(conversation.run).status
        assert status is not S.RUNNING, "it rests, and is said to run"
        if status in (S.FINISHED, S.IDLE):
            break
    else:
        raise AssertionError(f"it does not finish: {conversation.state.events[-3:]}")
    assert not conversation.state.pending_calls


@pytest.fixture
def eager() -> Iterator[None]:
    """Let threads switch a thousand times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


SEEDS = [*range(14), *[pytest.param(seed, marks=pytest.mark.proof) for seed in range(14, 120)]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_many_threads_do_the_journal_holds_and_the_run_can_be_finished(
    seed: int, tmp_path: Path, eager: None
) -> None:
    world = World(seed)
    started = seed % 3 != 0
    store = MemoryStore() if seed % 2 else SQLiteStore(tmp_path / "s.db", durability="process")
    seqs: list[int] = []
    with store:
        conversation = world.conversation = Conversation(world.agent, store, "c")
        with conversation:
            conversation.register_callback(lambda event: seqs.append(event.seq))
            if started:
                conversation.start_thread()
            assert stir(world, conversation, 4, 15, run=not started) == []
            settle(world, conversation, started)
            events = conversation.get_history()
        assert store.read("c") == events
        assert seqs == list(range(1, len(events) + 1))
        summary = store.list()[0]
        assert (summary.last_seq, summary.status) == (
            len(events),
            ConversationState("c", events).status,
        )
    check_journal(events)
    check_replay(events, world.model.requests)
    assert max(world.ran.values(), default=1) == 1, "an attempt ran twice"
    starts = {
        (event.call_id, event.attempt) for event in events if isinstance(event, ev.ToolCallStarted)
    }
    assert set(world.ran) <= starts, "a call ran that was not journaled first"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_close_at_any_moment_leaves_a_journal_that_goes_on(seed: int, eager: None) -> None:
    world = World(1000 + seed)
    with MemoryStore() as store:
        for life in range(4):
            conversation = world.conversation = Conversation(world.agent, store, "c")
            conversation.start_thread()
            conversation.send_message(f"life {life}")
            closer = threading.Timer(
                world.chance.random() * 0.02,
                conversation.close,
                [world.chance.choice([0, 0.002, 5])],
            )
            closer.start()
            troubles = stir(world, conversation, 2, 6, run=False)
            closer.join(LONG)
            conversation.close()
            assert troubles == []
            assert conversation.wait(30) is S.CLOSED
            check_journal(store.read("c"))
        with Conversation(world.agent, store, "c") as conversation:
            world.conversation = conversation
            conversation.start_thread()
            settle(world, conversation, True)
        check_journal(store.read("c"))
        check_replay(store.read("c"), world.model.requests)
    assert max(world.ran.values(), default=1) == 1


def test_a_message_that_meets_the_end_of_a_run_in_another_thread_is_answered_or_not_said_to_run(
    eager: None,
) -> None:
    model = ScriptedLLM(lambda request: "ok")
    with Conversation(Agent(model)) as conversation:
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                conversation.send_message("hi")
                time.sleep(0.0002)

        conversation.send_message("the first")  # without it, a run would end IDLE
        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(400):
                assert conversation.run().status in (S.FINISHED, S.RUNNING)
                with conversation.hosting.journal.lock:
                    assert not (
                        conversation.hosting._loop.thread is None
                        and conversation.status is S.RUNNING
                    )
        finally:
            stop.set()
            sender.join()
        conversation.run()


def test_a_poller_never_sees_a_started_conversation_rest_before_its_message_is_answered(
    eager: None,
) -> None:
    model = ScriptedLLM(lambda request: ("t", {}) if len(request.messages) % 4 == 2 else "ok")
    with Conversation(Agent(model, [Tool("t", "", lambda: None)])) as conversation:
        conversation.start_thread()
        for turn in range(1, 60):
            conversation.send_message(f"message {turn}")
            while (state := conversation.state).status is S.RUNNING:
                pass
            assert state.status is S.FINISHED
            assert sum(isinstance(event, ev.MessageAdded) for event in state.events) == turn
            last = next(
                event
                for event in reversed(state.events)
                if isinstance(event, ev.AssistantReplied | ev.MessageAdded)
            )
            assert isinstance(last, ev.AssistantReplied)
            assert not last.calls


def test_two_threads_that_run_one_conversation_do_not_both_drive_it() -> None:
    model = ScriptedLLM(lambda request: "ok", delay=0.05)
    with Conversation(Agent(model)) as conversation:
        conversation.send_message("go")
        outcomes: list[object] = []

        def run() -> None:
            try:
                outcomes.append(conversation.run().status)
            except ConversationBusy:
                outcomes.append(ConversationBusy)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert sorted(map(str, outcomes)) == sorted(map(str, [S.FINISHED, ConversationBusy]))
        assert len(model.requests) == 1


# --- Changed ---


def test_changed_wakes_all_that_wait_and_loses_no_wakeup(eager: None) -> None:
    lock = JournalLock()
    count = [0]
    numbers: list[int] = []

    def consume() -> None:
        mine = 0
        while mine < 300:
            with lock:
                while count[0] <= mine:
                    lock.wait()
                mine = count[0]
        numbers.append(mine)

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        with lock:
            count[0] += 1
            lock.notify_all()
    for thread in threads:
        thread.join(LONG)
    assert numbers == [300] * 5


def test_changed_gives_up_after_its_timeout_and_forgets_the_waiter() -> None:
    lock = JournalLock()
    with lock:
        for timeout in (0.005, 0, -1):
            lock.wait(timeout)
            assert lock.is_held()
        assert not lock._waiting
    assert not lock.is_held()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_changed_takes_endless_timeouts() -> None:
    with Conversation(Agent(ScriptedLLM(["ok"]))) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert conversation.wait(float("inf")) is S.FINISHED
        conversation.close(float("inf"))


@contextmanager
def breaking_in(
    code_of: Callable[[FrameType], bool], line: int, error: type[BaseException]
) -> Iterator[list[str]]:
    """Raise `error` when this thread is about to execute the `line`-th line of the code that
    `code_of` accepts. Yield the place of that line."""
    where: list[str] = []
    remaining = [line]

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            remaining[0] -= 1
            if remaining[0] == 0:
                where.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                sys.settrace(None)
                raise error
        return local

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        return local if event == "call" and not where and code_of(frame) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_line_of_a_wait_leaves_the_lock_as_it_was() -> None:
    for line in range(1, 100):
        lock = JournalLock()
        with breaking_in(
            lambda frame: frame.f_code.co_filename == changed_module.__file__,
            line,
            KeyboardInterrupt,
        ) as where:
            try:
                with lock:
                    lock.wait(0.001)
            except (
                KeyboardInterrupt,
                RuntimeError,
            ):  # the end of a wait is the one line that takes the lock again
                pass
        in_time(lambda lock=lock: lock.acquire() and lock.release())
        if not where:
            return
    raise AssertionError("it never came to its end")


# --- Ctrl-C at any line of a run ---


def is_our_code(frame: FrameType) -> bool:
    parts = Path(frame.f_code.co_filename).parts
    return "conversation" in parts or Path(frame.f_code.co_filename).name in ("view.py", "agent.py")


def run_with_ctrl_c(line: int) -> tuple[bool, str]:
    """Run two messages with Ctrl-C at a line; the run must continue after it. Return whether the
    line was reached, and a description of the fault, if any."""
    ran: Counter[tuple[str, int]] = Counter()

    def effect(context: ToolContext) -> str:
        ran[context.call_id, context.attempt] += 1
        return "done"

    def answer(request: ScriptedRequest) -> Any:
        message = request.messages[-1]
        if message["role"] == "user" and message["content"] != "last":
            return (
                [f"#{request.number} ", ("effect", {}), ("effect", {})]
                if "two" in message["content"]
                else [f"#{request.number} ", ("effect", {})]
            )
        return f"#{request.number} done"

    model = ScriptedLLM(answer)
    store = MemoryStore()
    conversation = Conversation(
        Agent(model, [Tool("effect", "", effect)], parallel_calls=1), store, "c"
    )
    conversation.send_message("one")  # takes the lease
    where: list[str] = []
    try:
        with breaking_in(is_our_code, line, KeyboardInterrupt) as where:
            conversation.run()
            conversation.send_message("two")
            conversation.run()
    except KeyboardInterrupt:
        pass
    place = where[0] if where else ""
    # The next thread can take the lock, and the memory equals the store.
    if conversation.hosting.journal.lock.is_held():
        return True, f"{place} keeps the lock"
    in_time(lambda: conversation.send_message("last"))
    state = in_time(conversation.run)
    assert state.status is S.FINISHED, place
    assert list(state.events) == store.read("c"), place
    in_time(conversation.close)
    check_journal(state.events)
    check_replay(state.events, model.requests)
    assert max(ran.values(), default=1) == 1, place
    assert conversation.agent.connections.open == 0, place
    return bool(where), ""


@pytest.mark.slow
@pytest.mark.parametrize("stride", [11, pytest.param(one_in(1, 7), marks=pytest.mark.proof)])
def test_ctrl_c_at_any_line_leaves_what_is_in_the_store(stride: int) -> None:
    troubles: list[str] = []
    line, reached = 1, True
    while reached:
        reached, trouble = run_with_ctrl_c(line)
        if trouble:
            troubles.append(trouble)
        line += stride
    assert line > 300
    # None within `run`. In other methods a fault is possible where tracing breaks in between a
    # block's end and its `__exit__`, where Python checks for no signal, and in the few instructions
    # of `with journal` around the lock.
    assert len(troubles) <= line // 100


class Parallel:
    """A tool for two parallel calls: the one on the main thread gets Ctrl-C, the other one runs
    `other`."""

    def __init__(self, other: Callable[[ToolContext], object]) -> None:
        self.entered = threading.Event()
        self.other = other
        self.ran = 0
        self.tool = Tool("t", "", self.work, parallel=True)

    def work(self, context: ToolContext) -> None:
        if threading.current_thread() is threading.main_thread():
            assert self.entered.wait(30)
            raise KeyboardInterrupt
        self.ran += 1
        self.entered.set()
        self.other(context)


def test_ctrl_c_during_a_parallel_batch_does_not_wait_for_the_others_to_end_by_themselves() -> None:
    parallel = Parallel(lambda context: context.sleep(30))
    with Conversation(
        Agent(ScriptedLLM([[("t", {}), ("t", {})], "done"]), [parallel.tool])
    ) as conversation:
        conversation.send_message("go")
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            conversation.run()
        assert time.monotonic() - began < 20
        assert conversation.status is S.PAUSED
        assert conversation.run().status is S.FINISHED
        check_journal(conversation.get_history())
    assert parallel.ran == 1


@pytest.mark.slow
def test_a_call_that_ctrl_c_left_behind_gets_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C comes while the run waits for a call that ignores the first. The call is
    settled without its result, which comes too late."""
    release = threading.Event()
    parallel = Parallel(lambda context: release.wait(10))
    join = threading.Thread.join

    def impatient(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("holdfast-call") and timeout is None:
            raise KeyboardInterrupt
        join(thread, timeout)

    with Conversation(
        Agent(ScriptedLLM([[("t", {}), ("t", {})], "done"]), [parallel.tool])
    ) as conversation:
        conversation.send_message("go")
        monkeypatch.setattr(threading.Thread, "join", impatient)
        with pytest.raises(KeyboardInterrupt):
            conversation.run()
        monkeypatch.undo()
        assert conversation.run().status is S.FINISHED
        release.set()
        until(lambda: not conversation._hosting._calls._threads)
        check_journal(conversation.get_history())


def test_an_append_that_a_signal_handler_breaks_into_is_not_lost() -> None:
    conversation: Conversation
    calls: list[object] = []

    def new_id() -> str:  # stands for a handler that runs in the middle of an append
        if len(calls) == 0:
            calls.append(None)
            with pytest.raises(ConversationBusy, match="signal handler"):
                conversation.pause()
        return "id"

    conversation = Conversation(Agent(ScriptedLLM([])), id="c", new_id=new_id)
    with conversation:
        conversation.send_message("hello")
        assert [event.type for event in conversation.get_history()] == ["message"]


# --- statuses: every row of the table in docs/architecture.md ---


class Gated:
    """A model whose next answer waits for the gate and is then taken from `answers`."""

    def __init__(self, answers: Sequence[Any] = ()) -> None:
        self.gate, self.in_model_call = threading.Event(), threading.Event()
        self.answers = iter(answers)

    def __call__(self, request: ScriptedRequest) -> Any:
        self.in_model_call.set()
        assert self.gate.wait(LONG)
        return next(self.answers, "ok")


def conversation_in(
    status: ConversationStatus, started: bool = False
) -> tuple[Conversation, Gated]:
    """Return a conversation in a status, with a model that waits at its gate when it is called
    again."""
    answers: dict[ConversationStatus, list[Any]] = {
        S.ERROR: [ValueError("bad")],
        S.STUCK: ["", "", ""],
    }
    gated = Gated(answers.get(status, []))
    model = ScriptedLLM(gated)
    conversation = Conversation(Agent(model), MemoryStore(), "c")
    if started:
        conversation.start_thread()
    if status in (S.FINISHED, S.ERROR, S.STUCK):
        gated.gate.set()
        conversation.send_message("go")
        assert (conversation.wait(LONG) if started else conversation.run().status) is status
        gated.gate.clear()
        gated.in_model_call.clear()
    elif status is S.PAUSED:
        conversation.pause()
    elif status is S.RUNNING:
        conversation.start_thread()
        conversation.send_message("go")
        assert gated.in_model_call.wait(LONG)
    assert conversation.status is status
    return conversation, gated


def finish(conversation: Conversation, gated: Gated) -> None:
    gated.gate.set()
    conversation.close()


REST = [S.IDLE, S.FINISHED, S.STUCK, S.ERROR]


@pytest.mark.parametrize("status", REST)
def test_a_message_to_a_started_conversation_at_rest_runs_it_in_the_same_append(
    status: ConversationStatus,
) -> None:
    conversation, gated = conversation_in(status, started=True)
    conversation.send_message("more")
    assert conversation.status is S.RUNNING
    assert [event.type for event in conversation.get_history()[-2:]] == [
        "message",
        "status",
    ] or gated.in_model_call.wait(LONG)
    gated.gate.set()
    assert conversation.wait(LONG) is S.FINISHED
    finish(conversation, gated)


@pytest.mark.parametrize("status", REST)
def test_a_message_to_a_conversation_that_nobody_started_waits_for_start_or_run(
    status: ConversationStatus,
) -> None:
    for how in ("start_thread", "run"):
        conversation, gated = conversation_in(status)
        event = conversation.send_message("more")
        assert conversation.status is status
        assert conversation.get_history()[-1] == event
        if how == "run":
            gated.gate.set()
            assert conversation.run().status is S.FINISHED
        else:
            conversation.start_thread()
            assert conversation.status is S.RUNNING
            gated.gate.set()
            assert conversation.wait(LONG) is S.FINISHED
        finish(conversation, gated)


@pytest.mark.parametrize("status", REST)
def test_start_without_a_message_changes_no_status(status: ConversationStatus) -> None:
    conversation, gated = conversation_in(status)
    before = conversation.get_history()
    conversation.start_thread()
    assert conversation.wait(LONG) is status
    assert conversation.get_history() == before
    finish(conversation, gated)


@pytest.mark.parametrize("status", [S.IDLE, S.FINISHED])
@pytest.mark.parametrize("method", ["resume", "run", "interrupt"])
def test_at_rest_without_a_message_nothing_happens(status: ConversationStatus, method: str) -> None:
    conversation, gated = conversation_in(status)
    before = conversation.get_history()
    getattr(conversation, method)()
    assert conversation.status is status
    assert conversation.get_history() == before
    finish(conversation, gated)


def test_resume_alone_does_not_begin_a_run_that_nobody_drives() -> None:
    conversation, gated = conversation_in(S.IDLE)
    conversation.send_message("hello")
    conversation.resume()
    assert conversation.status is S.IDLE
    finish(conversation, gated)


@pytest.mark.parametrize("status", [S.ERROR, S.STUCK])
@pytest.mark.parametrize("started", [True, False])
def test_resume_and_run_try_again_after(status: ConversationStatus, started: bool) -> None:
    conversation, gated = conversation_in(status, started)
    if started:
        conversation.resume()
        assert conversation.status is S.RUNNING
        gated.gate.set()
        assert conversation.wait(LONG) is S.FINISHED
    else:
        gated.gate.set()
        assert conversation.run().status is S.FINISHED
    assert conversation.state.answer == "ok"
    finish(conversation, gated)


@pytest.mark.parametrize("status", [*REST, S.RUNNING, S.PAUSED])
@pytest.mark.parametrize("how", ["pause", "interrupt"])
def test_pause_from_anywhere_and_interrupt_of_what_runs_lead_to_paused(
    status: ConversationStatus, how: str
) -> None:
    if how == "interrupt" and status in REST:
        return
    conversation, gated = conversation_in(status)
    getattr(conversation, how)()
    assert conversation.status is S.PAUSED
    conversation.send_message("unchanged")
    assert conversation.status is S.PAUSED
    finish(conversation, gated)


@pytest.mark.parametrize(
    ("status", "then"),
    [(S.IDLE, S.IDLE), (S.FINISHED, S.IDLE), (S.ERROR, S.RUNNING), (S.STUCK, S.RUNNING)],
)
def test_resume_after_a_pause_goes_on_if_there_is_something_to_do(
    status: ConversationStatus, then: ConversationStatus
) -> None:
    conversation, gated = conversation_in(status, started=True)
    conversation.pause()
    conversation.resume()
    assert conversation.status is then
    gated.gate.set()
    assert conversation.wait(LONG) is (S.FINISHED if then is S.RUNNING else S.IDLE)
    finish(conversation, gated)


def test_a_message_while_paused_runs_at_resume_also_without_a_thread() -> None:
    conversation, gated = conversation_in(S.IDLE)
    conversation.pause()
    conversation.send_message("go")
    gated.gate.set()
    assert conversation.run().status is S.FINISHED
    finish(conversation, gated)


@pytest.mark.parametrize("status", [*REST, S.RUNNING, S.PAUSED])
def test_close_writes_nothing_and_what_it_cut_off_goes_on(status: ConversationStatus) -> None:
    conversation, gated = conversation_in(status)
    before = conversation.get_history()
    conversation.close(timeout=0)
    assert conversation.status is S.CLOSED
    gated.gate.set()
    assert conversation.store.read("c") == before
    for method in ("pause", "resume", "interrupt", "start_thread", "run"):
        with pytest.raises(ConversationClosed):
            getattr(conversation, method)()
    with Conversation(Agent(ScriptedLLM(["again"])), conversation.store, "c") as second:
        assert second.status is status
        second.start_thread()
        assert second.wait(LONG) is (S.FINISHED if status is S.RUNNING else status)


def test_waiting_for_confirmation_is_not_changed_by_a_message() -> None:
    conversation, gated = conversation_in(S.IDLE)
    with conversation.hosting.journal as journal:
        journal.add(ev.StatusChanged, status=S.WAITING_FOR_CONFIRMATION.value)
    conversation.send_message("go on")
    assert conversation.status is S.WAITING_FOR_CONFIRMATION
    conversation.pause()
    assert conversation.status is S.PAUSED
    finish(conversation, gated)


def test_a_message_between_the_last_answer_and_the_status_is_answered() -> None:
    model = ScriptedLLM(["one", "two"])
    conversation = Conversation(Agent(model))
    stop = conversation._hosting._loop._stop

    def slow_stop(action: Any) -> None:
        if len(model.requests) == 1:
            conversation.send_message("wait, one more")
        stop(action)

    with conversation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(conversation._hosting._loop), "_stop", lambda _, action: slow_stop(action)
        )
        conversation.send_message("go")
        state = conversation.run()
        assert (state.status, state.answer) == (S.FINISHED, "two")
        assert [event.status for event in state.events if isinstance(event, ev.StatusChanged)] == [
            "running",
            "finished",
        ]


def test_limits_count_anew_after_a_limit_also_when_a_pause_comes_in_between() -> None:
    model = ScriptedLLM(lambda request: ("t", {}) if request.number < 3 else "done")
    with Conversation(
        Agent(model, [Tool("t", "", lambda: None)], limits=Limits(steps=2))
    ) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.ERROR
        conversation.pause()
        assert conversation.run().status is S.FINISHED


# --- interrupt ---


def test_a_call_that_was_journaled_but_had_not_begun_does_not_begin_after_an_interrupt() -> None:
    ran: list[str] = []
    conversation = Conversation(
        Agent(ScriptedLLM([("effect", {}), "ok"]), [Tool("effect", "", lambda: ran.append("x"))])
    )
    run_one = conversation._hosting._calls._run_one

    def late(_: object, *arguments: Any) -> bool:
        if conversation.hosting.journal.fold.status is not S.PAUSED:
            conversation.interrupt()
        return run_one(*arguments)

    with conversation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(conversation._hosting._calls), "_run_one", late)
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        assert ran == []
        check_journal(conversation.get_history())
        patch.undo()
        assert conversation.run().status is S.FINISHED
    assert ran == []


def test_calls_of_an_answer_that_outran_its_interrupt_are_not_run_at_resume() -> None:
    ran: list[str] = []
    conversation: Conversation

    def answer(request: ScriptedRequest) -> Any:
        if request.number == 0:
            conversation.interrupt()
            return ("effect", {})
        return "I see"

    conversation = Conversation(
        Agent(ScriptedLLM(answer), [Tool("effect", "", lambda: ran.append("x"))])
    )
    with conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.PAUSED
        assert conversation.run().answer == "I see"
        check_journal(conversation.get_history())
    assert ran == []


def test_a_model_that_says_it_was_cancelled_when_nobody_did_is_an_error_not_a_loop() -> None:
    from holdfast.errors import Cancelled

    model = ScriptedLLM(lambda request: Cancelled("so it says"))
    with Conversation(Agent(model)) as conversation:
        conversation.send_message("go")
        assert in_time(conversation.run).status is S.ERROR
    assert len(model.requests) == 1


# --- calls between threads ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["send", "pause", "interrupt", "close", "state", "wait", "run", "start_thread"]
)
@pytest.mark.parametrize(
    "place", ["tool", "batch", "timed", "on_delta", "on_progress", "callback", "model"]
)
@pytest.mark.parametrize("started", [True, False])
def test_no_method_hangs_wherever_it_is_called(place: str, method: str, started: bool) -> None:
    conversation: Conversation
    called: list[object] = []

    def meddle(*_: object) -> None:
        if called:
            return
        called.append(method)
        try:
            if method == "send":
                conversation.send_message("by the way")
            elif method == "state":
                assert conversation.state.events
            else:
                getattr(conversation, method)()
        except (ConversationBusy, ConversationClosed) as error:
            called.append(type(error))

    def work(context: ToolContext) -> str:
        context.report_progress("on it")
        if place in ("tool", "batch", "timed"):
            meddle()
        return "worked"

    def answer(request: ScriptedRequest) -> Any:
        if place == "model":
            meddle()
        return [("work", {})] * (3 if place == "batch" else 1) if request.number == 0 else "done"

    model = ScriptedLLM(answer, stream=True)
    agent = Agent(model, [Tool("work", "", work, timeout=10 if place == "timed" else None)])
    listeners: dict[str, Any] = {place: meddle} if place in ("on_delta", "on_progress") else {}
    conversation = Conversation(agent, **listeners)
    if place == "callback":
        conversation.register_callback(meddle)

    def drive() -> None:
        conversation.send_message("go")
        try:
            if started:
                conversation.start_thread()
                conversation.wait()
            else:
                conversation.run()
            if conversation.status is S.PAUSED:
                conversation.resume()
                if not started:
                    conversation.run()
                conversation.wait()
        except (ConversationClosed, ConversationBusy):
            pass  # the callback's thread closed first

    in_time(drive)
    in_time(conversation.close)
    assert called
    if method in ("wait", "run") and place != "callback":
        assert called[1:] == [ConversationBusy]
    until(lambda: conversation.hosting.journal.closed)
    check_journal(conversation.get_history())
    check_replay(conversation.get_history(), model.requests)


def test_a_tool_that_closes_and_a_caller_that_closes_leave_nothing_open(tmp_path: Path) -> None:
    """The caller's `close` comes second and returns only when everything is released: the caller
    closes its store right after."""
    entered = threading.Event()
    conversation: Conversation

    def leave() -> str:
        conversation.close()
        entered.set()
        time.sleep(0.1)
        return "bye"

    with SQLiteStore(tmp_path / "s.db") as store:
        conversation = Conversation(
            Agent(ScriptedLLM([("leave", {})]), [Tool("leave", "", leave)]), store, "c"
        )
        with conversation:
            conversation.start_thread()
            conversation.send_message("go")
            assert entered.wait(30)
        assert conversation.hosting.journal.closed
        assert isinstance(store.read("c")[-1], ev.ToolCallFinished)


@pytest.mark.slow
def test_a_call_left_behind_may_close_a_conversation_that_nobody_drives() -> None:
    conversation: Conversation
    release = threading.Event()

    def late() -> None:
        release.wait(10)
        conversation.close()

    agent = Agent(ScriptedLLM([("late", {}), "gave up"]), [Tool("late", "", late, timeout=0.01)])
    conversation = Conversation(agent)
    conversation.send_message("go")
    assert conversation.run().status is S.FINISHED
    release.set()
    until(lambda: conversation.hosting.journal.closed)


def test_what_a_call_left_behind_asks_to_have_cleaned_up_is_cleaned_up() -> None:
    cleaned, release, entered = threading.Event(), threading.Event(), threading.Event()

    def stubborn(context: ToolContext) -> None:
        entered.set()
        release.wait(10)
        context.on_close("shell", cleaned.set)

    conversation = Conversation(
        Agent(ScriptedLLM([("stubborn", {})]), [Tool("stubborn", "", stubborn)])
    )
    conversation.start_thread()
    conversation.send_message("go")
    assert entered.wait(30)
    conversation.close(timeout=0)
    release.set()
    assert cleaned.wait(30)


def test_closing_in_a_second_thread_during_a_run_ends_the_run() -> None:
    model = ScriptedLLM(["never"], delay=30)
    conversation = Conversation(Agent(model))
    conversation.send_message("go")

    def close() -> None:
        until(lambda: model.requests)
        conversation.close()

    closer = threading.Thread(target=close)
    closer.start()
    assert in_time(conversation.run).status is S.CLOSED
    closer.join()


def test_a_batch_works_with_as_many_threads_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    model = ScriptedLLM([[("t", {}) for n in range(4)], "ok"])
    with Conversation(Agent(model, [Tool("t", "", lambda: ran.append(1))])) as conversation:
        conversation.send_message("go")
        monkeypatch.setattr(threading.Thread, "start", no_more)
        assert conversation.run().status is S.FINISHED
        with pytest.raises(RuntimeError):
            conversation.start_thread()
        monkeypatch.undo()
        conversation.start_thread()
        assert conversation.wait(30) is S.FINISHED
    assert len(ran) == 4


# --- failing stores, changing owners ---


class Failing(MemoryStore):
    """A store that raises at the n-th append and works again after that. The test fails if a
    caller ignores the error."""

    def __init__(self, n: int, error: Exception) -> None:
        super().__init__()
        self.remaining, self.error = n, error

    def append(self, lease: Any, batch: Any) -> bool:
        self.remaining -= 1
        if self.remaining == 0:
            raise self.error
        return super().append(lease, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        StoreError("disk full"),
        Fenced("taken over"),
        ZeroDivisionError("a store of somebody else's"),
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_a_store_that_fails_at_any_append_stops_everything_and_a_new_opening_goes_on(
    error: Exception, started: bool
) -> None:
    for n in range(1, 100):
        ran: Counter[tuple[str, int]] = Counter()

        def effect(context: ToolContext, ran: Counter[tuple[str, int]] = ran) -> str:
            ran[context.call_id, context.attempt] += 1
            return "done"

        def answer(request: ScriptedRequest) -> Any:
            tools = sum(message["role"] == "tool" for message in request.messages)
            batch = 1 if tools == 0 else 3 if tools < 4 else 0
            return (
                [f"#{request.number} ", *[("effect", {})] * batch]
                if batch
                else f"#{request.number} done"
            )

        model = ScriptedLLM(answer)
        agent = Agent(model, [Tool("effect", "", effect)], parallel_calls=2)
        store = Failing(n, error)
        failed: list[BaseException] = []
        with Conversation(agent, store, "c") as conversation:
            try:
                conversation.send_message("go")
                if started:
                    conversation.start_thread()
                    conversation.wait(LONG)
                else:
                    in_time(conversation.run)
            except type(error) as trouble:
                failed.append(trouble)
            if conversation.failure is not None:
                assert conversation.status is S.ERROR
                count, requests = sum(ran.values()), len(model.requests)
                for method in (
                    conversation.resume,
                    conversation.run,
                    lambda: conversation.send_message("x"),
                    conversation.start_thread,
                ):
                    with pytest.raises(type(error)):
                        method()
                assert (sum(ran.values()), len(model.requests)) == (count, requests)
            assert store.read("c") == conversation.get_history()
        remaining, store.remaining = store.remaining, 0
        with Conversation(agent, store, "c") as second:
            second.send_message("are you there?")
            assert in_time(second.run).status is S.FINISHED
            check_journal(second.get_history())
            check_replay(second.get_history(), model.requests)
        assert max(ran.values(), default=1) == 1
        if remaining > 0:
            assert n > 5
            return
        if not isinstance(
            error, ZeroDivisionError
        ):  # an error of an unknown class may be journaled as the run's error
            assert failed or conversation.failure is error


def test_an_owner_that_lost_its_lease_starts_no_further_effect() -> None:
    ran: list[str] = []
    store = MemoryStore()
    taken_over = threading.Event()

    def effect(context: ToolContext) -> str:
        ran.append(context.call_id)
        if not taken_over.is_set():
            taken_over.set()
            record = store._records["c"]
            record.held = False  # as if another process had declared this one dead
            store.acquire("c")
        return "done"

    agent = Agent(
        ScriptedLLM([[("effect", {})] * 6, "never"]), [Tool("effect", "", effect)], parallel_calls=1
    )
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        with pytest.raises(Fenced, match="taken over"):
            conversation.run()
        assert conversation.status is S.ERROR
        with pytest.raises(Fenced):
            conversation.send_message("more")
    assert len(ran) == 1


def test_calls_of_a_batch_that_had_not_begun_do_not_begin_when_the_store_has_failed() -> None:
    """Their starts are journaled, but nothing that they do could be."""
    ran: list[str] = []

    class Late(MemoryStore):
        def append(self, lease: Any, batch: Any) -> bool:
            if any(isinstance(event, ev.ToolCallFinished) for event in batch.events):
                raise StoreError("disk full")
            return super().append(lease, batch)

    def effect(context: ToolContext) -> None:
        ran.append(context.call_id)

    agent = Agent(
        ScriptedLLM([[("effect", {})] * 4]), [Tool("effect", "", effect)], parallel_calls=4
    )
    conversation = Conversation(agent, Late(), "c")
    start = conversation._hosting._calls._start_thread

    def later(_: object, work: Callable[[], None], name: str, context: Any) -> threading.Thread:
        def wait_first() -> None:
            time.sleep(0.1)
            work()

        return start(wait_first, name, context)

    with conversation, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(conversation._hosting._calls), "_start_thread", later)
        conversation.send_message("go")
        with pytest.raises(StoreError):
            conversation.run()
    assert len(ran) == 1


def test_a_run_whose_first_append_fails_may_be_run_again() -> None:
    store = Failing(2, StoreError("busy"))
    with Conversation(Agent(ScriptedLLM(["ok"])), store, "c") as conversation:
        conversation.send_message("go")
        with pytest.raises(StoreError, match="busy"):
            conversation.run()
        assert conversation.run().status is S.FINISHED


def test_a_close_whose_release_fails_still_lets_go_of_the_rest() -> None:
    class Sticky(MemoryStore):
        def release(self, lease: Any) -> None:
            raise StoreError("disk full")

    agent = Agent(ScriptedLLM(["ok"]))
    conversation = Conversation(agent, Sticky())
    conversation.send_message("go")
    with pytest.raises(StoreError):
        conversation.close()
    conversation.close()
    assert agent.connections.open == 0


# --- models and tools with wrong results ---

GARBAGE: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "text of the wrong type": Completion(text=7),  # type: ignore[arg-type]
    "calls that are none": Completion(calls=("x",)),  # type: ignore[arg-type]
    "usage that is None": Completion("hi", usage=None),  # type: ignore[arg-type]
    "a surrogate": Completion("\ud800"),
    "a lone object": Completion("hi", stop_reason=object()),  # type: ignore[arg-type]
    "tokens that are text": Completion("hi", usage=Usage("many", 1)),  # type: ignore[arg-type]
}


class Strange:
    """A model that returns an arbitrary object."""

    model = "strange"

    def __init__(self, answers: list[Any]) -> None:
        self.answers = iter(answers)

    def completion(self, *_: Any, **__: Any) -> Any:
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def parameters(self) -> dict[str, Any]:
        return {}

    def cost(self, usage: Usage) -> float | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("started", [True, False])
def test_a_model_that_returns_garbage_is_an_error_and_the_journal_stays_readable(
    what: str, started: bool, tmp_path: Path
) -> None:
    with SQLiteStore(tmp_path / "s.db", durability="process") as store:
        model: Any = Strange([GARBAGE[what], Completion("better", stop_reason="stop")])
        with Conversation(Agent(model), store, "c") as conversation:
            if started:
                conversation.start_thread()
            conversation.send_message("go")
            status = in_time(conversation.wait) if started else in_time(conversation.run).status
            assert status is S.ERROR
            error = conversation.state.error
            assert error is not None
            assert error.error in ("BadResponse", "TypeError")
        with Conversation(Agent(model), store, "c") as conversation:
            assert conversation.run().answer == "better"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_model_that_raises_what_ends_threads_leaves_no_dead_loop_behind(
    error: BaseException,
) -> None:
    model: Any = Strange([error, Completion("better", stop_reason="stop")])
    with Conversation(Agent(model)) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert in_time(conversation.wait) is S.ERROR
        conversation.resume()
        assert in_time(conversation.wait) is S.FINISHED


def test_a_tool_that_raises_keyboard_interrupt_on_the_loops_thread_leaves_no_dead_loop_behind() -> (
    None
):
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with Conversation(
        Agent(ScriptedLLM([("t", {}), "better"]), [Tool("t", "", ctrl_c)])
    ) as conversation:
        conversation.start_thread()
        conversation.send_message("go")
        assert in_time(conversation.wait) is S.ERROR
        conversation.resume()
        assert in_time(conversation.wait) is S.FINISHED
        assert conversation.state.answer == "better"


def test_a_tool_that_cannot_be_described_any_more_is_an_error_that_the_run_stops_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent(ScriptedLLM(["fine"]), [])
    with Conversation(agent) as conversation:
        conversation.start_thread()
        monkeypatch.setattr(agent.tools, "definitions", lambda: 1 / 0)
        conversation.send_message("go")
        assert in_time(conversation.wait) is S.ERROR
        monkeypatch.undo()
        conversation.resume()
        assert in_time(conversation.wait) is S.FINISHED


def test_tools_that_change_while_a_run_goes_on_are_journaled_before_the_request_that_has_them() -> (
    None
):
    def answer(request: ScriptedRequest) -> Any:
        if request.number < 20:
            return [f"#{request.number} ", ("change", {}), ("gone", {})]
        return f"#{request.number} done"

    model = ScriptedLLM(answer)
    agent = Agent(model, stuck=None)

    def change(context: ToolContext) -> None:
        for name in ("a", "b", "gone"):
            if agent.tools.exists(name) and context.call_id.endswith("0"):
                agent.tools.unregister(name)
            else:
                agent.tools.register(Tool(name, "", lambda: None))

    agent.tools.register(Tool("change", "", change))
    with Conversation(agent) as conversation:
        conversation.send_message("go")
        assert conversation.run().status is S.FINISHED
        assert check_replay(conversation.get_history(), model.requests) == 21
        check_journal(conversation.get_history())


# --- size, memory, states ---


@pytest.mark.slow
def test_a_conversation_of_20_000_events_goes_on_at_a_steps_own_cost() -> None:
    """The test counts calls of our functions, not seconds: a late step in a long conversation
    makes no more of them than an early one."""
    turns = 5000
    model = ScriptedLLM(lambda request: "ok" if len(request.transcript) == 4 * turns else ("t", {}))
    agent = Agent(model, [Tool("t", "", lambda: None)], limits=Limits(steps=None), stuck=None)
    store = MemoryStore()
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("go")
        model.delay = 0
        lines = [0]
        costs: list[int] = []

        def profile(frame: FrameType, event: str, _: Any) -> None:
            lines[0] += 1

        agent.tools.unregister("t")

        def t() -> None:
            costs.append(lines[0])
            lines[0] = 0
            model.requests.clear()
            if len(costs) == turns:
                conversation.pause()

        agent.tools.register(Tool("t", "", t))
        sys.setprofile(profile)
        try:
            conversation.run()
        finally:
            sys.setprofile(None)
        early, late = sorted(costs[10:200])[95], sorted(costs[-200:])[100]
        assert late <= early + 5
        assert conversation.state.last_seq > 15_000
        seqs: list[int] = []
        conversation.register_callback(lambda event: seqs.append(event.seq), after_seq=0)
        until(lambda: len(seqs) == conversation.state.last_seq)
        assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.slow
def test_a_conversation_that_nobody_holds_is_collected() -> None:
    agent = Agent(ScriptedLLM(lambda request: "ok"))
    conversation = Conversation(agent)
    conversation.send_message("go")
    conversation.run()
    gc.collect()
    before = len([item for item in gc.get_objects() if type(item).__name__ == "Journal"])
    del conversation
    assert (
        len([item for item in gc.get_objects() if type(item).__name__ == "Journal"]) < before
    )  # by its reference count alone


def test_a_state_is_pickled_and_copied() -> None:
    import copy

    with Conversation(
        Agent(ScriptedLLM([("t", {}), "ok"]), [Tool("t", "", lambda: "x")])
    ) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    assert state.answer == "ok"  # folded before it is pickled
    for other in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), copy.copy(state)):
        assert other == state
        assert other.answer == "ok"
        assert ConversationState.from_json(other.to_json()) == state


@pytest.mark.parametrize("status", [S.PAUSED, S.ERROR, S.STUCK, S.FINISHED, S.RUNNING, S.IDLE])
def test_a_state_of_any_status_goes_on_in_a_new_conversation(status: ConversationStatus) -> None:
    conversation, gated = conversation_in(status)
    state = conversation.state
    finish(conversation, gated)
    with Conversation.from_state(state, Agent(ScriptedLLM(lambda request: "on"))) as second:
        assert second.status is status
        second.send_message("more")
        assert second.run().answer == "on"
        check_journal(second.get_history())


def test_an_import_is_one_append_with_the_answers_to_its_open_calls() -> None:
    """A crash between two appends would leave open calls that the original may have run; they
    would run again."""
    gate, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        gate.wait(10)

    with Conversation(
        Agent(ScriptedLLM([[("wait", {})] * 2]), [Tool("wait", "", wait, parallel=True)])
    ) as first:
        first.start_thread()
        first.send_message("go")
        assert entered.wait(30)
        state = first.state
        gate.set()
    store = Failing(2, StoreError("the process died here"))
    agent = Agent(ScriptedLLM(["ok"]))
    Conversation.from_state(state, agent, store, "copy").close()
    assert store.remaining == 1
    assert not ConversationState("copy", store.read("copy")).pending_calls
    check_journal(store.read("copy"))
    assert agent.connections.open == 0


def test_an_import_that_fails_gives_the_lease_back() -> None:
    agent = Agent(ScriptedLLM(["ok"]))
    with Conversation(agent) as first:
        first.send_message("go")
        state = first.state
    store = Failing(1, StoreError("disk full"))
    with pytest.raises(StoreError):
        Conversation.from_state(state, agent, store, "c")
    with Conversation.from_state(state, agent, store, "c") as second:
        assert second.run().answer == "ok"


def test_an_empty_state_and_a_taken_id_are_what_they_are() -> None:
    agent = Agent(ScriptedLLM(["ok"]))
    with MemoryStore() as store, Conversation(agent, store, "c") as first:
        with Conversation.from_state(first.state, agent) as second:
            assert second.status is S.IDLE
        first.send_message("go")
        first.close()
        with pytest.raises(Conflict, match="has events already"):
            Conversation.from_state(first.state, agent, store, "c")


@pytest.mark.parametrize("after_seq", [-1, "3", 1.5])
def test_a_subscription_after_what_is_no_seq_is_refused(after_seq: Any) -> None:
    with (
        Conversation(Agent(ScriptedLLM([]))) as conversation,
        pytest.raises(ConfigurationError, match="after_seq"),
    ):
        conversation.register_callback(print, after_seq=after_seq)


def test_a_journal_opened_before_another_owner_wrote_keeps_the_time_of_its_beginning() -> None:
    agent = Agent(ScriptedLLM([]))
    with MemoryStore() as store:
        second = Conversation(agent, store, "c")
        with Conversation(agent, store, "c") as first:
            created = first.send_message("one").timestamp
        second.send_message("two")
        assert store.list()[0].created == created
        second.close()
