"""Third-party suites for sandboxes: inspect-ai's `self_check` and pydantic-ai's
`WorkspaceBackendSuite`, each in a process of its own with the suite's packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.sandbox.mechanisms import MECHANISMS

REPO = Path(__file__).parents[3]
JUDGES = Path(__file__).parent / "judges"


@pytest.fixture(params=[mechanism.name for mechanism in MECHANISMS])
def mechanism(request: pytest.FixtureRequest) -> str:
    [entry] = [one for one in MECHANISMS if one.name == request.param]
    if problem := entry.missing():
        pytest.skip(problem)
    return str(request.param)


def results(package: str, module: str, mechanism: str) -> dict[str, set[str]]:
    """Return the names of a suite's cases by their result."""
    folder = REPO / ".venv" / package
    if not folder.is_dir():
        pytest.skip(f"{package} is not installed: pip install --target {folder} {package}")
    options = ["-rA", "-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={REPO}", str(JUDGES / module)],
        env={
            **os.environ,
            "JUDGED_MECHANISM": mechanism,
            "PYTHONPATH": f"{folder}:{REPO / 'src'}:{REPO}",
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    names_by_result: dict[str, set[str]] = {}
    for result, name in re.findall(r"^([A-Z]+) \S*::(test_\w+)", process.stdout, re.MULTILINE):
        names_by_result.setdefault(result, set()).add(name)
    assert names_by_result, process.stdout + process.stderr
    if "FAILED" in names_by_result or "ERROR" in names_by_result:
        print(process.stdout)
    return names_by_result


@pytest.mark.proof
def test_inspects_self_check_holds_but_for_other_users(mechanism: str) -> None:
    names = results("inspect-ai", "inspect_self_check.py", mechanism)
    # A box has one user and no right to add another.
    missed = {"test_exec_as_user"}
    if mechanism == "landlock":  # it has no /tmp, and `cat /etc` is not permitted
        missed |= {
            "test_cwd_absolute",
            "test_read_and_write_file_including_directory_absolute",
            "test_read_file_is_directory",
            "test_write_binary_file_is_directory",
            "test_write_text_file_is_directory",
        }
    assert names.pop("FAILED") == missed
    assert names.keys() == {"PASSED"}
    assert len(names["PASSED"]) >= 44 - len(missed)


@pytest.mark.proof
def test_the_workspace_backend_suite_of_pydantic_ai_holds(mechanism: str) -> None:
    names = results("pydantic-ai", "workspace_backend.py", mechanism)
    assert names.keys() == {"PASSED"}
    assert len(names["PASSED"]) >= 40
