"""Boxes of Landlock: what they refuse, their limits, and that no process outlives them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.runtime.sandbox.landlock import Landlock, LandlockLauncher
from holdfast.runtime.sandbox.settings import BoxSettings, Mount, SandboxLimits
from tests.leftovers import Owned
from tests.waiting import until

MECHANISM = Landlock()
pytestmark = pytest.mark.skipif(bool(MECHANISM.missing()), reason=MECHANISM.missing())
PATH = {"PATH": "/usr/bin:/bin"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that any user may enter: pytest's own folder admits only one user."""
    path = Path(tempfile.mkdtemp(prefix="box-", dir="/tmp"))
    path.chmod(0o711)
    (path / "work").mkdir()
    (path / "private").mkdir()
    yield path
    shutil.rmtree(path)


def settings(folder: Path, **more: object) -> BoxSettings:
    work, private = folder / "work", folder / "private"
    return BoxSettings(work, str(work), private, **more)  # type: ignore[arg-type]


def start(
    box: BoxSettings, *argv: str, env: Mapping[str, str] = PATH, **streams: int
) -> subprocess.Popen[bytes]:
    launch = LandlockLauncher(box).command(argv, cwd=str(box.workdir), env=env)
    try:
        return subprocess.Popen(
            launch.argv,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.pass_fds,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams},  # type: ignore[call-overload]
        )
    finally:
        for fd in launch.pass_fds:
            os.close(fd)


def run(box: BoxSettings, command: str) -> tuple[int, str]:
    """Return the exit code and the output of a command in a box."""
    process = start(box, "bash", "-c", command)
    output = process.communicate(timeout=120)[0].decode()
    return process.returncode, output


def output_of(box: BoxSettings, command: str) -> str:
    return run(box, command)[1].strip()


def test_a_command_runs_with_its_arguments_variables_and_folder(folder: Path) -> None:
    box = settings(folder)
    process = start(box, "bash", "-c", 'echo "$1" "$X"; pwd', "_", "a b", env={**PATH, "X": "y"})
    output = process.communicate(timeout=120)[0].decode()
    assert output == f"a b y\n{box.workdir}\n"
    assert process.returncode == 0


def test_the_end_of_a_command_is_told(folder: Path) -> None:
    box = settings(folder)
    assert run(box, "exit 7")[0] == 7
    assert run(box, "kill -9 $$")[0] == 128 + signal.SIGKILL
    process = start(box, "no-such-program")
    problem = b"'no-such-program' could not be run in a box: [Errno 2] No such file"
    assert problem in process.communicate()[0]
    assert process.returncode == 126


def test_the_work_folder_is_writable_and_nothing_else(
    folder: Path,
) -> None:
    box = settings(folder)
    assert run(box, "echo x > a; mkdir b; mv a b/; ln b/a c")[0] == 0
    assert (box.workdir / "b" / "a").read_text() == "x\n"
    for path in (box.private, folder, "/tmp", "/var/tmp", "/dev/shm", "/usr", "/etc", "/", "/run"):
        assert "Permission denied" in output_of(box, f"touch {path}/planted")
        assert not (Path(path) / "planted").exists()
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/overcommit_memory",
        "/proc/self/oom_score_adj",
    ):
        assert "Permission denied" in output_of(box, f"echo x > {path}")


def test_files_of_the_machine_are_not_readable(folder: Path) -> None:
    box = settings(folder)
    (folder / "secret").write_text("s3cret")
    (box.workdir / "link").symlink_to(folder / "secret")
    for path in (folder / "secret", "link", "/etc/passwd", "/etc/shadow", "/proc/1/environ"):
        assert "Permission denied" in output_of(box, f"cat {path}")
    for path in ("/", "/root", "/home", "/proc", "/sys", "/var", "/tmp", "/run", "/dev", folder):
        assert "Permission denied" in output_of(box, f"ls {path}")
    assert "failed to create hard link" in output_of(box, f"ln {folder}/secret hard")
    assert "No such file" in output_of(box, f"mv {folder}/secret moved; ls moved")
    assert (folder / "secret").exists()


