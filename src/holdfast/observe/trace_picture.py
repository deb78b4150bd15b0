"""A trace as a standalone SVG or HTML file: no script, no network, light and dark."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from holdfast.observe.trace import RunTrace, TracedConversation, TracePoint, TraceSpan

_WIDTH, _MARGIN = 1100, 16
_LABELS = 330  # pixels of the names beside the bars
_ROW, _BAR = 18, 12
_CHART_HEIGHT = 90
_CHART_STEP = 24  # pixels of a step in a chart of bars, at most
_CHARACTER = 6.7  # pixels of a character at 11 pixels, at most
_MIN_BAR = 2.0
_IDLE_SHARE = 0.02  # of the time at work: the longest shown time in which nothing runs
_MAX_DIFF_LINES = 5_000
# XML has no characters below blank but tab and newline, and half surrogates are no text.
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Characters that hide or reorder text.
_HIDDEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)

_COLOURS = """\
:root{--bg:#f6f7f6;--card:#fff;--ink:#1c2321;--dim:#5a6663;--line:#d5dad8;--model:#0b6e5b;
--tool:#0a5f8a;--child:#7a4aa0;--wait:#b07a1e;--bad:#a8201a;--add:#dff3e4;--remove:#fbe3e1}
@media (prefers-color-scheme:dark){:root{--bg:#141817;--card:#1c2220;--ink:#e4e9e7;--dim:#9aa7a3;
--line:#333c39;--model:#4cc3a5;--tool:#7cc4ee;--child:#c9a2ec;--wait:#f0b866;--bad:#ff8d85;
--add:#143522;--remove:#43201e}}
"""
_SVG_STYLE = """\
text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.dim{fill:var(--dim)}.head{font-weight:600;font-size:13px}.end{text-anchor:end}
.grid{stroke:var(--line)}.back{fill:var(--bg)}.card{fill:var(--card);stroke:var(--line)}
.model{fill:var(--model)}.tool{fill:var(--tool)}.child{fill:var(--child)}.wait{fill:var(--wait)}
.message,.mark{fill:var(--dim)}.bad{fill:var(--bad)}.cached{fill:var(--model);opacity:.4}
.curve{fill:none;stroke:var(--model);stroke-width:1.5}
"""
_HTML_STYLE = """\
body{margin:0 auto;max-width:1132px;padding:16px;background:var(--bg);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.3rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.4rem 0 .4rem}
.wide{overflow-x:auto}svg{display:block}table{border-collapse:collapse}
th,td{text-align:left;padding:.15rem .8rem .15rem 0;vertical-align:top}
td:first-child{overflow-wrap:anywhere}
th{color:var(--dim);font-weight:600}td.n,th.n{text-align:right;white-space:nowrap}
.dim{color:var(--dim)}summary{cursor:pointer;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);overflow-x:auto;margin:.4rem 0;
font:12px/1.45 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre span{display:block;padding:0 .6rem;min-width:max-content}
.add{background:var(--add)}.remove{background:var(--remove)}.place{color:var(--dim)}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Timeline:
    """The places of times on an axis of `width`, on which times without work are short.

    A run that waits for a person overnight would otherwise be a line at each end.
    """

    def __init__(self, spans: Sequence[TraceSpan], width: float) -> None:
        busy = sorted(
            (span.start, span.start + span.seconds) for span in spans if span.kind != "wait"
        )
        merged: list[list[float]] = []
        for start, end in busy:
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        self.busy = sum(end - start for start, end in merged)
        longest = max(self.busy * _IDLE_SHARE, 0.001)
        # Pairs of a time and its place, between which the axis is even.
        self._knots: list[tuple[float, float]] = [(0.0, 0.0)]
        for start, end in merged:
            time, place = self._knots[-1]
            place += min(max(0.0, start - time), longest)
            self._knots += [(start, place), (end, place + end - start)]
        last = max([span.start + span.seconds for span in spans], default=0.0)
        time, place = self._knots[-1]
        if last > time:
            self._knots.append((last, place + min(last - time, longest)))
        self._scale = width / max(self._knots[-1][1], 0.001)

    def place(self, time: float) -> float:
        """Return the place of a time, 0 to the width."""
        low = bisect_left(self._knots, time, hi=len(self._knots) - 1, key=lambda knot: knot[0])
        to_time, to_place = self._knots[low]
        if low == 0 or time >= to_time:
            return to_place * self._scale
        from_time, from_place = self._knots[low - 1]
        share = (time - from_time) / (to_time - from_time)
        return (from_place + share * (to_place - from_place)) * self._scale


class _Chart(NamedTuple):
    """A chart of values per step; `cached` are the lower parts of bars."""

    title: str
    values: Sequence[float]
    cached: Sequence[float] = ()
    line: bool = False


def trace_svg(trace: RunTrace) -> str:
    """Return a trace as an SVG image of the charts, the tree and the waterfall."""
    return "\n".join(_svg(trace, standalone=True)) + "\n"


def trace_html(trace: RunTrace) -> str:
    """Return a trace as one HTML page: the image, the tree as a table, and the changed files."""
    root = trace.conversations[0]
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(root.title or root.id)}: trace</title>",
        f"<style>{_COLOURS}{_HTML_STYLE}{_SVG_STYLE}</style></head><body><main>",
        f"<h1>{_text(root.title or root.id)}</h1>",
        f"<p>{_text(_summary(trace))}</p>",
        '<div class="wide" tabindex="0" role="region" aria-label="Charts and waterfall">',
        *_svg(trace, standalone=False),
        "</div>",
        *_tree_table(trace),
        *_file_diffs(trace),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str, most: int = 300) -> str:
    """Return a text for XML, in which nothing is hidden."""
    text = _NO_XML.sub(lambda match: f"\\x{ord(match[0]):02x}", text[:most])
    return escape(_HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _clip(text: str, pixels: float) -> str:
    most = max(1, int(pixels / _CHARACTER))
    text = text.replace("\n", " ")
    return _text(text if len(text) <= most else f"{text[: most - 1]}…")


def _duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def _money(cost: float | None) -> str:
    if cost is None:
        return "unknown"
    return f"${cost:.2f}" if cost >= 1 or not cost else f"${cost:.4f}"


def _summary(trace: RunTrace) -> str:
    own = [one for one in trace.conversations if one.relation != "fork"]
    steps = sum(one.steps for one in own)
    tokens_in = sum(one.usage.input_tokens for one in own)
    tokens_out = sum(one.usage.output_tokens for one in own)
    costs = [one.cost for one in own if one.cost is not None]
    parts = [
        f"{trace.conversations[0].id}: {trace.conversations[0].status}",
        f"began {trace.begin:%Y-%m-%d %H:%M:%S} UTC",
        f"{len(own):,} conversations" if len(own) > 1 else "",
        f"{steps:,} steps",
        f"{_duration(own[0].seconds)} at work",
        f"{_duration(own[0].waited)} waiting for confirmation" if own[0].waited else "",
        f"{tokens_in:,} tokens in, {tokens_out:,} out",
        _money(sum(costs)) if costs else "cost unknown",
        f"{trace.left_out:,} short spans left out" if trace.left_out else "",
        f"{trace.damaged:,} events cannot be read" if trace.damaged else "",
    ]
    return ", ".join(part for part in parts if part)


# --- the image ---


def _svg(trace: RunTrace, standalone: bool) -> Iterator[str]:
    charts = _charts(trace.points, trace.window)
    top = 46 if standalone else 4
    charts_height = _CHART_HEIGHT + 40 if charts else 0
    tree = list(trace.conversations[:60]) if standalone else []
    tree_height = 26 + _ROW * len(tree) if len(tree) > 1 else 0
    below = top + charts_height + tree_height
    height = below + 30 + _ROW * max(1, len(trace.spans)) + _MARGIN
    root = trace.conversations[0]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}" role="img"'
        f' aria-label="Trace of {_text(root.title or root.id)}">'
    )
    if standalone:
        yield f"<style>{_COLOURS}{_SVG_STYLE}</style>"
        yield '<rect class="back" width="100%" height="100%"/>'
        yield _label(_MARGIN, 20, _clip(root.title or root.id, _WIDTH - 40), "head")
        yield _label(_MARGIN, 36, _clip(_summary(trace), _WIDTH - 2 * _MARGIN), "dim")
    if charts:
        room = (_WIDTH - 2 * _MARGIN - 16 * (len(charts) - 1)) / len(charts)
        for number, chart in enumerate(charts):
            yield from _chart(chart, _MARGIN + number * (room + 16), top, room)
    if tree_height:
        yield from _tree(tree, top + charts_height)
    yield from _waterfall(trace, below)
    yield "</svg>"


