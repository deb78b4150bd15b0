"""Confirmation of calls in a terminal: the policy of `--confirm`, the prompt, and its answers."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.agent.confirmation import AboveRisk, Verdict
from holdfast.agent.planning import APPROVAL
from holdfast.agent.risk import Risk
from holdfast.cli.dialog import Dialog
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.plans import EDITING, compared, drawn, edited, steps_of
from holdfast.cli.render import as_json, read_arguments, whole
from holdfast.cli.signals import PromptWithdrawn
from holdfast.cli.text import GAP, TextLine, one_line, plain_line
from holdfast.content import ToolCall
from holdfast.conversation import ConversationStatus
from holdfast.conversation.state import PendingConfirmation
from holdfast.errors import ConfigurationError, Conflict, RuntimeFault, ToolError
from holdfast.tools.plans import read_steps, step_texts

if TYPE_CHECKING:
    from holdfast.cli.dialog import AnyConversation

WAITING = ConversationStatus.WAITING_FOR_CONFIRMATION
ANSWERS = ("y", "yes", "n", "no", "e", "a", "q")
_COMMANDS = ("terminal", "terminal_input")  # the tools whose calls are commands
_PROMPT = "[y,n,e,a,q] "
_OPTIONS = "[y] run it, [n] reject, [e] edit, [a] run this and all later calls of "
_PLAN_PROMPT = "[y,n,e,q] "
_PLAN_OPTIONS = "[y] approve this plan, [n] reject it, [e] change its steps, [q] leave it waiting"


# --- the policy ---


class ConfirmOption:
    """The policy of `--confirm`. Calls wait until the user allows all calls of their tool, for the
    life of the process.

    `names` are the tools whose calls wait, or `always`, or `risky`: calls above a medium risk.
    `commands`: commands that may do more than read wait in any case."""

    def __init__(
        self, names: Literal["always", "risky"] | list[str], commands: bool = False
    ) -> None:
        self.names = names  # in the form of `Agent(confirm=)`
        self._commands = commands
        self.needs_risk = names == "risky" or commands
        # Replaced, never changed in place: the conversation's thread reads it.
        self._allowed: frozenset[str] = frozenset()

    def allow(self, tool: str) -> None:
        """Let all calls of `tool` run from now on."""
        self._allowed |= {tool}

    def allows(self, tool: str) -> bool:
        """Return True if the user allowed all calls of `tool`. A server still asks about them,
        and this process approves them."""
        return tool in self._allowed

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        verdict = Verdict("ask", "every call needs confirmation")
        if self.names == "risky":
            verdict = AboveRisk("medium").decide(call, risk)
        elif self.names != "always":
            reason = f"every call of {call.name} needs confirmation"
            verdict = Verdict("ask", reason) if call.name in self.names else Verdict("allow")
        if verdict.decision == "allow" and self._commands and call.name in _COMMANDS:
            verdict = AboveRisk("low").decide(call, risk)
        if verdict.decision == "ask" and call.name in self._allowed:
            return Verdict("allow", f"the user allowed all calls of {call.name}")
        return verdict


def confirmation(what: str, tools: Sequence[str], commands: bool = False) -> ConfirmOption | None:
    """Return the policy of `--confirm`, None if no call waits. `commands`: commands that may do
    more than read wait in any case. Raises `UsageError`."""
    match what.strip():
        case "never":
            return ConfirmOption([], commands) if commands else None
        case "always" | "risky" as word:
            return ConfirmOption(word, commands)
        case _:
            pass
    names = [name.strip() for name in what.split(",") if name.strip()]
    unknown = next((name for name in names if name not in tools), None)
    if unknown is not None or not names:
        near = difflib.get_close_matches(unknown or "", tools, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            "--confirm takes never, always, risky or tool names separated by commas, not"
            f" {unknown or what!r}.{hint} The tools are: {', '.join(tools)}"
        )
    return ConfirmOption(sorted(set(names)), commands)


# --- the prompt ---


class CallPrompt(NamedTuple):
    """Asks the user at the terminal about the waiting calls of a conversation."""

    dialog: Dialog
    conversation: AnyConversation
    read_file: Callable[[str], str]
    policy: ConfirmOption | None
    pause: Callable[[], None]
    # Returns the exit code for the conversation's rest, or None if it continued by itself.
    outcome: Callable[[], Exit | None]
    list_waiting: Callable[[], Exit]  # lists the calls that are left waiting
    # Processes a line that is no answer; if it returns True, the asking ends.
    other: Callable[[str], bool] | None = None

    def ask(self) -> Exit | None:
        """Ask about the first waiting call and carry out the answer.

        Returns None if the agent may have work now or was paused, an exit code if the call is
        left waiting. Raises `EndRequested`.
        """
        console, policy = self.dialog.console, self.policy
        self.dialog.catch_up()
        waiting = self.conversation.state.pending_confirmations
        if not waiting:
            return self.list_waiting() if self.conversation.status is WAITING else None
        first = waiting[0]
        tool, plan = first.call.name, first.reason in APPROVAL
        if policy is not None and policy.allows(tool) and not plan:
            self._approve(first, reason=f"the user allowed all calls of {tool}")
            return None
        console.forget_typed()  # input typed before the question appeared is not its answer
        more = f" ({len(waiting) - 1} more after this)" if len(waiting) > 1 else ""
        question = "Approve this plan?" if plan else "May this run?"
        console.show([GAP, TextLine("dim", f"{question} {plain_line(first.reason)}{more}")])
        console.show(self._call_lines(first.call))
        try:
            return self._question(first, waiting)
        except EOFError:
            console.notice("")
            return self.list_waiting() if self._waits(first.call.id) else self.outcome()
        except KeyboardInterrupt:
            console.notice("")
            self.pause()
            return None
        except PromptWithdrawn:
            console.notice("")
            console.forget_typed()  # a half-typed answer does not belong to the next question
            self._decided(first.call.id)
            return None

    def _call_lines(self, call: ToolCall) -> list[TextLine]:
        state, steps = self.conversation.state, steps_of(call)
        if not steps:
            return whole(call, self._current)
        approved = step_texts(state.plan) if state.plan_approved else ()
        return compared(steps, approved, self.dialog.console.width)

    def _current(self, path: str) -> str | None:
        try:
            return self.read_file(path)
        except (RuntimeFault, ValueError):  # missing, not text, or not readable
            return None

    def _question(
        self, first: PendingConfirmation, waiting: Sequence[PendingConfirmation]
    ) -> Exit | None:
        dialog, console, call = self.dialog, self.dialog.console, first.call
        plan, arguments = first.reason in APPROVAL and bool(steps_of(call)), None
        tool = plain_line(call.name)
        prompt, options = (_PLAN_PROMPT, _PLAN_OPTIONS) if plan else (_PROMPT, f"{_OPTIONS}{tool}")
        options += "" if plan else ", [q] leave it waiting"
        console.notice(options, "dim")
        is_withdrawn = self._withdrawal_check(call.id)
        while True:
            line = dialog.ask(prompt, is_withdrawn)
            answer = line.strip().lower()
            if (answer in (*ANSWERS, "") or self.other is None) and self._decided(call.id):
                return None
            match answer:
                case "y" | "yes":
                    self._approve(first, arguments)
                    return None
                case "e" if plan:
                    arguments = self._edit_plan(first, arguments)
                    console.notice(options, "dim")
                case "a" if not plan:
                    if self.policy is not None:
                        self.policy.allow(call.name)
                    for pending in waiting:
                        if pending.call.name == call.name:
                            self._approve(pending)
                    return None
                case "n" | "no":
                    reason = dialog.ask("Why? The model is told (Enter: no reason): ", is_withdrawn)
                    if not self._decided(call.id):
                        self.conversation.reject(call.id, reason.strip())
                    return None
                case "e":
                    if self._edit(first):
                        return None
                case "q":
                    return self.list_waiting()
                case "":
                    console.notice(options, "dim")
                case _ if self.other is None or (plan and answer == "a"):
                    console.notice(f"Unknown answer. {options}", "dim")
                case _:
                    if self.other(line):
                        return self.list_waiting()
                    if self.conversation.status is not WAITING or not self._waits(call.id):
                        return None

    def _approve(
        self,
        pending: PendingConfirmation,
        arguments: dict[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        id, hash = pending.call.id, pending.arguments_hash
        try:
            self.conversation.approve(id, arguments=arguments, arguments_hash=hash, reason=reason)
        except (ConfigurationError, Conflict):
            if not self._decided(id):
                raise

    def _edit(self, pending: PendingConfirmation) -> bool:
        """Approve the call with arguments that the user types. Return False if the user types
        none."""
        console, is_withdrawn = self.dialog.console, self._withdrawal_check(pending.call.id)
        edits = console.can_edit
        ascii_only = "utf" not in (sys.stdin.encoding or "").lower()
        text = as_json(pending.call.arguments, ascii_only=ascii_only)
        if not edits:
            console.notice(f"The arguments are: {text}")
        while True:
            what = "Arguments" if edits else "New arguments"
            prefill = text if edits else ""
            line = self.dialog.ask(f"{what} (empty: back): ", is_withdrawn, prefill=prefill)
            if not line.strip():
                return False
            try:
                arguments = read_arguments(line)
                # Compared as JSON, because 1 == True in Python.
                differs = as_json(arguments) != as_json(pending.call.arguments)
                self._approve(pending, arguments if differs else None)
            except (ToolError, ValueError) as error:
                console.notice(one_line(str(error)), "error")
                text = line
            else:
                return True

    def _edit_plan(
        self, pending: PendingConfirmation, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Read changes to a plan. Return the arguments to approve, None for its own."""
        console, steps = self.dialog.console, read_steps(before) or steps_of(pending.call)
        is_withdrawn = self._withdrawal_check(pending.call.id)
        console.notice(EDITING, "dim")
        while (line := self.dialog.ask("Change (Enter: done): ", is_withdrawn)).strip():
            try:
                steps = edited(steps, line)
            except ValueError as error:
                console.notice(one_line(str(error)), "error")
            else:
                console.show(drawn(steps, console.width))
        if steps == steps_of(pending.call):
            return None
        return {"steps": [msgspec.to_builtins(step) for step in steps]}

    def _waits(self, call_id: str) -> bool:
        waiting = self.conversation.state.pending_confirmations
        return any(pending.call.id == call_id for pending in waiting)

    def _withdrawal_check(self, call_id: str) -> Callable[[], bool]:
        """Return a function that is True once someone else decided or paused."""
        return lambda: (
            not self._waits(call_id)
            or self.conversation.status not in (WAITING, ConversationStatus.RUNNING)
        )

    def _decided(self, call_id: str) -> bool:
        """Return True if the call no longer waits, after printing the decision."""
        if self._waits(call_id):
            return False
        message = "The call no longer waits: it was answered as not run."
        for event in reversed(self.conversation.get_history()):
            if (
                isinstance(event, ev.DecisionMade)
                and (event.call_id, event.question_id) == (call_id, "")
                and event.decision in ("approve", "reject")
            ):
                what = "approved" if event.decision == "approve" else "rejected"
                why = f": {event.reason}" if event.reason else ""
                by = event.by or "somebody"
                message = f"The call was decided elsewhere: {what} by {by}{why}"
                break
        self.dialog.console.notice(one_line(message), "dim")
        return True
