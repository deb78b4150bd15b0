"""The outcomes of questions aside, and the wait for them, wherever the conversation is driven."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from holdfast import events as ev
from holdfast.commands import Ask
from holdfast.content import Data, Usage
from holdfast.error_forms import ErrorForm, error_of_form
from holdfast.errors import ConversationBusy, HoldfastError, NotPending
from holdfast.store import Store

_POLL_SECONDS = 0.2  # between two looks at a store for the refusal of a posted question


class AsideAnswer(Data, frozen=True):
    """The answer to a question aside. `cost` is in US dollars, None if not known; `duration` in
    seconds."""

    id: str
    text: str
    usage: Usage = Usage()
    cost: float | None = 0.0
    model: str = ""
    duration: float = 0.0


def answer_of(event: ev.AsideAnswered) -> AsideAnswer:
    """Return the answer of an outcome. Raises the error of a failed one."""
    if event.error:
        raise error_of_form(ErrorForm(event.error, event.failed))
    return AsideAnswer(
        event.aside, event.text, event.usage, event.cost, event.model, event.duration
    )


class _Growing(Protocol):
    """A journal, or a client's copy of one."""

    @property
    def lock(self) -> Any: ...
    def after(self, seq: int) -> list[ev.AnyEvent]: ...


def wait_for_answer(
    journal: _Growing,
    id: str,
    seq: int,
    ended: Callable[[], HoldfastError | None],
    timeout: float | None,
) -> AsideAnswer:
    """Return the answer to the question `id` once it is among the events after `seq`.

    Raises the question's error, what `ended` returns, or `ConversationBusy` after `timeout`
    seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    with journal.lock:
        while True:
            for event in journal.after(seq):
                seq = event.seq
                if type(event) is ev.AsideAnswered and event.aside == id:
                    return answer_of(event)
            if (error := ended()) is not None:
                raise error
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise no_answer(id, timeout)
            journal.lock.wait(remaining)


def ask_owner(
    store: Store,
    conversation_id: str,
    command: Ask,
    timeout: float | None,
    tend: Callable[[], object] = bool,
) -> AsideAnswer:
    """Ask a conversation that another process drives: post the question to its inbox, and return
    the answer from its journal. Until then `tend` is called now and then.

    Raises the question's error, `Conflict` if the owner refuses the question, `ConversationBusy`
    after `timeout` seconds, `StoreError`.
    """
    last = store.list([conversation_id])
    seq = last[0].last_seq if last else 0
    store.post(conversation_id, command, command.aside)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        pause = time.monotonic() + _POLL_SECONDS
        until = pause if deadline is None else min(deadline, pause)
        for event in store.follow(conversation_id, seq, max(until - time.monotonic(), 0.0)):
            seq = event.seq
            if type(event) is ev.AsideAnswered and event.aside == command.aside:
                return answer_of(event)
            if time.monotonic() >= until:
                break
        refusal = store.refusal(conversation_id, command.aside)
        if refusal is not None:
            raise error_of_form(refusal, NotPending)
        if deadline is not None and time.monotonic() >= deadline:
            raise no_answer(command.aside, timeout)
        tend()


def no_answer(id: str, timeout: float | None) -> ConversationBusy:
    """Return the error for a question without an outcome in time."""
    return ConversationBusy(
        f"ask: the question {id!r} was not answered within {timeout or 0:g} s. Its outcome will be"
        " an AsideAnswered event."
    )
