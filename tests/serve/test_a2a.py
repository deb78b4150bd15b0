"""Tests of agents behind A2A, with the SDK's own client and with ours, over real sockets and
processes."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, ScriptedLLM
from holdfast.serve import CardKey, a2a
from holdfast.tools.a2a import A2AClient
from holdfast.tools.preset.asking import register_asking_tools
from holdfast.tools.preset.offering import register_offering_tools
from holdfast.tools.preset.replying import reply_only
from tests.a2a_parts import needs_a2a
from tests.door_tools import SCRIPT, pay
from tests.model_server import ModelServer, Stall, calls
from tests.model_server import text as model_text
from tests.paths import REPO
from tests.serve_process import KEY, ServeProcess
from tests.waiting import until
from tests.webhook_receiver import Receiver

pytestmark = needs_a2a

ASK = ("ask_user", {"question": "Which colour?"})
BUY = ("pay", {"amount": 3})
WIRES = [("1.0", "JSONRPC"), ("1.0", "HTTP+JSON"), ("0.3", "JSONRPC")]


def agent(script: Sequence[Any], **options: Any) -> Agent:
    tools = [pay, reply_only, *register_asking_tools(), *register_offering_tools()]
    return Agent(ScriptedLLM(script, stream=True), tools, confirm=["pay"], **options)


@contextmanager
def served(
    script: Sequence[Any], folder: Path | None = None, code: bool = False, **options: Any
) -> Generator[Any]:
    allowed = ["tests.*", "holdfast.*"]
    with a2a(
        agent(script, code=code), folder, name="buyer", allow_tools=allowed, **options
    ) as server:
        yield server


class Client:
    """The SDK's client of one agent, in one protocol version over one transport."""

    def __init__(self, server: Any, wire: tuple[str, str] = WIRES[0], key: str = "") -> None:
        self._url, self._wire, self._key = server.url, wire, key or server.key

    def run(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            import httpx
            from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

            headers = {"authorization": f"Bearer {self._key}"}
            async with httpx.AsyncClient(headers=headers, timeout=20) as web:
                card = await A2ACardResolver(web, f"{self._url}/a2a/buyer").get_agent_card()
                version, binding = self._wire
                others = [
                    one
                    for one in card.supported_interfaces
                    if (one.protocol_version, one.protocol_binding) == (version, binding)
                ]
                del card.supported_interfaces[:]
                card.supported_interfaces.extend(others)
                config = ClientConfig(
                    httpx_client=web, streaming=True, supported_protocol_bindings=[binding]
                )
                return await work(ClientFactory(config).create(card))

        return asyncio.run(asyncio.wait_for(main(), 30))

    def send(self, *parts: dict[str, Any], **ids: str) -> list[Any]:
        """Send one message, and return the events of its stream, as JSON of 1.0."""
        from a2a.types import SendMessageRequest
        from google.protobuf.json_format import MessageToDict, ParseDict

        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": list(parts), **ids}
        request = ParseDict({"message": message}, SendMessageRequest())

        async def work(client: Any) -> list[Any]:
            return [MessageToDict(event) async for event in client.send_message(request)]

        return self.run(work)

    def get(self, id: str) -> Any:
        from a2a.types import GetTaskRequest
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(self.run(lambda client: client.get_task(GetTaskRequest(id=id))))


def text(value: str) -> dict[str, Any]:
    return {"text": value}


def rest_of(events: list[Any]) -> tuple[str, Any]:
    """Return the state of the last update, and the ids to continue with."""
    last = events[-1]
    update = last.get("statusUpdate") or last["task"]
    ids = {"taskId": update.get("taskId") or update["id"], "contextId": update["contextId"]}
    return update["status"]["state"].removeprefix("TASK_STATE_"), ids


def rpc(server: Any, body: Any, path: str = "/a2a/buyer", key: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    headers = {
        "authorization": f"Bearer {key or server.key}",
        "content-type": "application/json",
        "a2a-version": "1.0",
    }
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, headers)
    answer = connection.getresponse()
    body_bytes = answer.read()
    connection.close()
    return answer.status, json.loads(body_bytes)


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: "-".join(wire))
def test_an_approval_and_a_question_are_input_that_is_required(wire: tuple[str, str]) -> None:
    with served([[BUY], [ASK], "red as a rose"]) as server:
        client = Client(server, wire)
        state, ids = rest_of(client.send(text("Buy it.")))
        assert state == "INPUT_REQUIRED"
        parts = client.get(ids["taskId"])["status"]["message"]["parts"]
        assert parts[1]["data"]["arguments"] == {"amount": 3}
        state, ids = rest_of(client.send(text("approve"), **ids))
        assert state == "INPUT_REQUIRED"
        events = client.send(text("red"), **ids)
        assert rest_of(events)[0] == "COMPLETED"
        pieces = [
            part["text"]
            for event in events
            if "artifactUpdate" in event
            for part in event["artifactUpdate"]["artifact"]["parts"]
        ]
        assert "".join(pieces) == "red as a rose"
        task = client.get(ids["taskId"])
        assert task["artifacts"][0]["parts"][0]["text"] == "red as a rose"
        texts = [(one["role"][5:], one["parts"][0]["text"]) for one in task["history"]]
        assert texts == [  # the history has the questions and the answers, in this order
            ("USER", "Buy it."),
            ("USER", "approve"),
            ("AGENT", "Which colour?"),
            ("USER", "red"),
            ("AGENT", "red as a rose"),
        ]


