"""`SandboxedRuntime`: its arguments, the box that stays, and all programs that run in boxes."""

import contextlib
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    Hook,
    Mount,
    SandboxedRuntime,
    SandboxLimits,
    SandboxUnavailable,
    ScriptedLLM,
)
from holdfast.errors import ConfigurationError, PathRefused, RuntimeFault
from holdfast.events import ToolCallFinished
from holdfast.runtime import Runtime
from holdfast.runtime.sandbox import bubblewrap, mechanisms, seccomp
from holdfast.runtime.search import GrepQuery
from holdfast.tools.launch import start

no_box = all(mechanism.missing() for mechanism in mechanisms.MECHANISMS)
needs_box = pytest.mark.skipif(no_box, reason="no sandbox can be made here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workdir": "/no/such/folder"}, "workdir takes an existing folder"),
        ({"workdir": "/"}, "contains the system's temporary folder"),
        ({"network": "all"}, "network takes"),
        ({"mechanism": "magic"}, "Unknown sandbox mechanism 'magic'. Choose one of: auto, bubblew"),
        ({"limits": 5}, "limits takes SandboxLimits, not 5"),
        ({"mounts": ["/usr"]}, "mounts takes Mount objects, not '/usr'"),
        ({"mounts": [Mount("/usr", "/x"), Mount("/etc", "/x")]}, "Two mounts have the target '/x'"),
        ({"workdir_inside": "work"}, "workdir_inside takes an absolute path, not 'work'"),
        ({"workdir_inside": "/usr/work"}, "workdir_inside takes a path beside the system's"),
        ({"workdir_inside": "/w", "mounts": [Mount("/usr", "/w")]}, "target '/w' of the work fol"),
        ({"workdir_inside": "/lib32"}, "workdir_inside takes a path beside the system's"),
        ({"workdir_inside": "//usr/x"}, "workdir_inside takes a path beside the system's"),
        ({"network": 5}, "network takes 'none' or a list"),
        ({"network": None}, "network takes 'none' or a list"),
        ({"env": {"A": 1}}, "env takes a mapping of str to str"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        SandboxedRuntime(**arguments)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("/no/such", "", "The mount's source '/no/such' does not exist"),
        ("relative", "", "A mount's source takes an absolute path"),
        ("/usr", "a", "A mount's target takes an absolute path"),
        ("/usr/../etc", "", "without '..'"),
        ("/usr", "/proc", "cannot have the target '/proc'"),
        ("/usr", "/dev/x", "cannot have the target '/dev/x'"),
        ("/usr", "/tmp", "cannot have the target '/tmp'"),
        ("/opt", "/usr", "cannot have the target '/usr'"),
        ("/", "/host", "A mount cannot be the root folder"),
        ("/usr", "/", "A mount cannot be the root folder"),
    ],
)
def test_wrong_mounts_are_named(source: str, target: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mount(source, target)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mounts": [Mount("/opt", "/usr/local/new")]},
        {"mounts": [Mount("/opt", "/etc/new")]},
        {"mounts": [Mount("/etc/hostname", "/data"), Mount("/opt", "/data/x")]},
        {"limits": SandboxLimits(memory_bytes=1)},
        {"limits": SandboxLimits(scratch_bytes=2**70)},
    ],
)
def test_settings_with_which_no_box_can_be_made_are_refused_at_once(
    arguments: dict[str, Any],
) -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    with pytest.raises(ConfigurationError, match="No box can be made with these settings: "):
        SandboxedRuntime(mechanism="bubblewrap", **arguments)


def test_private_parts_of_etc_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "xdg" / "closed").mkdir(parents=True)
    (tmp_path / "xdg" / "closed" / "token").write_text("x")
    (tmp_path / "xdg" / "closed").chmod(0o700)
    (tmp_path / "xdg" / "open").write_text("x")
    (tmp_path / "gitconfig").write_text("token")
    (tmp_path / "gitconfig").chmod(0o600)
    (tmp_path / "ssl").mkdir()
    (tmp_path / "ssl" / "openssl.cnf").write_text("x")
    monkeypatch.setattr(bubblewrap, "_ETC_FOLDER", str(tmp_path))
    with contextlib.closing(bubblewrap._etc(-1)) as copied:  # pyright: ignore[reportPrivateUsage]
        names = {
            str(path.relative_to(copied.path / "etc")) for path in copied.path.rglob("etc/**/*")
        }
    assert names == {"xdg", "xdg/open", "ssl", "ssl/openssl.cnf", "passwd", "group", "hosts"}


