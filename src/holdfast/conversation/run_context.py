"""`RunContext`: the parts of one open conversation that its loop, its calls and its features
share."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.handoffs import find_agent
from holdfast.conversation.fold import Fold
from holdfast.conversation.journal import Journal
from holdfast.conversation.lent_model import LentModel
from holdfast.conversation.status import ConversationStatus
from holdfast.error_text import describe_error
from holdfast.errors import (
    ConversationClosed,
    GoalMissed,
    HookDenied,
    LimitExceeded,
    LLMError,
    OutputInvalid,
    UnreadableEvent,
)
from holdfast.object_struct import ObjectStruct
from holdfast.tools import Cancellation
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.conversation.children import Children
    from holdfast.conversation.delegation import Delegation
    from holdfast.conversation.titling import Titling
    from holdfast.conversation.undo import FileUndo

_log = logging.getLogger("holdfast")

# The ids of the loops that led to this thread's work, outermost first. None of them may wait for
# itself.
inside: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar(
    "holdfast_inside", default=()
)


class RunContext(ObjectStruct):
    """The shared parts of one open conversation. The journal's lock guards them.

    `agent` answers now, under the name `agent_name`.
    """

    own_agent: Agent  # the agent that the conversation was opened with, or that `use` set
    journal: Journal
    runtime: object | None
    agent_name: str
    agent: Agent
    # cancels the running model call and tool calls
    token: Cancellation = msgspec.field(default_factory=Cancellation)
    closing: bool = False  # True once nothing further may begin
    next_agent: Agent | None = None  # of `use`; the loop sets it once no call is open
    failure: Exception | None = None  # the error after which nothing can be journaled
    children: Children | None = None  # made with the first child
    delegation: Delegation | None = None  # made at the first delegation
    titling: Titling | None = None  # writes the title
    undo: FileUndo | None = None  # surrounds calls that may write with snapshots
    on_wait: Callable[[str], object] | None = None  # see `ConversationOrigin`
    _lent_model: LentModel | None = None  # the last one for tools and hooks

    @property
    def changes_agent(self) -> bool:
        """True if the loop sets `next_agent` before anything else. Calls of the agent before end
        first."""
        return self.next_agent is not None and not self.journal.fold.open

    @property
    def may_ask(self) -> bool:
        """True if the run may still call the model."""
        return self.journal.fold.status is ConversationStatus.RUNNING and not self.closing

    def cancel(self, token: Cancellation | None = None) -> None:
        """Cancel the running model call and tool calls; later ones are not affected."""
        with self.journal.lock:
            token = self.token if token is None else token
            if token is self.token:
                self.token = Cancellation()
        token.cancel()

    def interrupt(self) -> None:
        """Cancel the running calls, and interrupt the children that are open here."""
        self.cancel()
        if self.children is not None:
            self.children.interrupt()

    def stop(self) -> None:
        """Begin nothing further, here and in the children, and cancel what runs."""
        with self.journal.lock:
            self.closing = True
            self.journal.lock.notify_all()
        if self.children is not None:
            self.children.stop()
        self.cancel()

    def fail(self, error: Exception) -> None:
        """Stop for good: events can no longer be journaled, so nothing further may happen."""
        with self.journal.lock:
            first, self.failure = self.failure is None, self.failure or error
            self.journal.lock.notify_all()
        self.cancel()
        if self.children is not None:  # the lease's new owner now has the children too
            self.children.stop()
        if first:
            _log.error("conversation %s stopped: %s", self.journal.id, error)

    def check_open(self) -> None:
        """Raise `ConversationClosed` if the conversation closes."""
        if self.closing:
            raise self.journal.closed_error()

    def llm(self) -> Any:
        """Return the agent's model for calls beside the loop, within the budgets of the tree. Each
        call writes a `NoteRecorded`."""
        llm = self.agent.llm
        if self._lent_model is None or self._lent_model.wrapped is not llm:
            self._lent_model = LentModel(llm, self.journal)
        return self._lent_model

    def note(self, about: str, text: str, details: dict[str, Any]) -> None:
        """Journal a note; see `ToolContext.note`."""
        with suppress(ConversationClosed), self.journal as journal:
            journal.add(ev.NoteRecorded, about=clean(about), text=clean(text), details=details)

    def write_error(self, error: BaseException) -> None:
        """Stop the run on `error`, unless something else stopped it first. Within a transaction."""
        journal, kind, described = self.journal, type(error).__name__, describe_error(error)
        if journal.fold.status is not ConversationStatus.RUNNING:
            return
        fields: dict[str, Any] = {"error": kind, "message": clean(str(error) or described)}
        try:
            journal.add(ev.ErrorRecorded, **fields, details=_details(error))
        except UnreadableEvent:  # a custom error's details may hold anything
            journal.add(ev.ErrorRecorded, **fields)
        journal.add(ev.StatusChanged, status=ConversationStatus.ERROR.value, reason=kind)
        text = described if journal.secrets is None else journal.secrets.mask(described)
        _log.warning("conversation %s stopped: %s", journal.id, text)


# The fields of an error that its event keeps.
_DETAILS: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (LLMError, ("status", "code", "request_id", "retry_after")),
    (LimitExceeded, ("type", "value", "limit", "source")),
    (HookDenied, ("hook", "on", "failed")),
    (OutputInvalid, ("problem", "rounds")),
    (GoalMissed, ("missing", "rounds")),
)


def _details(error: BaseException) -> dict[str, Any]:
    """Return the fields of an error that are not empty, in camelCase."""
    details: dict[str, Any] = {}
    for name in next((names for kind, names in _DETAILS if isinstance(error, kind)), ()):
        first, *others = name.split("_")
        if value := getattr(error, name):
            details["".join([first, *map(str.capitalize, others)])] = value
    return details


def agent_in_force(agent: Agent, state: Fold) -> tuple[str, Agent]:
    """Return the name and the agent that answers in a conversation opened with `agent`.

    If the agent does not know the name in the journal, the result is `agent` itself, named "".
    """
    name = "" if state.agent is None else state.agent.name
    named_agent = find_agent(agent, name) if name else agent
    return ("", agent) if named_agent is None else (name, named_agent)
