"""Tests of `RemoteConversation` and its network: events once and in order whatever happens to
connections, each action done once, and keys that stay secret."""

from __future__ import annotations

import copy
import pickle
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    ConversationStatus,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    Tool,
    ToolContext,
)
from holdfast import events as ev
from holdfast.content import TextContent, ToolCall
from holdfast.errors import (
    AuthenticationError,
    ConfigurationError,
    Conflict,
    ConversationBusy,
    ConversationClosed,
    ConversationNotFound,
    LeaseHeld,
    LimitExceeded,
    NotFound,
    RuntimeFault,
    StoreError,
    UnreadableEvent,
)
from holdfast.llm.completion import Delta
from holdfast.remote import follower, server_client
from holdfast.remote.failures import error_by_name, failure
from tests.remote_parts import KEY, Proxy, StubServer, _Handler, connections
from tests.waiting import until


def open_on(url: str, id: str | None = None, tools: Any = (), **options: Any) -> RemoteConversation:
    workspace = RemoteWorkspace(url, KEY, timeout=options.pop("timeout", 60.0))
    return RemoteConversation(Agent(ScriptedLLM([]), tools), workspace, id, **options)


# --- events ---


def follow_1000(faults: dict[str, float], seed: int) -> Proxy:
    """Follow 1,000 events through a proxy with these faults. The callback gets each, once, in
    order."""
    with StubServer() as server, Proxy(server.port, seed, **faults) as proxy:
        conversation = open_on(proxy.url)
        received: list[tuple[int, str]] = []
        conversation.register_event_callback(lambda event: received.append((event.seq, event.text)))
        for number in range(1, 1001):
            server.say("c1", f"message {number}")
            if not number % 50:  # so that there is a stream to follow, not one page to fetch
                until(partial(lambda least: len(received) >= least, number - 100), seconds=60)
        until(lambda: len(received) >= 1000, seconds=60)
        conversation.close()
        assert received == [(number, f"message {number}") for number in range(1, 1001)]
    return proxy


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "delay", "twice", "half"])
def test_a_thousand_events_are_told_once_and_in_order_through_a_bad_network(fault: str) -> None:
    proxy = follow_1000({fault: 0.1}, 7)
    assert proxy.done[fault] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_events_survive_all_faults_at_once(seed: int) -> None:
    proxy = follow_1000({"cut": 0.05, "delay": 0.1, "twice": 0.05, "half": 0.05}, seed)
    assert proxy.connections > 3


def test_after_seq_resumes_and_none_means_from_now_on() -> None:
    with StubServer() as server:
        conversation = open_on(server.url, "mine")
        for number in range(5):
            server.say("mine", f"{number}")
        all_of_them: list[int] = []
        some: list[int] = []
        new: list[int] = []
        conversation.register_callback(lambda event: all_of_them.append(event.seq), after_seq=0)
        conversation.register_event_callback(lambda event: some.append(event.seq), after_seq=3)
        last = conversation.register_event_callback(lambda event: new.append(event.seq))
        server.say("mine", "6")
        until(lambda: new == [6] and some == [4, 5, 6] and all_of_them == [1, 2, 3, 4, 5, 6])
        until(lambda: last.seq == 6)
        conversation.close()
        with pytest.raises(ConversationClosed, match="closed"):
            conversation.register_callback(print)


def test_a_callback_that_raises_is_told_of_the_next_event() -> None:
    seqs: list[int] = []

    def callback(event: Any) -> None:
        seqs.append(event.seq)
        raise RuntimeError("the listener's own")

    with StubServer() as server:
        conversation = open_on(server.url)
        conversation.register_callback(callback)
        server.say("c1", "a")
        server.say("c1", "b")
        until(lambda: seqs == [1, 2])
        conversation.close()


@pytest.mark.slow
def test_a_stream_that_says_nothing_is_asked_for_again() -> None:
    with StubServer() as server:
        conversation = open_on(server.url)
        conversation._here.follower.silence = 0.2
        assert conversation.status is ConversationStatus.IDLE
        until(lambda: server.streams == 1)
        server.silent = True
        until(lambda: server.streams >= 3)
        server.say("c1", "while it was silent")
        server.silent = False
        until(lambda: conversation.state.last_seq == 1)
        conversation.close()


