"""The terminal and the file tools on a third-party project: an agent searches, edits and tests
an sdist from PyPI."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, LocalRuntime, ScriptedLLM, ToolResult
from holdfast import events as ev

PROJECT = "more-itertools==10.5.0"  # pure Python, its tests in the sdist, no dependencies


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the unpacked sdist; skip the test without a package index."""
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    process = subprocess.run(
        [*download, "--no-binary", ":all:", "--dest", str(tmp_path), PROJECT],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    archives = list(tmp_path.glob("more*itertools-*.tar.gz"))
    if not archives:
        pytest.skip(f"no package index: {process.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    return next(path for path in tmp_path.iterdir() if path.is_dir())


@pytest.mark.slow
def test_an_agent_searches_edits_and_tests_a_real_project(project: Path) -> None:
    test = f"{sys.executable} -m unittest tests.test_more.FirstTests tests.test_more.ChunkedTests"
    before = (project / "more_itertools" / "more.py").read_bytes()
    texts: list[Any] = []

    def last_text(request: Any) -> str:
        texts.append(request.text)
        return request.text

    def find(request: Any) -> Any:
        assert "OK" in request.text  # the tests pass before the change
        globbed = next(m for m in request.messages if m["role"] == "tool")
        assert "tests/test_more.py" in globbed["content"]
        return ("grep", {"pattern": r"^def first\(", "path": "more_itertools", "glob": "*.py"})

    def read_step(request: Any) -> Any:
        place = last_text(request)
        assert "more_itertools/more.py" in place
        line = int(next(part for part in place.replace("-", ":").split(":") if part.isdigit()))
        return ("read_file", {"path": "more_itertools/more.py", "offset": line, "limit": 30})

    def break_it(request: Any) -> Any:
        assert "for item in iterable:" in last_text(request)
        return (
            "edit_file",
            {
                "path": "more_itertools/more.py",
                "old": "    for item in iterable:\n        return item\n",
                "new": "    for item in iterable:\n        return default\n",
            },
        )

    def test_again(request: Any) -> Any:
        last_text(request)
        return ("terminal", {"command": test})

    def mend(request: Any) -> Any:
        assert "FAILED" in last_text(request)
        return (
            "edit_file",
            {
                "path": "more_itertools/more.py",
                "old": "        return default\n    if default is _marker:",
                "new": "        return item\n    if default is _marker:",
            },
        )

    script = [
        [("glob", {"pattern": "tests/*.py"}), ("terminal", {"command": test})],
        find,
        read_step,
        break_it,
        test_again,
        mend,
        test_again,
        lambda request: "OK" if "OK" in last_text(request) else "It still fails.",
    ]

    with (
        LocalRuntime(project) as runtime,
        Conversation(Agent(ScriptedLLM(script), runtime.tools)) as conversation,
    ):
        conversation.send_message("See whether the tests of first() notice a wrong first().")
        state = conversation.run()
        results: list[ToolResult] = [
            event.result for event in state.events if isinstance(event, ev.ToolCallFinished)
        ]
    assert state.status is ConversationStatus.FINISHED
    assert state.answer == "OK", state.error
    assert not any(result.is_error for result in results)
    assert [result.meta["exitCode"] for result in results if "exitCode" in result.meta] == [0, 1, 0]
    assert "-        return item" in "".join(str(result.meta.get("diff", "")) for result in results)
    assert (project / "more_itertools" / "more.py").read_bytes() == before
