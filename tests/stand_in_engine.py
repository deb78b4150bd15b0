"""A stand-in for a container engine: a program named docker, podman or apptainer that takes the
options of the real one, refuses others, and runs `holdfast serve` as a process of this machine."""

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(__file__).resolve().parent / "state"  # beside the copy of this script
INSIDE_PORT = "8765"


def install(folder: Path) -> Path:
    """Make a folder of stand-ins, to be put into PATH. Each run is recorded below `state`."""
    folder.mkdir()
    (folder / "state").mkdir()
    for name in ("docker", "podman", "apptainer"):
        script = folder / name
        shutil.copyfile(__file__, script)
        text = script.read_text()
        script.write_text(f"#!{sys.executable}\n{text}")
        script.chmod(0o755)
    return folder


def main(engine: str, words: list[str]) -> int:
    with (STATE / "calls.jsonl").open("a") as file:
        file.write(json.dumps([engine, *words]) + "\n")
    if (STATE / "hang").exists() and words[0] in ("run", "exec"):
        print("Pulling the image ...", flush=True)
        signal.pause()
    match words:
        case ["run", *rest] if engine != "apptainer":
            return oci(rest)
        case ["exec", *rest] if engine == "apptainer":
            return apptainer(rest)
        case ["port", name, "8765/tcp"] if engine != "apptainer":
            print(f"127.0.0.1:{(STATE / name).read_text()}")
            return 0
        case ["rm", "--force", name] if engine != "apptainer":
            (STATE / f"removed-{name}").touch()
            return 0
    print(f"{engine}: unknown command {words}", file=sys.stderr)
    return 125


def oci(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--rm", "--interactive", "--init"):
        parser.add_argument(name, action="store_true", required=True)
    for name in ("--name", "--publish", "--cap-drop", "--security-opt", "--pids-limit"):
        parser.add_argument(name, required=True)
    parser.add_argument("--entrypoint", required=True)
    for name in ("--user", "--userns", "--memory"):
        parser.add_argument(name)
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    if options.image == "missing":
        print("Unable to find image 'missing' locally", file=sys.stderr)
        return 125
    assert options.publish == f"127.0.0.1::{INSIDE_PORT}"
    assert options.entrypoint == "holdfast"
    listening = options.command.index("--listen") + 1
    assert options.command[listening] == f"0.0.0.0:{INSIDE_PORT}"
    options.command[listening] = "127.0.0.1:0"
    return serve(options.command, options.mount, STATE / options.name)


def apptainer(words: list[str]) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--containall", "--writable-tmpfs"):
        parser.add_argument(name, action="store_true", required=True)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    assert Path(options.workdir).is_dir()
    assert options.command[0] == "holdfast"
    return serve(options.command[1:], options.mount, None)


def serve(arguments: list[str], mounts: list[str], port: Path | None) -> int:
    """Run the server. Its port goes into the file `port`, and its output to this one's, as if it
    had the port that it has inside."""
    store = STATE / f"store-{os.getpid()}.db"
    arguments = [str(store) if one == "/tmp/holdfast.db" else one for one in arguments]
    process = subprocess.Popen(
        [*view(mounts), sys.executable, "-m", "holdfast.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if port is not None and (address := re.search(r"(?<=127\.0\.0\.1:)\d+", line)):
            port.write_text(address[0])
            line = line.replace(address[0], INSIDE_PORT)
        print(line, end="", file=sys.stderr, flush=True)
    return process.wait()


def view(mounts: list[str]) -> list[str]:
    """Return the start of a command that sees this machine's folders and the mounts."""
    if not mounts:
        return []
    words = ["bwrap", "--die-with-parent", "--dev", "/dev", "--proc", "/proc"]
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            words += ["--symlink", str(entry.readlink()), str(entry)]
        elif entry.name not in ("dev", "proc"):
            words += ["--dev-bind", str(entry), str(entry)]
    for mount in mounts:
        parts = next(csv.reader([mount]))
        fields = dict(part.split("=", 1) for part in parts if part != "ro")
        assert fields.pop("type") == "bind"
        words += ["--ro-bind" if "ro" in parts else "--bind"]
        words += [fields.pop("source"), fields.pop("destination")]
        assert not fields
    return [*words, "--"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