def _label(x: float, y: float, text: str, style: str = "") -> str:
    class_attribute = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{class_attribute}>{text}</text>'


def _charts(points: Sequence[TracePoint], window: int | None) -> list[_Chart]:
    if not points:
        return []
    input_tokens = [point.input_tokens for point in points]
    charts = [
        _Chart(
            f"tokens of a request, up to {max(input_tokens):,} (pale: cached)",
            input_tokens,
            [point.cached_input_tokens for point in points],
        )
    ]
    if points[-1].total_cost:
        title = f"cost, {_money(points[-1].total_cost)} in all"
        charts.append(_Chart(title, [point.total_cost for point in points], line=True))
    shares = [point.context for point in points]
    if window and all(share is not None for share in shares):
        context_shares = [share or 0.0 for share in shares]
        title = f"share of the context window ({window:,}), up to {max(context_shares):.0%}"
        charts.append(_Chart(title, context_shares, line=True))
    return charts


def _chart(chart: _Chart, x: float, y: float, width: float) -> Iterator[str]:
    low, most = y + 20 + _CHART_HEIGHT, max([*chart.values, 1e-9])
    yield f'<g role="img" aria-label="{escape(chart.title)}">'
    yield _label(x, y + 13, _clip(chart.title, width), "dim")
    yield (
        f'<rect class="card" x="{x:.1f}" y="{y + 20}" width="{width:.1f}"'
        f' height="{_CHART_HEIGHT}"/>'
    )
    step = (
        min(width / len(chart.values), _CHART_STEP) if not chart.line else width / len(chart.values)
    )
    heights = [value / most * (_CHART_HEIGHT - 6) for value in chart.values]
    if chart.line:
        places = [f"{x + (at + 0.5) * step:.1f},{low - one:.1f}" for at, one in enumerate(heights)]
        if len(places) == 1:
            places = [f"{x:.1f},{low - heights[0]:.1f}", f"{x + width:.1f},{low - heights[0]:.1f}"]
        yield f'<polyline class="curve" points="{" ".join(places)}"/>'
    else:
        cached = [value / most * (_CHART_HEIGHT - 6) for value in chart.cached]
        step = min(step, _CHART_STEP)
        bar = max(step - (1 if step > 3 else 0), 0.5)
        for style, parts, base in (("cached", cached, None), ("model", heights, cached)):
            path = ""
            for at, one in enumerate(parts):
                bottom = 0.0 if base is None else base[at]
                if one > bottom:
                    left = x + at * step
                    path += (
                        f"M{left:.1f} {low - bottom:.1f}h{bar:.1f}v{bottom - one:.1f}h{-bar:.1f}z"
                    )
            yield f'<path class="{style}" d="{path}"/>'
    yield "</g>"


