"""`holdfast serve` as a separate process: its signals, its keys, and its errors."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ScriptedLLM
from holdfast.agent.serial_form import form_of
from tests import forks
from tests.postgres import PostgresServer
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

ENV = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


def holdfast(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and return the result."""
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return forks.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**ENV, **(env or {})},
        cwd=cwd,
    )


class Running:
    """A server process that is ready for requests."""

    def __init__(self, process: subprocess.Popen[str], lines: Sequence[str]) -> None:
        self.process = process
        self.start_output = "".join(lines)
        self.url = re.search(r"Serving agents at (https?)://([\d.]+):(\d+)\.", self.start_output)
        assert self.url, self.start_output
        self.port = int(self.url[3])
        key_match = re.search(r"shown only this once: (\S+)", self.start_output)
        self.key = key_match[1] if key_match else ""

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> tuple[int, Any]:
        if context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=30, context=context
            )
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Authorization": f"Bearer {key or self.key}"},
            )
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data
        finally:
            connection.close()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, and return the exit code and the rest of stderr."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        return self.process.wait(60), rest


@contextmanager
def running(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Running]:
    """Start a server process, and kill it at the end."""
    command = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        str(folder / "s.db"),
        *arguments,
    ]
    process = forks.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**ENV, **(env or {})},
    )
    try:
        lines: list[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "Serving agents" in line:
                break
        yield Running(process, lines)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def create(id: str, *answers: Any) -> dict[str, Any]:
    """Return the request body of a conversation whose model gives these answers."""
    return {"id": id, "agent": form_of(Agent(ScriptedLLM(list(answers)))).mapping}


@pytest.mark.slow
def test_a_server_makes_a_key_serves_and_ends_at_sigterm(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.key.startswith("hf_")
        assert server.ask("GET", "/health")[0] == 200
        assert server.ask("POST", "/api/conversations", create("c", "hello"))[0] == 201
        assert server.ask("POST", "/api/conversations/c/start")[0] == 200
        assert server.ask("POST", "/api/conversations/c/messages", {"text": "hi"})[0] == 202
        until(lambda: server.ask("GET", "/api/conversations/c")[1]["status"] == "finished")
        key = server.key
        code, rest = server.end()
        assert (code, rest) == (143, "")
    with running(tmp_path) as again:  # the key stays valid and is not printed again
        assert again.key == ""
        assert again.ask("GET", "/api/conversations/c", key=key)[1]["status"] == "finished"
        assert again.end(signal.SIGINT) == (130, "")


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        key = server.key
        server.ask("POST", "/api/conversations", create("c", "one", "two"))
        server.ask("POST", "/api/conversations/c/start")
        server.ask("POST", "/api/conversations/c/messages", {"text": "first"})
        until(lambda: server.ask("GET", "/api/conversations/c")[1]["status"] == "finished")
        server.process.kill()
        server.process.wait()
    with running(tmp_path) as again:
        assert again.ask("POST", "/api/conversations/c/messages", {"text": "second"}, key)[0] == 202
        until(
            lambda: (
                sum(
                    e["type"] == "assistant"
                    for e in again.ask("GET", "/api/conversations/c/events", key=key)[1]["events"]
                )
                == 2
            )
        )
        again.end()


@pytest.mark.slow
def test_open_streams_and_commands_do_not_keep_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.ask("POST", "/api/conversations", create("c", "x"))
        server.ask("POST", "/api/workspaces", {"id": "w"})
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        stream.request(
            "GET", "/api/conversations/c/stream", headers={"Authorization": f"Bearer {server.key}"}
        )
        response = stream.getresponse()
        command = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        marker = tmp_path / "marker"
        body = json.dumps({"command": f"echo $$ > {marker}; sleep 600"})
        command.request(
            "POST", "/api/workspaces/w/commands", body, {"Authorization": f"Bearer {server.key}"}
        )
        until(lambda: marker.exists() and marker.read_text().strip())
        began = time.monotonic()
        code, rest = server.end()
        assert (code, rest) == (143, "")
        assert time.monotonic() - began < 25
        response.read()  # raises if the response is incomplete
        shell = int(marker.read_text())
        until(lambda: not Path(f"/proc/{shell}").exists())
        stream.close()
        command.close()


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.ask("POST", "/api/workspaces", {"id": "w"})
        slow = socket.create_connection(("127.0.0.1", server.port))
        head = (
            "PUT /api/workspaces/w/files/f HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer"
            f" {server.key}\r\nContent-Length: 10\r\n\r\n"
        )
        slow.sendall(head.encode())  # without the body, which the server waits for
        until(lambda: b"holdfast_http_requests_running 2" in server.ask("GET", "/metrics")[1])
        server.process.send_signal(signal.SIGTERM)

        def refused() -> bool:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", server.port), 5).close()
                return False
            return True

        until(refused)  # the server ends, but only after that request
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == -signal.SIGTERM
        slow.close()


@pytest.mark.slow
def test_keys_are_made_listed_and_removed_beside_a_running_server(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "s.db"))
    with running(tmp_path, env={"HOLDFAST_SERVER_KEY": "a-key-of-my-own-1234"}) as server:
        assert server.key == ""
        assert server.ask("GET", "/api/conversations", key="a-key-of-my-own-1234")[0] == 200
        added = holdfast("serve", "keys", "add", "--tenant", "alice", "--label", "laptop", *store)
        key = added.stdout.strip()
        assert (added.returncode, added.stderr) == (0, "")
        assert server.ask("GET", "/api/conversations", key=key)[0] == 200
        listed = holdfast("serve", "keys", "list", *store).stdout
        assert "alice  laptop" in listed
        assert key not in listed
        assert "a-key-of-my-own-1234" not in listed
        id = listed.splitlines()[-1].split()[0]
        assert holdfast("serve", "keys", "remove", id, *store).returncode == 0
        until(lambda: server.ask("GET", "/api/conversations", key=key)[0] == 401, seconds=15)
        assert holdfast("serve", "keys", "remove", id, *store).returncode == 2
    stored_bytes = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert key.encode() not in stored_bytes
    assert b"a-key-of-my-own-1234" not in stored_bytes


@pytest.mark.slow
def test_what_a_command_finds_of_the_server_has_no_keys_and_its_files_are_its_own(
    tmp_path: Path,
) -> None:
    options = ("--variable", "PLANTED_KEY", "--variable", "openai:PLANTED_TOO")
    with ServeProcess(
        tmp_path,
        *options,
        env={"PLANTED_KEY": "sk-planted-1", "PLANTED_TOO": "sk-planted-2"},
        fresh=True,
    ) as server:
        environ = Path(f"/proc/{server.pid}/environ").read_bytes()
        assert b"PLANTED_KEY=" in environ
        assert not [
            secret for secret in (KEY, "sk-planted-1", "sk-planted-2") if secret.encode() in environ
        ]
        assert server.ask("POST", "/api/workspaces", {"id": "w"}).status == 201
        for path in (
            server.store,
            *tmp_path.glob("s.db.server.*"),
            *tmp_path.glob("s.db-*"),
            tmp_path / "s.db.workspaces",
        ):
            assert path.name.endswith(".lock") or path.stat().st_mode & 0o077 == 0, path


@pytest.mark.slow
def test_a_body_that_is_larger_than_max_body_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, "--max-body", "1000") as server:
        assert server.ask("GET", "/api/conversations")[0] == 200
        assert server.ask("POST", "/api/conversations", {"id": "x" * 2000})[0] == 413