@pytest.mark.slow
def test_a_script_waits_for_its_calls() -> None:
    pytest.importorskip("pydantic_monty")
    with served([[SCRIPT], "done"], code=True) as server:
        client = Client(server)
        state, ids = rest_of(client.send(text("Buy it.")))
        assert state == "INPUT_REQUIRED"
        request = client.get(ids["taskId"])["status"]["message"]["parts"][1]["data"]
        yes = {"data": {"callId": request["callId"], "approve": True}}
        state, ids = rest_of(client.send(yes, **ids))
        assert state == "INPUT_REQUIRED"
        assert rest_of(client.send(text("red"), **ids))[0] == "COMPLETED"


@pytest.mark.slow
def test_only_an_explicit_approval_runs_a_call() -> None:
    with served([[BUY], "as you like"]) as server:
        for answer, effect in (
            (text("yes, but only if it is cheap"), []),
            (text("no"), []),
            ({"data": {"approve": False, "reason": "too much"}}, []),
            ({"data": {"approve": True, "arguments": {"amount": 2}}}, ["paid 2"]),
        ):
            client = Client(server)
            _, ids = rest_of(client.send(text("Buy it.")))
            assert rest_of(client.send(answer, **ids))[0] == "COMPLETED"
            status, events = rpc_events(server, ids["taskId"])
            assert status == 200
            results = [one["result"] for one in events if one["type"] == "toolResult"]
            assert [
                block["text"]
                for one in results
                if not one.get("isError")
                for block in one["content"]
                if block["text"].startswith("paid")
            ] == effect


