"""Tests of one agent server with several tenants: another's key against every route, and a search
for planted secrets in everything that the server stores."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import LLM, Agent, ConversationStatus, RemoteConversation, ScriptedLLM
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from tests.agent_servers import Reply, Serving
from tests.model_server import ModelServer, Request, calls, text
from tests.paths import REPO
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until

ID, WORKSPACE, CALL, WORD = "planted-c0ffee", "planted-w0rk", "4.0", "xyzzy"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Run a server whose first tenant has a conversation with an offered and an asked call, a
    workspace and a file. The second has one of its own."""
    with Serving(tmp_path_factory.mktemp("server")) as running:
        assert running.ask("POST", "/api/workspaces", {"id": WORKSPACE}).status == 201
        assert (
            running.ask(
                "PUT", f"/api/workspaces/{WORKSPACE}/files/{WORD}.txt", f"{WORD}\n".encode()
            ).status
            == 200
        )
        form = form_of(
            Agent(
                ScriptedLLM([[(f"{WORD}_tool", {"word": WORD})], "Done."]),
                system_prompt=f"Say {WORD}.",
            )
        )
        body = {
            "id": ID,
            "agent": {**form.mapping, "tools": {"builtin": [f"{WORD}_tool"]}},
            "workspace": WORKSPACE,
            "tools": [{"name": f"{WORD}_tool", "inputSchema": {"type": "object"}}],
        }
        assert (
            running.ask("POST", "/api/conversations", body, Idempotency_Key=f"{WORD}-once").status
            == 201
        )
        path = f"/api/conversations/{ID}"
        assert running.ask("POST", f"{path}/start").status == 200
        assert running.ask("POST", f"{path}/messages", {"text": WORD}).status == 202
        until(lambda: running.host.stats()["client_calls"] == 1)
        hook = {"url": f"https://hooks.example.com/{WORD}", "events": ["note"]}
        assert (
            running.ask("POST", "/api/webhooks", hook, Idempotency_Key=f"{WORD}-once").status == 201
        )
        running.make("own", ["mine"], running.other)
        yield running


class Route(NamedTuple):
    method: str
    path: str
    body: Any


def routes(server: Serving) -> list[Route]:
    """Return every operation of the description, with a body that fits."""
    document = server.ask("GET", "/openapi.json").json
    all_routes: list[Route] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            example: Any = next((one["example"] for one in content.values()), None)
            all_routes.append(
                Route(
                    method.upper(), path, example.encode() if isinstance(example, str) else example
                )
            )
    return all_routes


def webhook(server: Serving) -> str:
    """Return the id of a webhook of the first tenant."""
    return server.ask("GET", "/api/webhooks").json["webhooks"][0]["id"]


def percent(text: str) -> str:
    """Return the text with every character as %XX."""
    return "".join(f"%{ord(one):02X}" for one in text)


def ways(id: str) -> dict[str, str]:
    """Return spellings of an id that might reach another tenant's object."""
    return {
        "plain": id,
        "percent": percent(id),
        "percent twice": percent(percent(id)),
        "upper": id.upper(),
        "title": id.title(),
        "prefix": f"default/{id}",
        "prefix %2F": f"default%2F{id}",
        "prefix %252F": f"default%252F{id}",
        "own prefix": f"other/{id}",
        "own %2F": f"other%2F{id}",
        "up": f"../default/{id}",
        "up %2F": f"..%2Fdefault%2F{id}",
        "up %2e": f"%2e%2e/default/{id}",
        "back": f"..%5Cdefault%5C{id}",
        "slash": f"/{id}",
        "double": f"%2F{id}",
        "dot": f"./{id}",
        "semicolon": f"{id};a=b",
        "space": f"%20{id}",
        "null": f"{id}%00",
        "trailing": f"{id}%2F",
        "newline": f"{id}%0A",
        "wide": quote("".join(chr(ord(one) + 0xFEE0) for one in id)),
    }


def bare(reply: Reply, *ids: str) -> str:
    """Return the whole answer, in lower case, without the parts that it repeats of the requested
    path."""
    answer = json.dumps(reply.headers) + reply.body.decode("utf-8", "replace")
    for id in ids:
        answer = answer.replace(json.dumps(id)[1:-1], "ID").replace(id, "ID")
    return answer.lower()


