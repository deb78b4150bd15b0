"""`SandboxedRuntime` with Landlock: a conversation's shell, its files, and its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.content import ToolResult
from holdfast.runtime.sandbox.mechanisms import MECHANISMS
from holdfast.runtime.sandbox.runtime import SandboxedRuntime
from holdfast.tools import ToolContext
from tests.leftovers import Owned
from tests.waiting import until

MECHANISM = MECHANISMS[1]
pytestmark = pytest.mark.skipif(bool(MECHANISM.missing()), reason=MECHANISM.missing())


@pytest.fixture
def runtime() -> Iterator[SandboxedRuntime]:
    with SandboxedRuntime(mechanism="landlock") as runtime:
        yield runtime


def output(result: ToolResult) -> str:
    """Return a command's output without the notes after it."""
    return result.text.partition("\n[exit code")[0]


def call(runtime: SandboxedRuntime, name: str, **arguments: object) -> str:
    tool = next(tool for tool in runtime.tools if tool.name == name)
    result = tool.run(arguments, ToolContext("c1", "1.0"))
    assert not result.is_error, result.text
    return result.text


def test_commands_keep_their_directory_and_variables(runtime: SandboxedRuntime) -> None:
    first = runtime.run_command("mkdir d; cd d; export A=5; echo $HOME $TMPDIR")
    assert "exported variables changed for the next commands: A]" in first.text
    home, temporary = output(first).split()
    assert output(runtime.run_command("echo $A; pwd")) == f"5\n{runtime.workdir}/d"
    result = runtime.run_command(
        f"touch {home}/h; mktemp; echo x > {temporary}/y; cat {temporary}/y"
    )
    assert output(result).startswith(f"{temporary}/tmp.")
    assert output(result).endswith("\nx")


def test_conversations_share_the_work_folder_and_no_process(runtime: SandboxedRuntime) -> None:
    runtime.run_command("echo x > file; sleep 60 & echo $! > pid", conversation_id="one")
    assert output(runtime.run_command("cat file", conversation_id="two")) == "x"
    refused = runtime.run_command('kill "$(cat pid)"', conversation_id="two")
    assert "not permitted" in refused.text
    scripts = runtime.workdir.parent / "shell-1"
    assert "Permission denied" in runtime.run_command(f"ls {scripts}", conversation_id="two").text


def test_files_of_tools_and_of_commands_are_each_other_s(runtime: SandboxedRuntime) -> None:
    call(runtime, "write_file", path="made/by/tool.txt", content="tool\n")
    assert output(runtime.run_command("cd made/by; echo more >> tool.txt; cat tool.txt")) == (
        "tool\nmore"
    )
    runtime.run_command("rm tool.txt; cd ../..; echo command > command.txt")
    call(runtime, "edit_file", path="command.txt", old="command", new="edited")
    assert output(runtime.run_command("echo more >> command.txt; cat command.txt")) == (
        "edited\nmore"
    )
    assert "edited" in call(runtime, "grep", pattern="edited")


def test_a_long_output_can_be_read_in_the_box(runtime: SandboxedRuntime) -> None:
    result = runtime.run_command("seq 100000")
    path = result.meta["outputFile"]
    assert output(runtime.run_command(f"tail -n 1 {path}")) == "100000"


def test_a_command_is_interrupted_timed_out_and_fed(runtime: SandboxedRuntime) -> None:
    late = runtime.run_command("echo before; sleep 60", timeout=0.3)
    assert late.meta["timedOut"]
    assert late.text.startswith("before\n")
    started = runtime.terminal.run("read -r line; echo got $line", wait=0.1, interactive=True)
    assert started.meta["running"]
    assert runtime.terminal.send(text="a line").text.startswith("got a line\n")
    assert output(runtime.run_command("echo still here")) == "still here"


def test_a_box_that_kills_itself_is_made_anew(runtime: SandboxedRuntime) -> None:
    runtime.run_command("cd /usr; export A=5")
    assert runtime.run_command("kill -9 -1; sleep 5").meta["exitCode"] == 137
    assert output(runtime.run_command("pwd; echo $A")) == "/usr\n5"


def test_close_leaves_no_process_descriptor_or_file() -> None:
    SandboxedRuntime(mechanism="landlock").close()
    owned = Owned()
    runtime = SandboxedRuntime(mechanism="landlock")
    daemon = "setsid --fork env -i sleep 98765; sleep 98765 & echo started"
    assert output(runtime.run_command(daemon, conversation_id="one")) == "started"
    runtime.run_command(daemon, conversation_id="two")
    assert sleeping()
    runtime.close_conversation("one")
    runtime.close()
    owned.wait_until_released()
    until(lambda: not sleeping())
    assert not runtime.workdir.parent.exists()


def sleeping() -> bool:
    """Return True if a process of these tests still sleeps."""
    return subprocess.run(["pgrep", "-f", "sleep 98765"], capture_output=True).returncode == 0


@pytest.mark.parametrize("mechanism", [one.name for one in MECHANISMS])
def test_nothing_survives_an_owner_that_is_killed(mechanism: str) -> None:
    entry = next(one for one in MECHANISMS if one.name == mechanism)
    if problem := entry.missing():
        pytest.skip(problem)
    program = (
        "import sys, time\n"
        "from holdfast.runtime.sandbox.runtime import SandboxedRuntime\n"
        "runtime = SandboxedRuntime(mechanism=sys.argv[1])\n"
        "daemon = 'setsid --fork env -i sleep 98765 >/dev/null 2>&1; sleep 98765 & echo started'\n"
        "runtime.run_command(daemon)\n"
        "runtime.run_command(daemon, conversation_id='two')\n"
        "print('started', flush=True)\n"
        "runtime.run_command('sleep 98765')\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, mechanism]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        assert sleeping()
        owner.send_signal(signal.SIGKILL)
    until(lambda: not sleeping())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its user")
def test_the_runtime_s_folders_are_closed_to_other_users(runtime: SandboxedRuntime) -> None:
    runtime.run_command("echo secret > file; seq 100000")
    folder = runtime.workdir.parent
    for path in (runtime.workdir / "file", folder / "shell-1" / "state", folder / "output"):
        process = subprocess.run(["ls", str(path)], user=12345, group=12345, capture_output=True)
        assert b"Permission denied" in process.stderr, path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its user")
def test_runtimes_of_root_have_users_of_their_own(runtime: SandboxedRuntime) -> None:
    """Landlock does not restrict changes of a file's mode by its owner."""
    with SandboxedRuntime(mechanism="landlock") as other:
        other.run_command("echo x > mine")
        refused = runtime.run_command(f"chmod 000 {other.workdir}")
        assert "not permitted" in refused.text
        assert output(other.run_command("chmod 700 .; cat mine")) == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_a_box_gives_it_no_file_of_root(
    runtime: SandboxedRuntime, tmp_path: Path
) -> None:
    """Each further box of the runtime prepares the same home folder."""
    secret = tmp_path / "secret"
    secret.write_text("root's")
    runtime.run_command(f"ln -s {secret} $HOME/link", conversation_id="one")
    runtime.run_command(":", conversation_id="two")
    assert os.stat(secret).st_uid == 0


def test_a_work_folder_of_the_caller_is_used_if_it_is_empty() -> None:
    folder = Path(tempfile.mkdtemp(prefix="box-", dir="/tmp"))
    with SandboxedRuntime(folder, mechanism="landlock") as runtime:
        assert output(runtime.run_command("echo x > file; cat file")) == "x"
    assert (folder / "file").read_text() == "x\n"
    shutil.rmtree(folder)