def rpc_events(server: Any, id: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    path = f"/api/conversations/{id}/events?limit=100"
    connection.request("GET", path, headers={"authorization": f"Bearer {server.key}"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content["events"] if isinstance(content, dict) else content


@pytest.mark.slow
def test_a_context_groups_tasks_and_is_remembered() -> None:
    with served(["one", "two"]) as server:
        client = Client(server)
        _, first = rest_of(client.send(text("Say one.")))
        _, second = rest_of(client.send(text("And now?"), contextId=first["contextId"]))
        assert second["contextId"] == first["contextId"] != ""
        assert second["taskId"] != first["taskId"]
        _, events = rpc_events(server, second["taskId"])
        texts = [one["content"][0]["text"] for one in events if one["type"] == "message"]
        assert texts == ["Say one.", "And now?"]  # the agent has seen both
        history = client.get(second["taskId"])["history"]
        assert next(one["parts"][0]["text"] for one in history) == "And now?"
        _, listed = rpc(server, call("ListTasks", contextId=first["contextId"], pageSize=1))
        assert [one["id"] for one in listed["result"]["tasks"]] == [second["taskId"]]
        token = listed["result"]["nextPageToken"]
        _, listed = rpc(server, call("ListTasks", pageToken=token, status="TASK_STATE_COMPLETED"))
        assert [one["id"] for one in listed["result"]["tasks"]] == [first["taskId"]]


@pytest.mark.slow
def test_bad_input_gets_the_error_of_the_protocol() -> None:
    with served([[BUY], "done"]) as server:
        _, ids = rest_of(Client(server).send(text("Buy it.")))
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        large = {**message, "contextId": "x" * 500}
        binary = {**message, "parts": [{"raw": "AAAA", "mediaType": "application/x-nothing"}]}
        form = {**message, **ids, "parts": [{"data": {"callId": "99.0", "approve": True}}]}
        for body, code in (
            (b"{", -32700),
            (b"[]", -32600),
            (call("Nothing"), -32601),
            (call("SendMessage"), -32602),
            (call("SendMessage", message=large), -32602),
            (call("SendMessage", message=binary), -32005),
            (call("SendMessage", message=form), -32602),
            (call("SendStreamingMessage", message=form), -32602),
            (call("SendMessage", message={**message, "taskId": "nope"}), -32001),
            (call("SendMessage", message={**message, **ids, "contextId": "other"}), -32602),
            (call("GetTask", id="../../etc"), -32001),
            (call("SubscribeToTask", id="nope"), -32001),
            (
                call("CreateTaskPushNotificationConfig", taskId=ids["taskId"], url="file:///"),
                -32602,
            ),
        ):
            _, answer = rpc(server, body)
            assert answer["error"]["code"] == code, (body, answer)
            assert "Traceback" not in json.dumps(answer)
        status, _ = rpc(server, call("GetTask", id=ids["taskId"]), key="wrong")
        assert status == 401


@pytest.mark.slow
def test_a_body_that_would_hold_the_event_loop_is_refused_before_it_is_parsed() -> None:
    with served(["done"]) as server:
        for parts, status in (("[]," * 30_000, 413), ("[" * 5_000, 400)):
            body = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":[%s' % parts.encode()
            for path in ("", "/", "/v0.3", "/message:send", "/message:stream"):
                received, answer = rpc(server, body, f"/a2a/buyer{path}")
                assert received == status, (path, answer)


@pytest.mark.slow
def test_a_body_that_is_no_text_is_refused_before_it_is_parsed() -> None:
    with served(["done"]) as server:
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [text("Hi.")]}
        whole = json.dumps(call("SendMessage", message=message)).encode()
        for body in (
            whole.replace(b"Hi.", b"\\ud800"),
            whole.replace(b"Hi.", b"\xff"),
            b"\x1f\x8b",
        ):
            for path in ("", "/v0.3", "/message:send"):
                received, answer = rpc(server, body, f"/a2a/buyer{path}")
                assert (received, answer["error"]["type"]) == (400, "ConfigurationError")
        pair = whole.replace(b"Hi.", b"\\ud83d\\ude00")
        assert "error" not in rpc(server, pair)[1]
        for path in ("", "/v0.3", "/message:send"):
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
            connection.request(
                "PUT", f"/a2a/buyer{path}", b"{}", {"authorization": f"Bearer {server.key}"}
            )
            answer = connection.getresponse()
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
            connection.close()


@pytest.mark.slow
def test_messages_are_the_same_as_those_of_the_sdk() -> None:
    from holdfast.serve.a2a_protobuf import message_of, plain_message

    ids = {"taskId": "t", "contextId": "c"}
    part = {"data": {"a": [1, None, {"b": "x"}], "é": 2.5}, "mediaType": "application/json"}
    message = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}, part], **ids}
    status = {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-01T00:00:00.123Z"}
    file = {"url": "https://a.example/x", "filename": "x", "mediaType": "text/plain"}
    artifact = {"artifactId": "a", "name": "a", "parts": [file, {"data": None}, {"data": [1]}]}
    task = {"id": "t", "contextId": "c", "status": {**status, "message": message}}
    task |= {"artifacts": [artifact], "history": [message, message]}
    assert plain_message("Task", task) == message_of("Task", task)
    for update in (
        {"statusUpdate": {**ids, "status": status}},
        {"artifactUpdate": {**ids, "artifact": artifact, "append": True, "lastChunk": False}},
    ):
        assert plain_message("StreamResponse", update) == message_of("StreamResponse", update)
    with pytest.raises(KeyError, match="unknown"):
        plain_message("Task", {"unknown": 1})


def test_required_fields_are_those_of_the_sdk() -> None:
    from a2a.utils.errors import InvalidParamsError
    from a2a.utils.proto_utils import validate_proto_required_fields

    from holdfast.serve.a2a_protobuf import check_required, message_of

    whole: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    push = {"taskPushNotificationConfig": {"url": "https://a.example"}}
    requests: list[dict[str, Any]] = [{}, {"message": whole, "metadata": {"a": [{"b": None}]}}]
    for left_out in whole:
        requests.append({"message": {k: v for k, v in whole.items() if k != left_out}})
    for config in (push, {}, {"taskPushNotificationConfig": {"id": "1"}}):
        requests.append({"message": whole, "configuration": config})
    refused = 0
    for request in requests:
        message, errors = message_of("SendMessageRequest", request), list[Any]()
        for check in (check_required, validate_proto_required_fields):
            try:
                check(message)
                errors.append(None)
            except InvalidParamsError as error:
                errors.append(error.data)
        assert errors[0] == errors[1], request
        refused += errors[0] is not None
    assert 0 < refused < len(requests)


@pytest.mark.slow
def test_an_agent_that_is_published_anew_gets_the_next_task(tmp_path: Path) -> None:
    answers: list[str] = []
    for reply in ("one", "two"):
        with served([reply], tmp_path) as server:
            events = Client(server).send(text("Hi"))
            assert rest_of(events)[0] == "COMPLETED"
            answers.append(Client(server).get(rest_of(events)[1]["taskId"])["history"][1]["parts"])
    assert answers == [[text("one")], [text("two")]]


def test_a_cancelled_task_is_over() -> None:
    with served([[BUY], "done"]) as server:
        _, ids = rest_of(Client(server).send(text("Buy it.")))
        _, answer = rpc(server, call("CancelTask", id=ids["taskId"]))
        assert answer["result"]["status"]["state"] == "TASK_STATE_CANCELED"
        _, answer = rpc(server, call("CancelTask", id=ids["taskId"]))
        assert answer["error"]["code"] == -32002
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "approve"}], **ids}
        _, answer = rpc(server, call("SendMessage", message=message))
        assert answer["error"]["code"] == -32004