@pytest.mark.skipif(os.geteuid() != 0, reason="RLIMIT_NPROC binds every user but root")
def test_processes_of_a_hook_are_limited_also_if_root_runs_it() -> None:
    if problem := mechanisms.MECHANISMS[0].missing():
        pytest.skip(problem)
    many = "import subprocess\nfor n in range(400): subprocess.Popen(['sleep', '60'])"
    limits = SandboxLimits(processes=310)
    with SandboxedRuntime(mechanism="bubblewrap", limits=limits) as runtime:
        process = start(
            runtime.launcher,
            ["/usr/bin/python3", "-c", many],
            cwd=None,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert b"Resource temporarily unavailable" in process.communicate(timeout=60)[1]


def test_wrong_limits_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"SandboxLimits\(processes=...\) takes a whole"):
        SandboxLimits(processes=0)


def test_without_a_mechanism_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Missing:
        name = "none"

        def missing(self) -> str:
            return "the kernel has no boxes. Get one."

    monkeypatch.setattr(mechanisms, "MECHANISMS", (Missing(),))
    for name in ("auto", "none"):
        with pytest.raises(SandboxUnavailable, match=r"none: the kernel has no boxes\. Get one\."):
            SandboxedRuntime(tmp_path, mechanism=name)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_calls_and_other_architectures(machine: str) -> None:
    """The test runs the filter instruction by instruction, as the kernel would."""
    code = seccomp.make_filter(machine)

    def run(number: int, *arguments: int, architecture: int = 0) -> int:
        arch = architecture or {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
        words = {0: number, 4: arch, **{16 + 8 * n: one for n, one in enumerate(arguments)}}
        at = accumulator = 0
        while True:
            kind = int.from_bytes(code[at * 8 : at * 8 + 2], "little")
            yes, no = code[at * 8 + 2], code[at * 8 + 3]
            value = int.from_bytes(code[at * 8 + 4 : at * 8 + 8], "little")
            if kind == 0x20:
                accumulator, at = words.get(value, 0), at + 1
                continue
            if kind == 0x06:
                return value
            true = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[kind]
            at += 1 + (yes if true else no)

    allow, refuse = 0x7FFF0000, 0x50001
    numbers = {"x86_64": (0, 101, 56, 41, 16), "aarch64": (63, 117, 220, 198, 29)}[machine]
    read_call, ptrace, clone, socket, ioctl = numbers
    assert run(read_call) == allow
    assert run(ptrace) == refuse
    assert run(clone, 17) == allow
    assert run(clone, 0x10000011) == refuse
    assert run(435) == 0x50000 | 38
    assert [run(socket, family) for family in (1, 2, 10)] == [allow] * 3
    assert run(socket, 40) == 0x50000 | 97
    assert (run(socket, 16, 3, 0), run(socket, 16, 3, 12)) == (allow, 0x50000 | 97)
    assert (run(ioctl, 0, 0x5401), run(ioctl, 0, 0x5412)) == (allow, refuse)
    assert run(read_call, architecture=0x40000003) == 0x80000000


@needs_box
def test_it_is_a_runtime_with_the_tools_of_the_local_one(tmp_path: Path) -> None:
    with SandboxedRuntime(tmp_path) as runtime:
        assert isinstance(runtime, Runtime)
        assert runtime.mechanism in [mechanism.name for mechanism in mechanisms.MECHANISMS]
        names = [tool.name for tool in runtime.tools]
        assert {"terminal", "terminal_input", "read_file", "write_file", "grep"} <= set(names)


@needs_box
def test_a_box_stays_from_command_to_command_and_each_conversation_has_its_own(
    tmp_path: Path,
) -> None:
    with SandboxedRuntime(tmp_path) as runtime:
        result = runtime.run_command(
            "cd /tmp; echo note > n; A=1; export B='x y'; sleep 60 &> /dev/null &",
            conversation_id="a",
        )
        pid = int(result.text.partition("process ")[2].rstrip("]"))
        assert pid < 100, "the pid is that of this machine"
        same = runtime.run_command(f"pwd; cat n; echo $A $B; kill {pid}", conversation_id="a")
        assert same.text == "/tmp\nnote\n1 x y\n[exit code 0]"
        other = runtime.run_command(f"ls /tmp/n; kill -0 {pid}", conversation_id="b")
        assert other.meta["exitCode"] == 1
        assert "No such file" in other.text


@needs_box
def test_signals_to_all_processes_leave_the_box_alive(tmp_path: Path) -> None:
    signals = "TERM INT KILL HUP SEGV STOP USR1 QUIT PIPE"
    with SandboxedRuntime(tmp_path) as runtime:
        runtime.run_command("touch /tmp/kept")
        for signal in signals.split():
            runtime.run_command(f"kill -{signal} 1; kill -{signal} -1", 20)
        assert runtime.run_command("ls /tmp/kept").meta["exitCode"] == 0


@needs_box
def test_a_box_that_was_ended_is_replaced_with_the_next_command(tmp_path: Path) -> None:
    with SandboxedRuntime(tmp_path) as runtime:
        runtime.run_command("cd /usr; X=kept; echo 1 > /tmp/gone")
        children = subprocess.check_output(["ps", "axo", "pid,ppid,args"], text=True).splitlines()
        boxes = [line.split() for line in children if f" {os.getpid()} " in line]
        for pid in [int(line[0]) for line in boxes if line[2].endswith("bwrap")]:
            os.kill(pid, 9)
        time.sleep(0.2)
        with suppress(RuntimeFault):  # of the lost box
            runtime.run_command(":")
        result = runtime.run_command("pwd; echo $X; cat /tmp/gone")
        assert result.text.startswith("/usr\nkept\ncat: /tmp/gone: No such file")


@needs_box
def test_a_command_that_reads_its_input_gets_what_is_sent(tmp_path: Path) -> None:
    with SandboxedRuntime(tmp_path) as runtime:
        runtime.terminal.run("read line; echo got $line; cat", interactive=True, wait=0)
        assert "got hello" in runtime.terminal.send(text="hello", wait=10).text
        assert "exit code 0" in runtime.terminal.send(control="eof", wait=10).text
        assert "no open standard input" in _start_and_send(runtime)


def _start_and_send(runtime: SandboxedRuntime) -> str:
    runtime.terminal.run("sleep 30", wait=0)
    text = runtime.terminal.send(text="x", wait=0).text
    runtime.terminal.send(control="kill", wait=10)
    return text


@needs_box
def test_variables_that_bash_cannot_set_reach_commands(tmp_path: Path) -> None:
    env = {"npm_config_x-y": "1", "UID": "7", "QUOTE": 'it\'s "$HOME"\nnext', "PATH": "/usr/bin"}
    with SandboxedRuntime(tmp_path, env=env) as runtime:
        # bash drops names that it cannot use, so the program is read as its parent gave it
        output = runtime.run_command("tr '\\0' '\\n' < /proc/$$/environ; printf %s \"$QUOTE\"").text
        assert "npm_config_x-y=1\n" in output
        assert 'it\'s "$HOME"\nnext\n' in output


@needs_box
def test_files_search_and_paths_are_those_of_the_box(tmp_path: Path) -> None:
    work, data = tmp_path / "work", tmp_path / "data"
    (work / "sub").mkdir(parents=True)
    data.mkdir()
    (data / "d.txt").write_text("needle\n")
    (work / "a.txt").write_text("needle\n")
    (work / "link").symlink_to("/work/a.txt")  # leads nowhere outside
    (work / "near").symlink_to("a.txt")
    mounts = [Mount(str(data), "/data"), Mount(str(data), "/data2", writable=True)]
    with SandboxedRuntime(work, mounts=mounts, workdir_inside="/work") as runtime:
        assert runtime.run_command("pwd").text.startswith("/work\n")
        assert runtime.read_file("/work/a.txt") == runtime.read_file("link") == "needle\n"
        assert runtime.read_file("/data/d.txt") == "needle\n"
        assert runtime.files.view("a.txt").meta["path"] == "/work/a.txt"
        runtime.write_file("/work/sub/new.txt", "x\n")
        assert (work / "sub" / "new.txt").read_text() == "x\n"
        with pytest.raises(PathRefused, match="read-only in the sandbox"):
            runtime.write_file("/data/d.txt", "x")
        runtime.write_file("/data2/e.txt", "x")
        for path in (str(work / "a.txt"), "/etc/passwd", "../a", "/usr/bin/env"):
            with pytest.raises(PathRefused, match=r"outside of the working directory /work"):
                runtime.read_file(path)
        matches = runtime.search.grep(GrepQuery("needle")).text
        assert matches == "a.txt:1:needle\nnear:1:needle"
        assert "d.txt:1:needle" in runtime.search.grep(GrepQuery("needle", "/data")).text
        assert "/work" not in runtime.search.glob("**/*.txt").text


@needs_box
def test_git_of_a_search_and_a_clone_runs_in_a_box(tmp_path: Path) -> None:
    """Otherwise a program that the repository names would run outside."""
    work = tmp_path / "work"
    origin = work / "origin"
    origin.mkdir(parents=True)
    run = {"cwd": origin, "check": True, "capture_output": True}
    subprocess.run(["git", "init", "-q", "."], **run)  # type: ignore[call-overload]
    (origin / "seen.txt").write_text("needle\n")
    (origin / ".gitignore").write_text("hidden\n")
    (origin / "hidden").write_text("needle\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "add", "."], **run)  # type: ignore[call-overload]
    subprocess.run(["git", *identity, "commit", "-qm", "x"], **run)  # type: ignore[call-overload]
    with SandboxedRuntime(work) as runtime:
        assert runtime.search.grep(GrepQuery("needle", "origin")).text == "origin/seen.txt:1:needle"
        cloned = runtime.clone_repo("./origin", target="copy")
        assert (cloned / "seen.txt").read_text() == "needle\n"
        with pytest.raises(RuntimeFault, match="was not cloned"):
            runtime.clone_repo(str(tmp_path), target="other")


@needs_box
def test_hook_commands_run_in_a_box(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("canary")
    program = f"id -u > seen; ls {secret} >> seen; echo $HOME >> seen; pwd >> seen; exit 0"
    with SandboxedRuntime(work) as runtime:
        agent = Agent(
            ScriptedLLM([("read_file", {"path": "."}), "Done."]),
            runtime.tools,
            hooks=[Hook(on="tool", command=["bash", "-c", program])],
        )
        with Conversation(agent, runtime=runtime) as conversation:
            conversation.send_message("Go.")
            conversation.run()
    user, home, folder = (work / "seen").read_text().split()
    assert (home, folder) == ("/home/user", str(work))
    assert int(user) == (os.getuid() or 1000)


@needs_box
def test_secrets_reach_the_commands_that_name_them_and_are_masked(tmp_path: Path) -> None:
    value = "s3cr3t-" + 12 * "7"
    script = [
        ("terminal", {"command": 'echo $TOKEN; printf %s "$TOKEN" > t; wc -c < t'}),
        ("terminal", {"command": "env | grep -c 7777"}),
        "Done.",
    ]
    with SandboxedRuntime(tmp_path) as runtime:
        agent = Agent(ScriptedLLM(script), runtime.tools)
        with Conversation(agent, secrets={"TOKEN": value}, runtime=runtime) as conversation:
            conversation.send_message("Go.")
            conversation.run()
            history = conversation.get_history()
    assert (tmp_path / "t").read_text() == value
    texts = [event.result.text for event in history if isinstance(event, ToolCallFinished)]
    assert len(texts) == 2
    assert [value in repr(event) for event in history] == [False] * len(history)
    # The second command does not name it.
    assert texts[0].splitlines()[1:] == ["19", "[exit code 0]"]
    assert texts[1].startswith("0\n")
