"""`CommandExecutor`: every operation on a conversation is a command (`holdfast.commands`), carried
out in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast import commands as cmd
from holdfast import events as ev
from holdfast.content import ToolCall
from holdfast.conversation import timers
from holdfast.conversation.calls import Calls
from holdfast.conversation.fold import OpenCall, turn
from holdfast.conversation.handoff import chosen_agent
from holdfast.conversation.hook_points import HookedMessage, HookPoints, journal_denial
from holdfast.conversation.loop import Loop
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.status import AT_REST, ConversationStatus
from holdfast.errors import (
    ConfigurationError,
    Conflict,
    HoldfastError,
    HookDenied,
    NotFound,
    NotPending,
    ToolError,
)
from holdfast.labels import MAX_TAGS, with_tags
from holdfast.object_struct import ObjectStruct
from holdfast.tools.question_forms import complete_answer
from holdfast.tools.results import clean

if TYPE_CHECKING:
    from holdfast.conversation.hosting import Hosting

RUNNING = ConversationStatus.RUNNING
PAUSED = ConversationStatus.PAUSED
WAITING = ConversationStatus.WAITING_FOR_CONFIRMATION
_FAILED, _STUCK = ConversationStatus.ERROR, ConversationStatus.STUCK

Effect = Callable[[], object]  # called once the transaction is over and no lock is held


Prepared = cmd.Command | HookedMessage


class UnfitCommand(ConfigurationError):
    """Arguments or values do not fit. Its cause may hold secrets, so it is not logged."""


# Errors of a command that is invalid, names an unknown id, or does not fit the present state.
REFUSALS = (ConfigurationError, Conflict, NotFound)


class CommandExecutor(ObjectStruct):
    """Carries out the commands of one conversation. Thread-safe.

    `prepare` runs user code and takes no lock; `apply` runs within a transaction; `execute` does
    both. All raise `ConfigurationError` for an invalid command, `Conflict` for one that does not
    fit (any more).
    """

    _context: RunContext
    _loop: Loop
    _calls: Calls
    _hooks: HookPoints
    _family: Hosting  # weak

    def execute(self, command: cmd.Command) -> ev.MessageAdded | None:
        """Carry out a command; return the event of a message.

        Raises `HookDenied` if a hook denies a message, `ToolValidationError` if an approval's new
        arguments do not fit, `ConversationClosed`.
        """
        prepared = self._prepare_detailed(command)
        effect = event = None
        with self._context.journal:
            self._context.check_open()
            if isinstance(prepared, HookedMessage):
                event = self._send(prepared)
            else:
                effect = self.apply(prepared)
        if effect is not None:
            effect()
        return event

    def _prepare_detailed(self, command: cmd.Command) -> Prepared:
        """Prepare a command; journal a hook's denial of it."""
        try:
            return self.prepare(command)
        except ConfigurationError as error:
            if isinstance(error, HookDenied):
                with self._context.journal as journal:
                    journal_denial(journal, error)
            if not isinstance(error, UnfitCommand):
                raise
            raise detailed(error) from None

    def prepare_posted(self, messages: Sequence[cmd.Send | cmd.Label]) -> list[Prepared]:
        """Prepare messages and labels for `begin_with`. Raises as `execute` does."""
        return [self._prepare_detailed(readable(one)) for one in messages]

    def asks_user_code(self, command: cmd.Command | cmd.UnreadableCommand) -> bool:
        """Return True if `prepare` asks hooks or a tool's validator about a command."""
        match command:
            case cmd.Send() | cmd.Schedule():
                return self._hooks.asks_about_messages
            case cmd.Approve():
                return command.arguments is not None
            case cmd.Return():
                return True
            case _:
                return False

    def prepare(self, command: cmd.Command) -> Prepared:
        """Return a command after user code has checked or changed it."""
        context = self._context
        match command:
            case cmd.Send():
                return self._hooks.check_message(command)
            case cmd.Schedule(content):
                # what hooks add to a message, they add at its own time
                message = self._hooks.check_message(cmd.Send(content, sender=command.sender))
                return replace(command, content=message.content)
            case cmd.Ask():
                self._family.asides().prepare()
            case cmd.Use():
                return replace(command, agent=chosen_agent(context, command.agent))
            case cmd.Return(call_id, runner, result):
                with context.journal.lock:
                    item = copy(self._claimed(call_id, runner))
                result = self._calls.client_result(item, result)
                return replace(command, result=result)
            case cmd.Answer(question_id, values):
                question = self._calls.questions.waiting(question_id)
                try:
                    values = complete_answer(
                        f"answer: question {question.id!r}", question.schema, values
                    )
                except ConfigurationError as error:
                    raise UnfitCommand("its values do not fit the form.") from error
                return replace(command, values=values)
            case cmd.Approve(call_id, _, arguments) if arguments is not None:
                with context.journal.lock:
                    name = self.pending(call_id)[0].name
                try:
                    context.agent.tools.get(name).validate(arguments)
                except (
                    Exception,
                    SystemExit,
                ) as error:  # a tool's own validator may raise anything
                    raise UnfitCommand("its arguments do not fit the tool.") from error
            case _:
                pass
        return command

    def apply(self, command: Prepared) -> Effect | None:
        """Carry out a prepared command, within a transaction; return its effect."""
        calls, journal = self._calls, self._context.journal
        match command:
            case HookedMessage():
                self._send(command)
            case cmd.Approve(call_id, arguments_hash):
                [call] = self.pending(call_id)
                if arguments_hash != call.arguments_hash:
                    raise Conflict(
                        f"Call {call.id!r} has other arguments than those that were approved (its"
                        f" arguments_hash is {call.arguments_hash}). Review it again."
                    )
                return self._decide([call], True, command.by, command.reason, command.arguments)
            case cmd.Reject(call_id, reason, by):
                return self._decide(self.pending(call_id), False, by, reason)
            case cmd.Answer(question_id, values, reason, by):
                # `prepare` has replaced True by the form's defaults
                form_values = values if isinstance(values, dict) else None
                return calls.questions.answer(question_id, form_values, clean(by), clean(reason))
            case cmd.Claim(call_id, runner):
                self._claim(call_id, runner)
            case cmd.Return(call_id, runner, result, duration):
                calls.write_result(self._claimed(call_id, runner).call, result, duration)
            case cmd.Settle(call_id, reason, kind, runner):
                item = self._offered_call(call_id)
                if runner is not None and runner != item.runner:
                    claim = f"was claimed by {item.runner!r}" if item.runner else "is not claimed"
                    raise Conflict(
                        f"Call {call_id!r} {claim}, so it cannot be settled for"
                        f" {runner or 'none'!r}."
                    )
                calls.write_settled(item, clean(reason), kind)
            case cmd.Pause():
                if journal.fold.status is not PAUSED:
                    journal.add(ev.StatusChanged, status=PAUSED.value)
            case cmd.Resume():
                return self._resume()
            case cmd.Interrupt():
                return self._interrupt()
            case cmd.Condense(instructions):
                if self._context.agent.condenser is None:
                    raise ConfigurationError(
                        "condense: the agent has no condenser; give it one, such as"
                        " Agent(condenser=LLMCondenser())."
                    )
                journal.add(ev.HistoryCondensed, hidden=(), request=clean(instructions))
            case cmd.Ask():
                return self._family.asides().begin(command)
            case cmd.Use(agent, by):
                text, details = f"from the next step on: {agent}", {"agent": agent, "by": clean(by)}
                journal.add(ev.NoteRecorded, about=ev.AGENT_CHOICE, text=text, details=details)
            case cmd.Schedule():
                timer = timers.set_timer(journal, timers.with_id(command.rule, journal.new_id()))
                if timer.due <= timer.timestamp:  # it was posted, and carried out late
                    return lambda: timers.fire_due(journal, self._loop.drives)
            case cmd.CancelTimer(timer, by, reason):
                timers.cancel_timer(journal, timer, clean(by), clean(reason))
            case cmd.Label(title, add, remove, by):
                self._label(title, add, remove, clean(by))
            case cmd.RingTimer(timer, due):
                timers.ring(journal, [timers.RungOccurrence(timer, due)], self._loop.drives)
            case cmd.Send():
                raise TypeError("a message is prepared before it is applied")
        return None

    def _label(
        self, title: str | None, add: tuple[str, ...], remove: tuple[str, ...], by: str
    ) -> None:
        journal = self._context.journal
        labels = journal.fold.labelled.labels
        tags = with_tags(labels.tags, add, remove)
        if len(tags) > MAX_TAGS:
            raise Conflict(
                f"A conversation has at most {MAX_TAGS} tags; it would have {len(tags)}."
            )
        journal.add(ev.ConversationLabelled, title=title, add=add, remove=remove, by=by)

    def decide_all(self, approved: bool, by: str, reason: str) -> None:
        """Approve or reject all calls that wait now. Raises `NotPending` if no call waits."""
        with self._context.journal:
            effect = self._decide(self.pending(None), approved, by, reason)
        effect()

    def pending(self, call_id: str | None) -> list[ToolCall]:
        """Return the calls that wait, or that one alone. Needs the lock. Raises `NotPending`."""
        open_calls = self._context.journal.fold.open.values()
        waiting = [item.call for item in open_calls if item.ask_reason is not None]
        calls = [call for call in waiting if call_id is None or call.id == call_id]
        if calls:
            return calls
        if call_id is None:
            raise NotPending("No call waits for a decision.")
        others = ", ".join(call.id for call in waiting)
        which = f". These do: {others}." if waiting else "; no call does."
        raise NotPending(f"Call {call_id!r} does not wait for a decision{which}")

    # --- messages and runs ---

    def _send(self, message: HookedMessage) -> ev.MessageAdded:
        journal = self._context.journal
        event = message.write(journal)
        if self._loop.drives and journal.fold.status in AT_REST:
            journal.add(ev.StatusChanged, status=RUNNING.value)
        return event

    def begin(self, resume: bool) -> None:
        """Set a conversation with work to RUNNING; `resume`: also a paused or failed one."""
        self._context.check_open()
        journal = self._context.journal
        if journal.fold.has_new_message:
            journal.add(ev.StatusChanged, status=RUNNING.value)
        elif resume:
            self._resume()

    def begin_with(self, messages: Sequence[Prepared]) -> None:
        """Write prepared messages and labels, at least one of them a message, and set a
        conversation at rest to RUNNING."""
        self._context.check_open()
        journal = self._context.journal
        for one in messages:
            if isinstance(one, HookedMessage):
                one.write(journal)
            else:
                self.apply(one)
        if journal.fold.status in AT_REST:
            journal.add(ev.StatusChanged, status=RUNNING.value)

    def _resume(self) -> Effect | None:
        """Continue after a pause; try again after an error. The effect resumes children that an
        interrupt stopped."""
        journal, fold = self._context.journal, self._context.journal.fold
        if fold.status is PAUSED:
            # Back to the status without the pause: waiting, running if there is work, else at rest.
            # A run whose last answer came after the pause still ends, as FINISHED, by the loop.
            status = (
                WAITING
                if fold.waits
                else RUNNING
                if self._has_unfinished_work() or fold.run.steps
                else ConversationStatus.IDLE
            )
            journal.add(ev.StatusChanged, status=status.value)
        elif fold.status in (_FAILED, _STUCK) and self._has_unfinished_work():
            journal.add(ev.StatusChanged, status=RUNNING.value)
        delegation = self._context.delegation
        return None if delegation is None else delegation.children.resume_stopped

    def _has_unfinished_work(self) -> bool:
        """Return True if the model, a call, or a run without its required output has work."""
        fold, rounds = self._context.journal.fold, self._context.agent.output_rounds
        problem = bool(rounds and fold.output.problem(fold.assistant))
        return fold.owed or bool(fold.open) or problem or self._hooks.end_is_open

    def _interrupt(self) -> Effect | None:
        """Pause at once and withdraw the questions; the effect cancels the running calls.

        At rest it does nothing, except that a spawned conversation interrupts its background
        children.
        """
        context, journal = self._context, self._context.journal
        at_rest = journal.fold.status in AT_REST
        condensing = at_rest and journal.fold.condensing
        if at_rest and not condensing and (not journal.spawned_by or context.children is None):
            return None
        if not at_rest and journal.fold.status is not PAUSED:
            journal.add(ev.StatusChanged, status=PAUSED.value, reason="interrupted")
        if context.delegation is not None:
            context.delegation.children.journal_stopped()
        if condensing:
            journal.add(ev.HistoryCondensed, hidden=(), failed="interrupted")
            return context.cancel
        if at_rest:
            return None if context.children is None else context.children.interrupt
        self._calls.refuse_queued()
        wake = self._calls.questions.withdraw()

        def effect() -> None:
            context.interrupt()  # first: a call that wakes then sees its cancellation
            wake()

        return effect

    # --- decisions ---

    def _decide(
        self,
        calls: Sequence[ToolCall],
        approved: bool,
        by: str,
        reason: str,
        arguments: dict[str, Any] | None = None,
    ) -> Effect:
        """Approve or reject calls. The effect starts the calls that may run now."""
        journal, by, reason = self._context.journal, clean(by), clean(reason)
        for call in calls:
            journal.add(
                ev.DecisionMade,
                call_id=call.id,
                decision="approve" if approved else "reject",
                by=by,
                reason=reason,
                arguments_hash=call.arguments_hash,
                arguments=arguments,
            )
        if not approved:
            self._calls.refuse(calls, by, reason)
        if journal.fold.status is WAITING:
            # leave this status if a call, or the model, can proceed after these decisions
            decided = {call.id for call in calls}
            remaining = [
                item for id, item in journal.fold.open.items() if approved or id not in decided
            ]
            now = turn(remaining)
            if not now or any(item.ask_reason is None or item.call.id in decided for item in now):
                journal.add(ev.StatusChanged, status=RUNNING.value)
        return self._calls.admit

    # --- calls that clients run ---

    def _offered_call(self, call_id: str) -> OpenCall:
        item = self._context.journal.fold.open.get(call_id)
        if item is None:
            problem = "is not open: it has a result, or there is no such call."
        elif not item.offered:
            problem = (
                f"of {item.call.name!r} is not open to clients: the conversation's own process runs"
                " it."
            )
        elif item.ask_reason is not None:
            problem = "is not open to clients yet: it waits for a decision."
        else:
            return item
        raise NotPending(f"Call {call_id!r} {problem}")

    def _claimed(self, call_id: str, runner: str) -> OpenCall:
        item = self._offered_call(call_id)
        if not runner or item.runner != runner:
            claim = f"was claimed by {item.runner!r}" if item.runner else "was not claimed"
            raise Conflict(
                f"Call {call_id!r} {claim}; {runner!r} must claim it before it returns a result."
            )
        return item

    def _claim(self, call_id: str, runner: str) -> None:
        """Start a call at a client; a second claim by the same client changes nothing."""
        item, fold = self._offered_call(call_id), self._context.journal.fold
        if item.runner:
            if item.runner != runner:
                raise Conflict(f"Call {call_id!r} was claimed by {item.runner!r}.")
            return
        if item not in fold.offers:
            raise NotPending(
                f"Call {call_id!r} is not open to clients yet: a call before it in the answer has"
                " no result."
            )
        if fold.status is not RUNNING:
            status = fold.status.value
            raise Conflict(f"Call {call_id!r} cannot begin now: the conversation is {status}.")
        self._calls.write_start(item.call, 1, runner)


def readable(command: cmd.Command) -> cmd.Command:
    """Return a command as one that was posted is read: what could not be posted is refused."""
    return cmd.decode(cmd.encode(command))


def detailed(error: HoldfastError) -> HoldfastError:
    """Return the error with its details, for the caller that gave the arguments."""
    cause = error.__cause__
    if not isinstance(error, UnfitCommand):
        return error
    if isinstance(cause, ToolError | ConfigurationError):
        return cause
    return ConfigurationError(f"{error} {cause}")