@pytest.mark.slow
def test_a_message_without_work_is_answered_by_a_message() -> None:
    no_work = ("reply_only", {})
    with served([no_work, "I paint."]) as server:
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [text("What can you do?")]}
        _, answer = rpc(server, call("SendMessage", message=message))
        reply = answer["result"]["message"]
        assert (reply["role"], reply["parts"]) == ("ROLE_AGENT", [text("I paint.")])
        assert "taskId" not in reply
        # The context goes on. A stream has shown its task before the agent knows it.
        events = Client(server).send(text("Hello."), contextId=reply["contextId"])
        assert rest_of(events)[0] == "COMPLETED"
        assert events[0]["task"]["contextId"] == reply["contextId"]


@pytest.mark.slow
def test_a_task_that_has_begun_is_answered_by_a_task() -> None:
    with served([[("reply_only", {}), ASK], ("reply_only", {}), "Red, then."]) as server:
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [text("Hello.")]}
        _, answer = rpc(server, call("SendMessage", message=message))
        task = answer["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        message |= {"messageId": "2", "taskId": task["id"], "parts": [text("red")]}
        _, answer = rpc(server, call("SendMessage", message=message))
        assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.slow
def test_output_and_named_files_are_artifacts(tmp_path: Path) -> None:
    script = [[("offer_file", {"path": "https://example.com/a.csv"})], [("finish", {"n": 3})]]
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    painter = agent(script, output_type=shape)
    with a2a(painter, name="buyer", allow_tools=["tests.*", "holdfast.*"]) as server:
        client = Client(server)
        _, ids = rest_of(client.send(text("Count.")))
        file, output = client.get(ids["taskId"])["artifacts"]
    assert file["parts"][0] == {
        "url": "https://example.com/a.csv",
        "filename": "a.csv",
        "mediaType": "text/csv",
    }
    assert output["parts"][0]["data"] == {"n": 3}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_changes_are_pushed_with_the_credentials_of_the_client(version: str) -> None:
    with Receiver() as receiver, served([[BUY], "done"], webhook_allow=["127.0.0.1"]) as server:
        _, ids = rest_of(Client(server).send(text("Buy it.")))
        config = {
            "taskId": ids["taskId"],
            "id": "mine",
            "url": receiver.url,
            "token": "t0",
            "authentication": {"scheme": "Bearer", "credentials": "c0"},
        }
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
        headers = {
            "authorization": f"Bearer {server.key}",
            "content-type": "application/json",
            "a2a-version": "1.0",
        }
        if version == "1.0":
            path = f"/a2a/buyer/tasks/{ids['taskId']}/pushNotificationConfigs"
            body: Any = config
        else:
            path = "/a2a/buyer/v0.3"
            settings = {**config, "authentication": {"schemes": ["Bearer"], "credentials": "c0"}}
            del settings["taskId"]
            params = {"taskId": ids["taskId"], "pushNotificationConfig": settings}
            method = "tasks/pushNotificationConfig/set"
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            del headers["a2a-version"]
        connection.request("POST", path, json.dumps(body), headers)
        assert connection.getresponse().status == 200
        connection.close()
        Client(server).send(text("approve"), **ids)
        until(lambda: bool(receiver.deliveries))
        delivery = receiver.deliveries[0]
        pushed = json.loads(delivery.body)
        task = pushed["task"] if version == "1.0" else pushed
        assert task["id"] == ids["taskId"]
        assert task["status"]["state"] in ("TASK_STATE_COMPLETED", "completed")
        assert delivery.headers["authorization"] == "Bearer c0"
        assert delivery.headers["x-a2a-notification-token"] == "t0"
        _, listed = rpc(server, call("ListTaskPushNotificationConfigs", taskId=ids["taskId"]))
        assert [one["id"] for one in listed["result"]["configs"]] == ["mine"]


@pytest.mark.slow
def test_a_signed_card_is_verified_by_the_sdk() -> None:
    from a2a.types import AgentCard
    from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from google.protobuf.json_format import ParseDict

    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = private.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    with served(["hi"], key=CardKey.of_pem(pem)) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
        connection.request("GET", "/.well-known/agent-card.json")  # without a key
        card = ParseDict(json.loads(connection.getresponse().read()), AgentCard())
        connection.close()
    verify = create_signature_verifier(lambda kid, jku: public, ["ES256"])
    verify(card)
    card.name = "another"
    with pytest.raises(SignatureVerificationError):
        verify(card)


@pytest.mark.slow
def test_our_own_client_uses_the_agent_as_a_tool() -> None:
    with served(["red"]) as server:
        config = {"shop": {"url": f"{server.url}/a2a/buyer", "token": server.key}}
        with A2AClient(config) as client:
            (tool,) = client.tools()
            assert "red" in tool.run({"message": "Which colour?"}).text


@pytest.mark.slow
def test_an_approval_and_a_question_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, [calls(BUY), calls(ASK), model_text("red")]) as (server, _):
        drive_through_kills(server)