@pytest.mark.slow
def test_a_server_that_is_gone_for_a_while_is_found_again() -> None:
    with StubServer() as server, Proxy(server.port) as proxy:
        conversation = open_on(proxy.url)
        seqs: list[int] = []
        conversation.register_callback(lambda event: seqs.append(event.seq))
        until(lambda: server.streams == 1)
        proxy.target = 1  # nobody listens there
        proxy.cut_all()
        server.say("c1", "unheard")
        time.sleep(0.3)
        assert seqs == []
        proxy.target = server.port
        until(lambda: seqs == [1])
        conversation.close()


def test_a_conversation_that_was_deleted_says_so_and_is_in_error() -> None:
    with StubServer() as server, Proxy(server.port) as proxy:
        conversation = open_on(proxy.url)
        assert conversation.status is ConversationStatus.IDLE
        until(lambda: server.streams == 1)
        del server.journals["c1"]
        proxy.cut_all()
        until(lambda: conversation.status is ConversationStatus.ERROR)
        assert isinstance(conversation.failure, ConversationNotFound)
        with pytest.raises(ConversationNotFound):
            conversation.send_message("hello?")
        conversation.close()


def test_a_slow_callback_holds_up_nobody_else() -> None:
    with StubServer() as server:
        conversation = open_on(server.url)
        go_on = threading.Event()
        fast: list[int] = []
        conversation.register_callback(lambda event: go_on.wait(20))
        conversation.register_callback(lambda event: fast.append(event.seq))
        for _ in range(20):
            server.say("c1", "x")
        until(lambda: len(fast) == 20)
        assert conversation.state.last_seq == 20
        go_on.set()
        conversation.close()


def test_a_delta_of_a_kind_that_is_not_known_is_skipped() -> None:
    deltas: list[Delta] = []
    with StubServer() as server:
        unknown_delta = b'{"kind": "applause", "text": "clap", "loudness": 11}'
        known_delta = b'{"kind": "text", "text": "Hi", "new": true}'
        server.notes = b"".join(
            b"event: delta\ndata: %b\n\n" % one for one in (unknown_delta, known_delta)
        )
        conversation = open_on(server.url, client_tools=False, on_delta=deltas.append)
        conversation.start_thread()
        until(lambda: deltas)
        assert deltas == [Delta("text", text="Hi")]
        server.say(conversation.id, "and on")
        until(lambda: conversation.state.last_seq == 1)
        conversation.detach()


# --- no request more than needed ---


def test_a_run_is_followed_by_its_stream_and_not_by_reading_the_events_again() -> None:
    with StubServer() as server:
        conversation = open_on(server.url, client_tools=False)
        conversation.start_thread()
        conversation.send_message("hello")
        conversation.wait(0.05)
        until(lambda: server.streams)
        paths = [path.partition("?")[0].rpartition("/")[2] for _, path, _, _ in server.requests]
        assert paths.count("events") == 1, paths  # the message that was sent
        conversation.detach()


# --- each thing once ---


@pytest.mark.slow
def test_sending_through_a_bad_network_makes_each_message_once() -> None:
    with StubServer() as server, Proxy(server.port, 3, cut=0.15, half=0.1, delay=0.1) as proxy:
        conversation = open_on(proxy.url)
        events = [conversation.send_message(f"message {number}") for number in range(60)]
        assert [(event.seq, event.text) for event in events] == [
            (number + 1, f"message {number}") for number in range(60)
        ]
        assert len(server.journals["c1"]) == 60
        assert len(server.bodies) == 1  # one conversation was made
        # A request that was cut in its headers has no key, and is refused.
        posts = [
            headers.get("idempotency-key")
            for _, path, headers, _ in server.requests
            if path.endswith("/messages")
        ]
        posts = [key for key in posts if key]
        assert len(posts) > len(set(posts)) == 60
        conversation.close()


def test_a_refusal_for_the_moment_is_asked_again_when_the_server_says() -> None:
    busy = b'{"error": {"type": "RateLimited", "message": "Too many."}}'
    with StubServer() as server:
        conversation = open_on(server.url)
        server.answers = [
            ("/messages", 429, {"retry-after": "0.3"}, busy),
            ("/messages", 503, {}, busy),
        ]
        began = time.monotonic()
        assert conversation.send_message("hi").text == "hi"
        assert time.monotonic() - began >= 0.3
        conversation.close()


