"""`holdfast run`: one task, watched until it is done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from holdfast.cli.build import build
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.screen import Screen
from holdfast.cli.session import Session
from holdfast.cli.signals import Ended, Signals

PAUSED = "[Enter] resume, type a message to steer, Ctrl-C again to close: "


def run(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Run the task to its end. Raises `UsageError`, `HoldfastError`."""
    with Signals() as signals:
        try:
            task = _task(options.task, signals)
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        except Ended as ended:
            return ended.code
        screen = Screen(env)
        with Session(build(options, env, screen.is_terminal), screen, signals, full=options.full) as session:
            return session.main(lambda session: _work(session, task))


def _task(words: list[str], signals: Signals) -> str:
    if words == ["-"]:
        with signals.prompting():
            task = sys.stdin.read()
        if not task.strip():
            raise UsageError("the task on standard input is empty")
        return task
    task = " ".join(words)
    if not task.strip():
        raise UsageError('the task is empty. Say what to do, such as: holdfast run "Why do the tests fail?"')
    return task


def _work(session: Session, task: str) -> Exit:
    session.say(task)
    while True:
        code = session.drive()
        if code is not None:
            return code
        if not session.was_interrupted:
            return session.outcome()
        try:
            answer = session.ask(PAUSED)
        except (KeyboardInterrupt, EOFError):
            return Exit.INTERRUPTED
        if answer.strip():
            session.say(answer, echoed=True)
        else:
            session.resume()
