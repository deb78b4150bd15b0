"""Measures Holdfast beside other agent SDKs: `run.py [NAME ...] [--folder DIR] [--repeats N]
[--quick] [--markdown] [--json FILE]`; all of them by default.

Each is installed from PyPI, at the version below, into a fresh virtual environment of its own under
a temporary folder (or under DIR, which a later run uses again). Holdfast is installed from this
checkout. All use Chat Completions with one mock model on loopback (`model.py`). The program of a
peer is `of_<name>.py`, `driver.py` runs it in its environment, and this program starts the
processes, in turns, so that a busy machine slows all of them.

It is not part of CI: it needs a network, 4 GB of disk and half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from bench_install import VENV_PACKAGES, size  # noqa: E402
from model import answer_parts, plain, streamed  # noqa: E402

LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else its import asks github.com for the prices
# seconds that a run of 1,000 steps may take; a peer that is expected to take longer has none
LONG = 120.0


@dataclass(frozen=True)
class Peer:
    name: str
    requires: tuple[str, ...]
    more: tuple[str, ...] = ()  # for the crash alone: installed last, not counted
    environment: dict[str, str] = field(default_factory=dict[str, str])
    idle: bool = True  # does it hold objects between runs?
    crash: bool = True  # can it save a run before its end?

    @property
    def module(self) -> str:
        return f"of_{self.name.replace('-', '_')}"


PEERS = [
    Peer("floor", (), idle=False, crash=False),
    Peer("holdfast", (str(harness.REPOSITORY),)),
    Peer(
        "openai-agents",
        ("openai-agents==0.24.0",),
        environment={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    ),
    Peer("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",), crash=False),
    Peer("smolagents", ("smolagents[openai]==1.26.0",), crash=False),
    Peer(
        "langgraph",
        ("langgraph==1.2.22", "langchain-openai==1.7.3"),
        ("langgraph-checkpoint-sqlite==3.1.2",),
    ),
    Peer(
        "mini-swe-agent",
        ("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0"),
        environment={"MSWEA_SILENT_STARTUP": "1"} | LITELLM,
        crash=False,
    ),
    Peer("agno", ("agno==3.1.10", "openai==3.54.0"), ("sqlalchemy[asyncio]",)),
    Peer("strands", ("strands-agents[openai]==1.62.0",), environment={"OTEL_SDK_DISABLED": "true"}),
    Peer(
        "google-adk", ("google-adk==2.13.0", "litellm==1.106.2", "mcp==2.3.0"), environment=LITELLM
    ),
    Peer("autogen", ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"), crash=False),
    Peer(
        "crewai",
        ("crewai==1.15.30",),
        environment={"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"},
    ),
    Peer(
        "llama-index",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
        crash=False,
    ),
]
ALL = {peer.name: peer for peer in PEERS}


def result(out: str) -> dict[str, Any]:
    """Return the driver's result, among the other output of the peer."""
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