def _tree(conversations: Sequence[TracedConversation], y: float) -> Iterator[str]:
    yield _label(_MARGIN, y + 14, "conversations", "head")
    for row, one in enumerate(conversations):
        at = y + 32 + row * _ROW
        indent = _MARGIN + 14 * min(one.depth, 10)
        name = f"{_relation(one)}{one.id} {one.title}"
        yield _label(indent, at, _clip(name, _LABELS + 220 - indent))
        figures = (
            f"{one.status}, {one.steps:,} steps, {_duration(one.seconds)},"
            f" {one.usage.input_tokens:,} tokens in, {one.usage.output_tokens:,} out,"
            f" {_money(one.cost)}"
        )
        yield _label(_LABELS + 250, at, _clip(figures, _WIDTH - _LABELS - 260), "dim")


def _relation(one: TracedConversation) -> str:
    if one.relation == "fork":
        return f"fork at event {one.parent_seq:,}: "
    return f"{one.relation} " if one.relation else ""


def _waterfall(trace: RunTrace, y: float) -> Iterator[str]:
    left, room = _MARGIN + _LABELS, _WIDTH - 2 * _MARGIN - _LABELS - 70
    line = Timeline(trace.spans, room)
    yield _label(_MARGIN, y + 14, "waterfall", "head")
    legend = "model, tool, child, wait; times in which nothing runs are shortened"
    yield _label(left, y + 14, legend, "dim")
    if not trace.spans:
        yield _label(_MARGIN, y + 34, "The journal has no model calls and no tool calls.", "dim")
    for row, span in enumerate(trace.spans):
        at = y + 24 + row * _ROW
        start, end = line.place(span.start), line.place(span.start + span.seconds)
        instant = span.kind in ("message", "mark")
        width = 4.0 if instant else max(end - start, _MIN_BAR)
        start = min(start, room - width) if instant else start
        style = "bad" if span.error else span.kind
        label = span.name if instant else f"{span.name} {span.title}"
        label = f"{span.name}: {span.title}" if instant and span.title else label
        indent = 12 * min(span.depth, 8)
        yield f"<g><title>{_text(_tooltip(trace, span), 900)}</title>"
        yield _label(_MARGIN + indent, at + 10, _clip(label, _LABELS - 8 - indent))
        yield (
            f'<rect class="{style}" x="{left + start:.1f}" y="{at}" width="{width:.1f}"'
            f' height="{_BAR}" rx="2"/>'
        )
        if not instant:
            after = "running" if span.running else _duration(span.seconds)
            note = f"{after}, {span.error}" if span.error else after
            yield _label(
                left + start + width + 4, at + 10, _clip(note, _WIDTH - left - start), "dim"
            )
        yield "</g>"


