"""`holdfast models`, and `--model NAME` for a model that a file in the folder defines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from holdfast.cli import main
from tests.model_server import ModelServer, text

KEY = "sk-planted-0123456789"


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    assert KEY not in out.getvalue() + err.getvalue()
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Run a model server that answers every request."""
    with ModelServer(lambda request: text("Done.")) as model_server:
        yield model_server


@pytest.fixture
def folder(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENAI_API_KEY", "HOLDFAST_MODEL", "HOLDFAST_BASE_URL", "HOLDFAST_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "holdfast" / "models"
    folder.mkdir(parents=True)
    (folder / "fast.yaml").write_text("name: gpt-5-mini\napi_key: ${MY_KEY}\n")
    (folder / "here.yaml").write_text(
        f"name: own\nbase_url: {server.url}\napi_key: ${{MY_KEY}}\nprices: {{input: 0.5, output: 2}}\n"
    )
    (folder / "coder.yaml").write_text("model: gpt-5\n")
    return folder


def test_models_are_listed_without_their_keys(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("models")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["coder", "fast", "here"]
    assert "agent of gpt-5" in out.splitlines()[0]
    assert out.splitlines()[1].endswith("tokens  no key: MY_KEY not set")
    assert err == f"3 files in {folder}\n"
    monkeypatch.setenv("MY_KEY", KEY)
    coder, fast, here = [json.loads(line) for line in run("models", "--json")[1].splitlines()]
    assert (coder["key"], fast["key"], here["key"]) == (False, True, True)
    assert (fast["contextWindow"] > 100_000, fast["price"]["input"] > 0) == (True, True)
    assert (here["price"], here["contextWindow"]) == ({"input": 0.5, "output": 2.0}, None)


def test_a_wrong_file_is_told_and_the_others_are_listed(folder: Path) -> None:
    (folder / "bad.yaml").write_text("nam: gpt-5\n")
    code, out, err = run("models", "--models", str(folder))
    assert (code, len(out.splitlines())) == (1, 3)
    assert "left out: bad:" in err
    assert "bad.yaml, line 1" in err
    assert run("models", "--models", str(folder / "gone"))[0] == 2
    (folder / "empty").mkdir()
    assert run("models", "--models", str(folder / "empty")) == (
        0,
        "",
        f"0 files in {folder}/empty\n",
    )


def test_run_uses_a_model_of_the_folder_before_a_providers(
    folder: Path, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("HOLDFAST_API_KEY", "sk-of-another-address")
    (folder / "here.yaml").rename(folder / "gpt-5.yaml")
    code, out, _ = run("run", "Do it", "--model", "gpt-5", "--workdir", str(tmp_path))
    assert (code, "Done." in out) == (0, True)
    assert server.requests[0].json["model"] == "own"
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "fsat"), "Did you mean 'fast'? The named models of"),
        (("--model", "fast"), "the environment variable MY_KEY, which"),
        (
            ("--model", "coder"),
            "is an agent, not a model; `holdfast serve --agent coder` offers it",
        ),
        (("--model", "fast", "--base-url", "http://127.0.0.1:1"), "--base-url cannot be combined"),
        (("--model", "fast", "--models", "gone"), "--models takes a folder; 'gone' is not one"),
    ],
)
def test_a_model_that_cannot_be_used_is_told_before_anything_runs(
    folder: Path, options: tuple[str, ...], words: str
) -> None:
    code, _, err = run("run", "Do it", *options)
    assert code == 2
    assert words in err
