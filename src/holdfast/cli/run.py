"""`holdfast run`: one task, shown until it is done."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import msgspec

from holdfast import events as ev
from holdfast.cli.attachments import attachments
from holdfast.cli.build import build
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import read_standard_input
from holdfast.cli.session import Session
from holdfast.cli.signals import Signals
from holdfast.cli.text import json_shown, safe, styled
from holdfast.content import FileContent
from holdfast.conversation import ConversationState, ConversationStatus

PAUSED = "[Enter] resume, type a message to steer, Ctrl-C again to close: "


def run(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Run the task to its end. Raises `UsageError`, `HoldfastError`."""
    form = _form(options)
    with Signals() as signals, ExitStack() as stack:
        task = _task(options.task, signals)
        files = attachments(options.attach)
        console = Console(env)
        if form == "schema":
            console = Console(env, out=sys.stderr)
        elif form:  # no output is shown live
            nowhere = stack.enter_context(open(os.devnull, "w"))
            console = Console(env, out=nowhere, notices=False)
        lines = Console({}, out=sys.stdout)
        began = time.monotonic()
        ended: list[tuple[ConversationState, int]] = []

        def work(session: Session) -> Exit:
            conversation, before = session.conversation, session.conversation.state
            if form == "json":

                def print_event(event: ev.AnyEvent) -> None:
                    lines.line(json_shown(event.to_json().decode()))

                conversation.register_event_callback(print_event, after_seq=before.last_seq)
            try:
                return _work(session, task, files)
            finally:  # a result is also due after a signal
                ended.append((conversation.state, before.steps))

        parts = build(options, env, console.is_terminal)
        asks = form in ("", "schema")
        with closing(Session(parts, console, signals, full=options.full, asks=asks)) as session:
            code = session.main(work)
        if not ended:  # a signal came before the task was sent
            return code
        state, steps = ended[0]
        if form == "schema" and code is Exit.FINISHED:
            text = json.dumps(state.output, ensure_ascii=False, indent=2)
            sys.stdout.write(f"{json_shown(text)}\n")
        elif form == "quiet" and state.answer:
            lines.show(styled("plain", safe(state.answer)))
        elif form == "json":
            result = _result(state, code, state.steps - steps, time.monotonic() - began)
            lines.line(json_shown(json.dumps(result, ensure_ascii=False)))
        return lines.loss if lines.broken else code


def _form(options: Namespace) -> str:
    """Return the form of the output: "" for a person, `schema`, `json` or `quiet`."""
    if options.json and options.quiet:
        raise UsageError("--json and --quiet are two forms of the output; give one of them")
    if options.json or options.quiet:
        return "json" if options.json else "quiet"
    return "schema" if options.output_schema is not None else ""


def _result(state: ConversationState, code: Exit, steps: int, seconds: float) -> dict[str, Any]:
    """Return the last line of `--json`; docs/how-to/shell.md describes its fields."""
    error = state.error
    return {
        "type": "result",
        "id": state.id,
        "status": state.status.value,
        "exit_code": int(code),
        "answer": state.answer,
        "output": state.output,
        "error": None
        if error is None
        else {"error": error.error, "message": error.message, "details": error.details},
        "waiting": [
            {"id": one.call.id, "name": one.call.name, "arguments": one.call.arguments}
            for one in state.pending_confirmations
        ],
        "steps": steps,
        "seconds": round(seconds, 3),
        "usage": msgspec.structs.asdict(state.usage),
        "cost": state.cost,
    }


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
    session.prepare()
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
