"""Decisions about the calls of an answer before any of them runs: the risk that the agent's
analyzer sees, and the verdict of its policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from holdfast import events as ev
from holdfast.agent.confirmation import Verdict, decided
from holdfast.agent.output import FINISH, asks_nobody
from holdfast.agent.planning import plan_verdict
from holdfast.agent.risk import Risk, SecurityAnalyzer, ShellState, Surroundings, assess_call
from holdfast.content import ToolCall
from holdfast.conversation.journal import Journal
from holdfast.conversation.run_context import RunContext
from holdfast.errors import ToolNotFound
from holdfast.runtime.confinement import Confinement
from holdfast.tools import Cancellation
from holdfast.tools.names import RUN_CODE

_MAX_USER_MESSAGES = 3  # latest user messages that an analyzer is shown
_MAX_SCANNED_EVENTS = 400  # latest events that are searched for them

_UNKNOWN = Risk("unknown", "this agent has no security analyzer")


class CallVerdict(Verdict, frozen=True):
    """A verdict with the risk that it rests on; `risk` is None if no analyzer was asked.

    `counted` is True if this decision records the usage of that risk. `silent` is True if
    planning alone was asked and allows the call.
    """

    risk: Risk | None = None
    counted: bool = True
    silent: bool = False


def decide(
    context: RunContext, calls: Sequence[ToolCall], cancelled: Cancellation
) -> list[CallVerdict]:
    """Return the verdicts of the agent's policy and planning, one per call; none if it has no
    policy, no analyzer and no planning. Runs user code, so the caller must not hold the lock.

    The analyzer is asked once for identical calls, as the last of them would run. A call with
    invalid JSON is allowed: it is never run. A call of a missing tool is judged as well, since
    the tool may exist when the call runs.
    """
    agent, plan = context.agent, context.journal.fold.planning.plan
    policy, analyzer, first = agent.confirm, agent.security, agent.planning == "first"
    if policy is None and analyzer is None and not first:
        return []
    verdicts: list[CallVerdict] = []
    risks = dict[tuple[str, str], Risk]()
    last = (
        {(call.name, call.arguments_hash): index for index, call in enumerate(calls)}
        if analyzer is not None and len(calls) > 1
        else {}
    )
    for call in calls:
        if call.invalid:
            verdicts.append(CallVerdict("allow"))
            continue
        if agent.output is not None and call.name == FINISH and asks_nobody(policy):
            verdicts.append(CallVerdict("allow", silent=True))
            continue
        if agent.code is not None and call.name == RUN_CODE and asks_nobody(policy, RUN_CODE):
            verdicts.append(CallVerdict("allow", silent=True))  # each call of its script is judged
            continue
        risk, counted = None, True
        if analyzer is not None:
            key = (call.name, call.arguments_hash) if len(calls) > 1 else ("", "")
            counted = key not in risks
            if counted:
                before = calls[: last.get(key, 0)]
                risks[key] = _assess(analyzer, context, call, before, cancelled)
            risk = risks[key]
        verdict = Verdict("allow") if policy is None else decided(policy, call, risk or _UNKNOWN)
        if policy is None and risk is not None:
            verdict = Verdict("allow", risk.reason, f"analyzer:{risk.by}")
        if first:
            verdict = plan_verdict(call, verdict, plan, agent.tools.get)
        silent = policy is None and analyzer is None and verdict.decision == "allow"
        verdicts.append(
            CallVerdict(verdict.decision, verdict.reason, verdict.by, risk, counted, silent)
        )
    return verdicts


def _assess(
    analyzer: SecurityAnalyzer,
    context: RunContext,
    call: ToolCall,
    before: Sequence[ToolCall],
    cancelled: Cancellation,
) -> Risk:
    agent, journal, runtime = context.agent, context.journal, context.runtime
    try:
        tool = agent.tools.get(call.name)
    except ToolNotFound:
        tool = None
    workdir: Any = getattr(runtime, "workdir", "")
    state: Any = getattr(runtime, "shell_state", None)
    shell: Any = state(journal.id) if callable(state) else None
    # Of the tool's own runtime: a tool that works elsewhere is not in the sandbox.
    confinement: Any = getattr(None if tool is None else tool.runtime, "confinement", None)
    about = Surroundings(
        conversation_id=journal.id,
        annotations=None if tool is None else tool.annotations,
        tool_type="" if tool is None else tool.tool_type,
        workdir=os.fspath(workdir) if isinstance(workdir, str | os.PathLike) else "",
        llm=agent.llm,
        said=lambda: _user_text(journal),
        cancelled=cancelled,
        shell=shell if isinstance(shell, ShellState) else ShellState(),
        before=tuple(before),
        history=tuple if isinstance(shell, ShellState) else lambda: _history(journal),
        confinement=confinement if isinstance(confinement, Confinement) else None,
    )
    return assess_call(analyzer, call, about)


def _history(journal: Journal) -> list[ToolCall]:
    """Return the calls of all answers so far."""
    with journal.lock:
        return [
            call
            for event in journal.events
            if isinstance(event, ev.AssistantReplied | ev.CodeCallsMade)
            for call in event.calls
        ]


def _user_text(journal: Journal) -> str:
    """Return the user's last messages, the latest at the end."""
    with journal.lock:
        events = journal.tail[-_MAX_SCANNED_EVENTS:]
    texts = [
        event.text
        for event in events
        if isinstance(event, ev.MessageAdded) and event.sender == "user"
    ]
    return "\n\n".join(texts[-_MAX_USER_MESSAGES:])