def test_asking_in_vain_ends_at_the_deadline_with_the_reason() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    began = time.monotonic()
    with pytest.raises(StoreError, match=f"127.0.0.1:{port}.*Cannot connect") as caught:
        open_on(f"http://127.0.0.1:{port}", timeout=0.5)
    assert time.monotonic() - began < 10
    assert isinstance(caught.value, OSError)
    with pytest.raises(RuntimeFault, match="could not be reached"):
        RemoteWorkspace(f"http://127.0.0.1:{port}", KEY, timeout=0.3).run_command("true")


@pytest.mark.slow
def test_a_server_that_never_answers_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(StoreError, match=r"did not answer|sent nothing"),
    ):
        open_on(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"events": [nope', "is another service at that address"),
        (
            (
                b'{"events": [{"type": "message", "seq": 7, "id": "a", "timestamp":'
                b' "2026-11-21T10:00:00Z", "content": []}], "lastSeq": 7}'
            ),
            "events 7..7 instead of event 1",
        ),
    ],
)
def test_a_page_of_events_that_is_none_is_said_and_not_asked_for_again(
    body: bytes, says: str
) -> None:
    with StubServer() as server:
        conversation = open_on(server.url)
        server.answers = [("/events", 200, {}, body)] * 3
        with pytest.raises(StoreError, match=f"(?i){re.escape(says)}"):
            conversation.get_history()
        assert len(server.answers) == 2
        conversation.close()


@pytest.mark.slow
def test_pages_that_promise_more_for_ever_end_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with StubServer() as server:
        conversation = open_on(server.url, timeout=0.5)
        for number in range(30_000):
            server.journals["c1"].append(
                ev.encode(
                    ev.MessageAdded(
                        (), seq=number + 1, id=f"e{number}", timestamp=datetime.now(UTC)
                    )
                )
            )
        answer = _Handler._answer

        def one_of_many(
            handler: Any, path: str, query: dict[str, str], *rest: Any
        ) -> tuple[int, Any]:
            return answer(handler, path, {**query, "limit": "1"}, *rest)

        monkeypatch.setattr(_Handler, "_answer", one_of_many)
        with pytest.raises(StoreError, match=r"sent only|before the deadline"):
            conversation._copy.catch_up()
        assert 0 < conversation._copy.fold.last_seq < 30_000
        conversation.close()


@pytest.mark.parametrize(
    "body", [b"<html>log in</html>", b'{"id": 5}', b'{"id": "x HTTP/1.1\\r\\nX-Evil: 1"}']
)
def test_an_answer_that_is_no_agent_servers_is_said_to_be_none(body: bytes) -> None:
    with StubServer() as server:
        server.answers = [("/conversations", 201, {}, body)]
        with pytest.raises(StoreError, match="sent an answer unlike an agent server"):
            open_on(server.url)
        server.answers = [("/tools", 200, {}, body)]
        with (
            RemoteWorkspace(server.url, KEY, id="w") as workspace,
            pytest.raises(RuntimeFault, match="sent an answer unlike an agent server"),
        ):
            _ = workspace.tools


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_client, "MAX_RESPONSE_BYTES", 10_000)
    monkeypatch.setattr(follower, "MAX_EVENT_BYTES", 10_000)
    with StubServer() as server:
        conversation = open_on(server.url)
        server.say("c1", "x" * 2000)
        for _ in range(20):  # smaller pages have them
            server.say("c1", "x" * 500)
        conversation._copy.catch_up()
        assert conversation._copy.fold.last_seq == 21
        server.say("c1", "x" * 1_000_000)
        with pytest.raises(StoreError, match="more than 10,000 bytes"):
            conversation._copy.catch_up()
        with pytest.raises(StoreError, match="without an event"):
            conversation._here.follower._follow()
        conversation.close()


# --- the same errors ---