class Bench:
    """The environments of the peers, and the port of the model."""

    def __init__(self, folder: Path, port: int, scratch: str) -> None:
        self.folder, self.port, self.scratch = folder, port, scratch

    def python(self, peer: Peer) -> str:
        return str(self.folder / peer.name / "bin" / "python")

    def environment(self, peer: Peer) -> dict[str, str]:
        """Return an environment with a home of its own, so that the run reads and leaves no files
        of this user."""
        home = Path(self.scratch) / "home" / peer.name
        home.mkdir(parents=True, exist_ok=True)
        inherited = {
            name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ
        }
        return inherited | {"HOME": str(home), "OPENAI_API_KEY": "none"} | peer.environment

    # --- installing ---

    def install(self, peer: Peer) -> dict[str, Any]:
        """Install a peer. Returns the number of distributions and their MB, compiled files
        included."""
        place, noted = self.folder / peer.name, self.folder / f"{peer.name}.json"
        if noted.exists() and peer.name != "holdfast":
            record = json.loads(noted.read_text())
            if record["requires"] == [*peer.requires, *peer.more]:
                return record
        print(f"  installing {peer.name}", flush=True)
        harness.run([sys.executable, "-m", "venv", "--clear", str(place)])
        began = time.monotonic()
        pip = [self.python(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if peer.requires:
            harness.run([*pip, *peer.requires], timeout=900)
        seconds = time.monotonic() - began
        packages = next(place.glob("lib/python*/site-packages"))
        distributions = [
            entry for entry in packages.iterdir() if not entry.name.startswith(VENV_PACKAGES)
        ]
        frozen = harness.run(
            [self.python(peer), "-m", "pip", "freeze", "--disable-pip-version-check"]
        ).splitlines()
        record = {
            "requires": [*peer.requires, *peer.more],
            "distributions": sum(entry.suffix == ".dist-info" for entry in distributions),
            "mb": (
                sum(
                    size(entry) if entry.is_dir() else entry.stat().st_size
                    for entry in distributions
                )
                / 1e6
            ),
            "seconds": seconds,
            "frozen": [line for line in frozen if "@" not in line],
        }
        if peer.more:
            harness.run([*pip, *peer.more], timeout=600)
        noted.write_text(json.dumps(record, indent=1) + "\n")
        return record

    # --- measuring ---

    def driven(self, peer: Peer, *arguments: object, timeout: float = 300.0) -> dict[str, Any]:
        command = [self.python(peer), str(HERE / "driver.py"), peer.module, *map(str, arguments)]
        out = harness.run(command, timeout, env=self.environment(peer), cwd=self.scratch)
        return result(out)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def imports(self, peer: Peer) -> dict[str, float]:
        """Return the milliseconds of CPU and the peak MB of importing the peer's program, both with
        the interpreter's own."""
        program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import {peer.module}\n"
        program += (
            "print([line for line in open('/proc/self/status') if"
            " line.startswith('VmHWM')][0].split()[1])"
        )
        command = [self.python(peer), "-c", program]
        with harness.process(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment(peer),
            cwd=self.scratch,
        ) as child:
            assert child.stdout is not None
            out = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode:
                raise harness.Failed(f"the import of {peer.name} ended with {child.returncode}")
        return {
            "cpu": (usage.ru_utime + usage.ru_stime) * 1000,
            "mb": int(out.split()[-1]) * 1024 / 1e6,
        }

    def first_request(self, peer: Peer) -> dict[str, float]:
        """Return the seconds from the start of the process to the first byte of its first request,
        and the threads and MB at its answer."""
        tool = (
            "look_up-final_answer"
            if peer.name == "smolagents"
            else "bash"
            if peer.name == "mini-swe-agent"
            else "look_up"
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            command = [self.python(peer), str(HERE / "driver.py"), peer.module, "hello", url]
            began = time.perf_counter()
            with harness.process(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self.environment(peer),
                cwd=self.scratch,
            ) as child:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(60)
                    data = connection.recv(1 << 20)
                    seconds = time.perf_counter() - began
                    while not (
                        head := re.search(rb"(?is)content-length: *(\d+).*?\r\n\r\n", data)
                    ) or len(data) < head.end() + int(head[1]):
                        data += connection.recv(1 << 20)
                    number, text = 0, answer_parts(0, tool, True)
                    connection.sendall(
                        streamed(number, *text)
                        if re.search(rb'"stream": ?true', data)
                        else plain(number, *text)
                    )
                    out, errors = child.communicate(timeout=60)
            if child.returncode:
                raise harness.Failed(errors.strip()[-400:])
        return {"seconds": seconds} | result(out)

    def crash(self, peer: Peer) -> dict[str, Any]:
        """Kill the process with SIGKILL between a tool's effect and its result, then start it again
        as its documentation says."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            run = os.urandom(4).hex()
            url = f"{self.url}/{run}/twice/effect"
            command = [
                self.python(peer),
                str(HERE / "driver.py"),
                peer.module,
                "crash",
                url,
                folder,
            ]
            options = {
                "env": self.environment(peer),
                "cwd": self.scratch,
                "capture_output": True,
                "text": True,
                "timeout": 120,
            }
            first = subprocess.run([*command, "begin"], **options, check=False)
            if first.returncode != -signal.SIGKILL:
                raise harness.Failed(f"{peer.name} was not killed: {first.stderr.strip()[-300:]}")
            second = subprocess.run([*command, "again"], **options, check=False)
            effects = Path(folder, "effects.txt").read_text().splitlines()
            body = self.last_request(run)
            results = [
                message.get("content")
                for message in body.get("messages", [])
                if message.get("role") == "tool"
            ]
            return {
                "effects": effects.count("item-1"),
                "of the call before": effects.count("item-0"),
                "went on": second.returncode == 0,
                "remembers": "Do it." in json.dumps(body),
                "shown": str(results[-1])[:300] if results else "",
                "results": len(results),
                "error": (
                    "" if second.returncode == 0 else second.stderr.strip().splitlines()[-1][:300]
                ),
            }

    def last_request(self, run: str) -> dict[str, Any]:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", f"/{run}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return json.loads(answer["last"] or "{}")


# --- the run ---


def measure(
    bench: Bench,
    peers: list[Peer],
    repeats: int,
    quick: bool,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, dict[str, Any]]:
    """Return {peer: {figure: its repeats, or the reason why there are none}}. `keep` is called with
    it after each figure."""
    figures_of: dict[str, dict[str, Any]] = {peer.name: {} for peer in peers}

    def each(figure: str, repeats: int, take: Callable[[Peer], dict[str, Any] | None]) -> None:
        began = time.monotonic()
        for _ in range(repeats):
            for peer in peers:
                if peer.name not in figures_of or isinstance(
                    figures_of[peer.name].get(figure), str
                ):
                    continue
                try:
                    value = take(peer)
                except (harness.Failed, OSError, subprocess.SubprocessError, ValueError) as error:
                    figures_of[peer.name][figure] = (
                        str(error).strip().splitlines()[-1][:300]
                        if str(error).strip()
                        else type(error).__name__
                    )
                    print(f"  {peer.name}, {figure}: {figures_of[peer.name][figure]}", flush=True)
                    continue
                if value is not None:
                    figures_of[peer.name].setdefault(figure, []).append(value)
        keep(figures_of)
        print(
            f"  {figure}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )

    each("install", 1, bench.install)
    for peer in [peer for peer in peers if isinstance(figures_of[peer.name].get("install"), str)]:
        peers.remove(peer)
    each("warm", 1, bench.imports)  # the first start fills the disk cache and compiles the files
    each("import", repeats, bench.imports)
    each("first request", repeats, bench.first_request)
    each("environment", 1, lambda peer: bench.driven(peer, "environment"))
    each("crash", 1, lambda peer: bench.crash(peer) if peer.crash else None)
    fewer = (repeats + 1) // 2  # only for figures that take minutes
    for steps, times in ((50, repeats), (200, fewer)):
        each(
            f"{steps} steps",
            times,
            lambda peer, steps=steps: bench.driven(peer, "steps", bench.url, steps),
        )
    if not quick:

        def long(peer: Peer) -> dict[str, Any] | None:
            shorter = figures_of[peer.name].get("200 steps")
            if isinstance(shorter, str) or shorter is None:
                return None
            if (
                expected := statistics.median(one["wall"] for one in shorter) * 5
            ) > LONG:  # growth with the history: five times a step
                raise ValueError(f"not run: about {expected:.0f} s")
            return bench.driven(peer, "steps", bench.url, 1000, timeout=2 * LONG)

        each("1000 steps", 1, long)
    each(
        "idle", fewer, lambda peer: bench.driven(peer, "idle", bench.url, 60) if peer.idle else None
    )
    return figures_of


# --- the tables ---


def middle(figures: dict[str, Any], figure: str, key: str) -> float | None:
    values = figures.get(figure)
    return (
        statistics.median(one[key] for one in values)
        if isinstance(values, list) and values
        else None
    )


def cell(value: float | None, base: float | None = None) -> str:
    if value is None:
        return "-"
    return harness.number(value) + (
        f" ({value / base:.0f}x)" if base and value / base >= 1.5 else ""
    )


FIGURES = [
    ("distributions", "install", "distributions"),
    ("MB", "install", "mb"),
    ("import, ms CPU", "import", "cpu"),
    ("import, MB", "import", "mb"),
    ("first request, s", "first request", "seconds"),
    ("threads", "first request", "threads"),
    ("step of 50, ms CPU", "50 steps", "cpu"),
    ("step of 200", "200 steps", "cpu"),
    ("step of 1,000", "1000 steps", "cpu"),
    ("idle, KB", "idle", "kb"),
]


def tables(figures_of: dict[str, dict[str, Any]], markdown: bool) -> str:
    lines = [["", *(heading for heading, _, _ in FIGURES)]]
    for name, figures in figures_of.items():
        lines.append([name, *(cell(middle(figures, figure, key)) for _, figure, key in FIGURES)])
    facts = [
        [
            "",
            "variables read at import: own",
            "of what it imports",
            "effects of the killed call",
            "of the one before",
            "went on",
            "what the model was shown last",
        ]
    ]
    for name, figures in figures_of.items():
        variables = (
            figures["environment"][0]["read"]
            if isinstance(figures.get("environment"), list)
            else {}
        )
        own = {key: names for key, names in variables.items() if key in OWN.get(name, (name,))}
        others = sum(
            len(names)
            for key, names in variables.items()
            if key not in own and not key.startswith("of_")
        )
        crash = figures.get("crash")
        if isinstance(crash, list):
            one = crash[0]
            crash_cells = [
                str(one["effects"]),
                str(one["of the call before"]),
                "yes" if one["went on"] else one["error"],
                one["shown"],
            ]
        else:
            crash_cells = [crash or "-", "", "", ""]
        facts.append([name, str(sum(map(len, own.values()))), str(others), *crash_cells])
    return "\n\n".join(aligned(table, markdown) for table in (lines, facts))


OWN = {
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai", "pydantic_graph"),
    "crewai": ("crewai", "crewai_core"),
    "langgraph": ("langgraph", "langchain_core", "langchain_openai", "langsmith"),
    "mini-swe-agent": ("minisweagent",),
    "google-adk": ("google",),
    "autogen": ("autogen_core", "autogen_ext", "autogen_agentchat"),
    "llama-index": ("llama_index", "llama_index_instrumentation", "workflows"),
}  # the import names of a peer


def aligned(lines: list[list[str]], markdown: bool) -> str:
    if markdown:
        lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in line) + " |"
            for line in lines
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure Holdfast beside other agent SDKs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(ALL)} (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keep the environments there (default: a temporary folder)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        metavar="N",
        help="of each figure, half as many of the long ones (default: 5)",
    )
    parser.add_argument("--quick", action="store_true", help="one repeat, and no 1,000 steps")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every repeat of every figure there"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ALL]
    if unknown:
        parser.error(f"no peer {unknown[0]!r}; there are {', '.join(ALL)}")
    peers = [peer for peer in PEERS if not options.names or peer.name in (*options.names, "floor")]
    machine = harness.Machine()
    print(f"{machine}\n", flush=True)

    def keep(figures_of: dict[str, Any]) -> None:
        if options.json:
            options.json.write_text(
                json.dumps({"machine": str(machine), "found": figures_of}, indent=1) + "\n"
            )

    with harness.scratch() as scratch:
        folder = (options.folder or Path(scratch) / "environments").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with harness.process(
            [sys.executable, str(HERE / "model.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            figures_of = measure(
                Bench(folder, int(server.stdout.readline()), scratch),
                peers,
                1 if options.quick else options.repeats,
                options.quick,
                keep,
            )
    print(f"\n{tables(figures_of, options.markdown)}\n\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    # a kill, too, runs the `finally` blocks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        harness.end_all()