def _tooltip(trace: RunTrace, span: TraceSpan) -> str:
    where = ""
    if span.conversation:
        where = f" of {trace.conversations[span.conversation].id}"
    parts = [
        f"{span.kind} {span.name}, event {span.seq}{where}",
        f"at {_duration(span.start)}, {_duration(span.seconds)}",
        f"{span.input_tokens:,} tokens in, {span.output_tokens:,} out" if span.input_tokens else "",
        _money(span.cost) if span.cost else "",
        f"failed: {span.error}" if span.error else "",
        f"conversation {span.child}" if span.child else "",
        span.title,
    ]
    return "\n".join(part for part in parts if part)


# --- the page ---


def _tree_table(trace: RunTrace) -> Iterator[str]:
    if len(trace.conversations) == 1:
        return
    yield '<h2>Conversations</h2><div class="wide" tabindex="0" role="region" aria-label="Tree">'
    yield "<table><tr><th>conversation<th>status"
    for name in ("steps", "at work", "waiting", "tokens in", "out", "cost"):
        yield f'<th class="n">{name}'
    for one in trace.conversations:
        indent = "&#160;" * (4 * min(one.depth, 10))
        title = f' <span class="dim">{_text(one.title)}</span>' if one.title else ""
        name = f"{_relation(one)}<b>{_text(one.id)}</b>{title}"
        yield f"<tr><td>{indent}{name}<td>{_text(one.status)}"
        figures = (
            f"{one.steps:,}",
            _duration(one.seconds),
            _duration(one.waited) if one.waited else "",
            f"{one.usage.input_tokens:,}",
            f"{one.usage.output_tokens:,}",
            _money(one.cost),
        )
        yield "".join(f'<td class="n">{figure}' for figure in figures)
    yield "</table></div>"


def _file_diffs(trace: RunTrace) -> Iterator[str]:
    if not trace.files:
        return
    added = sum(file.added for file in trace.files)
    removed = sum(file.removed for file in trace.files)
    count = f"{len(trace.files):,} file{'s' * (len(trace.files) > 1)}"
    yield f"<h2>Changed files: {count}, +{added:,} -{removed:,}</h2>"
    lines_left = _MAX_DIFF_LINES
    for file in trace.files:
        seqs = ", ".join(str(seq) for seq in file.seqs[:20])
        about = f"event{'s' * (len(file.seqs) > 1)} {seqs}{'…' * (len(file.seqs) > 20)}"
        yield (
            f"<details open><summary><b>{_text(file.path, 1000)}</b> +{file.added:,}"
            f' -{file.removed:,} <span class="dim">{about}</span></summary>'
        )
        if not file.composed:
            yield '<p class="dim">Changed by something else in between: the edits, one by one.</p>'
        lines = file.diff.split("\n")
        yield "<pre>" + "".join(_diff_line(line) for line in lines[: max(0, lines_left)])
        if len(lines) > lines_left:
            yield f'<span class="place">… {len(lines) - max(0, lines_left):,} more lines</span>'
        yield "</pre></details>"
        lines_left -= len(lines)


def _diff_line(line: str) -> str:
    style = {"+": "add", "-": "remove", "@": "place", "#": "place", "\\": "place"}.get(line[:1], "")
    class_attribute = f' class="{style}"' if style else ""
    return f"<span{class_attribute}>{_text(line, 2000) or ' '}</span>"