@contextmanager
def serving(folder: Path, script: list[Any]) -> Generator[tuple[ServeProcess, ModelServer]]:
    functions = [
        {"module": "tests.door_tools", "function": "pay"},
        {"module": "tests.door_tools", "function": "ask_user"},
    ]
    form = {"tools": {"local_functions": functions}, "confirm": ["pay"]}
    file = f"buyer={folder / 'buyer.json'}"
    arguments = ("--a2a", file, "--allow-tools", "*", "--variable", "KEY=k")
    with ModelServer(script) as model:
        model_form = {"name": "m", "base_url": model.url, "api_key": "${KEY}"}
        (folder / "buyer.json").write_text(json.dumps({"model": model_form, **form}))
        with ServeProcess(folder, *arguments, library=REPO) as server:
            yield server, model


@pytest.mark.slow
def test_a_client_subscribes_again_after_a_restart(tmp_path: Path) -> None:
    from a2a.types import SubscribeToTaskRequest
    from google.protobuf.json_format import MessageToDict

    subscribed = threading.Event()

    def answer(_: Any) -> Any:
        subscribed.wait(30)
        return model_text("red")

    with serving(tmp_path, [Stall(60), answer]) as (server, model):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [text("Which colour?")]}
        at_once = {"returnImmediately": True}
        _, task_answer = rpc(
            _AddressAndKey(server), call("SendMessage", message=message, configuration=at_once)
        )
        id = task_answer["result"]["task"]["id"]
        until(lambda: model.requests, "the first request")
        server.kill()
        server.start()
        until(lambda: len(model.requests) == 2, "the request of the new server")

        async def work(client: Any) -> list[Any]:
            received: list[Any] = []
            async for event in client.subscribe(SubscribeToTaskRequest(id=id)):
                received.append(MessageToDict(event))
                subscribed.set()
            return received

        events = Client(server, key=KEY).run(work)
    assert events[0]["task"]["status"]["state"] == "TASK_STATE_WORKING"
    assert rest_of(events)[0] == "COMPLETED"
    pieces = [one["artifactUpdate"] for one in events if "artifactUpdate" in one]
    assert pieces[-1]["artifact"]["parts"] == [{"text": "red"}]


