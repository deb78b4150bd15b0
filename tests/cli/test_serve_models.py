"""`holdfast serve --models`: clients use the operator's models by name, and never see their
keys."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, RemoteConversation, RemoteWorkspace
from holdfast.cli import main
from holdfast.llm import NamedModel
from holdfast.remote.models import ServerModels
from tests.model_server import ModelServer, text
from tests.serve_process import KEY, ServeProcess

MODEL_KEY = "sk-planted-0123456789"
pytestmark = pytest.mark.slow


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def models_in(folder: Path, url: str) -> Path:
    """Write three model files to a folder, and return the folder."""
    models = folder / "models"
    models.mkdir()
    for name in ("fast", "slow"):
        (models / f"{name}.yaml").write_text(
            f"name: {name}-one\nbase_url: {url}\napi_key: ${{MY_KEY}}\n"
        )
    (models / "greeter.yaml").write_text(
        f"model: {{name: greeter-one, base_url: '{url}', api_key: '${{MY_KEY}}'}}\n"
    )
    return models


def environment(pid: int) -> bytes:
    """Return the environment of a process as bytes."""
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_clients_use_the_operators_models_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def answer(request: Any) -> Any:
        return text(f"I am {request.json['model']}.")

    with ModelServer(answer) as provider:
        models = models_in(tmp_path, provider.url)
        options = (
            "--models",
            str(models),
            "--agent",
            "greeter",
            "--variable",
            f"MY_KEY={MODEL_KEY}",
        )
        with ServeProcess(tmp_path, *options) as server:
            space = RemoteWorkspace(server.url, KEY)
            assert [one.name for one in ServerModels(space).list()] == ["fast", "slow"]
            with RemoteConversation(Agent(NamedModel("slow")), space) as conversation:
                conversation.send_message("Who?")
                assert conversation.run().answer == "I am slow-one."
            monkeypatch.setenv("HOLDFAST_SERVER_KEY", KEY)
            place = ("--server", server.url)
            code, out, _ = run("run", "Who?", *place, "--model", "fast")
            assert (code, "I am fast-one." in out) == (0, True)
            code, _, err = run("run", "Who?", *place, "--model", "fsat")
            assert code == 2
            assert f"The models of {server.url} are: fast, slow" in err
        assert {one.headers["authorization"] for one in provider.requests} == {
            f"Bearer {MODEL_KEY}"
        }


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
def test_the_keys_of_the_models_are_not_left_in_the_environment(tmp_path: Path) -> None:
    models = models_in(tmp_path, "http://127.0.0.1:1/v1")
    options = ("--models", str(models), "--model", "fast")
    with ServeProcess(tmp_path, *options, env={"MY_KEY": MODEL_KEY}, fresh=True) as server:
        assert MODEL_KEY.encode() not in environment(server.pid)
        space = RemoteWorkspace(server.url, KEY)
        assert [one.name for one in ServerModels(space).list()] == ["fast"]
        assert space.run_command('echo "<$MY_KEY>"').text.startswith("<>")
        space.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "fsat"), "Did you mean 'fast'?"),
        (("--model", "greeter"), "is an agent, not a model"),
        (("--model", "fast"), "the environment variable MY_KEY, which"),
        (("--agent", "nobody"), "--agent takes NAME=FILE, or a name of the folder"),
    ],
)
def test_a_model_that_cannot_be_offered_is_told_at_the_start(
    tmp_path: Path, options: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    models = models_in(tmp_path, "http://127.0.0.1:1/v1")
    place = ("--store", str(tmp_path / "s.db"), "--listen", "127.0.0.1:0", "--models", str(models))
    variables = ("--variable", "MY_KEY=x") if options[0] == "--agent" else ()
    code, _, err = run("serve", *place, *options, *variables)
    assert (code, words in err) == (2, True), err
