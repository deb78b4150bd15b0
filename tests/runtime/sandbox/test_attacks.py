"""Attacks on the boxes of each mechanism; each attack succeeds outside of a box."""

import contextlib
import ctypes
import json
import os
import platform
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import LocalRuntime, Mount, SandboxedRuntime, SandboxLimits
from holdfast.errors import RuntimeFault
from holdfast.runtime.folder import FolderRuntime
from holdfast.runtime.sandbox.mechanisms import MECHANISMS

from .attacks import ADDRESS_RACE, ATTACKS, OLD_CALL, PRELUDE, REFUSED_CALLS, Attack, RefusedCall

pytestmark = pytest.mark.slow

MEGABYTE = 1024**2
LIMITS = SandboxLimits(
    processes=310,
    memory_bytes=128 * MEGABYTE,
    file_bytes=100 * MEGABYTE,
    scratch_bytes=16 * MEGABYTE,
)
# A Python that any user may run: Landlock's boxes of root have another user.
PYTHON = (
    "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)
)
MOUNTS = [] if PYTHON.startswith("/usr/") else [Mount(os.path.realpath(sys.base_prefix))]


@pytest.fixture(params=[mechanism.name for mechanism in MECHANISMS])
def mechanism(request: pytest.FixtureRequest) -> str:
    [entry] = [one for one in MECHANISMS if one.name == request.param]
    if problem := entry.missing():
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture
def work(tmp_path: Path, mechanism: str) -> Generator[Path]:
    """Return a work folder with a git repository that any user may enter, since Landlock's boxes
    of root have another user."""
    with tempfile.TemporaryDirectory(prefix="work-", dir="/tmp") as folder:
        work = Path(folder)
        work.chmod(0o755)
        subprocess.run(["git", "init", "-q", folder], check=True)
        yield work


