"""The solver and the scorer for inspect-ai, in a process of its own with inspect's packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from tests.paths import REPO

JUDGES = Path(__file__).parent / "judges"
PACKAGES = REPO / ".venv" / "inspect-ai"


def test_without_inspect_it_says_what_to_install() -> None:
    from holdfast import Agent, ScriptedLLM
    from holdfast.integrations.inspect import holdfast_solver, judge_scorer

    agent = Agent(ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="pip install inspect-ai"):
        holdfast_solver(agent)
    with pytest.raises(ConfigurationError, match="pip install inspect-ai"):
        judge_scorer(lambda review, context: True)
    with pytest.raises(ConfigurationError, match="agent takes an Agent"):
        holdfast_solver("agent")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match='model takes "inspect" or "own"'):
        holdfast_solver(agent, model="other")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_tasks_of_inspect_run_with_a_holdfast_agent(tmp_path: Path) -> None:
    if not PACKAGES.is_dir():
        pytest.skip(f"inspect-ai is not installed: pip install --target {PACKAGES} inspect-ai")
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            f"--rootdir={REPO}",
            str(JUDGES / "inspect_tasks.py"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{PACKAGES}:{REPO / 'src'}:{REPO}",
            "INSPECT_DISPLAY": "none",
            "HOME": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.findall(r"(\d+) passed", done.stdout)[0])
    assert passed >= 7  # the examples of inspect's repository are not part of its package
