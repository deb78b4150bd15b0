"""The members that local and remote conversations share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.commands import Ask, CancelTimer, Label, Schedule
from holdfast.content import ContentLike, Message
from holdfast.conversation.callbacks import Callback, Subscription
from holdfast.conversation.message_content import checked_content, content_of, json_arguments
from holdfast.conversation.state import ConversationState, ConversationStatus, PendingConfirmation
from holdfast.errors import ConfigurationError
from holdfast.timers import Misfire, Timer, check_ahead, time_of
from holdfast.tools.arguments import refuse_async
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.conversation.aside_answers import AsideAnswer
    from holdfast.conversation.replay import Replay


class FixedAttributes:
    """A base whose `fixed` attributes cannot be assigned again. `fixed` maps each name to
    the advice for a caller that tries."""

    __slots__ = ()

    fixed: ClassVar[Mapping[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.fixed and hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}: {name!r} cannot be assigned. {self.fixed[name]}",
                name=name,
                obj=self,
            )
        object.__setattr__(self, name, value)


class ConversationInterface(FixedAttributes):
    """A conversation in this process (`Conversation`) or on an agent server
    (`RemoteConversation`).

    A subclass reads the journal, carries out commands (`_command`) and subscribes callbacks. The
    interface checks arguments and has the members that follow from these three.
    """

    __slots__ = ()

    id: str

    # --- implemented by subclasses ---

    @property
    def state(self) -> ConversationState:
        """A snapshot of everything so far; `get_state` returns the same."""
        raise NotImplementedError

    @property
    def status(self) -> ConversationStatus:
        """The conversation's status, without a snapshot."""
        raise NotImplementedError

    def get_history(self) -> list[ev.AnyEvent]:
        """Return the events so far, in order."""
        raise NotImplementedError

    def close(self, timeout: float = 5.0) -> None:
        """Stop, and release threads and connections within about `timeout` seconds. Idempotent."""
        raise NotImplementedError

    def _command(self, name: str, **fields: Any) -> None:
        """Carry out the command that has the tag `name` in `holdfast.commands`. A field that is
        None takes its default; an answer's `values` are always given."""
        raise NotImplementedError

    def _subscribe(self, callback: Callback, after_seq: int | None) -> Subscription:
        raise NotImplementedError

    def _ask(self, command: Ask, timeout: float | None) -> AsideAnswer:
        """Carry out a question aside, and return its answer."""
        raise NotImplementedError

    def _only_question(self) -> str:
        """Return the id of the only question that waits. Raises `NotPending` without a question,
        `ConfigurationError` if several wait."""
        raise NotImplementedError

    # --- reading ---

    def get_state(self) -> ConversationState:
        """Return a snapshot of everything so far, as `state`."""
        return self.state

    def replay(self, agent: Agent | None = None) -> Replay:
        """Replay the journal here with its recorded answers and results, and return the
        comparison.

        The comparison shows whether the present version of Holdfast would send the model the same
        requests. With `agent` it shows the same for that agent (its prompt, tools, model and
        limits).
        """
        if agent is not None and not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"replay takes an Agent or None, not {agent!r}.")
        from holdfast.conversation.replay import replay

        return replay(self.get_history(), agent)

    def register_event_callback(
        self, callback: Callback, after_seq: int | None = None
    ) -> Subscription:
        """Call `callback(event)` for every event from now on (or after `after_seq`), in order, each
        once, on its own thread.

        An exception of the callback is logged, and the next event follows. `close` waits for the
        callback up to its deadline.
        """
        where = "register_event_callback"
        if not callable(callback):
            raise ConfigurationError(
                f"{where}: callback takes a function of one event, not {callback!r}."
            )
        refuse_async(f"{where}: callback", callback)
        if after_seq is not None and (not isinstance(after_seq, int) or after_seq < 0):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                f"{where}: after_seq takes a seq, 0 for all events, not {after_seq!r}."
            )
        return self._subscribe(callback, after_seq)

    register_callback = register_event_callback

    # --- commands ---

    def pause(self) -> None:
        """Stop after the current model call or the calls that have begun. Survives a restart;
        `resume` ends it."""
        self._command("pause")

    def resume(self) -> None:
        """Continue after a pause or an interrupt; try again after ERROR or STUCK. Otherwise does
        nothing."""
        self._command("resume")

    def interrupt(self) -> None:
        """Pause at once. At rest it does nothing.

        The running model call is cancelled, running tools get a cancel (commands are killed), and
        queued calls are answered as not run. Past effects of tools remain.
        """
        self._command("interrupt")

    def condense(self, instructions: str | None = None) -> None:
        """Let the agent's condenser shorten the history that the model is shown. The journal keeps
        all.

        A driven conversation condenses before its next request, also at rest. The result is a
        `HistoryCondensed` event, whose `failed` says if nothing could be left out. Raises
        `ConfigurationError` if the agent has no condenser.

        Args:
            instructions: For a condenser whose model writes a summary.
        """
        self._command(
            "condense", instructions=_optional_text("condense", "instructions", instructions)
        )

    def approve(
        self,
        call_id: str | None = None,
        *,
        arguments: dict[str, Any] | None = None,
        arguments_hash: str | None = None,
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Approve a call that waits for confirmation, with other `arguments` if given; without
        `call_id` all waiting calls.

        Give the `arguments_hash` of the call that was reviewed (`state.pending_confirmations`) if
        the pending call may have changed since. Raises `NotPending` if the call (or any call) does
        not wait, `Conflict` if its hash differs, `ToolValidationError` if the new arguments do not
        fit.
        """
        if call_id is None and (arguments is not None or arguments_hash is not None):
            raise ConfigurationError(
                "approve takes arguments and arguments_hash with a call_id alone."
            )
        self._command(
            "approve",
            call_id=_optional_text("approve", "call_id", call_id),
            arguments=None if arguments is None else json_arguments(arguments),
            arguments_hash=_optional_text("approve", "arguments_hash", arguments_hash),
            by=_text("approve", "by", by),
            reason=_text("approve", "reason", reason),
        )

    def reject(self, call_id: str | None = None, reason: str = "", *, by: str = "user") -> None:
        """Answer a call that waits for confirmation as not run, and tell the model the reason;
        without `call_id` all waiting calls.

        Raises `NotPending` if the call does not wait, or none does.
        """
        self._command(
            "reject",
            call_id=_optional_text("reject", "call_id", call_id),
            reason=_text("reject", "reason", reason),
            by=_text("reject", "by", by),
        )

    def ask(self, question: str, *, timeout: float | None = None) -> AsideAnswer:
        """Ask the model about the present conversation, and return its answer. The conversation
        itself is not affected.

        The request is the conversation's next one, with the question at its end, so the provider's
        cached beginning is used. While calls of the last answer run, that answer is left out and
        its calls are named in the question. Works at rest and during a run, also of a conversation
        that another process drives.

        The question and the outcome are journaled (`AsideAsked`, `AsideAnswered`); the cost counts
        like that of a step. The model's calls of tools are not run.

        Args:
            question: The question.
            timeout: Seconds to wait for the answer; None waits until there is an outcome.

        Raises the model's error, `LimitExceeded`, `StoreError`, and `ConversationBusy` after
        `timeout`. Raises `Conflict` if the model was never asked anything, or eight questions are
        being answered. Raises `ConversationClosed` if the conversation or the process that asks the
        model ends before the answer.

        Example:
            print(conversation.ask("What are you doing?").text)
        """
        question = _text("ask", "question", question)
        if not question.strip():
            raise ConfigurationError("ask: question takes a text; it is empty.")
        return self._ask(Ask(question, os.urandom(8).hex()), timeout)

    def answer(
        self,
        question_id: str | None = None,
        values: dict[str, Any] | bool | None = True,
        *,
        by: str = "user",
    ) -> None:
        """Answer a running call's question to the user (`state.pending_questions`); without
        `question_id` the only one.

        `values` are the form's values; values with a default may be missing. True says yes, None or
        False declines. Raises `ConfigurationError` if they do not fit the form, `NotPending` if no
        call waits for that answer.
        """
        by, question_id = self._answering("answer", by, question_id)
        self._command("answer", question_id=question_id, values=values, by=by)

    def decline(
        self, question_id: str | None = None, reason: str = "", *, by: str = "user"
    ) -> None:
        """Decline a running call's question to the user; without `question_id` the only one.
        Raises as `answer`."""
        reason = _text("decline", "reason", reason)
        by, question_id = self._answering("decline", by, question_id)
        self._command("answer", question_id=question_id, values=None, reason=reason, by=by)

    # --- title and tags ---

    @property
    def title(self) -> str:
        """The title: the one that was set, else the first line of the first message."""
        return self.state.title

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags, in the order in which they were added."""
        return self.state.tags

    def rename(self, title: str, *, by: str = "user") -> None:
        """Set the title, 1 to 200 characters on one line. Raises `ConfigurationError`."""
        title = _text("rename", "title", title)
        self._command("label", command=Label(title, by=_text("rename", "by", by)))

    def tag(self, *tags: str, by: str = "user") -> None:
        """Add tags, such as `"bug"` or `"customer=acme"`. A listing finds conversations by them
        (`Store.list(tags=...)`). Raises `ConfigurationError`, and `Conflict` beyond 50 tags."""
        self._command("label", command=Label(add=tags, by=_text("tag", "by", by)))

    def untag(self, *tags: str, by: str = "user") -> None:
        """Remove tags. One that the conversation does not have is ignored."""
        self._command("label", command=Label(remove=tags, by=_text("untag", "by", by)))

    # --- timers ---

    @property
    def timers(self) -> tuple[Timer, ...]:
        """The timers that are set, the earliest first."""
        return self.state.timers

    def schedule(
        self,
        message: str | Message | ContentLike,
        *,
        at: datetime | str | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
        timezone: str = "",
        misfire: Misfire = "once",
        id: str | None = None,
    ) -> str:
        """Send the agent a message later, once or repeatedly, and return the timer's id.

        The timer is in the journal and survives every process. Timers fire in an open conversation
        that a thread drives, on an agent server, by a worker, or at the next opening of the
        conversation. Each occurrence gives one message.

        Args:
            message: The message, at most 10,000 characters.
            at: The time, or its ISO form. A time without a zone is a wall-clock time of `timezone`.
            every: Seconds between two messages, at least 60, from now on.
            cron: Five fields, such as `0 9 * * mon-fri`, by the wall clock of `timezone`.
            timezone: A name such as `Europe/Berlin`; "" is UTC for `cron`.
            misfire: The rule for missed occurrences. "once" sends one message for all, "skip" one
                if the last is at most a minute old, "all" one for each of the last ten.
            id: The timer's id; a timer of this id is replaced. None makes a new one.

        Raises `ConfigurationError` for a time that is past, an unknown zone or a wrong expression;
        `Conflict` if the conversation has 100 timers; `HookDenied`, `ConversationClosed`.
        """
        content = checked_content(content_of(message))
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        command = Schedule(
            content,
            os.urandom(6).hex() if id is None else _text("schedule", "id", id),
            time_of(at),
            seconds,
            _optional_text("schedule", "cron", cron),
            _text("schedule", "timezone", timezone),
            misfire,
        )
        if at is not None:
            check_ahead(command.rule.due, self._now())
        self._command("schedule", command=command)
        return command.timer

    def cancel_timer(self, id: str, *, by: str = "user", reason: str = "") -> None:
        """Cancel a timer. Raises `NotFound` if the conversation has none of this id."""
        command = CancelTimer(
            _text("cancel_timer", "id", id),
            _text("cancel_timer", "by", by),
            _text("cancel_timer", "reason", reason),
        )
        self._command("cancelTimer", command=command)

    def _now(self) -> datetime:
        """Return the present time, by which a timer's time is past."""
        raise NotImplementedError

    def _answering(self, where: str, by: str, question_id: str | None) -> tuple[str, str]:
        by, question_id = _text(where, "by", by), _optional_text(where, "question_id", question_id)
        return by, self._only_question() if question_id is None else question_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(where: str, name: str, value: object) -> str:
    """Return a str as UTF-8 can hold it. Raises `ConfigurationError` for another value."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: {name} takes a str, not {value!r}.")
    return clean(value)


def _optional_text(where: str, name: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        hint = " Give its call.id." if isinstance(value, PendingConfirmation) else ""
        raise ConfigurationError(f"{where}: {name} takes a str or None, not {value!r}.{hint}")
    return None if value is None else clean(value)
