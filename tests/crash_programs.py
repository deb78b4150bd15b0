"""Programs that are killed: a plan as data, an agent that carries it out with effects counted in
files, and a judge of the journals and files afterwards."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    LocalRuntime,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolContext,
)
from holdfast import events as ev
from holdfast.agent.confirmation import Verdict
from holdfast.commands import Approve, Reject, Send
from holdfast.content import ToolCall
from holdfast.conversation.outputs import whole
from holdfast.conversation.state import PendingConfirmation
from holdfast.llm.scripted import ScriptedRequest
from holdfast.testing import Crash, kill_point
from holdfast.tools.tool import RetryPolicy

S = ConversationStatus
BIG = "0123456789" * 300  # more than the 1,000 characters that these agents show a model

READS, IDEMPOTENT = ToolAnnotations(read_only=True), ToolAnnotations(idempotent=True)
ONCE = (
    "plain",
    "torn",
    "retries",
    "big",
    "shell_once",
)  # an effect that may not be repeated, so that its outcome may stay unknown
REPEATABLE = ("reads", "idempotent", "says", "pauses", "child", "forks", "shell")


class Do(msgspec.Struct, frozen=True):
    """One call: a tool's name, the name of its effect, the decision on its approval (approve,
    reject, edit), and the number of attempts that fail."""

    kind: str
    name: str
    decide: str = ""
    fails: int = 0

    @property
    def effect(self) -> str:
        """Return the name under which its effect is counted."""
        return f"{self.name}-edited" if self.decide == "edit" else self.name


class Plan(msgspec.Struct, frozen=True):
    """The work of a conversation: the calls of each answer, then an answer without any.

    `inbox`: decisions come through the store. `during`: another thread sends a message while the
    call of that name runs. `side_by_side`: every tool is declared parallel, so that no call is a
    barrier.
    """

    batches: tuple[tuple[Do, ...], ...]
    parallel: int = 8
    side_by_side: bool = False
    stream: bool = False
    inbox: bool = False
    during: str = ""
    messages: tuple[str, ...] = ("go",)

    @property
    def dos(self) -> list[Do]:
        """Return all calls, those of child conversations too."""
        calls = [do for batch in self.batches for do in batch]
        return calls + [inner for do in calls if do.kind == "child" for inner in child_of(do).dos]


def child_of(do: Do) -> Plan:
    return Plan(((Do("plain", f"{do.name}.p"), Do("mail", f"{do.name}.m")),))


# --- the program ---


class Program(msgspec.Struct, frozen=True):
    """A plan as a program that `crash_at_every_append` takes. `damage` breaks Holdfast first, to
    prove that the tests notice it. `damage(resumes)` says whether conversations exist already."""

    plan: Plan
    damage: Callable[[bool], None] | None = None

    def __call__(self, store: SQLiteStore, folder: Path) -> None:
        if self.damage is not None:
            self.damage(bool(store.list()))
        tempfile.tempdir = str(folder)  # a killed runtime leaves its folder behind
        with LocalRuntime(folder) as runtime:
            Player(self.plan, store, folder, runtime).play("c")


class Player:
    """Carries out a plan in one conversation of a store."""

    def __init__(self, plan: Plan, store: SQLiteStore, folder: Path, runtime: LocalRuntime) -> None:
        self.plan, self.store, self.folder, self.runtime = plan, store, folder, runtime
        self.dos = {do.name: do for batch in plan.batches for do in batch}
        self.dos |= {do.effect: do for do in self.dos.values()}
        self.conversation: Conversation | None = None
        retry = RetryPolicy(3, "none")
        tool = partial(Tool, parallel=True if plan.side_by_side else None)
        tools = [
            tool("reads", "", self.simple, annotations=READS, retry=retry),
            tool("idempotent", "", self.simple, annotations=IDEMPOTENT, retry=retry),
            tool("plain", "", self.simple),
            tool("big", "", self.big),
            tool("retries", "", self.simple, retry=retry),
            tool("mail", "", self.simple, reconcile=self.was_sent),
            tool("torn", "", self.torn, reconcile=self.was_torn),
            tool("says", "", self.says, annotations=IDEMPOTENT),
            tool("pauses", "", self.pauses, annotations=IDEMPOTENT),
            tool("forks", "", self.forks, annotations=IDEMPOTENT),
            tool("child", "", self.child, annotations=IDEMPOTENT),
            tool("shell", "", self.shell, annotations=IDEMPOTENT),
            tool("shell_once", "", self.shell),
        ]
        # A schema takes longer than an append: each process makes only those of its plan.
        used = {do.kind for do in plan.dos}
        model = ScriptedLLM(self.answer, stream=plan.stream)
        self.agent = Agent(
            model,
            [one for one in tools if one.name in used],
            parallel_calls=plan.parallel,
            confirm=self,
            output_limit=1000,
        )

    # --- the model ---

    def answer(self, request: ScriptedRequest) -> Any:
        kill_point("model")
        roles = [message["role"] for message in request.messages]
        batch = roles.count("assistant")
        if batch < len(self.plan.batches):
            return [
                f"Batch {batch}.",
                *((do.kind, {"name": do.name}) for do in self.plan.batches[batch]),
            ]
        return f"Done: {roles.count('tool')} calls, {roles.count('user')} messages."

    def decide(self, call: ToolCall, risk: Any) -> Verdict:
        do = self.dos[call.arguments["name"]]
        return Verdict("ask" if do.decide else "allow")

    # --- from the first message to rest ---

    def play(self, id: str) -> str:
        on_delta = (lambda delta: kill_point("delta")) if self.plan.stream else None
        with Conversation(
            self.agent, self.store, id, on_delta=on_delta, runtime=self.runtime
        ) as conversation:
            self.conversation = conversation
            for text in self.plan.messages:
                if text not in user_texts(conversation):
                    conversation.send_message(text)
                self.rest(conversation)
            answer = conversation.state.answer
        if any(do.kind == "forks" for do in self.plan.dos):
            with Conversation(self.agent, self.store, "fork", runtime=self.runtime) as fork:
                self.rest(fork)
        return answer

    def rest(self, conversation: Conversation) -> None:
        for _ in range(100):
            if self.plan.during:
                conversation.start_thread()
                if "more" not in user_texts(conversation):
                    until(
                        lambda: (
                            (self.folder / f"runs-{self.plan.during}").exists()
                            or conversation.wait(0) is not S.RUNNING
                        )
                    )
                    conversation.send_message("more")
                status = conversation.wait(20)
                assert status is not S.RUNNING, "it hangs"
            else:
                status = conversation.run().status
            if status is S.WAITING_FOR_CONFIRMATION:
                self.settle(conversation, conversation.state.pending_confirmations[0])
            elif status is S.PAUSED:
                conversation.resume()
            else:
                return
        raise AssertionError(f"it does not come to rest: {conversation.get_history()[-5:]}")

    def settle(self, conversation: Conversation, pending: PendingConfirmation) -> None:
        call, do = pending.call, self.dos[pending.call.arguments["name"]]
        arguments = {"name": do.effect} if do.decide == "edit" else None
        if not self.plan.inbox:
            if do.decide == "reject":
                conversation.reject(call.id, "no")
            else:
                conversation.approve(
                    call.id, arguments=arguments, arguments_hash=pending.arguments_hash
                )
            return
        command = (
            Reject(call.id, "no")
            if do.decide == "reject"
            else Approve(call.id, pending.arguments_hash, arguments)
        )
        kill_point("to be posted")
        self.store.post(conversation.id, command, key=call.id)
        kill_point("posted")
        conversation.hosting.drain_inbox()

    # --- tools ---

    def begin(self, name: str, context: ToolContext) -> None:
        append(self.folder / f"runs-{name}", f"{context.idempotency_key} {context.attempt}\n")
        kill_point(f"{name} begun")
        if context.attempt <= self.dos[name].fails:
            raise RuntimeError("not yet")

    def effect(self, name: str) -> None:
        append(self.folder / f"effect-{name}", "x")

    def simple(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        self.effect(name)
        kill_point(f"{name} done")
        return f"{name} is done"

    def big(self, name: str, context: ToolContext) -> str:
        return self.simple(name, context) + BIG

    def was_sent(self, call: ToolCall, context: ToolContext) -> str | None:
        name = call.arguments["name"]
        kill_point(f"{name} looked for")
        return f"{name} is done" if read(self.folder / f"effect-{name}") else None

    def torn(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        append(self.folder / f"tearing-{name}", f"{context.attempt}")
        kill_point(f"{name} torn")
        self.effect(name)
        kill_point(f"{name} done")
        append(self.folder / f"whole-{name}", "x")
        kill_point(f"{name} noted")
        return f"{name} is done"

    def was_torn(self, call: ToolCall, context: ToolContext) -> str | None:
        name = call.arguments["name"]
        if read(self.folder / f"whole-{name}"):
            return f"{name} is done"
        if read(self.folder / f"tearing-{name}"):
            raise RuntimeError("half of it is there")
        return None

    def says(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        self.store.post(context.conversation_id, Send(f"from {name}"), key=context.idempotency_key)
        kill_point(f"{name} said")
        return f"{name} is done"

    def pauses(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        assert self.conversation is not None
        self.conversation.pause()
        kill_point(f"{name} paused")
        return f"{name} is done"

    def forks(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        assert self.conversation is not None
        if "fork" not in {entry.id for entry in self.store.list()}:
            self.conversation.fork(id="fork").close()
        kill_point(f"{name} forked")
        return f"{name} is done"

    def child(self, name: str, context: ToolContext) -> str:
        self.begin(name, context)
        return Player(child_of(self.dos[name]), self.store, self.folder, self.runtime).play(
            context.idempotency_key
        )

    def shell(self, name: str, context: ToolContext) -> str:
        """Run a command that waits until it is told to go on, with one process in the background,
        and one that left its session."""
        self.begin(name, context)
        started, go = self.folder / f"started-{name}-{context.attempt}", self.folder / f"go-{name}"
        sleep = f"sleep {marker(self.folder, name)}"

        def let_go() -> None:
            until(started.exists)
            kill_point(f"{name} in the shell")
            go.touch()

        helper = threading.Thread(target=let_go, daemon=True)
        helper.start()
        command = (
            f"setsid {sleep} & {sleep} & touch {started}; until [ -e {go} ]; do sleep 0.01; done;"
            f" printf x >> effect-{name}"
        )
        terminal = next(tool for tool in self.runtime.tools if tool.name == "terminal")
        result = terminal.run({"command": command}, context)
        helper.join()
        kill_point(f"{name} done")
        assert not result.is_error, result.text
        return f"{name} is done"


def append(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, text.encode())
    os.close(fd)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


def user_texts(conversation: Conversation) -> list[str]:
    return [
        event.text
        for event in conversation.get_history()
        if isinstance(event, ev.MessageAdded) and event.sender == "user"
    ]


def marker(folder: Path, name: str) -> str:
    """Return a number of seconds that no other process sleeps."""
    return f"{100_000 + int(hashlib.sha256(f'{folder}/{name}'.encode()).hexdigest()[:12], 16)}.5"


def running(marker: str) -> list[str]:
    commands: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker.encode() in line and state not in "ZX":
                commands.append(line.replace(b"\0", b" ").decode())
    return commands


def end_all_in(folder: Path) -> None:
    """SIGKILL every process that works in a folder, which a damaged Holdfast left running."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "cwd").startswith(f"{folder}/"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