def test_the_servers_errors_are_raised_as_what_they_are() -> None:
    with StubServer() as server:
        conversation = open_on(server.url)

        def raises(kind: type[Exception], status: int, type: str) -> None:
            body = b'{"error": {"type": "%b", "message": "Because."}}' % type.encode()
            server.answers.append(("/approve", status, {}, body))
            with pytest.raises(kind, match="Because"):
                conversation.approve("3.0")

        raises(ConfigurationError, 422, "ConfigurationError")
        raises(ConversationBusy, 409, "ConversationBusy")
        raises(LeaseHeld, 409, "LeaseHeld")
        raises(LimitExceeded, 409, "LimitExceeded")
        raises(AuthenticationError, 401, "AuthenticationError")
        raises(Conflict, 409, "SomethingNewer")
        raises(ConfigurationError, 422, "SomethingNewer")
        raises(StoreError, 500, "SystemExit")
        conversation.close()
    assert isinstance(
        failure(404, b"<html>not found</html>", "http://x", "GET /"), ConversationNotFound
    )
    assert "<html>" in str(failure(500, b"<html>oh</html>", "http://x", "GET /"))
    assert isinstance(error_by_name("NoSuchFile", "gone"), FileNotFoundError)
    assert not isinstance(error_by_name("BaseException", "x"), SystemExit)


def test_redirects_are_not_followed() -> None:
    with StubServer() as server, StubServer() as other:
        server.answers = [
            ("/conversations", 307, {"location": f"{other.url}/api/conversations"}, b"")
        ]
        with pytest.raises(StoreError, match="redirect"):
            open_on(server.url)
        assert other.requests == []


def test_arguments_that_do_not_fit_are_named() -> None:
    agent = Agent(ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="RemoteWorkspace"):
        RemoteConversation(agent)
    with pytest.raises(ConfigurationError, match="agent takes"):
        RemoteConversation(None, RemoteWorkspace("http://localhost:1", KEY))
    for url in ("localhost", "ftp://x", "http://", "http://x?y=1"):
        with pytest.raises(ConfigurationError, match="url takes"):
            RemoteWorkspace(url, KEY)
    with pytest.raises(ConfigurationError, match="user and password"):
        RemoteWorkspace("http://me:secret@host", KEY)
    for key in ("", "two\nlines", "späte"):
        with pytest.raises(ConfigurationError, match="key takes"):
            RemoteWorkspace("http://host", key)


# --- the address ---


def test_the_address_may_have_a_path() -> None:
    with StubServer(prefix="/agents/v1") as server:
        conversation = open_on(server.url + "/")
        conversation.send_message("hi")
        assert conversation.state.last_seq == 1
        conversation.close()
        assert all(path.startswith("/agents/v1/api/") for _, path, _, _ in server.requests)


@pytest.mark.slow
def test_https_is_verified_unless_told_otherwise(tmp_path: Path) -> None:
    import subprocess

    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    agent = Agent(ScriptedLLM([]))
    with StubServer(tls=tls) as server:
        with pytest.raises(StoreError, match="TLS"):
            RemoteConversation(agent, RemoteWorkspace(server.url, KEY, timeout=5))
        for options in (
            {"verify": False},
            {"ssl_context": ssl.create_default_context(cafile=str(certificate))},
        ):
            conversation = RemoteConversation(agent, RemoteWorkspace(server.url, KEY, **options))
            conversation.send_message("hi")
            conversation.close()


# --- the key ---


def test_the_key_is_nowhere_but_on_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with StubServer() as server:
        workspace = RemoteWorkspace(server.url, KEY)
        conversation = RemoteConversation(Agent(ScriptedLLM([])), workspace)
        server.answers = [("/messages", 503, {}, b"x"), ("/pause", 500, {}, b"x")]
        conversation.send_message("hi")
        with pytest.raises(StoreError) as caught:
            conversation.pause()
        texts = [
            repr(workspace),
            repr(conversation),
            repr(workspace.link),
            str(caught.value),
            caplog.text,
        ]
        conversation.close()
        assert not [text for text in texts if KEY in text]
        for thing in (workspace, conversation, workspace.link):
            with pytest.raises(TypeError, match="not pickled"):
                pickle.dumps(thing)
            with pytest.raises(TypeError, match="not pickled"):
                copy.copy(thing)
    with StubServer() as server, pytest.raises(AuthenticationError) as refused:
        RemoteConversation(
            Agent(ScriptedLLM([])), RemoteWorkspace(server.url, "wrong-key-0123456789")
        )
    assert "wrong-key" not in str(refused.value)


