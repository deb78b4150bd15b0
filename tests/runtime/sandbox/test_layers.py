"""Landlock on top of bubblewrap's namespaces."""

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast import Mount, SandboxedRuntime
from holdfast.runtime.sandbox import bubblewrap
from holdfast.tools.launch import start

PROBLEM = bubblewrap.Bubblewrap().missing()
ABI = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
pytestmark = pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM)
needs_landlock = pytest.mark.skipif(ABI < 6, reason="the kernel has no Landlock of ABI 6")
PYTHON = "/usr/bin/python3 -I -S"

# The kernel takes 16 layers. Each forbids only to change a file of the system.
COUNT_LAYERS = """
import ctypes, struct
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
layers, handled = 0, struct.pack("Q", 2)
while libc.syscall(446, libc.syscall(444, handled, ctypes.c_size_t(8), 0), 0) == 0: layers += 1
print(layers)
"""
# Actions of programs in a box that Landlock could prevent.
USES = f"""
echo x > /tmp/a; mkdir /tmp/d; mv /tmp/a /tmp/d/; ln /tmp/d/a /tmp/h; cat /tmp/h
echo y > $HOME/f; echo z > /dev/shm/s; cat $HOME/f /dev/shm/s
script -qc 'echo tty' /dev/null
echo name > /proc/self/comm; echo $?
{PYTHON} -c "import socket; socket.socket(socket.AF_UNIX).bind('/tmp/socket'); print('bound')"
mkfifo pipe; echo end > pipe & cat pipe
"""


@pytest.fixture
def layered_runtime() -> SandboxedRuntime:
    return SandboxedRuntime(mechanism="bubblewrap")


@needs_landlock
def test_each_box_has_a_layer_of_landlock(layered_runtime: SandboxedRuntime) -> None:
    with layered_runtime:
        (layered_runtime.workdir / "count.py").write_text(COUNT_LAYERS)
        assert layered_runtime.run_command(f"{PYTHON} count.py").text.startswith("15\n")
    control = subprocess.run([sys.executable, "-c", COUNT_LAYERS], capture_output=True, text=True)
    assert control.stdout == "16\n"


def test_programs_do_in_it_what_the_namespaces_allow(layered_runtime: SandboxedRuntime) -> None:
    with layered_runtime:
        text = layered_runtime.run_command(USES).text.replace("\r", "")
    assert text.splitlines()[:-1] == ["x", "y", "z", "tty", "0", "bound", "end"]


def test_a_machine_without_perl_or_landlock_has_the_namespaces_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_PERL", "/none"), ("_LANDLOCK_ABI", "99")):
        with monkeypatch.context() as patch:
            patch.setattr(bubblewrap, name, value)
            with SandboxedRuntime(mechanism="bubblewrap") as runtime:
                (runtime.workdir / "count.py").write_text(COUNT_LAYERS)
                result = runtime.run_command(f"{PYTHON} count.py")
                assert result.text.splitlines()[0] in ("16", "0")


def test_mounts_and_paths_inside_are_writable_as_they_say() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        mounts = [Mount(folder, "/data: 1", writable=True), Mount(other, "/fixed")]
        with SandboxedRuntime(
            mounts=mounts, workdir_inside="/project", mechanism="bubblewrap"
        ) as runtime:
            output = runtime.run_command("touch '/data: 1/a' /project/b && touch /fixed/c").text
            assert "Read-only file system" in output
        assert [one.name for one in Path(folder).iterdir()] == ["a"]


def test_a_command_that_is_not_there_is_told(layered_runtime: SandboxedRuntime) -> None:
    with layered_runtime:
        process = start(
            layered_runtime.launcher, ["no-such-program"], cwd=None, env={"PATH": "/usr/bin"}
        )
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 127
    assert b"no-such-program" in errors