# --- the judge ---


class Outcome(msgspec.Struct):
    """The outcome of a call."""

    conversation: str
    call_id: str
    attempts: list[int]
    result: ev.ToolCallFinished | None = None

    @property
    def unknown(self) -> bool:
        return self.result is not None and self.result.result.meta.get("outcome") == "unknown"


def outcomes(journals: dict[str, list[ev.AnyEvent]]) -> dict[str, Outcome]:
    """Return the outcomes by the name of the call's effect, without those of a fork."""
    by_name: dict[str, Outcome] = {}
    for id, events in journals.items():
        by_id: dict[str, Outcome] = {}
        for event in events if id != "fork" else ():
            if isinstance(event, ev.AssistantReplied):
                for call in event.calls:
                    by_id[call.id] = by_name[call.arguments["name"]] = Outcome(id, call.id, [])
            elif isinstance(event, ev.ToolCallStarted):
                by_id[event.call_id].attempts.append(event.attempt)
            elif isinstance(event, ev.ToolCallFinished):
                by_id[event.call_id].result = event
    return by_name


def judge(plan: Plan, crash: Crash) -> None:
    """Raise `AssertionError` if the effects, or their reports to the model, break the rules."""
    outcomes_after, reference = outcomes(crash.after_journals), outcomes(crash.reference_journals)
    unknown = 0
    with SQLiteStore(crash.folder / "store.db", read_only=True) as store:
        for do in plan.dos:
            unknown += judge_call(do, outcomes_after[do.name], reference[do.name], crash, store)
    kills = len(crash.points)
    at_once = plan.parallel if plan.side_by_side else 1  # else only tools that read run in parallel
    assert unknown <= kills * at_once, (
        f"{crash}: {unknown} outcomes are unknown, and only {at_once} calls run at once"
    )
    messages, expected = (
        texts(crash.after, ev.MessageAdded),
        texts(crash.reference, ev.MessageAdded),
    )
    assert sorted(messages) == sorted(expected), (
        f"{crash}: other messages: {messages}, not {expected}"
    )
    if not plan.during:
        assert texts(crash.after, ev.AssistantReplied) == texts(
            crash.reference, ev.AssistantReplied
        ), f"{crash}: other answers"
    last = [event for event in crash.after if isinstance(event, ev.AssistantReplied)][-1]
    assert last.based_on >= max(
        event.seq for event in crash.after if isinstance(event, ev.MessageAdded)
    ), f"{crash}: a message was not answered"


