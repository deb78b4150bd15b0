"""Tests of `ContainerRuntime` with a real podman, where one can run a container: its storage is a
temporary folder, its image an empty one on which this machine's programs are mounted."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ContainerRuntime, Conversation, ScriptedLLM
from holdfast.runtime import Mount
from tests.waiting import until

REPO = Path(__file__).parents[2]
PODMAN = shutil.which("podman")
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(PODMAN is None, reason="podman is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the private mounts of this test need root"),
]

# With a folder as its storage, and cgroups of one kind: not every runtime takes both together.
WRAPPER = """\
#!/bin/sh
if [ "$1" != inner ]; then exec unshare -m --propagation private "$0" inner "$@"; fi
shift
if [ -d /sys/fs/cgroup/unified ]; then
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
fi
exec {podman} --root {folder}/root --runroot {folder}/run --tmpdir {folder}/tmp \\
    --storage-driver vfs --cgroup-manager cgroupfs --events-backend file "$@"
"""
OPTIONS = [
    *("--network", "slirp4netns:port_handler=slirp4netns", "--pull", "never"),
    *("--cgroups", "disabled", "--pids-limit", "0"),
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"),
    *("--mount", "type=bind,source=/usr,destination=/usr,ro"),
    *("--env", f"PATH={sys.prefix}/bin:/usr/bin:/bin"),
]
SHOWN = [sys.prefix, str(REPO / "src"), os.path.realpath(sys.base_prefix)]
MOUNTS = [Mount(path) for path in SHOWN if not path.startswith("/usr")]


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    """Yield the folder of a program `podman` that has the image `programs`."""
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        wrapper = folder / "bin" / "podman"
        wrapper.parent.mkdir()
        wrapper.write_text(WRAPPER.format(podman=PODMAN, folder=folder))
        wrapper.chmod(0o755)
        files = folder / "files"
        for path in ("usr", "tmp", "proc", "dev", "etc", "root", "workspace"):
            (files / path).mkdir(parents=True)
        for path in ("bin", "sbin", "lib", "lib64"):
            (files / path).symlink_to(f"usr/{path}")
        with tarfile.open(folder / "image.tar", "w") as image:
            image.add(files, ".")
        for words in (
            ["import", str(folder / "image.tar"), "programs"],
            ["run", "--rm", "--init", *OPTIONS, "programs", "/usr/bin/true"],
        ):
            process = subprocess.run(
                [str(wrapper), *words], capture_output=True, text=True, timeout=120, check=False
            )
            if process.returncode:
                pytest.skip(f"podman can run no container here: {process.stderr.strip()[-300:]}")
        yield folder / "bin"


def containers(podman: Path) -> str:
    """Return the ids of the containers, or the error if they are unknown. A container that is being
    removed does not count."""
    listed = [str(podman / "podman"), "ps", "--all", "--quiet"]
    process = subprocess.run(listed, capture_output=True, text=True, check=False)
    return process.stderr if process.returncode else process.stdout


def test_an_agent_works_in_a_container_of_podman(
    podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{podman}:{os.environ['PATH']}")
    (tmp_path / "file").write_text("of the machine\n")
    with ContainerRuntime(
        "programs", "podman", workdir=tmp_path, mounts=MOUNTS, options=OPTIONS, start_timeout=90
    ) as runtime:
        text = runtime.run_command("cat file /proc/1/comm; pwd; grep Cap /proc/self/status").text
        assert text.startswith("of the machine\npodman-init\n/workspace\n")
        capabilities = [line.split()[1] for line in text.splitlines() if line.startswith("Cap")]
        assert set(capabilities) == {16 * "0"}
        script = [("terminal", {"command": "echo made > made"}), "Done."]
        with Conversation(Agent(ScriptedLLM(script), runtime.tools)) as conversation:
            conversation.send_message("Make a file.")
            conversation.run()
        assert containers(podman)
    assert (tmp_path / "made").read_text() == "made\n"
    until(lambda: containers(podman) == "")


def test_a_container_ends_with_an_owner_that_is_killed(
    podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{podman}:{os.environ['PATH']}")
    program = (
        "import time\n"
        "from tests.remote.test_container_podman import *\n"
        f"runtime = ContainerRuntime('programs', 'podman', workdir={str(tmp_path)!r},\n"
        "    mounts=MOUNTS, options=OPTIONS, start_timeout=90)\n"
        "print('started', flush=True); time.sleep(100)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'src'}"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        assert containers(podman)
        owner.kill()
    until(lambda: containers(podman) == "")
