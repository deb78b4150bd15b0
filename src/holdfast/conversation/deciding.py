"""What is decided about the calls of an answer before one of them runs: their risk, by the agent's
analyzer, and the verdict, by its policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.confirmation import Verdict, decided
from holdfast.agent.output import FINISH, asks_nobody
from holdfast.agent.planning import judged
from holdfast.agent.risk import Risk, SecurityAnalyzer, ShellState, Surroundings, assessed
from holdfast.content import ToolCall
from holdfast.conversation.journal import Journal
from holdfast.errors import ToolNotFound
from holdfast.tools import Cancellation

_SAID = 3  # messages of the user that an analyzer is shown
_LOOKED = 400  # events that are looked through for them

_UNKNOWN = Risk("unknown", "this agent has no security analyzer")


class Decided(Verdict, frozen=True):
    """A verdict, and the risk that it rests on; None if nobody was asked for that. `counted`: what
    that risk took is written down here. `silent`: nobody but planning was asked, and it has nothing
    against the call."""

    risk: Risk | None = None
    counted: bool = True
    silent: bool = False


def decide(
    agent: Agent,
    journal: Journal,
    runtime: object | None,
    calls: Sequence[ToolCall],
    cancelled: Cancellation,
) -> list[Decided]:
    """What the agent's policy and its planning say of each call; none without these and an
    analyzer. Runs users' code: not under the lock.

    An analyzer is asked once for calls that are the same, as the last of them would run. A call
    whose arguments are no JSON is not run anyway; one of a tool that is not there is decided about
    too: the tool may be there by the time that the call is run.
    """
    policy, analyzer = agent.confirm, agent.security
    first, plan = agent.planning == "first", journal.fold.planned
    if policy is None and analyzer is None and not first:
        return []
    found: list[Decided] = []
    risks = dict[tuple[str, str], Risk]()
    last = (
        {(call.name, call.arguments_hash): index for index, call in enumerate(calls)}
        if analyzer is not None and len(calls) > 1
        else {}
    )
    for call in calls:
        if call.invalid:
            found.append(Decided("allow"))
            continue
        if agent.output is not None and call.name == FINISH and asks_nobody(policy):
            found.append(Decided("allow", silent=True))
            continue
        risk, counted = None, True
        if analyzer is not None:
            key = (call.name, call.arguments_hash) if len(calls) > 1 else ("", "")
            counted = key not in risks
            if counted:
                risks[key] = _assess(
                    analyzer, agent, journal, runtime, call, calls[: last.get(key, 0)], cancelled
                )
            risk = risks[key]
        verdict = Verdict("allow") if policy is None else decided(policy, call, risk or _UNKNOWN)
        if policy is None and risk is not None:
            verdict = Verdict("allow", risk.reason, f"analyzer:{risk.by}")
        if first:
            verdict = judged(call, verdict, plan, agent.tools.get)
        silent = policy is None and analyzer is None and verdict.decision == "allow"
        found.append(Decided(verdict.decision, verdict.reason, verdict.by, risk, counted, silent))
    return found


def _assess(
    analyzer: SecurityAnalyzer,
    agent: Agent,
    journal: Journal,
    runtime: object | None,
    call: ToolCall,
    before: Sequence[ToolCall],
    cancelled: Cancellation,
) -> Risk:
    try:
        tool = agent.tools.get(call.name)
    except ToolNotFound:
        tool = None
    workdir: Any = getattr(runtime, "workdir", "")
    state: Any = getattr(runtime, "shell_state", None)
    shell: Any = state(journal.id) if callable(state) else None
    about = Surroundings(
        conversation_id=journal.id,
        annotations=None if tool is None else tool.annotations,
        tool_type="" if tool is None else tool.tool_type,
        workdir=os.fspath(workdir) if isinstance(workdir, str | os.PathLike) else "",
        llm=agent.llm,
        said=lambda: _said(journal),
        cancelled=cancelled,
        shell=shell if isinstance(shell, ShellState) else ShellState(),
        before=tuple(before),
        history=tuple if isinstance(shell, ShellState) else lambda: _history(journal),
    )
    return assessed(analyzer, call, about)


def _history(journal: Journal) -> list[ToolCall]:
    """The calls of all answers so far."""
    with journal.changed:
        return [
            call
            for event in journal.events
            if isinstance(event, ev.Assistant)
            for call in event.calls
        ]


def _said(journal: Journal) -> str:
    """What the user said last, the latest at the end."""
    with journal.changed:
        events = journal.tail[-_LOOKED:]
    found = [
        event.text for event in events if isinstance(event, ev.Message) and event.sender == "user"
    ]
    return "\n\n".join(found[-_SAID:])