# --- threads and sockets ---


def test_one_that_is_only_sent_to_has_no_thread_and_none_is_left_after_close() -> None:
    with StubServer() as server:
        before = set(threading.enumerate())
        conversation = open_on(server.url)
        conversation.send_message("hi")
        assert not [
            thread
            for thread in threading.enumerate()
            if thread not in before and thread.name.startswith("holdfast")
        ]
        events: list[Any] = []
        conversation.register_callback(events.append)
        assert conversation.status is ConversationStatus.IDLE
        until(lambda: server.streams == 1)
        assert connections(server.port)
        mine = {
            thread.name.rsplit("-", 1)[0]
            for thread in set(threading.enumerate()) - before
            if thread.name.startswith("holdfast")
        }
        assert mine == {"holdfast-follower", "holdfast-callback"}
        conversation.close()
        conversation.close()
        assert not [
            thread
            for thread in threading.enumerate()
            if thread not in before and thread.name.startswith("holdfast")
        ]
        assert conversation.state.status is ConversationStatus.CLOSED
        with pytest.raises(ConversationClosed):
            conversation.send_message("again")
    with suppress(AssertionError):
        until(lambda: not connections(server.port), seconds=10)
    assert not connections(server.port)


# --- calls that clients run ---


def ask(server: StubServer, id: str) -> None:
    """Write the journal of a call with a question."""
    offer(server, id, ToolCall("4.0", "shout"))
    question = ev.Question("4.0?1", "Really?", None)
    server.append(
        id,
        (ev.ToolCallStarted, {"call_id": "4.0"}),
        (ev.DecisionMade, {"call_id": "4.0", "decision": "ask", "question": question}),
    )


def offer(server: StubServer, id: str, *calls: ToolCall, tool: str = "shout") -> None:
    """Write the journal of an agent that has made these calls of a client's tool."""
    definition = ev.ToolDefinition(
        tool, "", {"type": "object", "properties": {}}, executor="client"
    )
    last = len(server.journals[id])
    server.append(
        id,
        (ev.MessageAdded, {"content": (TextContent("go"),)}),
        (ev.StatusChanged, {"status": "running"}),
        (ev.AgentConfigured, {"system_prompt": "", "tools": (definition,)}),
        (ev.AssistantReplied, {"calls": calls, "based_on": last + 3}),
    )


def test_two_clients_race_for_a_call_and_one_runs_it() -> None:
    ran: list[str] = []

    def shout(context: ToolContext, text: str) -> str:
        ran.append(context.idempotency_key)
        return text.upper()

    with StubServer(tools={"shout": "client"}) as server:
        clients = [open_on(server.url, "shared", [Tool.from_function(shout)]) for _ in range(2)]
        for client in clients:
            client.start_thread()
        calls = [ToolCall(f"4.{n}", "shout", {"text": f"t{n}"}) for n in range(20)]
        offer(server, "shared", *calls)
        until(lambda: len(server.results) == 20)
        for client in clients:
            client.close()
    assert sorted(ran) == sorted(f"shared:4.{n}" for n in range(20))
    texts = {call_id: body["result"]["content"][0]["text"] for call_id, _, body in server.results}
    assert texts == {f"4.{n}": f"T{n}" for n in range(20)}


@pytest.mark.slow
def test_a_claimed_call_goes_on_over_a_reconnect_and_its_result_is_given_once() -> None:
    began, go_on = threading.Event(), threading.Event()

    def shout() -> str:
        began.set()
        assert go_on.wait(20)
        return "done"

    with StubServer(tools={"shout": "client"}) as server, Proxy(server.port) as proxy:
        conversation = open_on(proxy.url, tools=[shout])
        conversation.start_thread()
        offer(server, "c1", ToolCall("4.0", "shout"))
        assert began.wait(20)
        proxy.target = 1
        proxy.cut_all()
        go_on.set()
        time.sleep(0.3)
        assert server.results == []
        proxy.target = server.port
        until(lambda: len(server.results) == 1)
        until(lambda: server.streams == 2)
        server.say("c1", "more")
        until(lambda: conversation.state.last_seq == len(server.journals["c1"]))
        assert len(server.results) == 1
        conversation.close()