def test_mounts_are_visible_and_writable_as_they_say(folder: Path) -> None:
    for name in ("seen", "shared"):
        (folder / name).mkdir(mode=0o777)
        (folder / name).chmod(0o777)
        (folder / name / "file").write_text(name)
    visible, shared = Mount(str(folder / "seen")), Mount(str(folder / "shared"), writable=True)
    box = settings(folder, mounts=(visible, shared))
    assert output_of(box, f"cat {folder}/seen/file {folder}/shared/file") == "seenshared"
    assert "Permission denied" in output_of(box, f"touch {folder}/seen/new")
    assert run(box, f"touch {folder}/shared/new")[0] == 0


@as_root
def test_root_gives_up_its_user_for_good(folder: Path) -> None:
    box = settings(folder)
    [user, *others] = output_of(box, "id -u; id -g; id -G").split()
    assert others == [user] * 2
    assert int(user) == os.stat(box.workdir).st_uid > 61443
    status = "import os; print(os.getresuid(), os.getgroups())"
    assert output_of(box, f"/usr/bin/python3 -c '{status}'") == f"({user}, {user}, {user}) []"
    code = "import os; os.setuid(0)"
    assert "not permitted" in output_of(box, f"/usr/bin/python3 -c '{code}'")
    setuid = next(path for path in ("/usr/bin/su", "/usr/bin/mount") if os.path.exists(path))
    assert os.stat(setuid).st_mode & 0o4000
    copied = shutil.copy("/usr/bin/id", box.workdir / "id")
    os.chown(copied, 0, 0)
    os.chmod(copied, 0o4755)
    assert output_of(box, "./id -u") == user
    # The negative control: outside of a box, this program makes anyone root.
    control = subprocess.run([copied, "-u"], user=int(user), group=int(user), capture_output=True)
    assert control.stdout.strip() == b"0"


@as_root
def test_a_work_folder_of_another_user_keeps_its_owner(folder: Path) -> None:
    box = settings(folder)
    os.chown(box.workdir, 12345, 23456)
    (box.workdir / "file").write_text("x")
    assert MECHANISM.refuses(box) == ""
    assert output_of(box, "id -u; id -g").split() == ["12345", "23456"]


@as_root
def test_root_refuses_a_work_folder_that_no_other_user_may_enter(folder: Path) -> None:
    box = settings(folder)
    assert MECHANISM.refuses(box) == ""
    (box.workdir / "file").write_text("x")
    assert MECHANISM.refuses(box) == ""
    box.workdir.chmod(0o700)
    assert f"may not enter {box.workdir}." in MECHANISM.refuses(box)
    closed = folder / "closed"
    (closed / "work").mkdir(parents=True)
    closed.chmod(0o700)
    box = BoxSettings(closed / "work", str(closed / "work"), folder / "private")
    assert f"may not enter {closed}." in MECHANISM.refuses(box)


def test_what_landlock_cannot_do_is_refused(folder: Path) -> None:
    moved = Mount(str(folder), "/elsewhere")
    assert "another path" in MECHANISM.refuses(settings(folder, mounts=(moved,)))
    box = BoxSettings(folder / "work", "/work", folder / "private")
    assert "another path" in MECHANISM.refuses(box)


# --- the kernel ---

