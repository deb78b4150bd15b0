"""`holdfast worker` and `holdfast fleet status` as separate processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast.fleet import Bell, TableBackend
from tests import forks
from tests.fleet_program import post
from tests.model_server import ModelServer, text
from tests.waiting import until

pytestmark = pytest.mark.slow


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return forks.run(command(*words), capture_output=True, text=True, timeout=120)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    backend = TableBackend(tmp_path / "s.db")
    with SQLiteStore(tmp_path / "s.db", bell=Bell(backend)) as sqlite:
        yield sqlite
    backend.close()


def test_a_worker_drives_conversations_shows_itself_and_drains(
    store: SQLiteStore, tmp_path: Path
) -> None:
    with ModelServer([text("Hello.")]) as model:
        agent = tmp_path / "agent.yaml"
        agent.write_text(f"model: {{name: m, base_url: '{model.url}', api_key: '${{KEY}}'}}\n")
        place = str(store.path)
        process = forks.Popen(
            command(
                *("worker", "--store", place, "--agent", str(agent), "--variable", "KEY=k"),
                *("--ready", "127.0.0.1:0", "--concurrency", "2"),
            ),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            address = process.stderr.readline().split()[-1]
            assert "serves queue 'default'" in process.stderr.readline()
            with urllib.request.urlopen(f"{address}/ready") as answer:
                assert answer.read() == b"ready\n"
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}/other")
            post(store, "a", "Hi", "1")
            until(lambda: [one.status for one in store.list(["a"])] == ["finished"])
            summary = run("fleet", "status", "--store", place)
            assert summary.stdout.startswith("1 of 1 workers serve; 0 conversations run")
            status = json.loads(run("fleet", "status", "--store", place, "--json").stdout)
            assert status["workers"][0]["queue"] == "default"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
            process.communicate()
    assert "0 of 0 workers serve" in run("fleet", "status", "--store", place).stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--store", "s.db", "--agent", "none.yaml"], "--agent: "),
        (["--store", "s.db", "--agent", "a", "--backend", "procrastinate"], "needs a store in"),
        (["--store", "s.db", "--agent", "a", "--ready", "x"], "--ready: "),
        (["--store", "s.db", "--agent", "a", "--variable", "NOT_SET"], "NOT_SET"),
        (["--agent", "a"], "--store"),
    ],
)
def test_a_wrong_option_of_a_worker_is_one_line(
    words: list[str], problem: str, tmp_path: Path
) -> None:
    ended = forks.run(
        command("worker", *words), capture_output=True, text=True, cwd=tmp_path, env={**os.environ}
    )
    assert ended.returncode == 2
    assert problem in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unreachable_database_is_one_line_without_its_password() -> None:
    place = "postgresql://someone:secret@127.0.0.1:9/agents"
    ended = run("fleet", "status", "--store", place)
    assert ended.returncode == 1
    assert "cannot be reached" in ended.stderr
    assert "secret" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_keywords_and_values_are_refused_rather_than_taken_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = "host=127.0.0.1 user=someone password=planted dbname=agents"
    for words in (
        ("fleet", "status"),
        ("worker", "--agent", "agent.yaml"),
        ("serve", "--seal-key", "key"),
    ):
        ended = run(*words, "--store", place)
        assert ended.returncode == 2
        assert "'postgresql://user:password@host:5432/database'" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1
        assert "planted" not in ended.stdout + ended.stderr
    assert not [one for one in tmp_path.iterdir() if "planted" in one.name]
