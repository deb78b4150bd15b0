"""`Eval`: agents at work on the cases of a suite, in one SQLite store.

An eval is a conversation with one call, `run_cases`. The call spawns a child conversation for each
run of an agent on a case, and another one in which the scorers are asked. So the journal is the
record. A killed eval continues where it was, and the budget of the tree bounds its usage. Every run
can be shown, replayed and forked like any conversation.

The id of a run has a digest of its case and of the agent's part of each request. A changed case or
agent thus gets new runs, and all others are kept.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent.agent import Agent
from holdfast.agent.limits import Limits
from holdfast.content import known_cost
from holdfast.conversation.budget import of_tree
from holdfast.conversation.conversation import Conversation
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.error_text import describe_error, typed_text
from holdfast.errors import (
    ConfigurationError,
    GoalMissed,
    HoldfastError,
    LimitExceeded,
    OutputInvalid,
)
from holdfast.evals.cases import Case
from holdfast.evals.results import (
    EvalReport,
    Outcome,
    RunResult,
    ScoreResult,
    Step,
    make_report,
    steps_of,
)
from holdfast.evals.scorers import Scorer, identity, with_model
from holdfast.evals.scoring import (
    DRIVER,
    REPEATABLE,
    DriverModel,
    ScoredWork,
    scores_of,
    scoring_agent,
)
from holdfast.evals.suite import Suite
from holdfast.object_struct import ObjectStruct
from holdfast.observe.stats import NOTHING, stats, tree
from holdfast.store.sqlite import SQLiteStore
from holdfast.tools import Tool, ToolContext
from holdfast.tools.arguments import is_number, is_whole, wrong

_S = ConversationStatus
ROOT = "eval"
"""The id of the conversation that spawns the runs."""
_STORE, _WORK = "eval.db", "work"
# Errors with which an agent itself ends a run. The scorers see its work until then.
_OWN_ENDS = (LimitExceeded.__name__, GoalMissed.__name__, OutputInvalid.__name__)
_STOPPED = {
    "budget": "the budget of the eval is spent",
    "stop": "the eval was stopped",
}
_POLL_SECONDS = 0.2  # between two looks at a run that a stop has to pause


class Candidate(msgspec.Struct, frozen=True):
    """An agent of an eval.

    Args:
        name: Its name in reports.
        agent: An `Agent`, or a function that makes one: of nothing, or of the runtime of the run's
            own folder, for tools that work there.
        takes_runtime: True if the function takes the runtime.
    """

    name: str
    agent: Agent | Callable[..., Agent]
    takes_runtime: bool = False

    def make(self, runtime: object | None) -> Agent:
        """Return the agent for a run. Raises `ConfigurationError` for any other object."""
        agent: Any = self.agent
        if not isinstance(agent, Agent):
            try:
                agent = agent(runtime) if self.takes_runtime else agent()
            except ConfigurationError:
                raise
            except (Exception, SystemExit) as error:  # the function may raise anything
                what = describe_error(error)
                raise ConfigurationError(f"Candidate {self.name!r}: agent: {what}") from error
        if not isinstance(agent, Agent):
            raise wrong(f"Candidate {self.name!r}: agent", "an Agent, or a function of one", agent)
        return agent


class Progress(msgspec.Struct, frozen=True):
    """The state of an eval at work: runs that are over, of so many, and the last one of them."""

    done: int
    total: int
    last: RunResult | None = None


class _Run(msgspec.Struct, frozen=True):
    """One run to make."""

    candidate: Candidate
    case: Case
    repeat: int
    id: str
    score_id: str
    folder: Path
    scorers: Mapping[str, Scorer]


class Eval:
    """The work of several agents on the cases of a suite, kept in `folder`.

    `run` makes the runs that are missing there and returns the report. A folder may be used again
    after a kill, with more cases or repeats, with changed scorers (which are asked again), or a
    higher budget. No model is asked again for a run that is over.

    Args:
        agents: The agents, the base of comparisons first.
        folder: Keeps `eval.db` and the runs' folders; it is made if it does not exist.
        repeat: Runs of each agent on each case.
        parallel: Runs at once.
        max_cost: US dollars for all runs and scorers together, over all calls of `run`; the prices
            of all models have to be known. None sets no bound.
        open_runtime: Makes the runtime of a run's folder; None gives runs none.
        score_seconds: Seconds after which a scorer has failed.

    Raises `ConfigurationError` for arguments that do not fit, and for an agent that cannot be made.
    """

    def __init__(
        self,
        suite: Suite,
        agents: Sequence[Candidate],
        folder: str | os.PathLike[str],
        *,
        repeat: int = 1,
        parallel: int = 4,
        max_cost: float | None = None,
        open_runtime: Callable[[Path], Any] | None = None,
        score_seconds: float = 600.0,
    ) -> None:
        for name, value in (("repeat", repeat), ("parallel", parallel)):
            if not is_whole(value, 1):
                raise wrong(f"Eval: {name}", "a whole number from 1", value)
        for name, value in (("max_cost", max_cost), ("score_seconds", score_seconds)):
            if value is not None and not (is_number(value) and value > 0):
                raise wrong(f"Eval: {name}", "a number above 0", value)
        names = [one.name for one in agents]
        if not names or len(set(names)) < len(names):
            raise wrong(
                "Eval: agents", "at least one Candidate, each with a name of its own", names
            )
        self.suite, self.agents, self.folder = suite, tuple(agents), Path(folder).absolute()
        self.repeat, self.parallel, self.max_cost = repeat, parallel, max_cost
        self._open_runtime, self._score_seconds = open_runtime, score_seconds
        self._work = self.folder / _WORK
        self._work.mkdir(parents=True, exist_ok=True)
        self.models: dict[str, str] = {}
        heads: dict[str, bytes] = {}
        judges: list[Any] = []
        with self._runtime_at(self._work / "probe") as runtime:
            for one in agents:
                agent = one.make(runtime)
                self.models[one.name] = agent.llm.model
                judges.append(agent.llm)
                heads[one.name] = _head(agent)
        self._judge = judges[0]
        self._runs = [
            self._planned(one, case, number, heads[one.name])
            for case in suite.cases
            for number in range(1, repeat + 1)
            for one in agents
        ]

    def _planned(self, candidate: Candidate, case: Case, repeat: int, head: bytes) -> _Run:
        files = {path: _digest(data) for path, data in self.suite.files_of(case).items()}
        work = msgspec.json.encode([case.messages, files], order="deterministic")
        id = f"{candidate.name}.{_slug(case.id)}.{repeat}.{_digest(case.id.encode(), work, head)}"
        scorers = self.suite.scorers_by_case[case.id]
        scored = _digest(identity(scorers, case).encode())
        # Judges without a model ask that of the first agent, also about the work of another.
        scorers = {name: with_model(one, self._judge) for name, one in scorers.items()}
        return _Run(candidate, case, repeat, id, f"{id}.{scored}", self._work / id, scorers)

    @contextmanager
    def _runtime_at(self, folder: Path) -> Generator[Any]:
        """Yield the runtime of a folder, which is made; None without `open_runtime`."""
        if self._open_runtime is None:
            yield None
            return
        folder.mkdir(parents=True, exist_ok=True)
        with closing(self._open_runtime(folder)) as runtime:
            yield runtime

    def _runtime_of(self, run: _Run, fresh: bool) -> AbstractContextManager[Any]:
        """Open the runtime of a run, with the case's files in its folder if it is `fresh`."""
        if fresh:
            for path, data in self.suite.files_of(run.case).items():
                (target := run.folder / path).parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        return self._runtime_at(run.folder)

    # --- running ---

    def run(
        self,
        stop: threading.Event | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> EvalReport:
        """Make the missing runs and return the report. `stop` pauses what runs after its present
        step. Raises `ConfigurationError` (a price that a budget needs is not known), `LeaseHeld`
        while another process works in the folder, `StoreError`."""
        stop = stop or threading.Event()
        with SQLiteStore(self.folder / _STORE) as store:
            work = _Work(
                store,
                self._runs,
                self._runtime_of,
                self.parallel,
                self._score_seconds,
                stop,
                on_progress,
            )
            budget = None if self.max_cost is None else Limits(steps=None, cost=self.max_cost)
            agent = Agent(
                DriverModel(lambda: [("run_cases", {})]),
                [Tool("run_cases", "Runs the cases.", work.run_cases, annotations=REPEATABLE)],
                system_prompt="Spawns the runs of an eval.",
                limits=Limits(steps=None),
                tree_limits=budget,
                stuck=None,
            )
            with Conversation(agent, store, ROOT) as root:
                if not root.state.pending_calls:  # else a killed eval's call is made again
                    root.send_message("Run the cases.")
                state = root.run()
            if work.failures:
                raise work.failures[0]
            if state.error is not None and of_tree(state.error):
                return self._report(store, "budget")
            state.raise_for_status()
            return self._report(store, work.why)

    def report(self) -> EvalReport:
        """Return the report of the present results in the folder, and run nothing."""
        with SQLiteStore(self.folder / _STORE) as store:
            return self._report(store, "")

    def _report(self, store: SQLiteStore, why: str) -> EvalReport:
        runs: list[RunResult] = []
        steps: dict[tuple[str, str], list[Step]] = {}
        for run in self._runs:
            runs.append(result_of(store, run))
            if run.repeat == 1:
                steps[run.candidate.name, run.case.id] = steps_of(store.read(run.id))
        missing = any(one.outcome == "not_run" for one in runs)
        stopped = _STOPPED.get(why, "the eval has not come to them") if missing else ""
        cases = [case.id for case in self.suite.cases]
        return make_report(self.suite.name, cases, self.models, runs, steps, stopped)


class _Work(ObjectStruct):
    """The work of one call of `run_cases`."""

    store: SQLiteStore
    runs: Sequence[_Run]
    runtime_of: Callable[[_Run, bool], AbstractContextManager[Any]]
    parallel: int
    score_seconds: float
    stop: threading.Event
    on_progress: Callable[[Progress], object] | None
    why: str = ""
    failures: list[BaseException] = []
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _done: int = 0

    def run_cases(self, context: ToolContext) -> str:
        """Make the runs that are not over, some at once."""
        over = ("passed", "failed")
        todo = [run for run in self.runs if result_of(self.store, run).outcome not in over]
        self._done = len(self.runs) - len(todo)
        self._tell(None)
        pending = iter(todo)
        workers = [
            threading.Thread(
                target=self._work,
                args=(context, pending),
                name=f"holdfast-eval-{number}",
                daemon=True,  # a run is not lost with its process
            )
            for number in range(min(self.parallel, len(todo)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return _STOPPED.get(self.why, "All runs are over.")

    def _work(self, context: ToolContext, pending: Iterator[_Run]) -> None:
        while not (self.stop.is_set() or self.why or context.cancelled):
            with self._lock:
                run = next(pending, None)
            if run is None:
                return
            try:
                self._make(context, run)
                result = result_of(self.store, run)
            except BaseException as error:  # an error of the eval itself ends all of it
                with self._lock:
                    self.failures.append(error)
                    self.why = "error"
                return
            with self._lock:
                self._done += result.outcome != "not_run"
            self._tell(result)
        self.why = self.why or "stop"

    def _tell(self, last: RunResult | None) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(self._done, len(self.runs), last))

    def _make(self, context: ToolContext, run: _Run) -> None:
        fresh = not self.store.read(run.id, 0, 1)
        with self.runtime_of(run, fresh) as runtime:
            agent = run.candidate.make(runtime)
            spawned = context.spawn(agent, id=run.id, runtime=runtime)
            with cast("Conversation", spawned) as conversation:
                state = self._converse(conversation, run.case.messages)
            if _is_complete(state, run.case):
                self._score(context, run, state, runtime)

    def _converse(self, conversation: Conversation, messages: Sequence[str]) -> ConversationState:
        """Send the messages that the conversation does not have, and run to the end of each."""
        state = conversation.state
        if state.status is _S.PAUSED or (state.status is _S.ERROR and _failed(state)):
            conversation.resume()
        elif state.status in (_S.STUCK, _S.ERROR):
            return state
        while True:
            if conversation.status in (_S.IDLE, _S.FINISHED):
                sent_count = sum(map(_is_users, conversation.state.events))
                if sent_count == len(messages):
                    return conversation.state
                conversation.send_message(messages[sent_count])
            state = self._driven(conversation)
            if state.status is not _S.FINISHED:
                return self._noted(state)

    def _driven(self, conversation: Conversation) -> ConversationState:
        """Run to the next rest; pause it if the eval stops."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_SECONDS):
                if self.stop.is_set():
                    with suppress(HoldfastError):  # it has come to rest, or is closed
                        conversation.pause()
                    return

        watcher = threading.Thread(target=watch, name="holdfast-eval-watch", daemon=True)
        watcher.start()
        try:
            return conversation.run()
        finally:
            over.set()
            watcher.join()

    def _noted(self, state: ConversationState) -> ConversationState:
        if state.error is not None and of_tree(state.error):
            self.why = self.why or "budget"
        return state

    def _score(
        self, context: ToolContext, run: _Run, state: ConversationState, runtime: object | None
    ) -> None:
        judged = scores_of(self.store.read(run.score_id))
        missing = [one for one in run.scorers if one not in judged or judged[one].error]
        work = ScoredWork(run.case, state)
        agent = scoring_agent(run.scorers, work, missing, self.score_seconds)
        spawned = context.spawn(agent, id=run.score_id, runtime=runtime)
        with cast("Conversation", spawned) as conversation:
            if conversation.status is not _S.RUNNING:  # else a killed one continues
                conversation.send_message(f"Score {run.id}.")
            self._noted(conversation.run())


# --- reading journals ---


def _is_users(event: ev.AnyEvent) -> bool:
    return isinstance(event, ev.MessageAdded) and event.sender == "user"


def _failed(state: ConversationState) -> bool:
    """Return True if something else than the agent ended its run."""
    error = state.error
    return error is None or error.error not in _OWN_ENDS or of_tree(error)


def _is_complete(state: ConversationState, case: Case) -> bool:
    """Return True if the agent ended its work by itself, so that the scorers can be asked."""
    match state.status:
        case _S.FINISHED:
            return sum(map(_is_users, state.events)) == len(case.messages)
        case _S.STUCK:
            return True
        case _S.ERROR:
            return not _failed(state)
        case _:
            return False


def result_of(store: SQLiteStore, run: _Run) -> RunResult:
    """Return the result of a run, from its journals."""
    events = store.read(run.id)
    result = RunResult(run.candidate.name, run.case.id, run.repeat, run.id, "not_run")
    if not events:
        return result
    state = ConversationState(run.id, events)
    judged = scores_of(store.read(run.score_id))
    scores = {name: judged[name] for name in run.scorers if name in judged}
    outcome, reason = _outcome(state, run, scores)
    summaries = [*tree(store, run.id), *(tree(store, run.score_id) if judged else ())]
    total = sum((stats(store, one) for one in summaries), NOTHING)
    results = [one.result for one in events if isinstance(one, ev.ToolCallFinished)]
    models = [one for one in total.models if one.name != DRIVER]
    unpriced = sum(one.unpriced for one in models)
    cost = sum([one.cost or 0.0 for one in (*models, *scores.values())])
    return msgspec.structs.replace(
        result,
        outcome=outcome,
        reason=reason.strip().partition("\n")[0],
        answer=state.answer,
        scores=scores,
        steps=state.steps,
        calls=len(results),
        tool_errors=sum(one.is_error for one in results),
        seconds=round(sum(one.seconds for one in (*models, *total.tools)), 3),
        input_tokens=sum(one.usage.input_tokens for one in models),
        output_tokens=sum(one.usage.output_tokens for one in models),
        cost=known_cost(cost, unpriced),
        unpriced=unpriced,
        unknown_outcomes=sum(one.meta.get("outcome") == "unknown" for one in results),
    )


def _outcome(
    state: ConversationState, run: _Run, scores: Mapping[str, ScoreResult]
) -> tuple[Outcome, str]:
    error = state.error
    if state.status is _S.WAITING_FOR_CONFIRMATION:
        calls = ", ".join(one.call.name for one in state.pending_confirmations)
        return "error", f"it waits for an approval of {calls}, which an eval cannot give"
    if state.status is _S.ERROR and _failed(state):
        if error is None or of_tree(error):
            return "not_run", "" if error is None else error.message
        return "error", typed_text(error.error, error.message)
    if not _is_complete(state, run.case):
        return "not_run", ""
    for name in run.scorers:
        if name not in scores:
            return "not_run", f"the scorer {name} was not asked yet"
        if text := scores[name].error:
            return "error", f"the scorer {name} failed: {text}"
    for name, one in scores.items():
        if not one.passed:
            return "failed", f"{name}: {one.reason or 'no'}"
    return "passed", ""


def _head(agent: Agent) -> bytes:
    """Return what an agent sends with each request, as bytes, without connecting to servers."""
    tools = [[one.name, one.description, one.input_schema] for one in agent.tool_definitions()]
    parts = [agent.system_prompt, tools, agent.llm.model, agent.llm.parameters()]
    return msgspec.json.encode(parts, order="deterministic")


def _digest(*parts: bytes) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()[:12]


def _slug(id: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", id)[:40].strip("-") or "case"
