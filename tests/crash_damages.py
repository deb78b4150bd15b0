"""Holdfast with one guarantee broken on purpose, in a process that is about to be killed. They
prove that the tests would notice the loss of the guarantee.

Each damage takes a flag: True if the process goes on after a kill.
"""

# pyright: basic, reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation import calls as calls_module
from holdfast.conversation.calls import Calls
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.state import OpenCall
from holdfast.runtime import processes
from holdfast.store import Batch, Lease
from holdfast.store.sqlite import SQLiteStore
from holdfast.tools import ToolAnnotations, ToolContext

Damage = Callable[[bool], None]


def starts_are_not_journaled(resumes: bool) -> None:
    Calls.write_start = lambda *_: None


def recovery_repeats_every_call(resumes: bool) -> None:
    Calls._recovered = lambda *_: None


def every_tool_counts_as_repeatable(resumes: bool) -> None:
    ToolAnnotations.repeatable = property(lambda self: True)


def results_wait_for_the_end_of_their_batch(resumes: bool) -> None:
    if resumes:
        return
    results: list[tuple[Any, ...]] = []
    write = Calls.write_result

    def late(self: Calls, *result: Any) -> None:
        results.append(result)
        if len(results) == len(self._journal.fold.open):
            for one in results:
                write(self, *one)
            results.clear()

    Calls.write_result = late


def appends_are_acknowledged_before_they_are_written(resumes: bool) -> None:
    delayed: list[tuple[Any, dict[str, Any]]] = []
    append, release = SQLiteStore.append, SQLiteStore.release

    def write(self: SQLiteStore) -> None:
        while delayed:
            arguments, options = delayed.pop(0)
            append(self, *arguments, **options)

    def lazy(self: SQLiteStore, *arguments: Any, **options: Any) -> None:
        write(self)
        delayed.append((arguments, options))

    def last(self: SQLiteStore, lease: Any) -> None:
        write(self)
        release(self, lease)

    SQLiteStore.append, SQLiteStore.release = lazy, last


def recovery_drops_started_calls(resumes: bool) -> None:
    def drop(self: Calls, calls: Any) -> None:
        with self._journal:
            for call in calls:
                self.write_result(call, calls_module._unknown())

    Calls.recover = drop


def recovery_drops_queued_calls(resumes: bool) -> None:
    def drop(self: Calls, calls: Any, started: Any = (), *more: Any) -> None:
        if not resumes or started:
            run(self, calls, started, *more)
            return
        with self._journal:
            for call in calls:
                self.write_refusal(call)

    run, Calls.run = Calls.run, drop


def each_attempt_has_its_own_key(resumes: bool) -> None:
    ToolContext.idempotency_key = property(
        lambda self: f"{self.conversation_id}:{self.call_id}:{self.attempt}"
    )


def attempts_are_counted_anew(resumes: bool) -> None:
    def anew(self: Calls, call: Any, attempt: int) -> None:
        write(self, call, 1)

    write, Calls.write_start = Calls.write_start, anew


def an_unknown_outcome_is_told_as_success(resumes: bool) -> None:
    calls_module._unknown = lambda more="": ToolResult("it is done")


def reconcile_is_not_asked(resumes: bool) -> None:
    def settled(self: Calls, item: OpenCall, *_: Any) -> ToolResult | None:
        return (
            None
            if self._context.agent.tools.get(item.call.name).annotations.repeatable
            else calls_module._unknown()
        )

    Calls._recovered = settled


def reconcile_is_not_believed(resumes: bool) -> None:
    def settled(self: Calls, *arguments: Any) -> ToolResult | None:
        result = settle(self, *arguments)
        return result if result is None or result.meta.get("outcome") else None

    settle, Calls._recovered = Calls._recovered, settled


def approved_arguments_are_forgotten(resumes: bool) -> None:
    def forgetful(self: OpenCall, decision: ev.DecisionMade) -> None:
        decide(self, decision)
        if resumes:
            self.arguments = None

    decide, OpenCall.decide = OpenCall.decide, forgetful


def an_approval_is_not_needed_after_a_kill(resumes: bool) -> None:
    def hasty(self: OpenCall, decision: ev.DecisionMade) -> None:
        decide(self, decision)
        if resumes:
            self.asked = None

    decide, OpenCall.decide = OpenCall.decide, hasty


def commands_that_were_done_stay_in_the_inbox(resumes: bool) -> None:
    def forgetful(self: SQLiteStore, lease: Lease, batch: Batch) -> bool:
        return append(self, lease, replace(batch, done_commands=()))

    append, SQLiteStore.append = SQLiteStore.append, forgetful


def commands_are_done_twice_as_their_mark_comes_later(resumes: bool) -> None:
    def two_steps(self: SQLiteStore, lease: Lease, batch: Batch) -> bool:
        lease_after = append(self, lease, replace(batch, done_commands=()))
        if batch.done_commands:
            from holdfast.testing import kill_point

            kill_point("between an append and its mark")
            append(self, lease, Batch((), batch.summary, batch.done_commands))
        return lease_after

    append, SQLiteStore.append = SQLiteStore.append, two_steps


def outputs_are_not_kept_whole(resumes: bool) -> None:
    def forgetful(self: SQLiteStore, lease: Lease, batch: Batch) -> bool:
        return append(self, lease, replace(batch, blobs=()))

    append, SQLiteStore.append = SQLiteStore.append, forgetful


def commands_are_left_running(resumes: bool) -> None:
    processes.end_owned = lambda marks: True


def nobody_goes_on(resumes: bool) -> None:
    if resumes:
        Conversation.run = lambda self: self.state