def texts(
    events: list[ev.AnyEvent], kind: type[ev.MessageAdded | ev.AssistantReplied]
) -> list[str]:
    return [event.text for event in events if isinstance(event, kind)]


def judge_call(
    do: Do, outcome: Outcome, reference: Outcome, crash: Crash, store: SQLiteStore
) -> bool:
    """Check one call's effect. Returns True if its outcome is unknown."""
    what = f"{crash}: {do}: {outcome}"
    effects = len(read(crash.folder / f"effect-{do.effect}"))
    runs = read(crash.folder / f"runs-{do.effect}").split()
    keys, attempts = runs[::2], [int(attempt) for attempt in runs[1::2]]
    assert outcome.result is not None, what
    assert len(attempts) == len(set(attempts)), f"{what}: an attempt was made twice: {attempts}"
    assert set(attempts) <= set(outcome.attempts), (
        f"{what}: attempts that were not journaled: {attempts}"
    )
    assert set(keys) <= {f"{outcome.conversation}:{outcome.call_id}"}, f"{what}: keys {keys}"
    result, unknown = outcome.result.result, outcome.unknown
    if do.decide == "edit":
        assert not read(crash.folder / f"runs-{do.name}"), (
            f"{what}: it was run with the arguments that were not approved"
        )
    if do.decide == "reject":
        assert not runs, f"{what}: it was rejected, and run"
    if unknown:
        assert do.kind in ONCE, f"{what}: its outcome can be known"
        assert result.is_error
    else:
        assert reference.result is not None
        assert result.text == reference.result.result.text, f"{what}: another result"
    counted = do.decide != "reject" and do.kind not in ("says", "pauses", "child", "forks")
    if do.kind in REPEATABLE:
        assert len(attempts) <= 1 + do.fails + len(crash.points), (
            f"{what}: repeated without need: {attempts}"
        )
        assert effects >= counted, f"{what}: no effect"
    elif unknown:
        assert effects <= 1, f"{what}: {effects} effects"
    else:
        assert effects == counted, f"{what}: {effects} effects"
    if do.kind == "big" and not unknown:
        assert whole(result, store.blob).text == f"{do.effect} is done{BIG}", (
            f"{what}: its whole output is lost"
        )
    if do.kind.startswith("shell"):
        assert not (survivors := running(marker(crash.folder, do.name))), (
            f"{what}: still running: {survivors}"
        )
    return unknown


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