def test_an_interrupt_seen_on_the_stream_cancels_what_runs_here() -> None:
    cancelled = threading.Event()

    def shout(context: ToolContext) -> None:
        began.set()
        context.sleep(30)

    began = threading.Event()
    with StubServer(tools={"shout": "client"}) as server:
        conversation = open_on(server.url, tools=[shout])
        conversation.start_thread()
        offer(server, "c1", ToolCall("4.0", "shout"))
        assert began.wait(20)
        server.append("c1", (ev.StatusChanged, {"status": "paused", "reason": "interrupted"}))
        until(lambda: len(server.results) == 1)
        assert server.results[0][2]["result"]["isError"] is True
        assert server.results[0][2]["result"]["error"]["type"] == "cancelled"
        cancelled.set()
        conversation.close()


def test_calls_wait_for_their_approval_and_are_left_alone_while_paused() -> None:
    ran: list[str] = []

    def shout(text: str) -> str:
        ran.append(text)
        return text

    with StubServer(tools={"shout": "client"}) as server:
        conversation = open_on(server.url, tools=[shout])
        conversation.start_thread()
        call = ToolCall("4.0", "shout", {"text": "model's"})
        offer(server, "c1", call)
        server.append(
            "c1",
            (
                ev.DecisionMade,
                {"call_id": "4.0", "decision": "ask", "arguments_hash": call.arguments_hash},
            ),
        )
        # In fact both are in one append; the call may have been claimed between. So another call
        # comes with its request for approval in one append.
        until(lambda: len(server.results) >= 0)
        later_call = ToolCall("7.0", "shout", {"text": "asked"})
        server.append(
            "c1",
            (ev.AssistantReplied, {"calls": (later_call,), "based_on": 4}),
            (
                ev.DecisionMade,
                {"call_id": "7.0", "decision": "ask", "arguments_hash": later_call.arguments_hash},
            ),
            (ev.StatusChanged, {"status": "waiting_for_confirmation"}),
        )
        until(
            lambda: (
                len(conversation.state.pending_confirmations) == 1
                and conversation.state.pending_confirmations[0].call.id == later_call.id
            )
        )
        assert "asked" not in ran
        edited = {"text": "edited"}
        server.append(
            "c1",
            (
                ev.DecisionMade,
                {
                    "call_id": "7.0",
                    "decision": "approve",
                    "arguments_hash": later_call.arguments_hash,
                    "arguments": edited,
                },
            ),
            (ev.StatusChanged, {"status": "running"}),
        )
        until(lambda: "edited" in ran)
        assert "asked" not in ran
        conversation.close()


def test_a_tool_may_start_conversations_but_not_wait_for_its_own() -> None:
    outcomes: list[Any] = []

    with StubServer(tools={"shout": "client"}) as server:

        def shout() -> str:
            other = open_on(server.url, "other")
            outcomes.append(other.send_message("from within").text)
            other.close()
            outcomes.append(conversation.send_message("to myself").text)
            for method in (conversation.wait, conversation.run):
                try:
                    method()
                except ConversationBusy as error:
                    outcomes.append(str(error))
            return "ok"

        conversation = open_on(server.url, "base", tools=[shout])
        conversation.start_thread()
        offer(server, "base", ToolCall("4.0", "shout"))
        until(lambda: len(server.results) == 1)
        conversation.close()
    assert outcomes[:2] == ["from within", "to myself"]
    assert ["wait()" in outcomes[2], "run()" in outcomes[3]] == [True, True]


def test_a_tool_may_close_its_own_conversation() -> None:
    with StubServer(tools={"shout": "client"}) as server:
        before = set(threading.enumerate())

        def shout() -> str:
            conversation.close()
            return "closed"

        conversation = open_on(server.url, tools=[shout])
        conversation.start_thread()
        offer(server, "c1", ToolCall("4.0", "shout"))
        until(lambda: len(server.results) == 1)
        until(
            lambda: (
                not [
                    t for t in set(threading.enumerate()) - before if t.name.startswith("holdfast")
                ]
            )
        )
        assert conversation.status is ConversationStatus.CLOSED


