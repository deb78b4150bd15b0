"""`holdfast schedule`: lists, sets and cancels the timers of a conversation."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime

from holdfast import commands as cmd
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.places import Place, open_place
from holdfast.cli.text import one_line, plain_line
from holdfast.content import TextContent
from holdfast.conversation import ConversationState
from holdfast.errors import ConfigurationError
from holdfast.timers import Timer, check_ahead, time_of
from holdfast.tools.results import clean


def schedule(options: Namespace, env: Mapping[str, str]) -> Exit:
    """List timers, or post one command. Raises `UsageError`, `HoldfastError`."""
    console = Console(env)
    words: list[str] = options.words
    if options.what != "add" and (options.at or options.every or options.cron or options.name):
        raise UsageError(f"schedule {options.what} takes no --at, --every, --cron and --name")
    command = None if options.what == "list" else _command(options, words)
    with closing(open_place(options, env, read_only=command is None)) as place:
        id = place.find(options.id).id
        if command is None:
            return _list(console, ConversationState(id, place.read(id)).timers)
        return _post(console, options, place, id, command)


def _command(options: Namespace, words: list[str]) -> cmd.Schedule | cmd.CancelTimer:
    if options.what == "cancel":
        if len(words) != 1:
            raise UsageError("schedule cancel takes one timer's id, as schedule list shows it")
        return cmd.CancelTimer(clean(words[0]))
    try:
        command = cmd.Schedule(
            (TextContent(clean(" ".join(words))),) if words else (),
            options.name or os.urandom(6).hex(),
            time_of(options.at),
            options.every,
            options.cron,
            options.timezone or "",
            options.misfire,
        )
        if command.at is not None:
            check_ahead(command.rule.due, datetime.now(UTC))
    except ConfigurationError as error:
        raise UsageError(str(error).rstrip(".")) from error
    return command


def _post(
    console: Console,
    options: Namespace,
    place: Place,
    id: str,
    command: cmd.Schedule | cmd.CancelTimer,
) -> Exit:
    if isinstance(command, cmd.CancelTimer):
        timer_ids = [one.id for one in ConversationState(id, place.read(id)).timers]
        if command.timer not in timer_ids:
            others = ", ".join(map(plain_line, timer_ids)) or "none"
            raise UsageError(f"{id!r} has no timer {command.timer!r}; it has {others}")
    posted = place.post(id, command, options.key)
    what = "set" if isinstance(command, cmd.Schedule) else "cancel"
    outcome = f"posted: {what} {command.timer}"
    if not posted:
        outcome = f"dropped: another command was posted under the key {options.key!r} before"
    console.line(one_line(outcome))
    return Exit.FINISHED


def _list(console: Console, timers: tuple[Timer, ...]) -> Exit:
    if not timers:
        console.notice("There are no timers.", "dim")
    for timer in timers:
        console.line(one_line(f"{timer.due:%Y-%m-%d %H:%M:%SZ} {timer.id} {_rule_text(timer)}"))
    return Exit.FINISHED


def _rule_text(timer: Timer) -> str:
    rule = "once"
    if timer.every:
        rule = f"every {timer.every:g} s"
    elif timer.cron:
        rule = f"cron {timer.cron}" + (f" {timer.timezone}" if timer.timezone else "")
    return f"({rule}, misfire {timer.misfire}) {plain_line(timer.text)}"
