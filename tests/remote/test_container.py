"""Tests of `ContainerRuntime`: the command lines of each engine, and a stand-in engine that runs
the server as a process of this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ContainerRuntime, Conversation, RemoteConversation, ScriptedLLM
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.remote.container import ENGINES, ContainerCommand, mount_option
from holdfast.runtime import Mount, Runtime
from tests import stand_in_engine
from tests.waiting import until

pytestmark = pytest.mark.slow

_ENGINES = ["docker", "podman", "apptainer"]
_BWRAP = shutil.which("bwrap")
needs_mounts = pytest.mark.skipif(_BWRAP is None, reason="the stand-in mounts with bubblewrap")


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state folder of the stand-in engines, which come first in PATH."""
    folder = stand_in_engine.install(tmp_path / "engines")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "state"


def calls(state: Path) -> list[list[str]]:
    path = state / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def processes(text: str) -> list[int]:
    """Return the ids of the living processes whose command line or environment has the text."""
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in content:
                pids.append(int(entry.name))
    return pids


def wait_for_end(text: str, seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while processes(text) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes(text)


# --- command lines ---

_BEGIN = "run --rm --interactive --init --name holdfast-1 --publish 127.0.0.1::8765 --cap-drop ALL"
_LIMITS = "--security-opt no-new-privileges --pids-limit 2048"
_SERVE = "serve --supervised --listen 0.0.0.0:8765 --insecure --store /tmp/holdfast.db"
_MOUNT = (
    "--mount type=bind,source=/usr,destination=/opt/usr,ro"
    " --mount type=bind,source=/var/tmp,destination=/workspace"
)
_INSIDE = "--workspace main=/workspace"
_APPTAINER = "exec --containall --writable-tmpfs --workdir /tmp/scratch"
_APPTAINER_SERVE = "serve --supervised --listen 127.0.0.1:0 --store /tmp/holdfast.db"
_NEW = ContainerCommand(
    "holdfast-1", "acme/agent:2", scratch=Path("/tmp/scratch"), user=(1000, 100)
)
_OLD = ContainerCommand(
    "holdfast-1",
    "acme/agent:2",
    workdir=Path("/var/tmp"),
    mounts=(Mount("/usr", "/opt/usr"),),
    scratch=Path("/tmp/scratch"),
    options=("--memory", "4g"),
    server_options=("--allow-tools", "acme.*"),
    user=(1000, 100),
)


@pytest.mark.parametrize(
    ("engine", "container", "expected"),
    [
        ("docker", _NEW, f"{_BEGIN} {_LIMITS} --entrypoint holdfast acme/agent:2 {_SERVE}"),
        (
            "docker",
            _OLD,
            f"{_BEGIN} {_LIMITS} --user 1000:100 {_MOUNT} --memory 4g"
            f" --entrypoint holdfast acme/agent:2 {_SERVE} {_INSIDE} --allow-tools acme.*",
        ),
        ("podman", _NEW, f"{_BEGIN} {_LIMITS} --entrypoint holdfast acme/agent:2 {_SERVE}"),
        (
            "podman",
            _OLD,
            f"{_BEGIN} {_LIMITS} --userns keep-id --user 1000:100 {_MOUNT} --memory 4g"
            f" --entrypoint holdfast acme/agent:2 {_SERVE} {_INSIDE} --allow-tools acme.*",
        ),
        ("apptainer", _NEW, f"{_APPTAINER} acme/agent:2 holdfast {_APPTAINER_SERVE}"),
        (
            "apptainer",
            _OLD,
            f"{_APPTAINER} {_MOUNT} --memory 4g acme/agent:2 holdfast {_APPTAINER_SERVE}"
            f" {_INSIDE} --allow-tools acme.*",
        ),
    ],
)
def test_the_command_line_of_each_engine(
    engine: str, container: ContainerCommand, expected: str
) -> None:
    assert ENGINES[engine].run(container) == expected.split(" ")


def test_a_folder_with_any_name_is_one_field_of_a_mount(tmp_path: Path) -> None:
    folder = tmp_path / 'a,b"c'
    folder.mkdir()
    mount = mount_option(Mount(str(folder), "/workspace", writable=True))
    assert mount == f'type=bind,"source={tmp_path}/a,b""c",destination=/workspace'


# --- a container that runs ---


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_container_is_a_runtime(engine: Any, engines: Path) -> None:
    with ContainerRuntime("acme/agent:2", engine) as runtime:
        assert isinstance(runtime, Runtime)
        runtime.write_file("a.txt", "one\n")
        result = runtime.run_command("cat a.txt; cat /proc/$PPID/environ /proc/$PPID/cmdline")
        assert result.meta["exitCode"] == 0
        assert result.text.startswith("one\n")
        llm = ScriptedLLM([("terminal", {"command": "echo two >> a.txt"}), "Done."])
        with Conversation(Agent(llm, runtime.tools)) as conversation:
            conversation.send_message("Go on.")
            conversation.run()
        assert runtime.read_file("a.txt") == "one\ntwo\n"
        state = str(engines)
        assert processes(state)
    assert wait_for_end(state)
    assert [call[:2] for call in calls(engines)] == {
        "apptainer": [["apptainer", "exec"]],
    }.get(engine, [[engine, "run"], [engine, "port"]])


def test_the_loop_of_a_remote_conversation_runs_in_the_container(engines: Path) -> None:
    with ContainerRuntime("acme/agent:2") as runtime:
        llm = ScriptedLLM([("terminal", {"command": "echo $PPID"}), "Done."])
        agent = Agent(llm, runtime.tools)
        with RemoteConversation(agent, workspace=runtime) as conversation:
            conversation.send_message("Which process?")
            assert conversation.run().answer == "Done."
            [result] = [e.result for e in conversation.get_history() if e.type == "toolResult"]
        assert int(result.text.split()[0]) != os.getpid()


def test_the_key_is_in_no_command_line_and_no_environment(
    engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\xab" * count)
    with ContainerRuntime("acme/agent:2") as runtime:
        runtime.made()
        assert processes(str(engines))
        assert processes("ab" * 32) == []
        assert "ab" * 32 not in runtime.run_command("cat /proc/*/environ /proc/*/cmdline").text


@needs_mounts
@pytest.mark.parametrize("engine", _ENGINES)
def test_the_workdir_is_a_folder_of_this_machine(
    engine: Any, engines: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "my tool, 2"
    workdir.mkdir()
    (workdir / "a.txt").write_text("one\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "c.txt").write_text("three\n")
    mounts = [Mount(str(tmp_path / "data"), "/data")]
    with ContainerRuntime("acme/agent:2", engine, workdir=workdir, mounts=mounts) as runtime:
        assert runtime.read_file("a.txt") == "one\n"
        assert runtime.run_command("pwd; echo two > b.txt").text.startswith("/workspace\n")
        assert runtime.run_command("cat /data/c.txt; rm /data/c.txt").meta["exitCode"] != 0
    assert wait_for_end(str(engines))
    assert (workdir / "b.txt").read_text() == "two\n"
    assert (workdir / "a.txt").read_text() == "one\n"
    assert (tmp_path / "data" / "c.txt").read_text() == "three\n"


def test_closing_twice_is_closing_once(engines: Path) -> None:
    runtime = ContainerRuntime("acme/agent:2")
    runtime.close()
    runtime.close()
    assert wait_for_end(str(engines))


_OWNER = """
import sys, time
from holdfast import ContainerRuntime
runtime = ContainerRuntime("acme/agent:2", sys.argv[1])
runtime.run_command(f"sleep {sys.argv[2]} &")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("engine", ["docker", "apptainer"])
def test_nothing_survives_a_killed_owner(engine: str, engines: Path, tmp_path: Path) -> None:
    # part of the command line of a process that the command left running
    seconds = f"600.{os.getpid()}"
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, engine, seconds],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"ready\n"
        assert processes(str(engines))
        until(lambda: processes(f"sleep\0{seconds}"))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert wait_for_end(str(engines))
        assert wait_for_end(f"sleep\0{seconds}")


# --- failures to start ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "lxc"}, "engine takes one of docker, podman, apptainer, not 'lxc'"),
        ({"image": "--privileged"}, "image takes its name, not '--privileged'"),
        ({"image": " "}, "image takes its name"),
        ({"workdir": "/no/such/folder"}, "workdir takes an existing folder"),
        ({"mounts": ["/srv"]}, "mounts takes Mount objects, not '/srv'"),
        ({"options": "--memory 4g"}, "options takes a list of str, not '--memory 4g'"),
        ({"server_options": [1]}, "server_options takes a list of str"),
        ({"start_timeout": 0}, "start_timeout takes seconds, more than 0"),
    ],
)
def test_a_wrong_argument_starts_nothing(
    options: dict[str, Any], message: str, engines: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ContainerRuntime(**{"image": "acme/agent:2", **options})
    assert calls(engines) == []


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"no program 'podman' in PATH.*docker, apptainer"):
        ContainerRuntime("acme/agent:2", "podman")


def test_the_engines_message_tells_why_a_container_did_not_start(engines: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"'missing' ended.*\n.*Unable to find image"):
        ContainerRuntime("missing")
    assert wait_for_end(str(engines))


def test_a_container_that_does_not_answer_in_time_is_removed(engines: Path) -> None:
    (engines / "hang").touch()
    with pytest.raises(RuntimeFault, match=r"did not answer within 0.5 s.*\nPulling the image"):
        ContainerRuntime("acme/agent:2", start_timeout=0.5)
    [run, removal] = calls(engines)
    assert removal == ["docker", "rm", "--force", run[run.index("--name") + 1]]
    assert wait_for_end(str(engines))


# --- the image ---


def test_the_containerfile_installs_this_package_with_its_server() -> None:
    repository = Path(__file__).parents[2]
    lines = (repository / "Containerfile").read_text().splitlines()
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    licences = [name for name in project["license-files"] if not name.startswith("src/")]
    assert copied == ["pyproject.toml", project["readme"], *licences, "src"]
    assert all((repository / name).exists() for name in copied)
    [python] = [line.rpartition(":")[2].split("-")[0] for line in lines if line.startswith("FROM")]
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    [extra] = re.findall(r'pip install .*"/build\[(\w+)\]"', "\n".join(lines))
    assert extra in project["optional-dependencies"]
    assert 'ENTRYPOINT ["holdfast"]' in lines
    assert project["scripts"] == {"holdfast": "holdfast.cli:main"}
