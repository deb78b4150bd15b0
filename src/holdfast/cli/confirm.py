"""Confirmation of calls in a terminal: the policy of `--confirm`, the display of a call, the
prompt, and the effect of an answer."""

from __future__ import annotations

import difflib
import sys
import termios
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

from holdfast import events as ev
from holdfast.agent.confirmation import AboveRisk, Verdict
from holdfast.agent.planning import APPROVAL
from holdfast.agent.risk import Risk
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.plans import EDITING, compared, drawn, edited, steps_of
from holdfast.cli.render import GAP, Line, as_json, plain, read_arguments, whole
from holdfast.cli.session import Session
from holdfast.cli.signals import Overtaken
from holdfast.cli.text import one_line
from holdfast.content import ToolCall
from holdfast.conversation import ConversationStatus
from holdfast.conversation.state import PendingConfirmation
from holdfast.errors import ConfigurationError, RuntimeFault, ToolError
from holdfast.tools.plans import read_steps, texts

WAITING = ConversationStatus.WAITING_FOR_CONFIRMATION
ANSWERS = ("y", "yes", "n", "no", "e", "a", "q")
_PROMPT = "[y,n,e,a,q] "
_PLAN_PROMPT = "[y,n,e,q] "
_PLAN_OPTIONS = "[y] approve this plan, [n] reject it, [e] change its steps, [q] leave it waiting"


# --- the policy ---


class Asking:
    """The policy of `--confirm`: every call waits, or the calls of some tools, until the user
    allows all calls of a tool.

    A permission lasts as long as the process. `tools` None means every tool. `risky`: calls
    above a medium risk wait, whatever their tool.
    """

    def __init__(self, tools: frozenset[str] | None, risky: bool = False) -> None:
        self._tools = tools
        self.needs_risk = risky
        # Replaced, never changed in place: the conversation's thread reads it.
        self._allowed: frozenset[str] = frozenset()

    @property
    def names(self) -> Literal["always", "risky"] | list[str]:
        """The policy in the form of `Agent(confirm=)`, for places that this object cannot reach."""
        if self.needs_risk:
            return "risky"
        return "always" if self._tools is None else sorted(self._tools)

    def allow(self, tool: str) -> None:
        """Let all calls of `tool` run from now on."""
        self._allowed |= {tool}

    def allows(self, tool: str) -> bool:
        """Return True if the user allowed all calls of `tool`. A server still asks about them,
        and this process approves them."""
        return tool in self._allowed

    def decide(self, call: ToolCall, risk: Risk) -> Verdict:
        """See `ConfirmationPolicy.decide`."""
        verdict: Verdict | None = None
        if self.needs_risk:
            verdict = AboveRisk("medium").decide(call, risk)
            if verdict.decision == "allow":
                return verdict
        elif self._tools is not None and call.name not in self._tools:
            return Verdict("allow")
        if call.name in self._allowed:
            return Verdict("allow", f"the user allowed all calls of {call.name}")
        if verdict is not None:
            return verdict
        return Verdict(
            "ask",
            (
                "every call needs confirmation"
                if self._tools is None
                else f"every call of {call.name} needs confirmation"
            ),
        )


def confirmation(what: str, tools: Sequence[str]) -> Asking | None:
    """Return the policy of `--confirm WHAT`, None for `never`. Raises `UsageError` for a name
    that is not in `tools`."""
    if what.strip() == "risky":
        return Asking(frozenset(), risky=True)
    if what.strip() in ("never", "always"):
        return Asking(None) if what.strip() == "always" else None
    names = [name.strip() for name in what.split(",") if name.strip()]
    unknown = next((name for name in names if name not in tools), None)
    if unknown is not None or not names:
        near = difflib.get_close_matches(unknown or "", tools, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            "--confirm takes never, always, risky or tool names separated by commas, not"
            f" {unknown or what!r}.{hint} The tools are: {', '.join(tools)}"
        )
    return Asking(frozenset(names))


