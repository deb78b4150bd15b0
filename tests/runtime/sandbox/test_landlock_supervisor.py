"""Landlock boxes in a repository, also one of root's: the changes that commands can and cannot
make."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Mount, SandboxedRuntime, SandboxUnavailable
from holdfast.runtime.sandbox import seccomp
from holdfast.runtime.sandbox.landlock import Landlock
from tests.leftovers import Owned
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(Landlock().missing()), reason=Landlock().missing()),
]
PYTHON = "/usr/bin/python3"
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a"), ("EMAIL", "a@b.c"))
}


@pytest.fixture(params=["own", "other"])
def repository(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a repository with a commit, of this user, or of another one if this user is root."""
    if request.param == "other" and os.geteuid() != 0:
        pytest.skip("only root has files of other users")
    path = Path(tempfile.mkdtemp(prefix="box-", dir="/tmp"))
    path.chmod(0o755)
    (path / "folder").mkdir()
    (path / "file").write_text("first\n")
    (path / "folder" / "deep").write_text("deep\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(path), *words], check=True, env={**os.environ, **IDENTITY})
    (path / ".git" / "hooks" / "kept").write_text("kept\n")
    if request.param == "other":
        subprocess.run(["chown", "-R", "12345:12345", str(path)], check=True)
    yield path
    shutil.rmtree(path)


def box(repository: Path, *mounts: Mount) -> SandboxedRuntime:
    return SandboxedRuntime(repository, mechanism="landlock", mounts=mounts, env=IDENTITY)


def output(runtime: SandboxedRuntime, command: str) -> str:
    return runtime.run_command(command, 60).text.partition("\n[exit code")[0]


CHANGES = {
    "append": "echo more >> file; cat file",
    "make": "umask 077; echo x > new; mkdir d; mv new d/; stat -c %a d d/new",
    "remove": "rm folder/deep; rmdir folder; ls",
    "replace": "sed -i s/first/second/ file; cat file",
    "links": "ln -s file l; ln file h; readlink l; stat -c %h h",
    "mode and times": "chmod 755 file; touch -d @5 file; stat -c '%a %Y' file; test -w file",
    "truncate": f"{PYTHON} -c \"import os; os.truncate('file', 2)\"; cat file",
    "copy": "cp -rp folder copy; mkfifo copy/f; ls copy",
    "through a folder's descriptor": f"{PYTHON} -c \"import shutil; shutil.rmtree('folder')\"; ls",
    "commit": "echo x >> file; git add -A; git commit -qm two; git checkout -qb b; git log --format=%s",
}


@pytest.mark.parametrize("name", CHANGES)
def test_commands_change_the_work_folder_as_outside(repository: Path, name: str) -> None:
    copy = Path(tempfile.mkdtemp())
    subprocess.run(["cp", "-rp", f"{repository}/.", str(copy)], check=True)
    subprocess.run(["chown", "-R", f"{os.geteuid()}", str(copy)], check=True)
    plain = subprocess.run(
        ["bash", "-c", CHANGES[name]],
        cwd=copy,
        env={**os.environ, **IDENTITY},
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(copy)
    with box(repository) as runtime:
        assert output(runtime, CHANGES[name]) == plain.stdout.rstrip("\n")


REFUSED = [
    "echo x >> .git/config",
    "echo x > .git/hooks/kept",
    "echo x > .git/hooks/new",
    "rm -f .git/config",
    "mv .git other",
    "mv .git/hooks other",
    "mv file .git/hooks/kept",
    "mv file .git/config",
    "mkdir .git/hooks/d",
    "mkfifo .git/hooks/f",
    "ln file .git/hooks/l",
    "ln .git/config l",
    "ln -s file .git/hooks/l",
    "ln -s .git/config l && echo x >> l",
    "ln -s .git d && echo x >> d/hooks/kept",
    "cd .git/hooks && echo x >> kept",
    "echo x >> folder/../.git/config",
    "echo x > .git/commondir",
    "mkdir .git/worktrees",
    "truncate -s 0 .git/config",
    f"{PYTHON} -c \"import os; os.truncate('.git/config', 0)\"",
    f"{PYTHON} -c \"import os; f = os.open('.git', 0); os.unlink('config', dir_fd=f)\"",
    f"{PYTHON} -c \"import os; os.open('/proc/self/cwd/.git/config', os.O_WRONLY)\"",
    "git config core.fsmonitor /tmp/x",
]


def test_settings_and_hooks_of_the_repository_stay(repository: Path) -> None:
    def state() -> dict[str, object]:
        protected = [repository / ".git" / "config", *(repository / ".git" / "hooks").iterdir()]
        return {
            **{str(one): (one.read_bytes(), one.stat().st_nlink) for one in protected},
            "names": sorted(os.listdir(repository / ".git")),
        }

    before = state()
    with box(repository) as runtime:
        for command in REFUSED:
            result = runtime.run_command(command)
            assert result.meta["exitCode"] != 0, command
            assert state() == before, command
            for name in ("l", "d"):  # links that they may make
                (repository / name).unlink(missing_ok=True)
    # The control: each of them succeeds outside.
    for command in REFUSED:
        copy = Path(tempfile.mkdtemp())
        subprocess.run(["cp", "-r", f"{repository}/.", str(copy)], check=True)
        subprocess.run(["bash", "-c", command], cwd=copy, check=True)
        shutil.rmtree(copy)


# Each thread writes another path into memory while the first one makes calls with it.
RACE = """
import ctypes, threading, time
libc = ctypes.CDLL(None)
paths = [b"file\\0", b".git/config\\0"]
buffer = ctypes.create_string_buffer(64)
def flip():
    n = 0
    while not done:
        n += 1
        ctypes.memmove(buffer, paths[n % 2], len(paths[n % 2]))
done = False
thread = threading.Thread(target=flip)
thread.start()
end = time.monotonic() + 3
opened = 0
while time.monotonic() < end:
    fd = libc.open(buffer, 1)
    if fd >= 0:
        opened += 1
        libc.write(fd, b"x", 1)
        libc.close(fd)
done = True
thread.join()
print("opened", opened > 0)
"""


def test_no_race_for_the_memory_of_a_call_reaches_the_settings(repository: Path) -> None:
    before = (repository / ".git" / "config").read_bytes()
    (repository / "race.py").write_text(RACE)
    with box(repository) as runtime:
        assert output(runtime, f"{PYTHON} -I -S race.py") == "opened True"
    assert (repository / ".git" / "config").read_bytes() == before
    subprocess.run([PYTHON, "-I", "-S", "race.py"], cwd=repository, check=True)
    assert (repository / ".git" / "config").read_bytes() != before  # the control


def test_no_race_for_a_link_reaches_the_hooks(repository: Path) -> None:
    swap = "while :; do mkdir d; rmdir d; ln -s .git/hooks d; rm d; done"
    with box(repository) as runtime:
        runtime.run_command(f"timeout 30 bash -c '{swap}' > /dev/null 2>&1 &")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            runtime.run_command("for n in 1 2 3 4 5 6 7 8; do echo x > d/planted; done 2>/dev/null")
    assert "planted" not in os.listdir(repository / ".git" / "hooks")


def test_nothing_outside_of_the_work_folder_can_be_changed(
    repository: Path, tmp_path: Path
) -> None:
    """The supervisor has root's rights to files only in the work folder."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    state = secret.stat()
    commands = [
        f"echo x > {secret}",
        f"ln -s {secret} l; echo x >> l",
        f"ln -s {tmp_path} d; touch d/new",
        f"chmod 777 {secret}",
        "chmod 777 l",
        f"touch {secret}",
        f"ln {secret} h",
        f"mv {secret} here",
        f"rm -f {secret}",
        f"touch {repository.parent}/planted",
        "chmod 777 /usr/bin/env",
        "touch -d @5 /usr/bin/env",
        "mknod device c 1 3",
    ]
    with box(repository) as runtime:
        for command in commands:
            runtime.run_command(command)
    assert (secret.stat(), secret.read_text()) == (state, "secret")
    assert os.listdir(tmp_path) == ["secret"]
    assert os.stat("/usr/bin/env").st_mode & 0o777 == 0o755
    assert os.stat("/usr/bin/env").st_mtime > 5
    assert not (repository.parent / "planted").exists()
    assert not (repository / "device").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")
def test_commands_have_no_rights_of_root(repository: Path) -> None:
    with box(repository) as runtime:
        uid = output(runtime, "id -u")
        assert int(uid) == os.stat(repository).st_uid or int(uid) > 61443
        (repository / "capabilities.py").write_text(
            "import ctypes, struct; data = ctypes.create_string_buffer(24)\n"
            "header = struct.pack('=Ii', 0x20080522, 0)\n"
            "print(ctypes.CDLL(None).capget(header, data), set(data.raw))\n"
        )
        assert output(runtime, f"{PYTHON} capabilities.py") == "0 {0}"
        message = output(runtime, f"{PYTHON} -c 'import os; os.setuid(0)' 2>&1 | tail -n 1")
        assert "not permitted" in message
        # A program with the rights of its owner is no way to more rights.
        runtime.run_command("cp /usr/bin/id i; chmod 6755 i")
        assert os.stat(repository / "i").st_mode & 0o6000 == 0 or os.stat(repository / "i").st_uid


def test_a_read_only_mount_in_the_work_folder_stays(repository: Path) -> None:
    with box(repository, Mount(str(repository / "folder"))) as runtime:
        runtime.run_command("echo x >> folder/deep; rm -r folder; mv folder other")
    assert (repository / "folder" / "deep").read_text() == "deep\n"


def test_a_box_whose_supervisor_cannot_be_reached_changes_nothing(repository: Path) -> None:
    owned = Owned()
    with box(repository) as runtime:
        refused = runtime.run_command("kill -9 $(ps -e -o pid=); kill -9 -1", 20)
        assert refused.meta["exitCode"] != 0
        assert output(runtime, "echo x > new; cat new") == "x"
    owned.wait_until_released()


def test_a_machine_that_lets_nobody_supervise_is_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *rest: "2\n" if path.name == "ptrace_scope" else read_text(path, *rest),
    )
    with pytest.raises(SandboxUnavailable, match="ptrace_scope=2 forbids"):
        box(repository)


def test_a_daemon_stays_below_the_supervisor_and_is_not_left_as_a_zombie(repository: Path) -> None:
    """If Yama limits reads of a process's memory, the supervisor can answer only its descendants."""
    with box(repository) as runtime:
        runtime.run_command("setsid --fork bash -c 'sleep 0.2; echo x > late; exec sleep 4711'")
        until(lambda: (repository / "late").exists())
        process = subprocess.run(["pgrep", "-f", "^sleep 4711"], capture_output=True, text=True)
        parent = (
            Path(f"/proc/{process.stdout.strip()}/stat").read_text().rpartition(")")[2].split()[1]
        )
        descriptors = [os.readlink(one) for one in Path(f"/proc/{parent}/fd").iterdir()]
        assert "anon_inode:seccomp notify" in descriptors
        os.kill(int(process.stdout), 9)
        children = Path(f"/proc/{parent}/task/{parent}/children")
        until(lambda: process.stdout.strip() not in children.read_text().split())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_asks_about_each_call_by_its_own_number(machine: str) -> None:
    code, names = seccomp.make_filter_for_supervisor(True, True, True, machine)
    assert len(code) % 8 == 0
    assert len(names) == len(set(names.values()))
    assert {"openat", "renameat2", "linkat", "mkdirat", "unlinkat"} <= set(names.values())
    network = seccomp.make_filter_for_supervisor(False, False, True, machine)[1]
    assert sorted(network.values()) == ["connect", "socket"]
    if machine == platform.machine():
        assert names[{"x86_64": 257, "aarch64": 56}[machine]] == "openat"


LEASE = "import fcntl; fcntl.fcntl(open('folder/deep'), 1024, 0); print('leased')"  # F_SETLEASE


def test_a_command_cannot_delay_the_supervisor_by_a_lease(repository: Path) -> None:
    """A process that opens a file with a lease waits for the holder, up to 45 s."""
    command = [PYTHON, "-I", "-S", "-c", LEASE]
    with box(repository) as runtime:
        assert "Operation not permitted" in output(runtime, shlex.join(command))
    owner = repository.stat().st_uid
    plain = subprocess.run(command, cwd=repository, user=owner, capture_output=True, check=True)
    assert plain.stdout == b"leased\n"


def test_a_command_cannot_signal_the_supervisor_nor_change_its_priority(repository: Path) -> None:
    with box(repository) as runtime:
        runtime.run_command("sleep 300 & echo $PPID > parent")
        waiter = (repository / "parent").read_text().strip()
        supervisor = Path(f"/proc/{waiter}/stat").read_text().rpartition(")")[2].split()[1]
        assert b"import marshal" in Path(f"/proc/{supervisor}/cmdline").read_bytes()
        assert "not permitted" in output(runtime, f"kill -STOP {supervisor}")
        assert output(runtime, f"kill -0 {waiter} && echo its own") == "its own"  # the control
        if os.geteuid() == 0:
            denied = output(runtime, f"renice -n 19 -p {supervisor} 2>&1")
            assert "denied" in denied or "not permitted" in denied
            assert "new priority 19" in output(runtime, "renice -n 19 -p $$")


@pytest.mark.parametrize("number", [457, 458], ids=["statmount", "listmount"])
def test_a_command_cannot_ask_for_the_mounts_of_the_machine(repository: Path, number: int) -> None:
    program = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"libc.syscall({number}, 0, 0, 0, 0); print('ANSWER', ctypes.get_errno())\n"
    )
    command = [PYTHON, "-I", "-S", "-c", program]
    answer = subprocess.run(command, capture_output=True, check=True).stdout
    if answer == b"ANSWER 38\n":
        pytest.skip("this kernel has no such call")
    assert answer != b"ANSWER 1\n"
    with box(repository) as runtime:
        assert output(runtime, shlex.join(command)) == "ANSWER 1"
