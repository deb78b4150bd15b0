"""`holdfast stats`: time, tokens and cost of conversations, drawn in the terminal."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit
from holdfast.cli.places import Place, StoredConversations, open_place, place_text
from holdfast.cli.text import (
    GAP,
    TextLine,
    clip,
    columns,
    counted,
    duration,
    json_shown,
    one_line,
    padded,
    token_parts,
)
from holdfast.observe.stats import NOTHING, CallTotals, Stats, tree
from holdfast.observe.stats import stats as counted_up
from holdfast.store import Summary

_MIN_BAR_WIDTH = 60  # columns; a narrower screen has no bars
_MAX_NAME_COLUMNS = 28
_MAX_BAR_COLUMNS = 24


def stats(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Show the time, tokens and cost of conversations. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    with closing(open_place(options, env, read_only=True)) as place:
        conversations = list(_counted(place, options.id, console))
    console.status("")
    whole = sum(conversations, NOTHING)
    if options.json:
        document = {"whole": _data(whole), "conversations": [_data(one) for one in conversations]}
        console.line(json_shown(msgspec.json.encode(document).decode()))
    elif not conversations:
        where = place_text(options).replace(repr(options.file), options.file)
        console.notice(f"There is no conversation {where}.", "dim")
    else:
        bar = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
        table = StatsTable(console.width, options.limit, bar)
        console.show(
            table.lines(whole, conversations, options.id is not None or len(conversations) == 1)
        )
    console.close()
    return console.loss if console.broken else Exit.FINISHED


def _counted(place: Place, id: str | None, console: Console) -> Iterator[Stats]:
    """Yield the statistics of a conversation and its descendants, or of all conversations."""
    entries: Sequence[Summary] = place.list() if id is None else [place.find(id)]
    if isinstance(place, StoredConversations) and id is not None:
        entries = tree(place.store, entries[0].id)
    for number, entry in enumerate(entries):
        if console.is_terminal:
            console.status(f"reading {number + 1} of {counted(len(entries), 'conversation')}")
        if isinstance(place, StoredConversations):
            yield counted_up(place.store, entry)
        else:  # its list has no conversations that calls spawned
            yield from place.stats(entry.id)


def _data(one: Stats) -> dict[str, Any]:
    usage, cached = msgspec.to_builtins(one.usage), round(one.cached, 4)
    more = {"usage": usage, "cost": one.cost, "unpriced": one.unpriced, "cached": cached}
    costs = {"providerCost": one.provider_cost, "listCost": one.list_cost}
    return msgspec.to_builtins(one) | more | costs


class StatsTable(NamedTuple):
    """The form of the tables: lines of `width` columns, at most `limit` rows, bars of `bar`."""

    width: int
    limit: int
    bar: str = "█"

    def lines(
        self, whole: Stats, conversations: Sequence[Stats], tree: bool = True
    ) -> list[TextLine]:
        """Return all tables. `tree`: all conversations descend from the first."""
        first, title = conversations[0], f"{conversations[0].id}  {conversations[0].title}"
        if not tree:
            title = counted(whole.conversations, "conversation")
        elif len(conversations) > 1:
            title = (
                f"{first.id} and {counted(len(conversations) - 1, 'conversation')} spawned from it"
            )
        lines = [self._line(one_line(title), "call"), *self._wrapped(_sums(whole))]
        if whole.errors:
            errors = sorted(whole.errors.items(), key=lambda item: (-item[1], item[0]))
            listed = ", ".join(f"{count} {name}" for name, count in errors)
            lines.append(self._line(f"runs ended by errors: {one_line(listed)}", "error"))
        for title, shares in (("models", whole.models), ("tools", whole.tools)):
            if shares:
                lines += [GAP, TextLine("call", title), *self._table(shares)]
        if whole.server_tools:
            counts = sorted(whole.server_tools.items(), key=lambda item: (-item[1], item[0]))
            listed = ", ".join(f"{count:,} x {one_line(name)}" for name, count in counts)
            lines += [GAP, self._line("run by providers", "call"), self._line(f"  {listed}")]
        if whole.longest:
            lines += [GAP, TextLine("call", "longest calls")]
            for call in whole.longest[: min(self.limit, 5)]:
                where = f"{one_line(call.conversation)} " if whole.conversations > 1 else ""
                error = f"  {one_line(call.error)}" if call.error else ""
                name = f"  {duration(call.seconds):>12}  {one_line(call.name)}"
                lines.append(self._line(f"{name}{error}  {where}event {call.seq}"))
        if len(conversations) > 1:
            lines += [GAP, TextLine("call", "conversations")]
            for one in sorted(conversations, key=lambda one: -one.seconds)[: self.limit]:
                sums = ", ".join(_sums(one))
                lines.append(self._line(f"  {one_line(one.id)}  {sums}  {one_line(one.title)}"))
            if len(conversations) > self.limit:
                more = (
                    f"  and {len(conversations) - self.limit:,} more; a higher --limit shows them"
                )
                lines.append(self._line(more, "dim"))
        return lines

    def _line(self, text: str, style: str = "plain") -> TextLine:
        return TextLine(style, clip(text, self.width))

    def _wrapped(self, parts: Sequence[str]) -> list[TextLine]:
        """Return the parts, separated by commas, on as many lines as they need."""
        lines = [""]
        for part in [*(f"{part}," for part in parts[:-1]), *parts[-1:]]:
            if lines[-1] and columns(lines[-1]) + 1 + columns(part) > self.width:
                lines.append("")
            lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
        return [self._line(text) for text in lines]

    def _table(self, shares: Sequence[CallTotals]) -> list[TextLine]:
        visible, most = shares[: self.limit], max(share.seconds for share in shares)
        longest = min(_MAX_NAME_COLUMNS, max(8, self.width // 3))
        names = [clip(one_line(share.name), longest) for share in visible]
        wide = max(columns(name) for name in names)
        calls = max(len(f"{share.calls:,}") for share in visible)
        lines: list[TextLine] = []
        for name, share in zip(names, visible, strict=True):
            text = (
                f"  {padded(name, wide)}  {share.calls:>{calls},} x  {duration(share.seconds):>12}"
            )
            if self.width >= _MIN_BAR_WIDTH:
                room = min(_MAX_BAR_COLUMNS, max(6, self.width - columns(text) - 40))
                length = round(share.seconds / most * room) if most else 0
                bars = self.bar * max(length, 1 if share.seconds else 0)
                text += f"  {bars:<{room}}"
            more = [counted(share.errors, "error")] if share.errors else []
            listed = f" (list {_money(share.list_cost)})" if share.list_cost is not None else ""
            more += [_money(share.cost) + listed] if share.cost else []
            more += token_parts(share.usage, cached_share=True)  # last: a narrow screen cuts it
            lines.append(self._line(f"{text}  {', '.join(more)}".rstrip()))
        if len(shares) > self.limit:
            lines.append(TextLine("dim", f"  and {len(shares) - self.limit:,} more"))
        return lines


def _sums(one: Stats) -> list[str]:
    parts = [counted(one.steps, "step"), f"{duration(one.seconds)} at work"]
    if one.waited:
        parts.append(f"{duration(one.waited)} waiting for confirmation")
    parts += token_parts(one.usage, cached_share=True)
    unpriced = f" ({one.unpriced} calls without a known price)" if one.unpriced else ""
    parts.append("cost unknown" if one.cost is None else f"{_money(one.cost)}{unpriced}")
    if one.provider_cost is not None:
        listed = "unknown" if one.list_cost is None else _money(one.list_cost)
        parts.append(f"of it {_money(one.provider_cost)} as providers state (list {listed})")
    if one.condensations:
        parts.append(counted(one.condensations, "condensation"))
    return parts


def _money(cost: float) -> str:
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"