@pytest.mark.slow
def test_no_route_lets_another_tenant_in(server: Serving) -> None:
    tried, hook = 0, webhook(server)
    for route in routes(server):
        parameters = re.findall(r"\{(\w+)\}", route.path)
        if not {"id", "workspace", "webhook"} & set(parameters):
            continue
        for kind, of in (("id", ID), ("workspace", WORKSPACE), ("webhook", hook)):
            if kind not in parameters:
                continue
            for way, id in ways(of).items():
                rest = {"call_id": CALL, "path": f"{WORD}.txt", "name": "read_file"}
                path = route.path.replace(f"{{{kind}}}", id)
                for name, value in rest.items():
                    path = path.replace(f"{{{name}}}", value)
                reply = server.ask(
                    route.method,
                    path,
                    route.body,
                    server.other,
                    X_Holdfast_Client="c1",
                    Idempotency_Key=f"{WORD}-once",
                )
                where = f"{route.method} {path} ({way}): {reply}"
                # An invalid id is said to be missing; a path that is not a route's may be one of
                # another method's.
                fits = re.fullmatch(r"[A-Za-z0-9._-]{1,128}", id) or way == "percent"
                assert reply.status in ((403, 404) if fits else (400, 403, 404, 405, 422)), where
                assert WORD not in bare(reply).replace(f"{WORD}.txt", ""), where
                assert "last-event-id" not in reply.headers, where
                tried += 1
    assert tried > 400
    assert server.ask("GET", f"/api/webhooks/{hook}").json["state"] == "active"
    assert server.ask("GET", f"/api/conversations/{ID}").json["status"] == "running"
    assert (
        server.ask("GET", f"/api/workspaces/{WORKSPACE}/files/{WORD}.txt").body
        == f"{WORD}\n".encode()
    )


@pytest.mark.slow
def test_what_is_anothers_is_answered_as_what_is_nowhere(server: Serving) -> None:
    for route in routes(server):
        kind, of, nowhere = (
            ("id", ID, "nothing-c0ffee")
            if "{id}" in route.path
            else ("workspace", WORKSPACE, "nothing-w0rk")
        )
        if "{webhook}" in route.path:
            kind, of, nowhere = "webhook", webhook(server), "wh-nothing"
        if f"{{{kind}}}" not in route.path:
            continue
        answers: list[tuple[int, str]] = []
        for id in (of, nowhere):
            path = route.path.replace(f"{{{kind}}}", id).format(
                call_id=CALL, path="a.txt", name="read_file"
            )
            reply = server.ask(route.method, path, route.body, server.other, X_Holdfast_Client="c1")
            reply.headers.pop("date", None)
            reply.headers.pop("content-length", None)
            answers.append((reply.status, bare(reply, id)))
        assert answers[0] == answers[1], route


