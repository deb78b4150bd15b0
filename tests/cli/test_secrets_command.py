"""Tests of `--secret` for run and chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SQLiteStore
from holdfast import events as ev
from tests.cli.test_commands import holdfast
from tests.model_server import ModelServer, calls, text

VALUE = "planted-secret-4711"


@pytest.mark.slow
def test_a_command_uses_a_secret_and_nothing_shows_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file-0815\n")
    command = 'printf %s "$TOKEN" | wc -c; echo "$TOKEN $FILED"'
    with ModelServer([calls(("terminal", {"command": command})), text("Done.")]) as model:
        ended = holdfast(
            *("run", "--model", "m", "--base-url", model.url, "--store", "s.db", "--log", "log"),
            *(
                "--workdir",
                str(tmp_path),
                "--secret",
                "TOKEN",
                "--secret",
                "FILED=key",
                "--",
                "Go.",
            ),
            cwd=tmp_path,
            TOKEN=VALUE,
        )
        requests = str([request.body for request in model.requests])
    assert ended.returncode == 0, ended.stderr
    with SQLiteStore(tmp_path / "s.db", read_only=True) as store:
        [summary] = store.list()
        results = [e for e in store.read(summary.id) if isinstance(e, ev.ToolCallFinished)]
    assert results[0].result.text.splitlines()[:2] == [
        str(len(VALUE)),
        "<secret:TOKEN> <secret:FILED>",
    ]
    (tmp_path / "key").unlink()
    output = ended.stdout + ended.stderr + requests
    on_disk = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for value in (VALUE, "from-a-file-0815"):
        assert value not in output
        assert value.encode() not in on_disk


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE, named by --secret, is not set"),
        ("T=missing", "--secret 'missing'"),
        ("T=short", "fewer than 8 characters"),
        ("PATH=long", "changes how programs start"),
        ("=long", "names of environment variables"),
    ],
)
def test_a_bad_secret_is_a_wrong_argument(tmp_path: Path, secret: str, problem: str) -> None:
    (tmp_path / "short").write_text("x")
    (tmp_path / "long").write_text(VALUE)
    ended = holdfast(
        "run",
        "--model",
        "m",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--secret",
        secret,
        "--",
        "Go.",
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    assert problem in ended.stderr
    assert "Traceback" not in ended.stderr
    assert VALUE not in ended.stderr
