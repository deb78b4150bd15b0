"""The attacks, run by an unprivileged user if this user is root: boxes use other means then."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.runtime.sandbox.mechanisms import MECHANISMS

REPO = Path(__file__).parents[3]
USER = 12345


def interpreter() -> str:
    """Return a Python of this version that any user may run, or "" if there is none."""
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        command = [path, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            process = subprocess.run(
                command, user=USER, group=USER, extra_groups=[], capture_output=True, text=True
            )
        except OSError:
            continue
        if process.stdout.split() == [str(one) for one in sys.version_info[:2]]:
            return path
    return ""


@pytest.mark.proof
@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an unprivileged user already")
@pytest.mark.parametrize("mechanism", [one.name for one in MECHANISMS])
def test_the_attacks_fail_in_boxes_of_an_unprivileged_user(mechanism: str) -> None:
    python = interpreter()
    if not python:
        pytest.skip("no Python of this version can be run by other users")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="user-") as folder:
        os.chown(folder, USER, USER)
        env = {
            "HOME": folder,
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join([str(REPO / "src"), str(REPO), *sys.path[1:]]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = ["-q", "-rA", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-c", os.devnull, f"--rootdir={REPO}", f"--basetemp={folder}/base"]
        tests = REPO / "tests" / "runtime" / "sandbox" / "test_attacks.py"
        process = subprocess.run(
            [python, "-m", "pytest", *options, str(tests), "-k", f"{mechanism} and not race"],
            cwd=folder,
            env=env,
            user=USER,
            group=USER,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    lines = process.stdout.splitlines()
    passed = [line for line in lines if line.startswith("PASSED")]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if not passed and not failed:
        pytest.skip(f"the tests could not be run: {process.stdout[-500:]} {process.stderr[-500:]}")
    assert failed == [], process.stdout
    assert len(passed) >= 35, process.stdout