def test_lists_metrics_and_what_is_made_tell_nothing_of_another(server: Serving) -> None:
    other = server.other
    for path in (
        "/api/conversations",
        "/api/conversations?status=running",
        "/api/conversations?limit=1000&cursor=1000000",
        "/metrics",
        "/api/webhooks",
        "/openapi.json",
        "/health",
        "/ready",
    ):
        reply = server.ask("GET", path, key=other)
        assert reply.status == 200, reply
        assert not {WORD, ID, WORKSPACE} & set(re.findall(r"[\w-]+", bare(reply))), path
    assert [
        item["id"] for item in server.ask("GET", "/api/conversations", key=other).json["items"]
    ] == ["own"]
    agent = form_of(Agent(ScriptedLLM(["mine"]))).mapping
    # The first tenant's workspace, also as a path to it, is missing; and its ids and idempotency keys
    # are free.
    for workspace in (
        WORKSPACE,
        f"default/{WORKSPACE}",
        f"../default/{WORKSPACE}",
        f"other/../default/{WORKSPACE}",
    ):
        for path, body in (("", {"agent": agent}), ("/own/fork", {})):
            reply = server.ask(
                "POST", f"/api/conversations{path}", {**body, "workspace": workspace}, other
            )
            assert reply.status in (404, 422), reply
    for id in (f"default/{ID}", f"other/{ID}", f"../{ID}", f"{ID}/", "."):
        for path, body in (("", {"agent": agent}), ("/own/fork", {})):
            assert (
                server.ask("POST", f"/api/conversations{path}", {**body, "id": id}, other).status
                == 422
            )
        assert server.ask("POST", "/api/workspaces", {"id": id}, other).status == 422
    created = server.ask(
        "POST",
        "/api/conversations",
        {"id": ID, "agent": agent},
        other,
        Idempotency_Key=f"{WORD}-once",
    )
    assert (created.status, created.json["id"], created.json["workspace"]) == (201, ID, "")
    assert WORD not in bare(created)
    mine = server.ask(
        "POST",
        "/api/webhooks",
        {"url": "https://hooks.example.com/", "events": ["note"]},
        other,
        Idempotency_Key=f"{WORD}-once",
    )
    assert (mine.status, mine.json["id"] == webhook(server)) == (201, False)
    assert (
        server.ask(
            "POST",
            "/api/webhooks",
            {"url": "https://hooks.example.com/", "conversationId": WORKSPACE},
            other,
        ).status
        == 404
    )
    assert server.ask("POST", "/api/workspaces", {"id": WORKSPACE}, other).status == 201
    assert (
        server.ask("GET", f"/api/workspaces/{WORKSPACE}/files/{WORD}.txt", key=other).status == 404
    )
    for path in (
        f"../../default/{WORKSPACE}/{WORD}.txt",
        f"%2e%2e/%2e%2e/default/{WORKSPACE}/{WORD}.txt",
        f"..%2F..%2Fdefault%2F{WORKSPACE}%2F{WORD}.txt",
        percent(f"{server.folder}/rooms/default/{WORKSPACE}/{WORD}.txt"),
    ):
        for method, body in (("GET", None), ("PUT", b"mine")):
            reply = server.ask(method, f"/api/workspaces/{WORKSPACE}/files/{path}", body, other)
            assert reply.status in (403, 404, 422), reply
            assert f"{WORD}\n" not in reply.body.decode()
    for path, body in (
        ("commands", {"command": "true", "conversationId": f"default/{ID}"}),
        ("clone", {"repo": f"../../default/{WORKSPACE}"}),
        ("clone", {"repo": f"file://{server.folder}/rooms/default/{WORKSPACE}"}),
    ):
        reply = server.ask("POST", f"/api/workspaces/{WORKSPACE}/{path}", body, other)
        assert reply.status in (403, 422), reply
    reply = server.ask(
        "POST",
        f"/api/workspaces/{WORKSPACE}/tools/read_file",
        {"arguments": {"path": f"../../default/{WORKSPACE}/{WORD}.txt"}},
        other,
    )
    assert reply.json["isError"]
    assert f"{WORD}\n" not in reply.body.decode()
    # The first tenant still has everything.
    assert server.ask("DELETE", f"/api/conversations/{ID}", key=other).status == 204
    assert server.ask("DELETE", f"/api/workspaces/{WORKSPACE}", key=other).status == 204
    assert server.ask("GET", f"/api/conversations/{ID}").json["status"] == "running"
    assert (
        server.ask("GET", f"/api/workspaces/{WORKSPACE}/files/{WORD}.txt").body
        == f"{WORD}\n".encode()
    )


# --- planted secrets ---

PROVIDER, MCP = "sk-planted-provider-90210abcdef", "planted-mcp-secret-31337abcdef"
VARIABLE = "sk-planted-variable-777abcdef"


def spellings(secret: str) -> list[bytes]:
    """Return a secret as it may be in a file: plain, as JSON in UTF-16, in hex, in base64 at any
    offset."""
    forms = [
        secret.encode(),
        secret.encode("utf-16-le"),
        secret.encode().hex().encode(),
        percent(secret).encode(),
    ]
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + secret.encode())
        forms.append(encoded[4 if offset else 0 : -4])
    return forms


def files_with(folder: Path, *secrets: str) -> list[str]:
    """Return the files that have one of the secrets."""
    paths: list[str] = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            paths += [
                f"{path.relative_to(folder)}: {secret}"
                for secret in secrets
                for one in spellings(secret)
                if one in data
            ]
    return paths


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes under a process."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            pids += [int(child), *descendants(int(child))]
    return pids


