"""Tests of intervals and tests of pass rates, against published values, and of the report's page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from holdfast.evals.page import page
from holdfast.evals.results import RunResult, Step, make_report, parting
from holdfast.evals.statistics import bootstrap, sign_test, wilson


@pytest.mark.parametrize(
    ("passed", "cases", "low", "high"),
    [
        # R. G. Newcombe, Two-sided confidence intervals for the single proportion, Statistics in
        # Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval(passed: int, cases: int, low: float, high: float) -> None:
    interval = wilson(passed / cases, cases)
    assert interval == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_sign_test_is_the_exact_binomial_one() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(0, 5) == pytest.approx(2 / 32)
    assert sign_test(1, 9) == pytest.approx(2 * 11 / 1024)
    assert sign_test(4, 4) == 1.0


def test_the_bootstrap_holds_the_mean_and_is_the_same_each_time() -> None:
    differences = [1.0] * 10 + [0.0] * 80 + [-1.0] * 10
    low, high = bootstrap(differences)
    # The standard error of the mean is sqrt(0.2 / 100).
    assert low == pytest.approx(-1.96 * 0.0447, abs=0.02)
    assert high == pytest.approx(1.96 * 0.0447, abs=0.02)
    assert bootstrap(differences) == (low, high)
    assert bootstrap([]) == (0.0, 0.0)


def run(agent: str, case: str, outcome: str, repeat: int = 1, reason: str = "") -> RunResult:
    return RunResult(agent, case, repeat, f"{agent}.{case}", outcome, reason)  # pyright: ignore[reportArgumentType]


def test_an_agent_that_loses_many_cases_is_worse_and_missing_runs_count_for_nobody() -> None:
    cases = [f"c{number}" for number in range(12)]
    runs = [run("a", case, "passed") for case in cases]
    runs += [run("b", case, "failed" if case != "c0" else "passed") for case in cases[:-1]]
    runs.append(run("b", "c11", "not_run"))
    report = make_report("s", cases, {"a": "m", "b": "m"}, runs, {})
    [compared] = report.comparisons
    assert compared.cases == 11
    assert compared.is_worse
    assert not compared.is_better
    assert compared.p == pytest.approx(2 / 1024)
    assert report.agents[1].runs == 11


def test_repeats_make_a_share_of_a_case_and_not_more_cases() -> None:
    runs = [run("a", "c", outcome, n) for n, outcome in enumerate(["passed", "failed"] * 5, 1)]
    [agent] = make_report("s", ["c"], {"a": "m"}, runs, {}).agents
    assert agent.rate == 0.5
    assert (agent.low, agent.high) == wilson(0.5, 1)


def test_two_runs_part_at_the_first_call_result_or_answer_that_differs() -> None:
    base = [Step(4, "calls", "look {}"), Step(6, "result", "x" * 900 + "A"), Step(7, "answer", "a")]
    assert parting("c", base, base) is None
    other = [base[0], Step(6, "result", "x" * 900 + "B"), base[2]]
    point = parting("c", base, other)
    assert point is not None
    assert (point.step, point.kind, point.base_seq) == (2, "result", 6)
    assert point.base.endswith("A")
    assert point.base.startswith("...")
    shorter = parting("c", base, base[:2])
    assert shorter is not None
    assert (shorter.step, shorter.kind, shorter.other) == (3, "answer or end", "the run is over")


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_is_whole_has_no_script_and_escapes_what_models_say() -> None:
    attack = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    runs = [run("a", attack, "passed"), run("b", attack, "failed", reason=attack)]
    steps = {
        ("a", attack): [Step(4, "answer", attack)],
        ("b", attack): [Step(4, "answer", f"{attack}!")],
    }
    text = page(make_report(attack, [attack], {"a": attack, "b": "m"}, runs, steps))
    elements = Elements()
    elements.feed(text)
    names = {tag for tag, _ in elements.tags}
    assert not names & {"script", "img", "link", "iframe"}
    assert {"svg", "rect", "table", "details", "title"} <= names
    assert not [name for _, attrs in elements.tags for name in attrs if name.startswith("on")]
    assert not re.search(r'(src|href)="?http', text)
    assert "default-src 'none'" in text
