"""The report of an eval as text, and as one standalone HTML page with pictures and no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from holdfast.evals.results import AgentSummary, Comparison, EvalReport, RunResult

_WIDTH, _LEFT, _ROW = 640, 150, 30  # pixels of a picture, of its names, and of one bar
_MARKS = {"passed": "✓", "failed": "✗", "error": "!", "not_run": "·"}
_STYLE = """
:root{color-scheme:light dark;--pass:#1a7f37;--fail:#cf222e;--odd:#9a6700;--bar:#0969da;
--line:#8c959f}
@media(prefers-color-scheme:dark){:root{--pass:#3fb950;--fail:#f85149;--odd:#d29922;--bar:#58a6ff}}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
.passed{color:var(--pass)}.failed{color:var(--fail)}.error,.not_run{color:var(--odd)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.4rem;border:1px solid var(--line)}
svg{max-width:100%;height:auto}svg text{font:13px system-ui,sans-serif;fill:currentColor}
.two{display:grid;grid-template-columns:1fr 1fr;gap:1rem}
.warn{border-left:4px solid var(--odd);padding-left:.8rem}
"""


def money(cost: float | None, unpriced: int) -> str:
    """Return a cost in words; calls without a known price are named."""
    if cost is None:
        return "cost unknown"
    more = f" and {unpriced:,} calls without a price" if unpriced else ""
    return f"${cost:,.4f}{more}" if cost < 1 else f"${cost:,.2f}{more}"


def share(value: float) -> str:
    """Return a share in percent."""
    return f"{value:.1%}".replace(".0%", "%")


def points(value: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{value * 100:+.1f}".replace(".0", "") if value else "0"


def summary_line(one: AgentSummary) -> str:
    """Return an agent's results in one line."""
    odd = [
        f"{count:,} {what}"
        for count, what in ((one.errors, "errors"), (one.not_run, "not run"))
        if count
    ]
    more = f" ({', '.join(odd)})" if odd else ""
    return (
        f"{one.agent} ({one.model}): {share(one.rate)} passed, 95 % interval {share(one.low)} to"
        f" {share(one.high)}; {one.passed:,} of {one.runs:,} runs{more};"
        f" {money(one.cost, one.unpriced)}, {one.input_tokens:,} + {one.output_tokens:,} tokens,"
        f" {one.seconds:,.1f} s"
    )


def comparison_line(one: Comparison) -> str:
    """Return a comparison in one line."""
    verdict = "worse" if one.is_worse else "better" if one.is_better else "no clear difference"
    return (
        f"{one.other} against {one.base}: {points(one.difference)} points, 95 % interval"
        f" {points(one.low)} to {points(one.high)}; {len(one.better)} cases better,"
        f" {len(one.worse)} worse, p = {one.p:.3f}: {verdict}"
    )


def page(report: EvalReport) -> str:
    """Return the report as one HTML page. All text of models and suites is escaped."""
    agents = report.agents
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta http-equiv=Content-Security-Policy"
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>{escape(report.suite)}: eval</title><style>{_STYLE}</style>",
        f"<main><h1>{escape(report.suite)}</h1>",
        f"<p>{len(report.cases):,} cases, {len(report.runs):,} runs.</p>",
    ]
    if report.not_run:
        ids = ", ".join(dict.fromkeys(f"{one.agent}: {one.case}" for one in report.not_run))
        parts.append(
            f"<p class=warn>{len(report.not_run):,} runs are missing: {escape(report.stopped)}."
            f" {escape(ids)}</p>"
        )
    parts += ["<h2>Pass rates</h2>", _rates(agents)]
    parts += [f"<p>{escape(summary_line(one))}</p>" for one in agents]
    if report.comparisons:
        parts += ["<h2>Differences</h2>", _differences(report.comparisons)]
        parts += [f"<p>{escape(comparison_line(one))}</p>" for one in report.comparisons]
    parts += ["<h2>Use</h2>"]
    for title, value, text in _USES:
        parts.append(_bars(title, [(one.agent, value(one), text(one)) for one in agents]))
    parts += ["<h2>Cases</h2>", _cases(report)]
    for one in report.comparisons:
        parts.append(_partings(one))
    return "".join([*parts, "</main></html>"])


_USES: Sequence[tuple[str, Callable[[AgentSummary], float], Callable[[AgentSummary], str]]] = (
    ("Cost", lambda one: one.cost or 0.0, lambda one: money(one.cost, one.unpriced)),
    (
        "Tokens",
        lambda one: one.input_tokens + one.output_tokens,
        lambda one: f"{one.input_tokens:,} in, {one.output_tokens:,} out",
    ),
    ("Time of calls", lambda one: one.seconds, lambda one: f"{one.seconds:,.1f} s"),
)


def _svg(title: str, rows: int, body: str) -> str:
    height = rows * _ROW + 24
    return (
        f'<svg role=img viewBox="0 0 {_WIDTH} {height}" width={_WIDTH} height={height}>'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def _name(text: str, top: float) -> str:
    label = text if len(text) <= 20 else f"{text[:19]}…"
    return f'<text x="0" y="{top + 19:g}">{escape(label)}</text>'


def _rates(agents: Sequence[AgentSummary]) -> str:
    scale = _WIDTH - _LEFT - 70
    body: list[str] = []
    for at, one in enumerate(agents):
        top, middle = at * _ROW, at * _ROW + 14
        low, high = _LEFT + one.low * scale, _LEFT + one.high * scale
        body.append(
            f'{_name(one.agent, top)}<rect x="{_LEFT}" y="{top + 4}" height="20"'
            f' width="{one.rate * scale:.1f}" style="fill:var(--bar);opacity:.55"/>'
            f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 5}v10M{high:.1f}'
            f' {middle - 5}v10" style="stroke:currentColor;fill:none"/>'
            f'<text x="{_LEFT + scale + 10}" y="{top + 19}">{share(one.rate)}</text>'
        )
    bottom = len(agents) * _ROW + 18
    body += [
        f'<text x="{_LEFT + part * scale:.0f}" y="{bottom}" text-anchor="middle">'
        f"{share(part)}</text>"
        for part in (0.0, 0.5, 1.0)
    ]
    return _svg("Pass rates with 95 % intervals", len(agents), "".join(body))


def _differences(comparisons: Sequence[Comparison]) -> str:
    scale = (_WIDTH - _LEFT - 70) / 2
    zero = _LEFT + scale
    bottom = len(comparisons) * _ROW
    body = [f'<path d="M{zero} 0V{bottom}" style="stroke:var(--line)"/>']
    for at, one in enumerate(comparisons):
        middle = at * _ROW + 14
        low, high = zero + one.low * scale, zero + one.high * scale
        body.append(
            f'{_name(one.other, at * _ROW)}<path d="M{low:.1f} {middle}H{high:.1f}"'
            ' style="stroke:var(--bar);stroke-width:6;opacity:.55"/>'
            f'<circle cx="{zero + one.difference * scale:.1f}" cy="{middle}" r="5"'
            ' style="fill:var(--bar)"/>'
            f'<text x="{_LEFT + 2 * scale + 10}" y="{middle + 5}">{points(one.difference)}</text>'
        )
    body += [
        f'<text x="{zero + part * scale:.0f}" y="{bottom + 18}" text-anchor="middle">'
        f"{points(part)}</text>"
        for part in (-1.0, 0.0, 1.0)
    ]
    title = f"Points that each agent passes more than {comparisons[0].base}, with 95 % intervals"
    return _svg(title, len(comparisons), "".join(body))


def _bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    scale, most = _WIDTH - _LEFT - 200, max(value for _, value, _ in rows) or 1.0
    body = [
        f'{_name(name, at * _ROW)}<rect x="{_LEFT}" y="{at * _ROW + 4}" height="20"'
        f' width="{value / most * scale:.1f}" style="fill:var(--bar);opacity:.55"/>'
        f'<text x="{_LEFT + value / most * scale + 6:.1f}" y="{at * _ROW + 19}">'
        f"{escape(text)}</text>"
        for at, (name, value, text) in enumerate(rows)
    ]
    return f"<h3>{title}</h3>{_svg(title, len(rows), ''.join(body))}"


def _cases(report: EvalReport) -> str:
    names = [one.agent for one in report.agents]
    runs: dict[tuple[str, str], list[RunResult]] = {}
    for run in report.runs:
        runs.setdefault((run.case, run.agent), []).append(run)
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    rows = [
        f"<tr><th scope=row>{escape(case)}</th>"
        + "".join(f"<td>{_cell(runs.get((case, name), ()))}</td>" for name in names)
        + "</tr>"
        for case in report.cases
    ]
    return f"<table><tr><th scope=col>case</th>{head}</tr>{''.join(rows)}</table>"


def _cell(runs: Sequence[RunResult]) -> str:
    items: list[str] = []
    for run in runs:
        label = run.outcome.replace("_", " ")
        detail = f": {escape(run.reason[:300])}" if run.reason else ""
        unknown = f" ({run.unknown_outcomes} calls cut off by a kill)" * bool(run.unknown_outcomes)
        items.append(
            f'<div class={run.outcome} title="{escape(run.conversation)}">{_MARKS[run.outcome]}'
            f" {label}{unknown}{detail}</div>"
        )
    return "".join(items)


def _partings(one: Comparison) -> str:
    if not one.partings:
        return ""
    parts = [f"<h2>Where {escape(one.other)} parts from {escape(one.base)}</h2>"]
    for part in one.partings:
        open_attribute = " open" if part.case in (*one.better, *one.worse) else ""
        texts = "".join(
            f"<div>{escape(name)}, event {seq}<pre>{escape(text)}</pre></div>"
            for name, seq, text in (
                (one.base, part.base_seq, part.base),
                (one.other, part.other_seq, part.other),
            )
        )
        parts.append(
            f"<details{open_attribute}><summary>{escape(part.case)}: step {part.step}, {part.kind}"
            f"</summary><div class=two>{texts}</div></details>"
        )
    return "".join(parts)
