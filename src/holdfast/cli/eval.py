"""`holdfast eval`: agents at work on the cases of a suite, with a report."""

from __future__ import annotations

import inspect
import sys
import threading
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agent.agent import Agent
from holdfast.agent.goal import CommandJudge
from holdfast.cli.console import Console
from holdfast.cli.environment import shell_environment
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import importable, path_of
from holdfast.cli.named_models import agent_of_file
from holdfast.cli.replay import import_object
from holdfast.cli.sandbox import open_workplace
from holdfast.cli.signals import Signals
from holdfast.cli.text import counted, one_line
from holdfast.cli.tools import config_variables
from holdfast.evals import Candidate, Eval, EvalReport, Progress, Suite, load_suite
from holdfast.evals.page import comparison_line, page, summary_line
from holdfast.runtime.folder import FolderRuntime

_POLL_SECONDS = 0.1  # between two looks at signals
_SHOWN = 10  # runs that are named one by one
_FILES = (".yaml", ".yml", ".json")


def eval_(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Make the runs that are missing, and write the report. Raises `UsageError`,
    `HoldfastError`."""
    console = Console(env, out=sys.stderr if options.json else sys.stdout)
    with Signals() as signals, closing(console):
        with signals.prompting():
            work = _make_eval(options, env)
        stop = threading.Event()
        report = _run(work, stop, console, signals)
        code = Exit.INTERRUPTED if signals.ending is None else signals.ending
        if report is None:
            return code
        _write(work.folder, report)
        if options.json:
            sys.stdout.buffer.write(report.lines())
            sys.stdout.buffer.flush()
        _show(report, console, work.folder)
        if stop.is_set() and report.not_run:
            return code
        return _exit_code(report, options, console)


def _make_eval(options: Namespace, env: Mapping[str, str]) -> Eval:
    suite = load_suite(path_of(options.suite))
    if not options.agent:
        raise UsageError("an eval needs an agent: --agent FILE or --agent MODULE:NAME")
    agents = [_candidate(text, env) for text in options.agent]
    names = [one.name for one in agents]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two agents are named {twice!r}; name them: --agent NAME=AGENT")
    has_folder = any(one.takes_runtime for one in agents) or _needs_folder(suite)
    passed = shell_environment(env, options.env)

    def open_runtime(folder: Path) -> FolderRuntime:
        return open_workplace(options, env, folder, passed, interactive=False).runtime

    return Eval(
        suite,
        agents,
        path_of(options.out or f"{suite.name}.eval"),
        repeat=options.repeat,
        parallel=options.parallel,
        max_cost=options.max_cost,
        open_runtime=open_runtime if has_folder else None,
        score_seconds=options.score_seconds,
    )


def _needs_folder(suite: Suite) -> bool:
    scorers = [
        one for case_scorers in suite.scorers_by_case.values() for one in case_scorers.values()
    ]
    commands = any(isinstance(one, CommandJudge) for one in scorers)
    return commands or any(case.files for case in suite.cases)


def _candidate(text: str, env: Mapping[str, str]) -> Candidate:
    """Return the agent of `--agent [NAME=]AGENT`. Raises `UsageError`."""
    label, equals, spec = text.partition("=")
    label, spec = (label, spec) if equals else ("", text)
    if spec.endswith(_FILES):
        path = path_of(spec)
        if not path.is_file():
            raise UsageError(f"--agent: there is no file {spec!r}")
        importable(str(path.resolve().parent))
        name = label or path.stem
        make: Any = partial(agent_of_file, path, config_variables(path, env))
        takes_runtime = True
    else:
        make = import_object(spec)
        name, takes_runtime = label or spec.rpartition(":")[2], _takes_runtime(spec, make)
    if not name.replace("-", "_").replace(".", "_").isidentifier():
        raise UsageError(f"--agent: a name has letters, digits, -, . and _, not {name!r}")
    return Candidate(name, make, takes_runtime)


def _takes_runtime(spec: str, agent_or_function: Any) -> bool:
    """Return True if an agent is made by a function of the runtime. Raises `UsageError`."""
    if isinstance(agent_or_function, Agent):
        return False
    if not callable(agent_or_function) or isinstance(agent_or_function, type):
        what = f"is a {type(agent_or_function).__name__}; it takes an Agent or a function of one"
        raise UsageError(f"--agent {spec} {what}")
    needed = [
        one
        for one in inspect.signature(agent_or_function).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        what = "is a function of several parameters; it may take the runtime alone"
        raise UsageError(f"--agent {spec} {what}")
    return bool(needed)


def _run(
    work: Eval, stop: threading.Event, console: Console, signals: Signals
) -> EvalReport | None:
    """Run until all is over. The first Ctrl-C sets `stop`, which pauses the runs; the second
    returns None."""
    counts = {"passed": 0, "failed": 0, "error": 0}
    reports: list[EvalReport] = []
    errors: list[BaseException] = []

    def progress(now: Progress) -> None:
        if now.last is not None and now.last.outcome in counts:
            counts[now.last.outcome] += 1
        some = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        console.status(f"{now.done:,} of {now.total:,} runs{some and ': '}{some}")

    def make() -> None:
        try:
            reports.append(work.run(stop, progress))
        except BaseException as error:  # raised again below, on the main thread
            errors.append(error)

    # A daemon: a second Ctrl-C leaves it behind, which loses nothing.
    worker = threading.Thread(target=make, name="holdfast-eval", daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_POLL_SECONDS)
        if stop.is_set() and signals.take_interrupt():
            console.status("")
            return None
        if signals.pending and not stop.is_set():
            stop.set()
            signals.take_interrupt()
            text = "stopping after the present steps; Ctrl-C again leaves at once"
            console.notice(f"{text}. The same command continues.", "dim")
    console.status("")
    if errors:
        raise errors[0]
    return reports[0]


def _write(folder: Path, report: EvalReport) -> None:
    """Replace the files of the report, each at once."""
    for name, data in (("results.jsonl", report.lines()), ("report.html", page(report).encode())):
        new = folder / f".{name}.new"
        new.write_bytes(data)
        new.replace(folder / name)


def _show(report: EvalReport, console: Console, folder: Path) -> None:
    for one in report.agents:
        console.line(summary_line(one))
    for one in report.comparisons:
        console.line(comparison_line(one), "error" if one.is_worse else "plain")
        for case in one.worse[:_SHOWN]:
            parting = next((part for part in one.partings if part.case == case), None)
            where = "" if parting is None else f": parts at step {parting.step}, {parting.kind}"
            console.line(f"  {one.other} got worse in {one_line(case)}{where}", "remove")
            for sign, text in (("-", parting.base), ("+", parting.other)) if parting else ():
                console.line(f"    {sign} {one_line(text)}", "remove" if sign == "-" else "add")
    for run in report.errors[:_SHOWN]:
        console.line(f"  {run.agent}, {one_line(run.case)}: {one_line(run.reason)}", "error")
    if report.not_run:
        some = ", ".join(
            dict.fromkeys(f"{one.agent}: {one_line(one.case)}" for one in report.not_run)
        )
        missing = counted(len(report.not_run), "run")
        console.line(f"{missing} missing, since {report.stopped}: {some}", "error")
    console.line(f"{folder / 'report.html'}", "dim")


def _exit_code(report: EvalReport, options: Namespace, console: Console) -> Exit:
    failures = [
        f"{one.other} is worse than {one.base}" for one in report.comparisons if one.is_worse
    ]
    if options.strict:
        failures += [
            f"{one.other} got worse in {counted(len(one.worse), 'case')}"
            for one in report.comparisons
            if one.worse and not one.is_worse
        ]
    if (least := options.fail_under) is not None:
        failures += [
            f"{one.agent} passes {one.rate:.1%}, less than {least:.1%}"
            for one in report.agents
            if one.runs and one.rate < least
        ]
    if report.errors:
        failures.append(f"{counted(len(report.errors), 'run')} ended with an error")
    for text in failures:
        console.error(text)
    if failures:
        return Exit.FAILED
    return Exit.STOPPED if report.not_run else Exit.FINISHED
