"""Conversations that kill the processes that drive them.

An owner that dies leaves its lease behind, and the next owner counts the death. Three deaths at the
same place of the journal end the run with an error.

A process that dies leaves all its conversations behind, most of them innocent. So a conversation
whose owner died is a suspect until it has got further, and a worker drives one suspect at a time.
The second and third deaths thus count only for conversations that were involved again.
"""

from __future__ import annotations

import hashlib

from holdfast import events as ev
from holdfast.content import ToolResult
from holdfast.conversation import ConversationStatus
from holdfast.conversation.calls import UNKNOWN
from holdfast.conversation.conversation import random_id
from holdfast.conversation.journal import Journal, utc_now
from holdfast.error_forms import ErrorForm
from holdfast.store import Store

# The number of deaths, without progress between them, after which a run is given up, because the
# cause recurs.
MAX_DEATHS = 3
# The same wherever they happen: a model may call a deadly tool with ever new arguments.
MAX_DEATHS_UNTIL_REST = 12
ERROR_NAME = "WorkerDied"

RUNNING = ConversationStatus.RUNNING


def place_of_death(journal: Journal) -> str:
    """Return the work of the dead owner, "" if it had none. Needs the lease.

    The same calls with the same arguments are the same place, even if the model asked for them
    again. Two model calls without an answer between them are one place too, and the same first
    command.
    """
    fold = journal.fold
    if fold.status is not RUNNING and not fold.has_new_message:
        waiting = journal.commands()
        return f"command {waiting[0].number}" if waiting else ""
    calls = [one.call for one in fold.open.values() if one.attempt and not one.runner]
    if not calls:
        return f"model call after {0 if fold.assistant is None else fold.assistant.seq}"
    names = "\n".join(sorted(f"{call.name} {call.arguments_hash}" for call in calls))
    return f"calls {hashlib.sha256(names.encode()).hexdigest()}"


def end_run(journal: Journal, how: str, times: int) -> bool:
    """End a run that kills its workers: answer started calls with an unknown outcome, then append
    ERROR and the reason. Return False if no run is in progress. Raises `StoreError`."""
    with journal:
        fold = journal.fold
        if fold.status is not RUNNING and not fold.has_new_message:
            return False
        for item in list(fold.open.values()):
            if item.attempt and not item.runner:
                text = f"The process that ran this call {how}. {UNKNOWN}"
                result = ToolResult.failure(text, "unknown", meta={"outcome": "unknown"})
                journal.add(ev.ToolCallFinished, call_id=item.call.id, result=result)
        _write_error(journal, how, times)
        return True


def refuse_command(journal: Journal, how: str, times: int) -> None:
    """Refuse the first command of the inbox, which kills its workers, and append ERROR."""
    waiting = journal.commands()
    with journal:
        if waiting:
            form = ErrorForm(ERROR_NAME, f"The worker process {how}, {times} times.", {})
            journal.refuse(waiting[0], form)
        _write_error(journal, how, times)


def _write_error(journal: Journal, how: str, times: int) -> None:
    message = (
        f"The worker process of this conversation {how}, as did {times - 1} before it,"
        " without getting any further."
    )
    details = {"how": how, "times": times}
    journal.add(ev.ErrorRecorded, error=ERROR_NAME, message=message, details=details)
    journal.add(ev.StatusChanged, status=ConversationStatus.ERROR.value, reason=ERROR_NAME)


def write_end(store: Store, id: str, how: str, times: int) -> bool:
    """Do `end_run` on a conversation that is not open. Raises `LeaseHeld`, `StoreError`."""
    journal = Journal(store, id, utc_now, random_id, lambda: None)
    try:
        journal.acquire()
        return end_run(journal, how, times)
    finally:
        journal.close()