# --- the prompt ---


def edit_lines() -> bool:
    """Give `input` line editing. Return True if it has it."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            import readline  # pyright: ignore[reportUnusedImport]: its import gives input() line editing  # noqa: F401
        except ImportError:  # a Python built without readline
            return False
        return True
    return False


@contextmanager
def _prefilled(text: str) -> Generator[None]:
    import readline

    readline.set_startup_hook(lambda: readline.insert_text(text))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def forget_typed() -> None:
    """Drop the input that was typed but not read yet."""
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


class Confirmer:
    """Asks the user at the terminal about waiting calls. `other` processes a line that is no
    answer; if it returns True, the asking ends."""

    def __init__(self, session: Session, other: Callable[[str], bool] | None = None) -> None:
        self._session = session
        self._other = other
        self._edits = False

    def ask(self) -> Exit | None:
        """Ask about the first waiting call and carry out the answer.

        Returns None if the agent may have work now or was paused, an exit code if the call is
        left waiting. Raises `Ended`.
        """
        session = self._session
        session.catch_up()
        waiting = session.conversation.state.pending_confirmations
        if not waiting:
            return session.tell_waiting() if session.conversation.status is WAITING else None
        first = waiting[0]
        if (
            session.asking is not None
            and session.asking.allows(first.call.name)
            and first.reason not in APPROVAL
        ):
            self._approve(first, reason=f"the user allowed all calls of {first.call.name}")
            return None
        forget_typed()  # input typed before the question appeared is not its answer
        self._edits = edit_lines()
        more = f" ({len(waiting) - 1} more after this)" if len(waiting) > 1 else ""
        asked = "Approve this plan?" if first.reason in APPROVAL else "May this run?"
        session.screen.show([GAP, Line("dim", f"{asked} {plain(one_line(first.reason))}{more}")])
        session.screen.show(self._shown(first.call))
        try:
            return self._question(first, waiting)
        except EOFError:
            session.screen.notice("")
            return session.tell_waiting() if self._waits(first.call.id) else session.outcome()
        except KeyboardInterrupt:
            session.screen.notice("")
            session.pause()
            return None
        except Overtaken:
            session.screen.notice("")
            forget_typed()  # a half-typed answer does not belong to the next question
            self._decided(first.call.id)
            return None

    def _shown(self, call: ToolCall) -> list[Line]:
        state, width = self._session.conversation.state, self._session.screen.width
        steps = steps_of(call)
        return (
            compared(steps, texts(state.plan) if state.plan_approved else (), width)
            if steps
            else whole(call, self._current)
        )

    def _current(self, path: str) -> str | None:
        try:
            return self._session.runtime.read_file(path)
        except (RuntimeFault, ValueError):  # missing, not text, or not readable
            return None

    def _question(
        self, first: PendingConfirmation, waiting: Sequence[PendingConfirmation]
    ) -> Exit | None:
        session, call = self._session, first.call
        tool = plain(one_line(call.name))
        plan, arguments = first.reason in APPROVAL and bool(steps_of(call)), None
        options = (
            f"[y] run it, [n] reject, [e] edit, [a] run this and all later calls of {tool}, [q]"
            " leave it waiting"
        )
        options = _PLAN_OPTIONS if plan else options
        session.screen.notice(options, "dim")
        gone = self._gone(call.id)
        while True:
            line = session.ask(_PLAN_PROMPT if plan else _PROMPT, gone)
            answer = line.strip().lower()
            if (answer in (*ANSWERS, "") or self._other is None) and self._decided(call.id):
                return None
            match answer:
                case "y" | "yes":
                    self._approve(first, arguments)
                    return None
                case "e" if plan:
                    arguments = self._edit_plan(first, arguments)
                    session.screen.notice(options, "dim")
                case "a" if not plan:
                    if session.asking is not None:
                        session.asking.allow(call.name)
                    for pending in waiting:
                        if pending.call.name == call.name:
                            self._approve(pending)
                    return None
                case "n" | "no":
                    reason = session.ask(
                        "Why? The model is told (Enter: no reason): ", gone
                    ).strip()
                    if not self._decided(call.id):
                        session.conversation.reject(call.id, reason)
                    return None
                case "e":
                    if self._edit(first):
                        return None
                case "q":
                    return session.tell_waiting()
                case "":
                    session.screen.notice(options, "dim")
                case _ if self._other is None or (plan and answer == "a"):
                    session.screen.notice(f"Unknown answer. {options}", "dim")
                case _:
                    if self._other(line):
                        return session.tell_waiting()
                    if session.conversation.status is not WAITING or not self._waits(call.id):
                        return None

    def _approve(
        self,
        pending: PendingConfirmation,
        arguments: dict[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        try:
            conversation, hash = self._session.conversation, pending.arguments_hash
            conversation.approve(
                pending.call.id, arguments=arguments, arguments_hash=hash, reason=reason
            )
        except ConfigurationError:
            if not self._decided(pending.call.id):
                raise

    def _edit(self, pending: PendingConfirmation) -> bool:
        """Read other arguments and approve the call with them. Return False if the user typed
        nothing."""
        session, gone = self._session, self._gone(pending.call.id)
        text = as_json(
            pending.call.arguments, ascii_only="utf" not in (sys.stdin.encoding or "").lower()
        )
        if not self._edits:
            session.screen.notice(f"The arguments are: {text}")
        while True:
            if self._edits:
                with _prefilled(text):
                    line = session.ask("Arguments (empty: back): ", gone)
            else:
                line = session.ask("New arguments (empty: back): ", gone)
            if not line.strip():
                return False
            try:
                arguments = read_arguments(line)
                # Compared as JSON, because 1 == True in Python.
                changed = as_json(arguments) != as_json(pending.call.arguments)
                self._approve(pending, arguments if changed else None)
            except (ToolError, ValueError) as error:
                session.screen.notice(one_line(str(error)), "error")
                text = line
            else:
                return True

    def _edit_plan(
        self, pending: PendingConfirmation, before: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Read changes to a plan, line by line. Return the arguments to approve it with, None
        for the model's own."""
        session, steps = self._session, read_steps(before) or steps_of(pending.call)
        session.screen.notice(EDITING, "dim")
        while (line := session.ask("Change (Enter: done): ", self._gone(pending.call.id))).strip():
            try:
                steps = edited(steps, line)
            except ValueError as error:
                session.screen.notice(one_line(str(error)), "error")
            else:
                session.screen.show(drawn(steps, session.screen.width))
        return (
            None
            if steps == steps_of(pending.call)
            else {"steps": [msgspec.to_builtins(step) for step in steps]}
        )

    def _waits(self, call_id: str) -> bool:
        return any(
            pending.call.id == call_id
            for pending in self._session.conversation.state.pending_confirmations
        )

    def _gone(self, call_id: str) -> Callable[[], bool]:
        """Return a function that is True once the call no longer waits, because someone else
        decided on it or paused the conversation."""
        conversation = self._session.conversation
        return lambda: (
            not self._waits(call_id)
            or conversation.status not in (WAITING, ConversationStatus.RUNNING)
        )

    def _decided(self, call_id: str) -> bool:
        """Return True if the call no longer waits, after printing the decision."""
        conversation = self._session.conversation
        if self._waits(call_id):
            return False
        message = "The call no longer waits: it was answered as not run."
        for event in reversed(conversation.get_history()):
            if (
                isinstance(event, ev.Decision)
                and event.call_id == call_id
                and not event.question_id
                and event.decision in ("approve", "reject")
            ):
                what = "approved" if event.decision == "approve" else "rejected"
                why = f": {event.reason}" if event.reason else ""
                message = f"The call was decided elsewhere: {what} by {event.by or 'somebody'}{why}"
                break
        self._session.screen.notice(one_line(message), "dim")
        return True
