"""`holdfast stats`: time, tokens and cost of conversations, drawn in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.lines import GAP, Line
from holdfast.cli.screen import Screen
from holdfast.cli.show import found_in, open_store
from holdfast.cli.text import clip, counted, duration, json_shown, one_line
from holdfast.content import Usage
from holdfast.observe.stats import NOTHING, Long, Share, Stats, tree
from holdfast.observe.stats import stats as counted_up

_MIN_BAR_WIDTH = 60  # columns; a narrower screen has no bars
_MAX_NAME_COLUMNS = 28
_MAX_BAR_COLUMNS = 24


def stats(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    """Show the time, tokens and cost of conversations. Raises `UsageError`, `StoreError`."""
    screen = Screen(env)
    found: list[Stats] = []
    whole = NOTHING
    with open_store(Path(options.file).expanduser(), read_only=True) as store:
        summaries = (
            store.list()
            if options.id is None
            else tree(store, found_in(store, options.id, options.file).id)
        )
        for number, summary in enumerate(summaries):
            if screen.is_terminal:
                screen.status(f"reading {number + 1} of {counted(len(summaries), 'conversation')}")
            one = counted_up(store, summary)
            whole += one
            found.append(one)
    screen.status("")
    if options.json:
        shown: dict[str, Any] = {
            "whole": _data(whole),
            "conversations": [_data(one) for one in found],
        }
        screen.show([Line("plain", json_shown(msgspec.json.encode(shown).decode()))])
    elif not found:
        screen.notice(f"There is no conversation in {options.file}.", "dim")
    else:
        bars = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
        screen.show(
            drawn(
                whole,
                found,
                screen.width,
                options.limit,
                options.id is not None or len(found) == 1,
                bars,
            )
        )
    screen.close()
    return screen.loss if screen.broken else Exit.FINISHED


def _data(one: Stats) -> dict[str, Any]:
    made = msgspec.to_builtins(one)
    return {
        **made,
        "usage": msgspec.to_builtins(one.usage),
        "cost": one.cost,
        "unpriced": one.unpriced,
        "cached": round(one.cached, 4),
    }


def drawn(
    whole: Stats, found: Sequence[Stats], width: int, limit: int, tree: bool = True, bar: str = "█"
) -> list[Line]:
    """Return the tables, for lines of `width` columns. `tree`: all conversations descend from
    the first."""
    first = found[0]
    begin = f"{first.id}  {first.title}"
    if not tree or len(found) > 1:
        begin = (
            f"{first.id} and {counted(len(found) - 1, 'conversation')} spawned from it"
            if tree
            else counted(whole.conversations, "conversation")
        )
    lines = [Line("call", clip(one_line(begin), width)), *_wrapped(_sums(whole), width)]
    if whole.errors:
        errors = ", ".join(
            f"{count} {name}"
            for name, count in sorted(whole.errors.items(), key=lambda item: (-item[1], item[0]))
        )
        lines.append(Line("error", clip(f"runs ended by errors: {one_line(errors)}", width)))
    for title, shares in (("models", whole.models), ("tools", whole.tools)):
        if shares:
            lines += [GAP, Line("call", title), *_table(shares, width, limit, bar)]
    if whole.longest:
        lines += [
            GAP,
            Line("call", "longest calls"),
            *[_long(one, width, whole.conversations > 1) for one in whole.longest[: min(limit, 5)]],
        ]
    if len(found) > 1:
        ordered = sorted(found, key=lambda one: -one.seconds)
        lines += [GAP, Line("call", "conversations")]
        lines += [
            Line(
                "plain",
                clip(
                    f"  {one_line(one.id)}  {', '.join(_sums(one))}  {one_line(one.title)}", width
                ),
            )
            for one in ordered[:limit]
        ]
        if len(ordered) > limit:
            lines.append(
                Line(
                    "dim",
                    clip(
                        f"  and {len(ordered) - limit:,} more; a higher --limit shows them", width
                    ),
                )
            )
    return lines


def _sums(one: Stats) -> list[str]:
    parts = [counted(one.steps, "step"), f"{duration(one.seconds)} at work"]
    if one.waited:
        parts.append(f"{duration(one.waited)} waiting for confirmation")
    parts += _tokens(one.usage)
    parts.append(
        "cost unknown"
        if one.cost is None
        else _money(one.cost)
        + (f" ({one.unpriced} calls without a known price)" if one.unpriced else "")
    )
    if one.condensations:
        parts.append(counted(one.condensations, "condensation"))
    return parts


def _tokens(usage: Usage) -> list[str]:
    if not usage.input_tokens and not usage.output_tokens:
        return []
    cached = (
        f" ({usage.cached_input_tokens / usage.input_tokens:.0%} cached)"
        if usage.cached_input_tokens
        else ""
    )
    return [f"{usage.input_tokens:,} tokens in{cached}", f"{usage.output_tokens:,} out"]


def _money(cost: float) -> str:
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _wrapped(parts: Sequence[str], width: int) -> list[Line]:
    """Return the parts, separated by commas, on as many lines as they need."""
    lines, line = list[str](), ""
    for number, part in enumerate(parts):
        part += "," if number < len(parts) - 1 else ""
        if line and len(line) + 1 + len(part) > width:
            lines.append(line)
            line = ""
        line = f"{line} {part}" if line else part
    return [Line("plain", clip(text, width)) for text in [*lines, line]]


def _table(shares: Sequence[Share], width: int, limit: int, bar: str) -> list[Line]:
    shown, most = shares[:limit], max(share.seconds for share in shares)
    names = [
        clip(one_line(share.name), min(_MAX_NAME_COLUMNS, max(8, width // 3))) for share in shown
    ]
    wide, calls = max(len(name) for name in names), max(len(f"{share.calls:,}") for share in shown)
    lines: list[Line] = []
    for name, share in zip(names, shown, strict=True):
        text = f"  {name:<{wide}}  {share.calls:>{calls},} x  {duration(share.seconds):>12}"
        if width >= _MIN_BAR_WIDTH:
            room = min(_MAX_BAR_COLUMNS, max(6, width - len(text) - 40))
            length = round(share.seconds / most * room) if most else 0
            text += f"  {bar * max(length, 1 if share.seconds else 0):<{room}}"
        more = [
            *([counted(share.errors, "error")] if share.errors else []),
            *_tokens(share.usage),
            *([_money(share.cost)] if share.cost else []),
        ]
        lines.append(Line("plain", clip(f"{text}  {', '.join(more)}".rstrip(), width)))
    if len(shares) > limit:
        lines.append(Line("dim", f"  and {len(shares) - limit:,} more"))
    return lines


def _long(one: Long, width: int, several: bool) -> Line:
    where = f"{one_line(one.conversation)} " if several else ""
    error = f"  {one_line(one.error)}" if one.error else ""
    return Line(
        "plain",
        clip(
            f"  {duration(one.seconds):>12}  {one_line(one.name)}{error}  {where}event {one.seq}",
            width,
        ),
    )