SYSTEM_CALLS = {
    "an internet socket": "import socket; socket.socket()",
    "a datagram": "import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM)",
    "a unix socket": "import socket as s; s.socket(s.AF_UNIX)",
    "a pair that could be connected anew": "import socket as s; s.socketpair(type=s.SOCK_DGRAM)",
    "vsock": "import socket as s; s.socket(s.AF_VSOCK, s.SOCK_STREAM)",
    "netlink": "import socket as s; s.socket(s.AF_NETLINK, s.SOCK_RAW)",
    "a signal to its owner": "import os; os.kill({owner}, 0)",
    "the limits of another process": "import resource as r; r.prlimit({victim}, r.RLIMIT_CPU, (1, 1))",
    "a watch of a folder": (
        "import ctypes as c; l = c.CDLL(None, use_errno=True); n = l.inotify_init1(0);"
        "r = l.inotify_add_watch(n, b'/tmp', 0xfff); assert r >= 0, 'Operation not permitted'"
    ),
    "shared memory that stays": (
        "import ctypes as c; l = c.CDLL(None, use_errno=True);"
        "r = l.shmget(0, 4096, 0o1600); assert r >= 0, 'Operation not permitted'"
    ),
}


@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_calls_that_reach_beyond_the_box_are_refused(folder: Path, call: str) -> None:
    box = settings(folder)
    box.workdir.chmod(0o777)
    # The owner of an empty work folder, which the launcher gives to the box.
    LandlockLauncher(box)
    user = {"user": os.stat(box.workdir).st_uid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/usr/bin/sleep", "60"], **user) as victim:  # type: ignore[call-overload]
        pid = os.getpid()
        code = SYSTEM_CALLS[call].format(owner=pid if user == {} else victim.pid, victim=victim.pid)
        (box.workdir / "code.py").write_text(code)
        command = ["/usr/bin/python3", str(box.workdir / "code.py")]
        control = subprocess.run(command, capture_output=True, text=True, **user)  # type: ignore[call-overload]
        assert (control.returncode, control.stderr) == (0, "") or "vsock" in call
        code, output = run(box, " ".join(command))
        victim.kill()
    assert code != 0
    assert "not permitted" in output or "not supported" in output


def test_pairs_of_connected_sockets_work(folder: Path) -> None:
    code = "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))"
    assert output_of(settings(folder), f'/usr/bin/python3 -c "{code}"') == "b'x'"


def test_a_box_cannot_signal_or_see_another_box_of_the_same_user(folder: Path) -> None:
    box = settings(folder)
    first = start(box, "bash", "-c", "echo $$; sleep 60")
    assert first.stdout is not None
    pid = int(first.stdout.readline())
    assert "not permitted" in output_of(box, f"kill -0 {pid}")
    assert "Permission denied" in output_of(box, f"cat /proc/{pid}/environ")
    assert run(box, "kill -9 -1; true")[0] in (0, 1)
    assert first.poll() is None
    first.kill()
    first.wait()
    first.stdout.close()


def test_limits_of_resources(folder: Path) -> None:
    limits = SandboxLimits(
        processes=20, memory_bytes=200_000_000, file_bytes=1_000_000, open_files=64
    )
    box = settings(folder, limits=limits)
    assert output_of(box, "ulimit -c; ulimit -n").split() == ["0", "64"]
    assert "File size limit exceeded" in output_of(box, "head -c 2000000 /dev/zero > big")
    memory = "/usr/bin/python3 -c 'x = bytearray(300_000_000)'"
    assert "MemoryError" in output_of(box, memory)
    many = "for i in $(seq 50); do sleep 5 & done"
    assert "Resource temporarily unavailable" in output_of(box, many)
    # The negative control: without the limits, all of it works.
    assert output_of(settings(folder), f"head -c 2000000 /dev/zero > big; {memory}; {many}") == ""


# --- the end of a box ---

# Leaves the session, the parent and the environment behind.
DAEMON = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/usr/bin/python3", ["python3", "-c", "import os,time\\n"
            "while True: open('beat', 'w').write(str(time.time())); time.sleep(0.01)"], {})
    os._exit(0)
