"""An argument that cannot be a path ends the command with a one-line error and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.store import SQLiteStore

IMPOSSIBLE = {
    "with a NUL": "a\0b",
    "too long": "x" * 5000,
    "of an unknown user": "~no-such-user/x",
}
MODEL = ["--model", "m", "--base-url", "http://127.0.0.1:1/v1"]
COMMANDS = [
    ["show", "PATH"],
    ["list", "PATH"],
    ["tell", "PATH", "x", "pause"],
    ["replay", "PATH"],
    ["stats", "PATH"],
    ["check", "PATH"],
    ["export", "PATH"],
    ["export", "PATH", "--salvage"],
    ["export", "store.db", "-o", "PATH"],
    ["import", "PATH", "--store", "out.db"],
    ["import", "PATH", "--from", "openhands", "--store", "out.db"],
    ["tools", "--config", "PATH"],
    ["tools", "--workdir", "PATH"],
    ["run", "x", *MODEL, "--store", "PATH"],
    ["run", "x", *MODEL, "--workdir", "PATH"],
    ["run", "x", *MODEL, "--agents", "PATH"],
    ["run", "x", *MODEL, "--log", "PATH"],
    ["run", "x", *MODEL, "--system-prompt-file", "PATH"],
    ["run", "x", *MODEL, "--output-schema", "PATH"],
    ["serve", "keys", "list", "--store", "PATH"],
]


@pytest.mark.slow
@pytest.mark.parametrize("path", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(one[:3]) for one in COMMANDS])
def test_a_text_that_can_be_no_path_is_a_wrong_option(
    command: list[str],
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    SQLiteStore("store.db").close()
    code = main([path if word == "PATH" else word for word in command])
    errors = capfd.readouterr().err
    assert code == 2, errors
    assert "internal error" not in errors
    assert len(errors.strip().splitlines()) == 1