def drive_through_kills(server: ServeProcess) -> None:
    client = Client(server, key=KEY)
    _, ids = rest_of(client.send(text("Buy it.")))
    server.kill()
    server.start()
    client = Client(server, key=KEY)
    assert client.get(ids["taskId"])["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    state, _ = rest_of(client.send(text("approve"), **ids))
    assert state == "INPUT_REQUIRED"
    before = question_of(client.get(ids["taskId"]))
    server.kill()
    server.start()
    client = Client(server, key=KEY)

    until(lambda: question_of(client.get(ids["taskId"])) not in (before, ""))  # asked anew
    state, _ = rest_of(client.send(text("red"), **ids))
    assert state == "COMPLETED"
    results = [
        one["result"]["content"][0]["text"]
        for one in rpc_events(_AddressAndKey(server), ids["taskId"])[1]
        if one["type"] == "toolResult"
    ]
    assert results[0] == "paid 3"
    assert results.count("paid 3") == 1


def question_of(task: Any) -> str:
    """Return the id of the question that a task waits for, or ""."""
    parts = task["status"].get("message", {}).get("parts", [])
    return next((one["data"].get("questionId", "") for one in parts if "data" in one), "")


class _AddressAndKey:
    """The address and the key of a server."""

    def __init__(self, server: ServeProcess) -> None:
        self.url, self.key = server.url, KEY