def shown_of(pid: int) -> bytes:
    """Return the start arguments and environment of a process, as other processes may read them."""
    try:
        return (
            Path(f"/proc/{pid}/environ").read_bytes()
            + b"\0"
            + Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    except OSError:  # it has ended
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.proof)])
def test_what_was_planted_is_in_no_file_no_answer_and_no_child(
    tmp_path: Path, isolation: str
) -> None:
    steps = [
        ("terminal", {"command": "env; cat /proc/self/environ | tr '\\0' '\\n'; set"}),
        (
            "terminal",
            {
                "command": (
                    "echo begun > file.txt; sleep 0.1; tr '\\0' '\\n' < /proc/$$/environ; tr '\\0'"
                    " ' ' < /proc/$PPID/cmdline"
                )
            },
        ),
    ]

    def answer(request: Request) -> Any:
        count = sum(message["role"] == "tool" for message in request.messages)
        return calls(steps[count], prefix=f"c{count}") if count < len(steps) else text("Done.")

    environment = {"MCP_SECRET": MCP, "PYTHONPATH": str(REPO)}
    servers = {
        "planted": {
            "command": sys.executable,
            "args": ["-m", "tests.mcp_tools"],
            "env": environment,
        }
    }
    home = tmp_path / "server"
    home.mkdir()
    options = ("--variable", "PLANTED_KEY", "--access-log", "--isolation", isolation)
    replies: list[Reply] = []
    with (
        ModelServer(answer) as model,
        ServeProcess(
            home, *options, env={"PLANTED_KEY": VARIABLE, "HOLDFAST_DEBUG": "1"}, fresh=True
        ) as server,
    ):
        with server.workspace(id="w") as workspace:
            agent = Agent(
                LLM("m", base_url=model.url, api_key=PROVIDER), workspace.tools, mcp_servers=servers
            )
            with RemoteConversation(agent, workspace, "c") as conversation:
                conversation.start_thread()
                conversation.send_message("go")
                assert conversation.wait(60) is ConversationStatus.FINISHED
                results = [
                    event.result.text
                    for event in conversation.get_history()
                    if isinstance(event, ev.ToolCallFinished)
                ]
                assert len(results) == 2
                assert "PATH=" in results[0]
                assert model.requests[0].headers["authorization"] == f"Bearer {PROVIDER}"
                form = form_of(agent)
                # Wrong requests, whose answers may quote them.
                replies += [
                    server.ask(
                        "POST",
                        "/api/conversations",
                        {"agent": form.mapping, "secrets": {"secret_1": PROVIDER, "other": MCP}},
                    ),
                    server.ask(
                        "POST",
                        "/api/conversations",
                        {"agent": {**form.mapping, "model": 5}, "secrets": form.secrets},
                    ),
                    server.ask(
                        "POST",
                        "/api/conversations",
                        {
                            "agent": {**form.mapping, "limits": "${secret_1}"},
                            "secrets": form.secrets,
                        },
                    ),
                    server.ask(
                        "POST",
                        "/api/conversations",
                        {
                            "agent": {**form.mapping, "nonsense": "${secret_2}"},
                            "secrets": form.secrets,
                        },
                    ),
                    server.ask(
                        "POST",
                        "/api/conversations",
                        {
                            "id": "v",
                            "agent": {
                                "model": {
                                    "model": "m",
                                    "api_key": "${PLANTED_KEY}",
                                    "base_url": model.url,
                                }
                            },
                        },
                    ),
                ]
                for path in ("", "/c", "/c/state", "/c/events", "/v", "/v/state"):
                    replies.append(server.ask("GET", f"/api/conversations{path}"))
                replies += [
                    server.ask("GET", path)
                    for path in ("/metrics", "/openapi.json", "/api/workspaces/w/tools")
                ]
                for call in ("4.0", "8.0"):
                    replies.append(server.ask("GET", f"/api/conversations/c/outputs/{call}"))
                for path in (
                    "%2Fproc%2Fself%2Fenviron",
                    "%2Fproc%2Fself%2Fcmdline",
                    "..%2F..%2F..%2Fs.db.server.key",
                ):
                    replies.append(server.ask("GET", f"/api/workspaces/w/files/{path}"))
                    assert replies[-1].status >= 400
                replies.append(server.ask("POST", "/api/conversations/c/fork", {"id": "f"}))
                assert replies[-1].status == 201
                replies.append(
                    server.ask(
                        "POST",
                        "/api/workspaces/w/commands",
                        {"command": "env; tr '\\0' '\\n' < /proc/self/environ"},
                    )
                )
                secrets = (PROVIDER, MCP, VARIABLE, KEY)
                for reply in replies:
                    whole = reply.body + json.dumps(reply.headers).encode()
                    assert not [
                        one for secret in secrets for one in spellings(secret) if one in whole
                    ], reply
                assert not [secret for secret in secrets if secret in "".join(results)]
                children = descendants(server.pid)
                assert children, "neither its MCP server nor a shell of it runs"
                for pid in children:
                    visible = shown_of(pid)
                    # the MCP server itself may have its own secret
                    mine = (
                        (*secrets[:1], *secrets[2:]) if b"tests.mcp_tools" in visible else secrets
                    )
                    assert not [secret for secret in mine if secret.encode() in visible], (
                        f"{pid}: {visible!r}"
                    )
                server.kill()  # write-ahead logs stay as they are
                assert files_with(home, *secrets) == []
                server.start()  # and the sealed values are opened again
                conversation.send_message("again")
                until(lambda: len(model.requests) >= 4)
                assert model.requests[-1].headers["authorization"] == f"Bearer {PROVIDER}"
                assert conversation.wait(60) is ConversationStatus.FINISHED
        server.end()
        assert files_with(home, *secrets) == []
        assert (home / "s.db.server.key").stat().st_mode & 0o077 == 0