@pytest.fixture
def victim(tmp_path: Path, work: Path) -> Generator[dict[str, Any]]:
    """Yield the targets of attacks: files, services, a process."""
    name, canary = f"holdfast-attack-{secrets.token_hex(4)}", f"canary-{secrets.token_hex(8)}"
    secret = tmp_path / "secret"
    secret.write_text(canary)
    home_file = Path.home() / f".{name}"
    home_file.write_text(canary)
    with contextlib.ExitStack() as stack:
        stack.callback(home_file.unlink)
        shared_file = Path("/dev/shm", f"{name}-shared")
        shared_file.write_text(canary)
        stack.callback(shared_file.unlink)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(tmp_path / "socket"))
        abstract.bind(f"\0{name}")
        unix.listen()
        abstract.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                _, sender = udp.recvfrom(100)
                udp.sendto(b"answer", sender)

        def accept() -> None:
            while True:
                try:
                    connection, _ = tcp.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.sendall(b"the victim")

        threading.Thread(target=accept, daemon=True).start()
        stack.callback(tcp.shutdown, socket.SHUT_RDWR)
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        stack.callback(answering.join)
        stack.callback(udp.sendto, b"the end", udp.getsockname())
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        shared = libc.shmget(0, 4096, 0o1666)
        stack.callback(libc.shmctl, shared, 0, None)
        ctypes.memmove(libc.shmat(shared, None, 0), canary.encode(), len(canary))
        queue = libc.msgget(0, 0o1666)
        stack.callback(libc.msgctl, queue, 0, None)
        for _ in range(9):
            libc.msgsnd(queue, struct.pack("l", 1) + canary.encode(), len(canary), 0)
        process = subprocess.Popen(
            [PYTHON, "-c", "import time; time.sleep(300)", canary], env={"CANARY": canary}
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        targets = {
            "name": name,
            "canary": canary,
            "secret": str(secret),
            "home_file": str(home_file),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "unix": str(tmp_path / "socket"),
            "pid": process.pid,
            "shared": shared,
            "queue": queue,
            "program": str(tmp_path / "program"),
        }
        (work / "victim.json").write_text(json.dumps(targets))
        yield targets


def succeeds(runtime: FolderRuntime, program: str) -> tuple[bool, str]:
    """Run a program in the runtime's work folder; return True if it printed SUCCEEDED."""
    (runtime.workdir / "attack.py").write_text(PRELUDE + program)
    text = runtime.run_command(f"{PYTHON} -I -S attack.py", 60).text
    return "SUCCEEDED" in text, text


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_succeeds_outside_and_fails_in_a_box(
    attack: Attack, mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    with SandboxedRuntime(work, mechanism=mechanism, mounts=MOUNTS, limits=LIMITS) as runtime:
        won, text = succeeds(runtime, attack.program)
        assert not won, text
        assert "[exit code" in text  # it ran and ended by itself
        assert "[exit code 127]" not in text
    if not attack.root or os.getuid() == 0:
        with LocalRuntime(work) as plain:
            won, text = succeeds(plain, attack.program)
            assert won, text


@pytest.mark.parametrize(
    "attack", [one for one in ATTACKS if one.network], ids=lambda attack: attack.name
)
def test_an_attack_on_the_network_fails_in_a_box_with_an_allow_list(
    attack: Attack, mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    hosts = ["example.com", "localhost:9"]
    with SandboxedRuntime(work, hosts, mechanism, MOUNTS, LIMITS) as runtime:
        won, text = succeeds(runtime, attack.program)
        assert not won, text
        assert "[exit code" in text
        assert "[exit code 127]" not in text


@pytest.mark.slow
def test_an_address_that_changes_while_it_is_checked_leads_nowhere_else(
    mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    with SandboxedRuntime(work, ["localhost:9"], mechanism, MOUNTS) as runtime:
        won, text = succeeds(runtime, ADDRESS_RACE)
        assert not won, text
        assert "[exit code 0]" in text
    with LocalRuntime(work) as plain:
        assert succeeds(plain, ADDRESS_RACE)[0]


@pytest.mark.parametrize("call", REFUSED_CALLS, ids=lambda call: call.name)
def test_a_system_call_is_answered_outside_and_refused_in_a_box(
    call: RefusedCall, mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    number = getattr(call, platform.machine())
    program = f"print('ANSWER', syscall({number}, *{call.arguments})[1])"
    with LocalRuntime(work) as plain:
        answer = succeeds(plain, program)[1]
    if f"ANSWER {38}" in answer or "ANSWER 1\n" in answer:
        pytest.skip(f"this kernel or machine refuses {call.name} itself")
    with SandboxedRuntime(work, mechanism=mechanism, mounts=MOUNTS) as runtime:
        assert "ANSWER 1\n" in succeeds(runtime, program)[1]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 has two kinds of calls")
def test_a_call_of_a_program_for_32_bits_ends_it_in_a_box(
    mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    with SandboxedRuntime(work, mechanism=mechanism, mounts=MOUNTS) as runtime:
        won, text = succeeds(runtime, OLD_CALL)
        assert not won, text
        assert "exit code 159" in text  # SIGSYS
    with LocalRuntime(work) as plain:
        if not succeeds(plain, OLD_CALL)[0]:
            pytest.skip("this kernel has no such calls: no control")


def test_a_command_has_no_descriptor_but_its_streams(
    mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    """The supervisor's socket or that of the waiting bash would be a way out."""
    program = (
        "for fd in range(3, 999):\n    try: succeeded(fd, os.fstat(fd))\n    except OSError: pass"
    )
    for hosts in ("none", ["localhost:9"]):
        with SandboxedRuntime(work, hosts, mechanism, MOUNTS) as runtime:
            won, text = succeeds(runtime, program)
            assert not won, text
            assert "exit code 0" in text
    command = [PYTHON, "-I", "-S", "attack.py"]
    with open(work / "victim.json") as file:
        process = subprocess.run(command, cwd=work, pass_fds=(file.fileno(),), capture_output=True)
    assert b"SUCCEEDED" in process.stdout


FAMILIES = {"vsock": 40, "packet": 17, "alg": 38, "xdp": 44, "key": 15, "bluetooth": 31}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_socket_of_another_family_cannot_be_made_in_a_box(
    family: str, mechanism: str, work: Path, victim: dict[str, Any]
) -> None:
    program = (
        f"for kind in (1, 2, 3, 5):\n"
        f"    try: socket.socket({FAMILIES[family]}, kind); succeeded()\n"
        f"    except OSError as error: print(error)"
    )
    with SandboxedRuntime(work, mechanism=mechanism, mounts=MOUNTS) as runtime:
        won, text = succeeds(runtime, program)
        assert not won, text
    with LocalRuntime(work) as plain:
        won, _ = succeeds(plain, program)
        if not won:
            pytest.skip(f"this kernel or user has no sockets of the family {family}: no control")


def test_bubblewrap_does_not_show_the_machine_s_name(work: Path, mechanism: str) -> None:
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        name = runtime.run_command("uname -n").text.split()[0]
    assert (name == "box") == (mechanism == "bubblewrap")


def test_a_later_git_outside_runs_nothing_that_a_box_has_written(
    mechanism: str, tmp_path: Path, work: Path
) -> None:
    """This holds for a folder of a second configuration, too, to which git is led."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    setting = f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {program}\n"
    (work / "prepare.sh").write_text(
        "mkdir -p evil; cp -r .git/objects .git/refs evil/\n"
        f"printf '{setting.replace(chr(10), chr(92) + 'n').replace(chr(9), chr(92) + 't')}'"
        " > evil/config\necho ../evil > .git/commondir\n"
    )

    def later() -> bool:
        (tmp_path / "ran").unlink(missing_ok=True)
        subprocess.run(["git", "-C", str(work), "status"], capture_output=True, check=False)
        return (tmp_path / "ran").exists()

    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        output = runtime.run_command("bash prepare.sh").text
        # Landlock's supervisor refuses to create the file; bubblewrap cannot prevent it.
        assert ("exit code 0" if mechanism == "bubblewrap" else "Read-only file system") in output
    assert not later()
    subprocess.run(["bash", "prepare.sh"], cwd=work, check=True)
    assert later()


def test_a_repository_that_a_box_made_unusable_is_usable_again(
    mechanism: str, tmp_path: Path, work: Path
) -> None:
    """git would take the work folder itself for a repository, with settings that run programs."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    setting = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    setting += f"\tworktree = {work}\n\tfsmonitor = {program}\n"
    (work / "prepared").write_text(setting)
    (work / "prepare.sh").write_text(
        "cp .git/HEAD HEAD; cp -r .git/objects .git/refs .; cp prepared config; mv .git/HEAD .git/x"
    )

    def later() -> bool:
        (tmp_path / "ran").unlink(missing_ok=True)
        subprocess.run(["git", "-C", str(work), "status"], capture_output=True, check=False)
        return (tmp_path / "ran").exists()

    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        assert "exit code 0" in runtime.run_command("bash prepare.sh").text
    assert not later()
    inside = subprocess.check_output(["git", "-C", str(work), "rev-parse", "--git-dir"], text=True)
    assert inside.strip() == ".git"
    subprocess.run(["bash", "prepare.sh"], cwd=work, check=True)
    assert later()


def test_no_process_and_no_file_outlives_the_box(mechanism: str, work: Path) -> None:
    mark = f"holdfast-{secrets.token_hex(6)}"
    # In the background, in a session of its own, without the environment that identifies it.
    command = (
        f"setsid env -i bash -c 'exec -a {mark} sleep 300' >/dev/null 2>&1 & touch /tmp/{mark}"
    )

    def living() -> bool:
        return mark in subprocess.check_output(["ps", "axww", "-o", "args"], text=True)

    runtime = SandboxedRuntime(work, mechanism=mechanism)
    runtime.run_command(command)
    until = time.monotonic() + 10
    while not living():  # outside, the process is visible
        assert time.monotonic() < until
    runtime.close()
    assert not living()
    assert not Path(f"/tmp/{mark}").exists()


# In sessions of their own, without the environment that identifies them, busy, and forking.
DAEMONS = (
    "for n in 1 2 3 4 5 6 7 8; do setsid env -i bash -c"
    " 'while :; do (exec -a {mark} sleep 0.05) & exec -a {mark} bash -c \"sleep 0.01; :\" & wait; done' {mark}"
    " >/dev/null 2>&1 & done; setsid env -i bash -c 'exec -a {mark} sleep 300' >/dev/null 2>&1 &"
)


@pytest.mark.parametrize("hosts", ["none", ["localhost:9"]], ids=["no network", "network"])
def test_no_process_outlives_the_owner_that_is_killed(
    mechanism: str, work: Path, hosts: Any
) -> None:
    mark = f"holdfast-{secrets.token_hex(6)}"
    program = (
        "import sys, time; from holdfast import SandboxedRuntime\n"
        f"runtime = SandboxedRuntime({str(work)!r}, {hosts!r}, {mechanism!r})\n"
        f"runtime.run_command({DAEMONS.format(mark=mark)!r})\n"
        "print('started', flush=True); time.sleep(300)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner:
        try:
            assert owner.stdout.readline() == b"started\n"
            assert mark in subprocess.check_output(["ps", "axww", "-o", "args"], text=True)
        finally:
            owner.kill()
    until = time.monotonic() + 20
    while mark in subprocess.check_output(["ps", "axww", "-o", "args"], text=True):
        assert time.monotonic() < until, "a process of the box is still alive"
        time.sleep(0.05)


def test_the_file_tools_do_not_wait_for_what_is_no_file(mechanism: str, work: Path) -> None:
    """A FIFO in the place of a file has no end, and a sparse file is larger than the memory."""
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        commands = (
            "mkfifo fifo; ln -s fifo link; mkdir many; cd many; touch $(seq 3000) $'a\\nb'; cd .."
        )
        (work / "make.sh").write_text(f"{commands}; truncate -s 1900M sparse")
        assert "exit code 0" in runtime.run_command("bash make.sh").text

        def use() -> None:
            for path in ("fifo", "link", "sparse", "many"):
                with pytest.raises(RuntimeFault):
                    runtime.read_file(path)
                with contextlib.suppress(RuntimeFault):
                    runtime.files.view(path)
            for path in ("fifo", "many"):
                with pytest.raises(RuntimeFault):
                    runtime.write_file(path, "x")
            tools = {tool.name: tool for tool in runtime.tools}
            for name in ("grep", "glob"):
                tools[name].run({"pattern": "needle"})

        using = threading.Thread(target=use, daemon=True)
        using.start()
        using.join(60)
        assert not using.is_alive()

        def control() -> None:
            (work / "fifo").read_text()

        plain = threading.Thread(target=control, daemon=True)
        plain.start()
        plain.join(0.5)
        assert plain.is_alive()
        os.close(os.open(work / "fifo", os.O_RDWR))  # lets it end


def test_the_file_tools_make_no_file_through_a_dangling_link(
    mechanism: str, tmp_path: Path, work: Path
) -> None:
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        runtime.run_command(f"ln -s {tmp_path}/new link; ln -s {tmp_path} up; ln -s link twice")
        for path in ("link", "twice", "up/new"):
            with pytest.raises(RuntimeFault, match="outside of the working directory"):
                runtime.write_file(path, "x")
    assert not (tmp_path / "new").exists()
    (work / "link").write_text("x")  # the control
    assert (tmp_path / "new").exists()


def test_a_work_folder_may_have_any_name(mechanism: str, work: Path) -> None:
    name = "a\nb 'c\" $(touch made) `touch made` --; :0"
    folder = work / name
    folder.mkdir(mode=0o755)
    with SandboxedRuntime(folder, mechanism=mechanism) as runtime:
        runtime.write_file("$(x)\n", "found")
        assert runtime.run_command("cat *").text.startswith("found")
        assert (
            "exit code 0" in runtime.run_command('touch made-inside; test "$PWD" = "$(pwd)"').text
        )
    assert sorted(os.listdir(folder)) == ["$(x)\n", "made-inside"]
    assert "made" not in os.listdir(work)


def test_the_file_tools_follow_no_link_out_of_the_box(
    mechanism: str, tmp_path: Path, work: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        runtime.run_command(f"ln -s {secret} link; ln -s {tmp_path} folder")
        assert (work / "link").read_text() == (work / "folder" / "secret").read_text() == "canary"
        for path in ("link", "folder/secret", "/proc/self/environ", "../secret", str(secret)):
            with pytest.raises(RuntimeFault, match="outside of the working directory"):
                runtime.read_file(path)
            with pytest.raises(RuntimeFault, match="outside of the working directory"):
                runtime.write_file(path, "changed")
        assert secret.read_text() == "canary"


def test_the_file_tools_lose_no_race_against_a_command_that_swaps_a_folder_for_a_link(
    mechanism: str, tmp_path: Path, work: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("canary")
    swap = f"while :; do mkdir d; echo ok > d/file; rm -r d; ln -s {outside} d; rm d; done"
    naive = 0
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        (work / "swap.sh").write_text(swap)
        runtime.run_command("timeout 60 bash swap.sh >/dev/null 2>&1 &")
        start = time.monotonic()
        # reaping takes a moment
        while (passed := time.monotonic() - start) < 4 or (not naive and passed < 50):
            with contextlib.suppress(RuntimeFault):
                assert "canary" not in runtime.read_file("d/file")
            with contextlib.suppress(RuntimeFault):
                runtime.write_file("d/new", "x")
            with contextlib.suppress(RuntimeFault):
                assert "new" not in runtime.files.view("d").text or not (outside / "new").exists()
            with contextlib.suppress(OSError):  # the control: an open that follows links
                naive += "canary" in (work / "d" / "file").read_text()
    assert sorted(one.name for one in outside.iterdir()) == ["file"]
    assert naive


def test_the_program_that_makes_a_box_gets_no_variable_of_a_command(
    mechanism: str, work: Path, tmp_path: Path
) -> None:
    """LD_PRELOAD of a command would load a library outside of the box."""
    with SandboxedRuntime(work, mechanism=mechanism) as runtime:
        launch = runtime.launcher.command(["true"], cwd=None, env={"LD_PRELOAD": "/x", "A": "b"})
        for fd in launch.pass_fds:
            os.close(fd)
        if launch.started is not None:
            launch.started()
        assert not {"LD_PRELOAD", "A"} & launch.env.keys()
        assert not [one for one in launch.argv if "LD_PRELOAD" in one]
        runtime.run_command("export LD_PRELOAD=/work/evil.so")
        assert "evil.so" in runtime.run_command("echo $LD_PRELOAD").text