os.wait()
while not os.path.exists("beat"): time.sleep(0.01)
print("started", flush=True)
"""


def daemon_of(box: BoxSettings, then: str) -> subprocess.Popen[bytes]:
    """Start a box in which a daemon writes its heart beat to a file, and whose first process
    then runs `then`."""
    (box.workdir / "daemon.py").write_text(DAEMON)
    process = start(box, "bash", "-c", f"/usr/bin/python3 daemon.py; {then}")
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    return process


def beats(box: BoxSettings) -> bool:
    """Return True if the daemon is alive."""
    path = box.workdir / "beat"
    path.unlink(missing_ok=True)
    time.sleep(0.2)
    return path.exists()


def test_the_negative_control_a_daemon_outlives_its_shell_outside_of_a_box(folder: Path) -> None:
    box = settings(folder)
    (box.workdir / "daemon.py").write_text(DAEMON)
    shell = ["bash", "-c", "/usr/bin/python3 daemon.py; exit 0"]
    subprocess.run(shell, cwd=box.workdir, check=True, stdout=subprocess.DEVNULL)
    until(lambda: beats(box))
    pids = subprocess.run(["pgrep", "-f", "open.'beat'"], capture_output=True, text=True).stdout
    for pid in pids.split():
        if os.readlink(f"/proc/{pid}/cwd") == str(box.workdir):
            os.kill(int(pid), signal.SIGKILL)


def test_a_daemon_ends_with_the_first_process_of_its_box(folder: Path) -> None:
    owned, box = Owned(), settings(folder)
    with daemon_of(box, "sleep 0.1") as process:
        assert process.wait(20) == 0
    assert not beats(box)
    owned.wait_until_released()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_ends_if_the_box_is_killed(folder: Path, number: signal.Signals) -> None:
    box = settings(folder)
    with daemon_of(box, "sleep 60") as process:
        until(lambda: beats(box))
        process.send_signal(number)
        process.wait(20)
        until(lambda: not beats(box))


def test_an_interrupt_is_the_command_s_and_not_the_box_s(folder: Path) -> None:
    box = settings(folder)
    with daemon_of(box, "trap 'echo interrupted; exit 3' INT; kill -INT $$") as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == b"interrupted\n"
        assert process.wait(20) == 3


def test_all_ends_if_the_owner_is_killed(folder: Path) -> None:
    program = folder / "owner.py"
    program.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.runtime.sandbox.test_landlock import daemon_of, settings\n"
        "process = daemon_of(settings(Path(sys.argv[1])), 'sleep 60')\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(program), str(folder)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        box = settings(folder)
        until(lambda: beats(box))
        owner.kill()
        owner.wait()
        until(lambda: not beats(box))
        until(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    return " Z " in Path(f"/proc/{pid}/stat").read_text()


def test_a_fork_bomb_is_bounded_and_ends(folder: Path) -> None:
    box = settings(folder, limits=SandboxLimits(processes=60))
    owned = Owned()
    process = start(box, "bash", "-c", "f() { f | f & }; f; sleep 60", stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    process.kill()
    process.wait()
    assert process.stdout is not None
    assert process.stdout.read() == b""  # no process has it any more
    process.stdout.close()
    owned.wait_until_released()


def test_the_processes_beside_a_box_do_not_hold_its_streams(folder: Path) -> None:
    process = start(settings(folder), "bash", "-c", "exec >&- 2>&-; sleep 60")
    assert process.stdout is not None
    assert process.stdout.read() == b""
    assert process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_box_gets_no_descriptor_and_no_variable_of_its_owner(folder: Path) -> None:
    with (
        socket.socket() as open_socket,
        open("/etc/shadow" if os.geteuid() == 0 else "/etc/passwd") as file,
    ):
        for one in (open_socket, file):
            os.set_inheritable(one.fileno(), True)
        names = "import os; print(sorted(os.environ), [n for n in range(99) if ok(n)])"
        code = f"def ok(n):\n try: return os.fstat(n)\n except OSError: 0\n{names}"
        box = settings(folder)
        (box.workdir / "code.py").write_text(f"import os\n{code}")
        process = start(box, "/usr/bin/python3", "code.py")
    output = process.communicate()[0].decode().strip()
    assert output == "['LC_CTYPE', 'PATH'] [0, 1, 2]"
