"""Tests of webhooks: deliveries to a receiver on a real socket that fails, is slow or is away, and
a server that is killed during a delivery."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import ipaddress
import itertools
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, ScriptedLLM
from holdfast import events as ev
from holdfast.agent.serial_form import form_of
from holdfast.content import TextContent
from holdfast.errors import ConfigurationError, SignatureInvalid
from holdfast.server import webhooks
from holdfast.server.deliveries import Sending
from holdfast.server.outgoing import AllowedHosts, destination_of, is_public
from holdfast.server.webhooks import new_secret, verify
from tests.agent_servers import Serving
from tests.leftovers import Owned
from tests.serve_process import KEY, ServeProcess
from tests.server.test_tenants import files_with
from tests.waiting import until
from tests.webhook_receiver import Delivery, Receiver

QUICK = Sending(allow=("127.0.0.1",), first=0.02, longest=0.2, timeout=100.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path, sending=QUICK) as running:
        yield running


def hook(server: Serving, url: str, key: str = "", **more: Any) -> dict[str, Any]:
    """Make a new webhook, and return it."""
    reply = server.ask("POST", "/api/webhooks", {"url": url, **more}, key)
    assert reply.status == 201, reply
    return reply.json


def talk(server: Serving, id: str, answers: int = 1, key: str = "") -> str:
    """Make a conversation that has come to rest, and return its path."""
    path = server.make(id, ["hello"] * 10, key)
    say(server, path, answers, key)
    return path


def say(server: Serving, path: str, times: int = 1, key: str = "") -> None:
    for _ in range(times):
        assert server.ask("POST", f"{path}/messages", {"text": "go"}, key).status == 202
        assert server.ask("POST", f"{path}/run", key=key).status == 200
        until(lambda: server.ask("GET", path, key=key).json["status"] == "finished")


def journal(server: Serving | ServeProcess, id: str) -> list[dict[str, Any]]:
    return server.ask("GET", f"/api/conversations/{id}/events?limit=1000").json["events"]


def messages(count: int, size: int = 10) -> list[ev.MessageAdded]:
    """Return the events of a journal."""
    now = dt.datetime.now(dt.UTC)
    return [
        ev.MessageAdded(
            seq=seq, id=f"{seq:032x}", timestamp=now, content=(TextContent("x" * size),)
        )
        for seq in range(1, count + 1)
    ]


# --- deliveries ---


@pytest.mark.slow
def test_every_event_of_the_journal_is_sent_in_order_and_signed(server: Serving) -> None:
    with Receiver() as receiver:
        webhook = hook(server, receiver.url)
        talk(server, "c", 3)
        events = journal(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= len(events))
    assert [one.json["data"]["event"] for one in receiver.deliveries] == events
    assert len({one.id for one in receiver.deliveries}) == len(events)
    for one in receiver.deliveries:
        received = verify(one.body, one.headers, webhook["secret"])
        assert (received.id, received.conversation_id, received.seq) == (one.id, "c", one.seq)
        assert received.event is not None
        assert received.event.seq == one.seq
        assert (one.path, one.headers["content-type"]) == ("/hook", "application/json")


@pytest.mark.slow
def test_a_signature_is_that_of_the_specification(server: Serving) -> None:
    with Receiver() as receiver:
        webhook = hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 3)
    key = base64.b64decode(webhook["secret"].removeprefix("whsec_"))
    for one in receiver.deliveries:
        signed = f"{one.id}.{one.headers['webhook-timestamp']}.".encode() + one.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert one.headers["webhook-signature"] == f"v1,{expected}"
        assert abs(int(one.headers["webhook-timestamp"]) - one.at) < 60


def test_the_reference_library_takes_what_is_sent(server: Serving) -> None:
    reference = pytest.importorskip("standardwebhooks", reason="standardwebhooks is not installed")
    with Receiver() as receiver:
        webhook = hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 3)
    for one in receiver.deliveries:
        assert reference.Webhook(webhook["secret"]).verify(one.body, one.headers) == one.json
        with pytest.raises(reference.WebhookVerificationError):
            reference.Webhook(new_secret()).verify(one.body, one.headers)


@pytest.mark.slow
def test_only_the_wanted_events_are_sent(server: Serving) -> None:
    with Receiver() as receiver:
        hook(server, f"{receiver.url}/some", events=["assistant", "status.finished"])
        hook(
            server,
            f"{receiver.url}/one",
            conversationId=talk(server, "own").rpartition("/")[2],
            events=["assistant"],
        )
        talk(server, "c", 2)
        say(server, "/api/conversations/own")
        receiver.until(lambda: len(receiver.deliveries) >= 2 + 4 + 2 + 1)
        kinds_sent = [(one.path, one.conversation, one.json["type"]) for one in receiver.deliveries]
        assert [kind for path, id, kind in kinds_sent if (path, id) == ("/hook/some", "c")] == [
            "assistant",
            "status",
        ] * 2
        assert [(id, kind) for path, id, kind in kinds_sent if path == "/hook/one"] == [
            ("own", "assistant")
        ]
    reply = server.ask("POST", "/api/webhooks", {"url": receiver.url, "events": ["nonsense"]})
    assert reply.status == 422
    assert "status.finished" in reply.json["error"]["message"]


@pytest.mark.slow
def test_a_large_event_is_sent_as_its_head_with_a_link_to_it(tmp_path: Path) -> None:
    with (
        Serving(tmp_path, sending=Sending(allow=("127.0.0.1",), largest=1000)) as server,
        Receiver() as receiver,
    ):
        webhook = hook(server, receiver.url, events=["message"])
        path = server.make("c")
        say_long = server.ask("POST", f"{path}/messages", {"text": "x" * 2000})
        assert say_long.status == 202
        receiver.until(lambda: len(receiver.deliveries) >= 1)
        delivery = receiver.deliveries[0]
        assert len(delivery.body) < 1000
        received = verify(delivery.body, delivery.headers, webhook["secret"])
        assert (received.event, received.type) == (None, "message")
        (event,) = server.ask("GET", received.link).json["events"]
        assert event["content"][0]["text"] == "x" * 2000
        assert delivery.json["data"]["size"] > 2000


@pytest.mark.slow
def test_a_webhook_hears_of_what_comes_or_of_all(server: Serving) -> None:
    path = talk(server, "c")
    before = len(journal(server, "c"))
    with Receiver() as receiver:
        hook(server, f"{receiver.url}/now")
        hook(server, f"{receiver.url}/all", begin="start")
        say(server, path)
        events = journal(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 2 * len(events) - before)
        assert [one.seq for one in receiver.deliveries if one.path == "/hook/all"] == list(
            range(1, len(events) + 1)
        )
        assert [one.seq for one in receiver.deliveries if one.path == "/hook/now"] == list(
            range(before + 1, len(events) + 1)
        )


@pytest.mark.slow
def test_a_fork_tells_what_is_its_own(server: Serving) -> None:
    path = talk(server, "c")
    with Receiver() as receiver:
        hook(server, receiver.url)
        assert server.ask("POST", f"{path}/fork", {"id": "f", "seq": 3}).status == 201
        say(server, "/api/conversations/f")
        events = journal(server, "f")
        receiver.until(lambda: len(receiver.deliveries) >= len(events) - 3)
        assert [one.seq for one in receiver.accepted("f")] == list(range(4, len(events) + 1))


@pytest.mark.slow
def test_each_tenant_hears_of_its_own(server: Serving) -> None:
    with Receiver() as receiver:
        hook(server, f"{receiver.url}/mine")
        hook(server, f"{receiver.url}/other", server.other)
        talk(server, "c")
        talk(server, "d", key=server.other)
        receiver.until(
            lambda: (
                {one.path for one in receiver.deliveries if one.json["type"] == "assistant"}
                == {"/hook/mine", "/hook/other"}
            )
        )
        assert {(one.path, one.conversation) for one in receiver.deliveries} == {
            ("/hook/mine", "c"),
            ("/hook/other", "d"),
        }


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process"])
def test_what_a_worker_process_appends_is_sent(tmp_path: Path, isolation: Any) -> None:
    with Serving(tmp_path, sending=QUICK, isolation=isolation) as server, Receiver() as receiver:
        hook(server, receiver.url)
        talk(server, "c")
        events = journal(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= len(events))
        assert [one.json["data"]["event"] for one in receiver.deliveries] == events


# --- failures ---


@pytest.mark.slow
def test_the_order_of_each_conversation_holds_whatever_fails(server: Serving) -> None:
    chance = random.Random(7)
    with Receiver(lambda _: 500 if chance.random() < 0.4 else 204) as receiver:
        hook(server, receiver.url)
        threads = [
            threading.Thread(target=talk, args=(server, f"c{number}", 4)) for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events = {f"c{number}": journal(server, f"c{number}") for number in range(4)}
        receiver.until(
            lambda: all(len(receiver.accepted(id)) >= len(those) for id, those in events.items())
        )
        for id, those in events.items():
            assert [one.json["data"]["event"] for one in receiver.accepted(id)] == those
            came = [one.seq for one in receiver.deliveries if one.conversation == id]
            assert came == sorted(came), "an event was sent before the one before it was taken"
        by_event = {(one.conversation, one.seq, one.id) for one in receiver.deliveries}
        assert len(by_event) == sum(map(len, events.values())), "the same event came under two ids"
        assert any(one.status == 500 for one in receiver.deliveries)


@pytest.mark.slow
def test_what_happens_while_the_receiver_is_away_is_sent_when_it_is_back(server: Serving) -> None:
    with Receiver() as receiver:
        webhook = hook(server, receiver.url)
    talk(server, "c", 3)
    until(lambda: server.ask("GET", f"/api/webhooks/{webhook['id']}").json["error"] != "")
    status = server.ask("GET", f"/api/webhooks/{webhook['id']}").json
    assert "No connection" in status["error"]
    assert status["failing"] == 1
    with Receiver(port=receiver.port) as back:
        events = journal(server, "c")
        back.until(lambda: len(back.deliveries) >= len(events))
        assert [one.json["data"]["event"] for one in back.deliveries] == events
    until(lambda: server.ask("GET", f"/api/webhooks/{webhook['id']}").json["failing"] == 0)
    assert server.ask("GET", f"/api/webhooks/{webhook['id']}").json["error"] == ""


@pytest.mark.slow
def test_a_slow_receiver_holds_up_nobody_else(server: Serving) -> None:
    free = threading.Event()

    def slow(delivery: Delivery) -> int:
        if delivery.path == "/hook/slow":
            free.wait(90)
        return 204

    with Receiver(slow) as receiver:
        hook(server, f"{receiver.url}/slow")
        for number in range(6):
            talk(server, f"s{number}")  # more than the sender reads at once
        hook(server, f"{receiver.url}/quick", server.other)
        hook(server, f"{receiver.url}/quick2")
        talk(server, "c", key=server.other)
        talk(server, "d")
        receiver.until(
            lambda: (
                {"c", "d"}
                <= {
                    one.conversation
                    for one in receiver.deliveries
                    if one.json["type"] == "assistant"
                }
            )
        )
        assert not [one for one in receiver.deliveries if one.path == "/hook/slow"]
        free.set()
        receiver.until(
            lambda: (
                {one.conversation for one in receiver.deliveries if one.path == "/hook/slow"}
                >= {f"s{n}" for n in range(6)}
            )
        )


@pytest.mark.slow
def test_one_conversation_that_is_not_taken_holds_up_no_other(server: Serving) -> None:
    with Receiver(lambda request: 500 if request.conversation == "bad" else 204) as receiver:
        webhook = hook(server, receiver.url)
        talk(server, "bad")
        talk(server, "good")
        receiver.until(
            lambda: any(one.json["type"] == "assistant" for one in receiver.accepted("good"))
        )
        assert {one.seq for one in receiver.deliveries if one.conversation == "bad"} == {1}
        (delivery,) = server.ask("GET", f"/api/webhooks/{webhook['id']}/deliveries").json[
            "deliveries"
        ]
        assert (delivery["conversationId"], delivery["afterSeq"], delivery["error"]) == (
            "bad",
            0,
            "The receiver answered 500.",
        )
        assert delivery["attempts"] >= 1


@pytest.mark.slow
def test_a_thousand_events_are_caught_up_with(server: Serving) -> None:
    server.make("c")
    server.host.chats.append("default", "c", messages(1000))
    with Receiver() as receiver:
        hook(server, receiver.url, begin="start")
        receiver.until(lambda: len(receiver.deliveries) >= 1000)
        assert [one.seq for one in receiver.deliveries] == list(range(1, 1001))


@pytest.mark.slow
def test_retry_after_is_obeyed(server: Serving) -> None:
    with Receiver() as receiver:
        receiver.answer = lambda request: (
            (503, {"Retry-After": "1"}) if not receiver.deliveries else 204
        )
        hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 3)
        assert receiver.deliveries[1].at - receiver.deliveries[0].at >= 0.9
        assert receiver.deliveries[1].id == receiver.deliveries[0].id


@pytest.mark.slow
def test_a_receiver_that_answers_410_is_left_alone_until_it_is_enabled(server: Serving) -> None:
    with Receiver(lambda _: 410) as receiver:
        webhook = hook(server, receiver.url)
        path = f"/api/webhooks/{webhook['id']}"
        talk(server, "c")
        until(lambda: server.ask("GET", path).json["state"] == "gone")
        talk(server, "d")
        assert len(receiver.deliveries) == 1
        receiver.answer = lambda _: 204
        assert server.ask("PUT", path, {"enabled": True}).json["state"] == "active"
        count = len(journal(server, "c")) + len(journal(server, "d"))
        receiver.until(lambda: len(receiver.accepted()) >= count)
        for id in ("c", "d"):
            assert [one.json["data"]["event"] for one in receiver.accepted(id)] == journal(
                server, id
            )


@pytest.mark.slow
def test_a_disabled_webhook_goes_on_where_it_was(server: Serving) -> None:
    with Receiver() as receiver:
        path = f"/api/webhooks/{hook(server, receiver.url)['id']}"
        c = talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= len(journal(server, "c")))
        assert server.ask("PUT", path, {"enabled": False}).json["state"] == "disabled"
        came = len(receiver.deliveries)
        say(server, c)
        assert len(receiver.deliveries) == came
        assert (
            server.ask(
                "PUT",
                path,
                {"enabled": True, "url": f"{receiver.url}/new", "events": ["assistant"]},
            ).status
            == 200
        )
        receiver.until(lambda: len(receiver.deliveries) > came)
        assert [(one.path, one.json["type"]) for one in receiver.deliveries[came:]] == [
            ("/hook/new", "assistant")
        ]


@pytest.mark.slow
def test_no_redirect_is_followed(server: Serving) -> None:
    with Receiver() as receiver:
        receiver.answer = lambda request: (
            (307, {"Location": f"{receiver.url}/elsewhere"})
            if len(receiver.deliveries) < 3
            else 204
        )
        webhook = hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.accepted()) >= 1)
        assert {one.path for one in receiver.deliveries} == {"/hook"}
        assert webhook["error"] == ""


@pytest.mark.slow
def test_what_is_given_up_is_shown_and_sent_again_when_it_is_asked_for(tmp_path: Path) -> None:
    sending = Sending(allow=("127.0.0.1",), first=0.02, longest=0.05, give_up=0.3)
    with Serving(tmp_path, sending=sending) as server, Receiver(lambda _: 500) as receiver:
        path = f"/api/webhooks/{hook(server, receiver.url)['id']}"
        talk(server, "c")
        events = journal(server, "c")
        until(lambda: server.ask("GET", path).json["dead"] == len(events))
        (delivery,) = server.ask("GET", f"{path}/deliveries").json["deliveries"]
        (dead,) = delivery["dead"]
        assert (dead["firstSeq"], dead["lastSeq"], dead["count"], dead["error"]) == (
            1,
            len(events),
            len(events),
            "The receiver answered 500.",
        )
        assert (
            f"holdfast_webhook_dead_total {len(events)}"
            in server.ask("GET", "/metrics").body.decode()
        )
        receiver.answer = lambda _: 204
        say(server, "/api/conversations/c")
        whole = journal(server, "c")
        receiver.until(lambda: len(receiver.accepted()) >= len(whole) - len(events))
        assert [one.seq for one in receiver.accepted()] == list(
            range(len(events) + 1, len(whole) + 1)
        )
        failed = {one.seq: one.id for one in receiver.deliveries if one.status == 500}
        came = len(receiver.accepted())
        assert server.ask("POST", f"{path}/redeliver", {}).json == {"dead": len(events)}
        receiver.until(lambda: len(receiver.accepted()) >= came + len(whole))
        again = receiver.accepted()[came:]
        assert [one.json["data"]["event"] for one in again] == whole
        assert {one.seq: one.id for one in again if one.seq in failed} == failed, (
            "the same event came under another id"
        )
        until(lambda: server.ask("GET", path).json["dead"] == 0)
        assert server.ask("GET", f"{path}/deliveries").json == {"deliveries": [], "next": None}
        came = len(receiver.accepted())
        assert server.ask(
            "POST", f"{path}/redeliver", {"conversationId": "c", "afterSeq": len(whole) - 1}
        ).json == {"dead": 0}
        receiver.until(lambda: len(receiver.accepted()) > came)
        assert receiver.accepted()[-1].seq == len(whole)


# --- life and death ---


@pytest.mark.proof
def test_a_server_that_is_killed_in_the_middle_loses_nothing_and_keeps_the_order(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)

    def answer(_: Delivery) -> int:
        time.sleep(chance.random() * 0.01)  # so that there is a middle
        return 503 if chance.random() < 0.05 else 204

    ids = [f"c{number}" for number in range(20)]
    form = form_of(Agent(ScriptedLLM(["hello"] * 50))).mapping
    with (
        Receiver(answer) as receiver,
        ServeProcess(tmp_path, "--webhook-allow", "127.0.0.1") as server,
    ):
        created = server.ask("POST", "/api/webhooks", {"url": receiver.url})
        assert created.status == 201, created
        for id in ids:
            assert server.ask("POST", "/api/conversations", {"id": id, "agent": form}).status == 201
            assert server.ask("POST", f"/api/conversations/{id}/start").status == 200
        for number in range(3):
            came = len(receiver.deliveries)
            for id in ids:
                assert (
                    server.ask(
                        "POST", f"/api/conversations/{id}/messages", {"text": f"go {number}"}
                    ).status
                    == 202
                )
            receiver.until(lambda came=came: len(receiver.deliveries) > came + 15)
            server.kill()
            server.start()
        until(
            lambda: all(
                server.ask("GET", f"/api/conversations/{id}").json["status"] == "finished"
                for id in ids
            ),
            seconds=60,
        )
        events = {id: journal(server, id) for id in ids}
        count = sum(map(len, events.values()))
        receiver.until(
            lambda: len({one.id for one in receiver.deliveries if one.status == 204}) >= count
        )
        for id, those in events.items():
            assert [one.json["data"]["event"] for one in receiver.first(id)] == those, (
                "lost, or out of order"
            )
        assert (
            len({(one.conversation, one.seq) for one in receiver.deliveries})
            == len({one.id for one in receiver.deliveries})
            == count
        )
        secret = created.json["secret"]
        assert all(
            verify(one.body, one.headers, secret).id == one.id for one in receiver.deliveries
        )
        assert server.end() == 143  # SIGTERM
        server.start()
        assert server.ask("GET", "/api/webhooks").json["webhooks"][0]["failing"] == 0


@pytest.mark.slow
def test_no_secret_is_in_a_file_a_log_or_a_later_answer(tmp_path: Path) -> None:
    secret, token = new_secret(), "token-0123456789abcdef"
    with Receiver(lambda _: 500) as receiver:
        options = ("--webhook-allow", "127.0.0.1", "--access-log")
        with ServeProcess(tmp_path, *options, env={"HOLDFAST_DEBUG": "1"}) as server:
            body = {"url": f"{receiver.url}?token={token}", "secret": secret}
            webhook = server.ask("POST", "/api/webhooks", body).json
            path = f"/api/webhooks/{webhook['id']}"
            other = server.ask("POST", f"{path}/secret", {}).json["secret"]
            server.ask("POST", "/api/webhooks", {**body, "url": f"{receiver.url}?token={token} "})
            server.ask("POST", "/api/webhooks", {**body, "secret": secret[:-6] + "!"})
            form = form_of(Agent(ScriptedLLM(["hello"]))).mapping
            assert (
                server.ask("POST", "/api/conversations", {"id": "c", "agent": form}).status == 201
            )
            assert server.ask("POST", "/api/conversations/c/messages", {"text": "go"}).status == 202
            receiver.until(lambda: len(receiver.deliveries) >= 2)
            for place in ("/api/webhooks", path, f"{path}/deliveries", "/metrics", "/openapi.json"):
                body_text = server.ask("GET", place).body.decode()
                assert secret not in body_text, place
                assert other not in body_text, place
            server.kill()
        assert (
            files_with(tmp_path, secret.removeprefix("whsec_"), other.removeprefix("whsec_"), token)
            == []
        )


@pytest.mark.slow
def test_a_deleted_conversation_takes_what_was_its_own_along(server: Serving) -> None:
    with Receiver() as receiver:
        hook(server, f"{receiver.url}/all")
        talk(server, "c")
        webhook = hook(server, f"{receiver.url}/one", conversationId="c")
        receiver.until(lambda: len(receiver.deliveries) >= len(journal(server, "c")))
        first = {one.id for one in receiver.deliveries}
        assert server.ask("DELETE", "/api/conversations/c").status == 204
        assert server.ask("GET", f"/api/webhooks/{webhook['id']}").status == 404
        came = len(receiver.deliveries)
        talk(server, "c")
        events = journal(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= came + len(events))
        assert [one.json["data"]["event"] for one in receiver.deliveries[came:]] == events
        assert not first & {one.id for one in receiver.deliveries[came:]}
        assert (
            server.ask(
                "POST", "/api/webhooks", {"url": receiver.url, "conversationId": "nobody"}
            ).status
            == 404
        )


@pytest.mark.slow
def test_a_closed_server_leaves_no_thread_and_no_connection(tmp_path: Path) -> None:
    before = Owned()
    with Receiver() as receiver, Serving(tmp_path, sending=QUICK) as server:
        hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 3)
        hook(server, "https://127.0.0.1:1/away")
        say(server, talk(server, "d"), 0)
    before.wait_until_released()


# --- secrets and ids ---


@pytest.mark.slow
def test_while_a_secret_is_replaced_both_verify(server: Serving) -> None:
    with Receiver() as receiver:
        webhook = hook(server, receiver.url, secret=new_secret())
        path = f"/api/webhooks/{webhook['id']}"
        renewed = server.ask("POST", f"{path}/secret", {"overlap": 3600}).json
        assert renewed["secret"] != webhook["secret"]
        assert renewed["oldSecretUntil"] is not None
        c = talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 1)
        delivery = receiver.deliveries[0]
        assert len(delivery.headers["webhook-signature"].split(" ")) == 2
        for secret in (webhook["secret"], renewed["secret"], [new_secret(), webhook["secret"]]):
            assert verify(delivery.body, delivery.headers, secret).id == delivery.id
        last = server.ask("POST", f"{path}/secret", {"overlap": 0}).json
        came = len(journal(server, "c"))
        say(server, c)
        receiver.until(lambda: any(one.seq > came for one in receiver.deliveries))
        delivery = receiver.deliveries[-1]
        assert verify(delivery.body, delivery.headers, last["secret"])
        with pytest.raises(SignatureInvalid):
            verify(delivery.body, delivery.headers, renewed["secret"])


@pytest.mark.slow
def test_a_webhook_is_made_once_for_a_key(server: Serving) -> None:
    body = {"url": "https://hooks.example.com/a"}
    first = server.ask("POST", "/api/webhooks", body, Idempotency_Key="k")
    again = server.ask("POST", "/api/webhooks", body, Idempotency_Key="k")
    assert (first.status, again.json) == (201, first.json)
    assert (
        server.ask(
            "POST", "/api/webhooks", {"url": "https://hooks.example.com/b"}, Idempotency_Key="k"
        ).status
        == 409
    )
    assert (
        server.ask("POST", "/api/webhooks", body, server.other, Idempotency_Key="k").json["id"]
        != first.json["id"]
    )
    assert len(server.ask("GET", "/api/webhooks").json["webhooks"]) == 1
    assert server.ask("DELETE", f"/api/webhooks/{first.json['id']}").status == 204
    assert server.ask("GET", "/api/webhooks").json["webhooks"] == []


def signed(secret: str, now: float, **headers: str) -> tuple[bytes, dict[str, str]]:
    event = ev.StatusChanged(seq=1, id="a", timestamp=dt.datetime.now(dt.UTC), status="finished")
    body = webhooks.body_of("c", event, 1000)
    return body, {**webhooks.headers_of("msg_1", body, [secret], now), **headers}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"webhook-id": "msg_2"}, "does not match this secret"),
        ({"webhook-timestamp": "1000001"}, "does not match this secret"),
        ({"webhook-signature": "v1,AAAA"}, "does not match this secret"),
        ({"webhook-signature": "v2,\xff v1"}, "does not match this secret"),
        ({"webhook-signature": ""}, "lacks one of the headers"),
    ],
)
def test_what_was_changed_is_not_taken(change: dict[str, str], says: str) -> None:
    secret = new_secret()
    body, headers = signed(secret, 1_000_000.0)
    assert verify(body, headers, secret, now=1_000_000.0).type == "status"
    with pytest.raises(SignatureInvalid, match=says):
        verify(body, {**headers, **change}, secret, now=1_000_000.0)
    with pytest.raises(SignatureInvalid, match="does not match"):
        verify(body + b" ", headers, secret, now=1_000_000.0)


def test_what_is_old_or_from_the_future_is_not_taken() -> None:
    secret = new_secret()
    body, headers = signed(secret, 1_000_000.0)
    for now in (1_000_301.5, 999_699.0):
        with pytest.raises(SignatureInvalid, match="300 s"):
            verify(body, headers, [secret], now=now)
    assert verify(body, headers, [secret], now=1_000_301.5, tolerance=600)
    with pytest.raises(ConfigurationError, match="whsec_"):
        verify(body, headers, "short")


# --- allowed destinations ---


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://LOCALHOST./",
        "https://a.localhost/",
        "https://10.1.2.3/",
        "https://192.168.0.1/",
        "https://172.16.0.1/",
        "https://169.254.169.254/latest/",
        "https://100.64.0.1/",
        "https://0.0.0.0/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fe80::1]/",
        "https://[fd00::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://224.0.0.1/",
        "https://[ff02::1]/",
        "https://user:pass@hooks.example.com/",
        "https://hooks.example.com/#a",
        "https://evil.example\\@hooks.example.com/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https:///a",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "https://hooks.example.com/\r\nx: y",
        "https://ho oks.example.com/",
        "https://höoks.example/",
        "https://hooks.example.com/" + "a" * 2000,
        "https://[fe80::1%25eth0]/",
        "gopher://127.0.0.1/",
        "//hooks.example.com/",
        "",
    ],
)
def test_an_address_that_is_not_public_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^url must|--webhook-allow"):
        destination_of(url, AllowedHosts())


def test_a_server_refuses_what_its_operator_does_not_allow(tmp_path: Path) -> None:
    with Serving(tmp_path) as server, Receiver() as receiver:
        for url in (
            receiver.url,
            receiver.url.replace("http:", "https:"),
            "https://169.254.169.254/",
        ):
            refused = server.ask("POST", "/api/webhooks", {"url": url})
            assert (refused.status, refused.error) == (422, "ConfigurationError")
            assert "--webhook-allow" in refused.json["error"]["message"]


def test_what_the_operator_allows_is_taken() -> None:
    allowed = AllowedHosts(["hooks.internal", "10.0.0.0/8", "[::1]", "192.168.1.1"])
    for url in (
        "http://hooks.internal/",
        "https://HOOKS.internal:8443/a?b",
        "http://10.1.2.3/",
        "http://[::1]:8080/",
        "http://192.168.1.1/",
    ):
        assert destination_of(url, allowed).host
    assert destination_of("https://HOOKS.internal:8443/a?b", allowed) == (
        True,
        "hooks.internal",
        8443,
        "/a?b",
    )
    assert destination_of("http://[::1]:8080/", allowed).authority == "[::1]:8080"
    for url in (
        "http://192.168.1.2/",
        "https://192.168.1.2/",
        "http://hooks.internal.evil.example/",
    ):
        with pytest.raises(ConfigurationError, match="--webhook-allow"):
            destination_of(url, allowed)
    for host in ("a b", "http://a", "10.0.0.0/99", ""):
        with pytest.raises(ConfigurationError, match="a name, an address or a network"):
            AllowedHosts([host])
    assert is_public(ipaddress.ip_address("93.184.216.34"))
    assert is_public(ipaddress.ip_address("2606:2800:220:1::"))


def looked_up(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Make names in .test lead to these addresses, one answer after the other. Returns the list of
    names that were resolved."""
    real, names, coming = (
        socket.getaddrinfo,
        [],
        itertools.chain(answers, itertools.repeat(answers[-1])),
    )

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(host, str) and host.endswith(".test"):
            names.append(host)
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
                for address in next(coming)
            ]
        return real(host, port, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


@pytest.mark.slow
def test_a_name_that_leads_to_a_private_address_is_refused_when_it_does(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up(monkeypatch, ["93.184.216.34", "10.0.0.1"])
    webhook = hook(server, "https://hooks.test/a")
    talk(server, "c")
    until(lambda: server.ask("GET", f"/api/webhooks/{webhook['id']}").json["error"] != "")
    assert "not public" in server.ask("GET", f"/api/webhooks/{webhook['id']}").json["error"]


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's context with a certificate of its own for a name, and the certificate's
    file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, file


@pytest.mark.slow
def test_a_certificate_is_checked_and_the_address_that_was_looked_at_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, file = certificate(tmp_path, "good.test")
    names = looked_up(monkeypatch, ["127.0.0.1"], ["127.0.0.1"], ["192.0.2.1"])
    tls = ssl.create_default_context(cafile=str(file))
    network = ("127.0.0.0/8",)  # the address is allowed, and not the name
    with Receiver(tls=context) as receiver:
        with Serving(tmp_path, sending=Sending(allow=network, tls=tls, first=0.02)) as server:
            wrong = hook(server, f"https://wrong.test:{receiver.port}/")
            talk(server, "c")
            until(lambda: server.ask("GET", f"/api/webhooks/{wrong['id']}").json["error"] != "")
            assert "certificate" in server.ask("GET", f"/api/webhooks/{wrong['id']}").json["error"]
            assert server.ask("DELETE", f"/api/webhooks/{wrong['id']}").status == 204
            assert not receiver.deliveries
            del names[:]
        names = looked_up(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
        with Serving(tmp_path, sending=Sending(allow=network, tls=tls, first=0.02)) as server:
            hook(server, f"https://good.test:{receiver.port}/")
            talk(server, "d")
            receiver.until(lambda: len(receiver.deliveries) >= 4)
            assert names == ["good.test"], "it was looked up more than once for one connection"
    with (
        Receiver(tls=context) as receiver,
        Serving(tmp_path, sending=Sending(allow=("good.test", *network), first=0.02)) as server,
    ):
        looked_up(monkeypatch, ["127.0.0.1"])
        unknown = hook(server, f"https://good.test:{receiver.port}/")
        talk(server, "e")
        until(
            lambda: (
                "certificate" in server.ask("GET", f"/api/webhooks/{unknown['id']}").json["error"]
            )
        )
        assert not receiver.deliveries


@pytest.mark.slow
def test_what_a_receiver_answers_is_not_told(server: Serving) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def babble() -> None:
        listening.settimeout(0.05)
        while not stop.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                connection.recv(100)
                connection.sendall(b"SSH-2.0-secret-of-a-server\r\n\r\n")

    thread = threading.Thread(target=babble)
    thread.start()
    try:
        webhook = hook(server, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        talk(server, "c")
        path = f"/api/webhooks/{webhook['id']}"
        until(lambda: server.ask("GET", f"{path}/deliveries").json["deliveries"] != [])
        (delivery,) = server.ask("GET", f"{path}/deliveries").json["deliveries"]
        assert delivery["error"] in (
            "The answer is not HTTP/1.1.",
            "The connection was closed without an answer.",
            "The connection broke: Connection reset by peer.",
        )
        assert "SSH" not in json.dumps(server.ask("GET", path).json)
    finally:
        stop.set()
        thread.join()
        listening.close()


@pytest.mark.slow
def test_a_tenant_has_so_many_webhooks(tmp_path: Path) -> None:
    from holdfast.server.limits import Bounds

    with Serving(tmp_path, sending=QUICK, bounds=Bounds(webhooks=2)) as server:
        for number in range(2):
            hook(server, f"https://hooks.example.com/{number}")
        refused = server.ask("POST", "/api/webhooks", {"url": "https://hooks.example.com/3"})
        assert (refused.status, refused.error) == (409, "TooMany")
        hook(server, "https://hooks.example.com/3", server.other)


@pytest.mark.slow
def test_the_numbers_tell_of_webhooks(server: Serving) -> None:
    with Receiver() as receiver:
        hook(server, receiver.url)
        talk(server, "c")
        receiver.until(lambda: len(receiver.deliveries) >= 3)
        until(
            lambda: (
                "holdfast_webhook_conversations_pending 0"
                in server.ask("GET", "/metrics").body.decode()
            )
        )
        metrics = server.ask("GET", "/metrics").body.decode()
    assert f"holdfast_webhook_messages_total {len(receiver.deliveries)}" in metrics
    assert "# TYPE holdfast_webhook_failures_total counter" in metrics
    assert "holdfast_webhooks 1" in metrics
    assert KEY not in metrics