@pytest.mark.slow
def test_a_key_comes_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a-key-from-a-file-5678\n")
    with running(tmp_path, "--key-file", str(file), "--access-log") as server:
        assert (
            server.ask("GET", "/api/conversations?limit=7", key="a-key-from-a-file-5678")[0] == 200
        )
        assert server.ask("GET", "/api/conversations", key="something-else-entirely")[0] == 401
        _, rest = server.end()
        assert "default GET /api/conversations 200" in rest
        assert "limit=7" not in rest
        assert "a-key-from-a-file" not in rest


@pytest.mark.slow
def test_a_supervised_server_takes_its_key_from_standard_input_and_ends_with_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--supervised"]
    process = forks.Popen(
        [*command, "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s.db")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("hf_from-the-other-process\n")
    process.stdin.flush()
    server = Running(process, [process.stderr.readline()])
    assert "shown only this once" not in server.start_output
    assert server.ask("GET", "/api/conversations", key="hf_from-the-other-process")[0] == 200
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 0
    process.stderr.close()


@pytest.mark.slow
def test_a_folder_of_the_operator_is_a_workspace_that_stays(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "a.txt").write_text("one\n")
    with running(tmp_path, "--workspace", f"main={tmp_path / 'tool'}") as server:
        assert server.ask("GET", "/api/workspaces/main/files/a.txt") == (200, b"one\n")
        assert server.ask("PUT", "/api/workspaces/main/files/b.txt", "two")[0] == 200
        assert server.ask("POST", "/api/workspaces", {"id": "main"})[0] == 409
        status, answer = server.ask("DELETE", "/api/workspaces/main")
        assert (status, "folder of the server's operator" in str(answer)) == (409, True)
        added = holdfast(
            "serve", "keys", "add", "--tenant", "ann", "--store", str(tmp_path / "s.db")
        )
        other = added.stdout.strip()
        assert server.ask("GET", "/api/workspaces/main/files/a.txt", key=other)[0] == 404
    assert sorted(path.name for path in (tmp_path / "tool").iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.slow
def test_it_serves_https(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with running(tmp_path, "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        assert server.url is not None
        assert server.url[1] == "https"
        assert server.ask("GET", "/health", context=context) == (200, {"status": "ok"})
        assert server.ask("POST", "/api/conversations", create("c", "x"), context=context)[0] == 201
        assert server.end()[0] == 143


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nowhere"], "--listen: An address has the form HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "--tls-cert and --tls-key, or --insecure"),
        (["--listen", "203.0.113.1:80", "--insecure"], "Cannot listen on 203.0.113.1:80"),
        (["--tls-cert", "{tmp}/none.pem"], "none.pem' does not exist or cannot be read"),
        (
            ["--tls-cert", "{tmp}/text", "--tls-key", "{tmp}/text"],
            "are not a PEM certificate and its key",
        ),
        (["--tls-key", "{tmp}/text"], "--tls-key needs --tls-cert"),
        (["--key-file", "{tmp}/none"], "--key-file: '{tmp}/none' cannot be read: No such file"),
        (["--key-file", "{tmp}/text"], "A key needs at least 16"),
        (["--variable", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE, named by --variable, is not set"),
        (["--variable", "a b=c"], "--variable takes NAME"),
        (["--allow-tools", "os;x"], "patterns of module names"),
        (["--store", "{tmp}/no/such/s.db"], "there is no folder '{tmp}/no/such'"),
        (["--store", "{tmp}"], "--store takes a file; '{tmp}' is a folder"),
        (["--root", "{tmp}/text/below"], "--root: '{tmp}/text/below' cannot be made"),
        (["--workspace", "main"], "--workspace takes ID=DIR, not 'main'"),
        (["--workspace", "a/b={tmp}"], "--workspace: workspace takes an id of 1 to 128 letters"),
        (["--workspace", "a={tmp}/no"], "--workspace a: there is no folder '{tmp}/no'"),
        (["--workspace", "a={tmp}", "--workspace", "a={tmp}"], "'a' is given twice"),
        (["--supervised"], "--supervised: the first line of standard input has no key"),
        (["--supervised", "--key-file", "{tmp}/text"], "--supervised and --key-file both give"),
        (["--rate", "-1"], "argument --rate: takes a number from 0"),
        (["--max-running", "0"], "takes a whole number from 1"),
        (["--max-body", "1 MB"], "argument --max-body: takes a whole number from 1, not '1 MB'"),
        (["keys"], "takes one of add, list, remove"),
        (["keys", "list", "--store", "{tmp}/none.db"], "not an agent server's store"),
        (["keys", "add", "x"], "keys add takes no ID"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "text").write_text("short")
    values = [argument.format(tmp=tmp_path) for argument in arguments]
    default = [] if "--store" in values else ["--store", str(tmp_path / "s.db")]
    listen = [] if "--listen" in values or values[:1] == ["keys"] else ["--listen", "127.0.0.1:0"]
    ended = holdfast("serve", *values, *default, *listen)
    assert ended.returncode == 2, ended.stderr
    assert words.format(tmp=tmp_path) in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.slow
def test_a_taken_port_and_a_store_that_another_server_has_are_said_in_one_line(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as server:
        other = holdfast("serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s.db"))
        assert other.returncode == 2
        assert (
            other.stderr == f"holdfast: --store: another server (process {server.process.pid}) uses"
            f" '{tmp_path / 's.db'}'\n"
        )
        same_port = holdfast(
            "serve", "--listen", f"127.0.0.1:{server.port}", "--store", str(tmp_path / "t.db")
        )
        assert same_port.returncode == 2
        assert (
            same_port.stderr
            == f"holdfast: Cannot listen on 127.0.0.1:{server.port}: Address already in"
            " use.\n"
        )


@pytest.mark.slow
def test_a_database_that_does_not_fit_is_said_in_one_line_without_its_password(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    place = f"127.0.0.1:{postgres_server.port}/postgres"
    dsn = f"postgresql://stranger:planted-secret@{place}"
    seal = "--seal-key", str(tmp_path / "seal.key")
    for arguments, env, expected in (
        ([], {"HOLDFAST_STORE": dsn}, "needs --seal-key FILE"),
        (seal, {"HOLDFAST_STORE": dsn}, "password authentication failed"),
        (["--store", dsn, *seal], {}, "password authentication failed"),
        (["--store", "s.db", "--no-drive"], {}, "--no-drive is for a Postgres database"),
    ):
        ended = holdfast("serve", *arguments, env=env, cwd=tmp_path)
        assert ended.returncode in (1, 2), ended
        assert expected in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
        assert "planted" not in ended.stderr + ended.stdout


@pytest.mark.slow
def test_a_file_that_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("no database at all, but quite some text in here")
    ended = holdfast("serve", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s.db"))
    assert ended.returncode in (1, 2)
    assert len(ended.stderr.strip().splitlines()) <= 2  # the first line may be about a new key
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    ended = holdfast("serve", "--store", str(closed / "s.db"))
    assert (ended.returncode, ended.stderr) == (
        2,
        f"holdfast: --store: '{closed / 's.db'}' cannot be written\n",
    )


@pytest.mark.slow
def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['fastapi'] = None; from holdfast.cli import main; sys.argv ="
        " ['holdfast', 'serve']; sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert ended.returncode == 2
    assert (
        ended.stderr
        == "holdfast: holdfast serve needs fastapi, which is not installed: pip install"
        " 'holdfast[server]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1, and return the files of it and its key."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths[1].write_bytes(private)
    return paths