def test_a_call_that_closes_its_own_conversation_stops_it_before_its_result_is_given_back() -> None:
    with StubServer(tools={"shout": "client"}) as server:

        def shout() -> str:
            conversation.close()
            return "closed"

        conversation = open_on(server.url, tools=[shout])
        conversation.start_thread()
        offer(server, "c1", ToolCall("4.0", "shout"))
        until(lambda: len(server.results) == 1 and conversation._closed)
        paths = [
            path.rpartition("/")[2] for method, path, _, _ in server.requests if method == "POST"
        ]
        assert paths[-2:] == ["close", "result"]


def test_an_answer_to_a_question_is_told_again_until_the_server_is_back() -> None:
    with StubServer() as server, Proxy(server.port) as proxy:
        questions: list[str] = []

        def on_question(question: ev.Question) -> bool:
            questions.append(question.id)
            proxy.target = 1  # nobody listens there
            proxy.cut_all()
            return True

        conversation = open_on(proxy.url, timeout=0.3, on_question=on_question)
        conversation.start_thread()
        until(lambda: server.streams == 1)
        refused = threading.Event()
        give = conversation._here.questions._answer

        def watched(*arguments: Any) -> None:
            try:
                give(*arguments)
            except StoreError:
                refused.set()
                raise

        conversation._here.questions._answer = watched
        ask(server, "c1")
        assert refused.wait(30)
        proxy.target = server.port
        until(lambda: [path for _, path, _, _ in server.requests if path.endswith("/answer")])
        assert questions == ["4.0?1"]
        conversation.close()


def test_a_workspace_outlives_a_detached_conversation_and_its_end_does_not_raise() -> None:
    def removed(server: StubServer) -> bool:
        return any(method == "DELETE" for method, *_ in server.requests)

    with StubServer() as server:
        with RemoteWorkspace(server.url, KEY) as workspace:
            workspace.made()
            RemoteConversation(Agent(ScriptedLLM([])), workspace).detach()
        assert not removed(server)
        workspace = RemoteWorkspace(server.url, KEY)
        workspace.made()
        server.answers = [
            ("", 409, {}, b'{"error": {"type": "Conflict", "message": "It is in use."}}')
        ]
        with pytest.raises(KeyError), workspace:
            raise KeyError("the program's own")
        assert removed(server)


def test_wait_asks_whether_it_is_driven_not_whether_it_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = _Handler._info
    monkeypatch.setattr(
        _Handler,
        "_info",
        lambda handler, one: {**info(handler, one), "open": True, "driven": False},
    )
    with StubServer() as server:
        conversation = open_on(server.url)
        server.append("c1", (ev.StatusChanged, {"status": "running"}))
        began = time.monotonic()
        assert conversation.wait(20) is ConversationStatus.RUNNING
        assert time.monotonic() - began < 15
        conversation.close()


def test_what_the_server_has_not_is_said() -> None:
    with StubServer() as server:
        conversation = open_on(server.url)
        for id in ("", "a/b", ".."):
            with pytest.raises(NotFound, match="has no result") as missing:
                conversation.get_output(id)
            assert (missing.value.kind, missing.value.id) == ("call", id)
        server.answers = [
            ("/fork", 409, {}, b'{"error": {"type": "Conflict", "message": "It exists already."}}')
        ]
        with pytest.raises(Conflict, match="exists already"):
            conversation.fork(id="taken")
        conversation.close()


def test_wait_returns_at_rest_and_at_its_timeout() -> None:
    with StubServer() as server:
        conversation = open_on(server.url)
        assert conversation.wait() is ConversationStatus.IDLE  # nobody drives it
        conversation.start_thread()
        conversation.send_message("hi")
        assert conversation.status is ConversationStatus.RUNNING
        assert conversation.wait(0.1) is ConversationStatus.RUNNING
        threading.Timer(
            0.2, lambda: server.append("c1", (ev.StatusChanged, {"status": "finished"}))
        ).start()
        assert conversation.wait(20) is ConversationStatus.FINISHED
        with pytest.raises(ConversationBusy):
            conversation.run()
        conversation.close()


def test_an_event_that_cannot_be_stored_is_told_by_its_class() -> None:
    error = failure(
        422, b'{"error": {"type": "UnreadableEvent", "message": "no"}}', "http://s", "x"
    )
    assert type(error) is UnreadableEvent
    assert str(error) == "no"
