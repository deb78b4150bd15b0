"""`holdfast run`: one task, shown until it is done."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from holdfast.cli.attachments import attachments
from holdfast.cli.build import build
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import read_standard_input
from holdfast.cli.session import Session
from holdfast.cli.signals import Signals
from holdfast.cli.text import json_shown
from holdfast.content import FileContent
from holdfast.conversation import ConversationStatus

PAUSED = "[Enter] resume, type a message to steer, Ctrl-C again to close: "


def run(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Run the task to its end. Raises `UsageError`, `HoldfastError`."""
    with Signals() as signals:
        task = _task(options.task, signals)
        files = attachments(options.attach)
        structured = options.output_schema is not None
        console = Console(env, out=sys.stderr if structured else None)
        outputs: list[Any] = []

        def work(session: Session) -> Exit:
            code = _work(session, task, files)
            outputs.append(session.conversation.state.output)
            return code

        parts = build(options, env, console.is_terminal)
        with closing(Session(parts, console, signals, full=options.full)) as session:
            code = session.main(work)
        if structured and code is Exit.FINISHED:
            text = json.dumps(outputs[0], ensure_ascii=False, indent=2)
            sys.stdout.write(f"{json_shown(text)}\n")
        return code


def _task(words: list[str], signals: Signals) -> str:
    if words == ["-"]:
        task = read_standard_input(signals, "the task")
        if not task.strip():
            raise UsageError("the task on standard input is empty")
        return task
    task = " ".join(words)
    if not task.strip():
        raise UsageError(
            'the task is empty. Say what to do, such as: holdfast run "Why do the tests fail?"'
        )
    return task


def _work(session: Session, task: str, files: Sequence[FileContent]) -> Exit:
    session.say(task, files=files)
    call_prompt = session.call_prompt()
    while True:
        code = session.drive()
        if code is None:
            match session.conversation.status:
                case ConversationStatus.WAITING_FOR_CONFIRMATION if session.interactive:
                    code = call_prompt.ask()
                case ConversationStatus.PAUSED if session.was_interrupted:
                    code = _paused(session)
                case ConversationStatus.PAUSED:
                    code = session.wait_while_paused()
                case _:
                    code = session.outcome()
        if code is not None:
            return code


def _paused(session: Session) -> Exit | None:
    try:
        answer = session.dialog.ask(PAUSED)
    except (KeyboardInterrupt, EOFError):
        return Exit.INTERRUPTED
    if answer.strip():
        session.say(answer, echoed=True)
    else:
        session.resume()
    return None
