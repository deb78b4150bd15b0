"""Tests of A2A agents that die, keep silent, refuse, babble or point elsewhere, of cancelled calls,
and of leftovers."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Agent, Conversation, ScriptedLLM
from holdfast.errors import ToolCancelled, ToolError, ToolTimeout
from holdfast.tools.a2a import A2AClient
from holdfast.tools.a2a.config import RemoteAgent
from holdfast.tools.a2a.connection import A2AConnection
from holdfast.tools.context import ToolContext
from tests import forks
from tests.a2a_parts import (
    TOKEN,
    VARIANTS,
    Agents,
    Cutter,
    Running,
    Scripted,
    by_skill,
    lines,
    needs_a2a,
)
from tests.leftovers import Owned
from tests.waiting import until

pytestmark = [needs_a2a, pytest.mark.slow]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with Agents(tmp_path_factory.mktemp("a2a")) as shared_agents:
        yield shared_agents


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: Any, agents: Agents) -> Running:
    version, transport, streaming = request.param
    return agents.shared(version=version, transport=transport, streaming=streaming)


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start `work` on a thread. Returns the thread, and a list that will hold the result or the
    exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


# --- cancelling, deadlines and closing ---


def test_a_cancelled_call_ends_at_once_and_the_agent_is_told(variant: Running) -> None:
    before = len(lines(variant, "hanging")), len(lines(variant, "cancelled"))
    with A2AClient({"ag": {"url": variant["url"]}}, timeout=10.0) as client:
        hang = by_skill(client)["hang"]
        context = ToolContext("c")
        thread, outcome = in_thread(lambda: hang.run({"message": "x"}, context))
        until(lambda: len(lines(variant, "hanging")) > before[0])
        started = time.monotonic()
        context.cancelled.cancel()
        thread.join()
        assert time.monotonic() - started < 8
        assert isinstance(outcome[0], ToolCancelled)
        until(lambda: len(lines(variant, "cancelled")) > before[1])
        assert by_skill(client)["echo"].run({"message": "x"}, ToolContext("c")).success


def test_a_call_that_is_cancelled_while_it_is_sent_is_cancelled_at_the_agent_too(
    agents: Agents,
) -> None:
    shared = agents.shared()
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        before = len(lines(shared, "execute hang")), len(lines(shared, "cancelled"))
        with A2AClient({"ag": {"url": shared["url"]}}, timeout=10.0) as client:
            context, hang = ToolContext("c"), by_skill(client)["hang"]
            thread, outcome = in_thread(
                lambda hang=hang, context=context: hang.run({"message": "x"}, context)
            )
            time.sleep(delay)
            context.cancelled.cancel()
            thread.join()
            assert isinstance(outcome[0], ToolCancelled)
        if len(lines(shared, "execute hang")) > before[0]:  # `close` waits for it
            until(lambda before=before: len(lines(shared, "cancelled")) > before[1])


def test_a_call_that_was_cancelled_before_it_began_is_not_sent(agents: Agents) -> None:
    shared = agents.shared()
    with A2AClient({"ag": {"url": shared["url"]}}) as client:
        tools, before = by_skill(client), len(lines(shared, "execute"))
        context = ToolContext()
        context.cancelled.cancel()
        with pytest.raises(ToolCancelled):
            tools["echo"].run({"message": "x"}, context)
        assert len(lines(shared, "execute")) == before


def test_a_call_ends_at_its_deadline_and_the_agent_is_told(variant: Running) -> None:
    before = len(lines(variant, "cancelled"))
    with A2AClient({"ag": {"url": variant["url"], "call_timeout": 0.7}}, timeout=10.0) as client:
        started = time.monotonic()
        with pytest.raises(
            ToolTimeout,
            match=r"'ag.hang' did not answer within 0.7 s; the agent was told to cancel",
        ):
            by_skill(client)["hang"].run({"message": "x"})
        assert time.monotonic() - started < 8
        until(lambda: len(lines(variant, "cancelled")) > before)


def test_closing_the_client_ends_its_calls_and_tells_the_agents(variant: Running) -> None:
    before = len(lines(variant, "hanging")), len(lines(variant, "cancelled"))
    client = A2AClient({"ag": {"url": variant["url"]}}, timeout=10.0)
    hang = by_skill(client)["hang"]
    thread, outcome = in_thread(lambda: hang.run({"message": "x"}, ToolContext("c")))
    until(lambda: len(lines(variant, "hanging")) > before[0])
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 9.0
    thread.join()
    assert isinstance(outcome[0], ToolError)
    assert (outcome[0].error_type, "the client was closed during the call" in str(outcome[0])) == (
        "network",
        True,
    )
    assert len(lines(variant, "cancelled")) > before[1]  # `close` has waited for it


def test_closing_one_agent_leaves_the_others_to_their_work(agents: Agents) -> None:
    shared = agents.shared()
    with A2AClient(
        {"one": {"url": shared["url"]}, "two": {"url": shared["url"]}}, timeout=10.0
    ) as client:
        tools = {tool.name: tool for tool in client}
        one, two = (
            in_thread(
                lambda name=name: tools[f"{name}.work"].run({"message": "0.5"}, ToolContext("c"))
            )
            for name in ("one", "two")
        )
        time.sleep(0.2)
        client.sources()[0].close()
        for thread, _ in (one, two):
            thread.join()
        assert isinstance(one[1][0], ToolError)
        assert two[1][0].text == "a garden"
        assert tools["one.echo"].run({"message": "x"}).success


def test_a_conversation_that_is_interrupted_has_its_task_cancelled(agents: Agents) -> None:
    shared = agents.shared()
    before = len(lines(shared, "hanging")), len(lines(shared, "cancelled"))
    with A2AClient({"ag": {"url": shared["url"], "token": TOKEN}}) as client:
        agent = Agent(ScriptedLLM([("ag__hang", {"message": "x"}), "never"]), [*client])
        with Conversation(agent) as conversation:
            conversation.send_message("Hang.")
            conversation.start_thread()
            until(lambda: len(lines(shared, "hanging")) > before[0])
            conversation.interrupt()
            until(lambda: len(lines(shared, "cancelled")) > before[1])
            assert not [event for event in conversation.get_history() if TOKEN in repr(event)]


# --- bad agents ---


def test_an_agent_that_is_killed_in_mid_call_is_a_network_error_and_found_again_when_it_is_back(
    agents: Agents, variant: Running
) -> None:
    with (
        agents.serve(**variant.kind()) as mine,
        A2AClient({"ag": {"url": mine["url"]}}, timeout=30.0) as client,
    ):
        tools = by_skill(client)
        started = time.monotonic()
        with pytest.raises(ToolError) as caught:
            tools["die"].run({"message": "x"}, ToolContext("c"))
        assert caught.value.error_type == "network"
        assert time.monotonic() - started < 20.0
        with pytest.raises(ToolError, match="ConnectError") as caught:
            tools["echo"].run({"message": "x"}, ToolContext("c"))
        assert caught.value.error_type == "network"
        assert not client.sources()[0].health(5.0).ok
        mine.restart()
        assert tools["echo"].run({"message": "x"}, ToolContext("c")).success


@pytest.mark.proof
def test_an_agent_that_has_moved_is_found_by_its_card(agents: Agents) -> None:
    with agents.serve() as card, agents.serve() as old, agents.serve() as new:
        card["endpoint"] = f"{old['url']}/a2a"
        card.restart()
        with A2AClient({"ag": {"url": card["url"]}}) as client:
            echo = by_skill(client)["echo"]
            card["endpoint"] = f"{new['url']}/a2a"
            card.restart()
            old.kill()
            with pytest.raises(ToolError, match="ConnectError"):
                echo.run({"message": "x"})
            assert echo.run({"message": "x"}).success


def test_a_bad_agent_harms_only_itself_and_says_why(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    good = agents.shared()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        config = {
            "deaf": {"url": f"http://127.0.0.1:{deaf.getsockname()[1]}", "timeout": 1.0},
            "silent": {"url": agents.shared(fault="silent")["url"], "timeout": 1.0},
            "garbage": {"url": agents.shared(fault="garbage")["url"]},
            "flood": {"url": agents.shared(fault="flood")["url"]},
            "absent": {"url": "http://127.0.0.1:9"},
            "nowhere": {"url": f"{good['url']}/nothing/here"},
            "grpc": {
                "url": agents.shared(
                    card={"supportedInterfaces": [{"url": "x:1", "protocolBinding": "GRPC"}]}
                )["url"]
            },
            "ag": {"url": good["url"]},
        }
        before = Owned()
        started = time.monotonic()
        with A2AClient(config, timeout=20.0) as client:
            assert {tool.name.partition(".")[0] for tool in client} == {"ag"}
            assert time.monotonic() - started < 10.0
            errors = client.errors
            kinds: dict[str, str] = {}
            for source in client.sources()[:-1]:
                with pytest.raises(ToolError) as caught:
                    source.discover()
                kinds[source.id] = caught.value.error_type
            assert by_skill(client)["echo"].run({"message": "x"}).success
        before.wait_until_released()
    assert set(errors) == set(config) - {"ag"}
    assert "did not answer within 1 s." in errors["deaf"]
    assert "did not answer within 1 s." in errors["silent"]
    assert "must be a JSON object" in errors["garbage"]
    assert "more than 64 MiB" in errors["flood"]
    assert "ConnectError" in errors["absent"]
    assert "HTTP 404" in errors["nowhere"]
    assert "names no endpoint for JSONRPC or HTTP+JSON" in errors["grpc"]
    expected = {"deaf": "timeout", "silent": "timeout", "absent": "network", "nowhere": "not_found"}
    assert kinds == {**dict.fromkeys(errors, "internal"), **expected}
    logged = [
        record.getMessage() for record in caplog.records if record.name == "holdfast.tools.a2a"
    ]
    assert sorted(logged) == sorted(errors.values())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication"),
        pytest.param(403, "authentication", marks=pytest.mark.proof),
        pytest.param(404, "not_found", marks=pytest.mark.proof),
        pytest.param(429, "rate_limit", marks=pytest.mark.proof),
        pytest.param(500, "internal", marks=pytest.mark.proof),
    ],
)
def test_an_http_status_decides_the_error_type_and_no_word_does(
    agents: Agents, status: int, kind: str
) -> None:
    for version in ("1.0", "0.3"):
        for transport in ("JSONRPC", "HTTP+JSON"):
            mine = agents.shared(version=version, transport=transport, status=status)
            with (
                A2AClient({"ag": {"url": mine["url"], "token": TOKEN}}) as client,
                pytest.raises(ToolError, match=f"HTTP {status}") as caught,
            ):
                by_skill(client)["echo"].run({"message": "x"})
            assert caught.value.error_type == kind
            assert TOKEN not in str(caught.value)


def test_a_token_that_is_refused_is_said(agents: Agents) -> None:
    mine = agents.shared(token=TOKEN)
    config = {
        "good": {"url": mine["url"], "token": TOKEN},
        "bad": {"url": mine["url"], "token": "wr0ng"},
        "none": {"url": mine["url"]},
    }
    with A2AClient(config) as client:
        assert {tool.name.partition(".")[0] for tool in client} == {"good"}
        assert (
            client.errors["bad"]
            == "A2A agent 'bad' could not be asked for its card: HTTP 401. Check its token."
        )
        assert set(client.errors) == {"bad", "none"}
        assert by_skill(client)["echo"].run({"message": "x"}).success


@pytest.mark.proof
def test_an_agent_that_takes_the_message_and_keeps_silent_is_given_up_at_the_deadline(
    agents: Agents,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for streaming in (True, False):
            mine = agents.shared(
                streaming=streaming, endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}"
            )
            before = Owned()
            with A2AClient(
                {"ag": {"url": mine["url"], "timeout": 0.5, "call_timeout": 1.0}}
            ) as client:
                echo = by_skill(client)["echo"]
                started = time.monotonic()
                with pytest.raises(ToolTimeout, match="within 1 s"):
                    echo.run({"message": "x"})
                assert time.monotonic() - started < 10
            assert time.monotonic() - started < 20
            before.wait_until_released()


@pytest.mark.proof
def test_a_question_after_a_task_may_fail_twice(agents: Agents) -> None:
    with agents.serve(streaming=False) as mine, Cutter(mine["port"]) as cutter:
        cutter.card = {
            "supportedInterfaces": [
                {"url": f"{cutter.url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ]
        }
        with A2AClient({"ag": {"url": cutter.url}}, timeout=5.0) as client:
            tools = by_skill(client)
            cutter.refusals = 2
            assert tools["work"].run({"message": "0.2"}, ToolContext("c")).text == "a garden"
            cutter.refusals = 3
            with pytest.raises(ToolError, match="HTTP 503") as caught:
                tools["work"].run({"message": "0.2"}, ToolContext("c"))
            assert caught.value.error_type == "network"


def test_a_stream_that_breaks_off_is_asked_after(agents: Agents) -> None:
    """Check that a cut stream is continued. A proxy between client and agent cuts every stream
    after its first event."""
    with agents.serve() as mine, Cutter(mine["port"]) as cutter:
        cutter.card = {
            "supportedInterfaces": [
                {"url": f"{cutter.url}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ]
        }
        with A2AClient({"ag": {"url": cutter.url}}, timeout=5.0) as client:
            assert (
                by_skill(client)["work"].run({"message": "0.2"}, ToolContext("c")).text
                == "a garden"
            )
            assert cutter.cut == 1
        # the task is queried, and the message never sent again
        assert len(lines(mine, "execute")) == 1


def task(state: str, text: str = "", number: int = 1, **more: Any) -> dict[str, Any]:
    status: dict[str, Any] = {
        "state": f"TASK_STATE_{state}",
        "timestamp": f"2026-01-01T00:00:0{number}Z",
    }
    if text:
        status["message"] = {
            "messageId": f"m{number}",
            "role": "ROLE_AGENT",
            "parts": [{"text": text}],
        }
    return {"id": "t", "contextId": "c", "status": status, **more}


def test_a_task_that_is_shown_as_it_was_before_the_answer_is_asked_after() -> None:
    script = [{"task": task("INPUT_REQUIRED", "Which?")}] * 2 + [
        task("INPUT_REQUIRED", "Which?"),
        task("INPUT_REQUIRED", "And now?", 2),
    ]
    with Scripted(script) as agent, A2AClient({"ag": {"url": agent.url}}) as client:
        ask = by_skill(client)["s"]
        assert ask.run({"message": "x"}, ToolContext("c")).text.startswith("Which?")
        assert ask.run({"message": "y"}, ToolContext("c")).text.startswith("And now?")
        assert agent.methods == ["SendMessage", "SendMessage", "GetTask", "GetTask"]
        assert agent.bodies[1]["params"]["message"]["taskId"] == "t"


def test_a_question_without_a_mark_is_believed_each_time() -> None:
    bare = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}
    with Scripted([{"task": bare}] * 2) as agent, A2AClient({"ag": {"url": agent.url}}) as client:
        for _ in range(2):
            assert (
                by_skill(client)["s"].run({"message": "x"}, ToolContext("c")).meta["state"]
                == "input-required"
            )


def test_an_answer_that_stands_in_the_history_alone_is_found_and_our_own_words_are_not_it() -> None:
    reply = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "It is done."}]}
    script = [
        {"task": task("COMPLETED", history=[reply])},
        {"task": task("COMPLETED", history=[{**reply, "role": "ROLE_USER"}])},
    ]
    with Scripted(script) as agent, A2AClient({"ag": {"url": agent.url}}) as client:
        assert by_skill(client)["s"].run({"message": "x"}).text == "It is done."
        assert by_skill(client)["s"].run({"message": "x"}).content == ()


def test_states_and_fields_of_a_later_protocol_are_waited_out() -> None:
    script = [
        {"task": {**task("PONDERING"), "mood": "good"}},
        task("PONDERING"),
        task("COMPLETED", "done"),
    ]
    with Scripted(script) as agent, A2AClient({"ag": {"url": agent.url}}) as client:
        assert by_skill(client)["s"].run({"message": "x"}).text == "done"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        "no",
        {"task": []},
        {"task": {"status": 3}},
        {"task": {"id": ""}},
        {"message": {"parts": [{"text": 1}]}},
        {"task": task("COMPLETED", "\ud800")},
    ],
)
def test_an_answer_that_is_not_the_protocols_is_an_internal_error(answer: Any) -> None:
    with (
        Scripted([answer]) as agent,
        A2AClient({"ag": {"url": agent.url}}, timeout=5.0, call_timeout=5.0) as client,
    ):
        with pytest.raises(ToolError, match="A2A agent 'ag' failed the call: ") as caught:
            by_skill(client)["s"].run({"message": "x"})
        assert caught.value.error_type == "internal"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-32001, "not_found"),
        (-32601, "not_found"),
        (-32602, "validation"),
        (-32005, "validation"),
        (-32603, "internal"),
        (-32099, "internal"),
    ],
)
def test_a_json_rpc_error_is_classified_by_its_code_and_shows_no_secret(
    code: int, kind: str
) -> None:
    script = [{"error": {"code": code, "message": f"you sent {TOKEN}: 401, timeout, not found"}}]
    with (
        Scripted(script) as agent,
        A2AClient({"ag": {"url": agent.url, "token": TOKEN}}) as client,
        pytest.raises(ToolError) as caught,
    ):
        by_skill(client)["s"].run({"message": "x"})
    assert caught.value.error_type == kind
    assert "you sent ***: 401" in str(caught.value)


# --- the receivers of credentials ---


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(
    "credentials",
    [{"token": TOKEN}, pytest.param({"headers": {"X-Key": TOKEN}}, marks=pytest.mark.proof)],
)
def test_credentials_never_go_to_another_host_that_a_card_names(
    agents: Agents, version: str, credentials: Any
) -> None:
    with agents.serve(version=version) as other:
        mine = agents.shared(version=version, endpoint=f"{other['url']}/a2a")
        with A2AClient({"ag": {"url": mine["url"], **credentials}}) as client:
            assert client.tools() == []
            assert f"its card names {other['url']} as its endpoint" in client.errors["ag"]
            with pytest.raises(ToolError) as caught:
                client.sources()[0].discover()
            assert caught.value.error_type == "authentication"
        assert lines(other, "") == []
        with A2AClient({"ag": {"url": mine["url"]}}) as client:  # there is nothing to give away
            assert by_skill(client)["echo"].run({"message": "x"}).success
        with A2AClient(
            {"ag": {"url": mine["url"], **credentials, "origins": [other["url"]]}}
        ) as client:
            assert by_skill(client)["echo"].run({"message": "x"}).success
        posts = [line for line in lines(other, "POST") if TOKEN in line]
        assert len(posts) == 1
        assert (f"authorization=Bearer {TOKEN}" in posts[0]) == ("token" in credentials)
        assert (f"key={TOKEN}" in posts[0]) == ("headers" in credentials)


def test_an_endpoint_at_the_trusted_host_is_taken_from_among_others(agents: Agents) -> None:
    with agents.serve() as other, agents.serve() as mine:
        interfaces = [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            for url in (f"{other['url']}/a2a", "/a2a")
        ]
        mine["card"] = {"supportedInterfaces": interfaces}
        mine.restart()
        with A2AClient({"ag": {"url": mine["url"], "token": TOKEN}}) as client:
            assert by_skill(client)["echo"].run({"message": "x"}).success
        assert lines(other, "") == []


@pytest.mark.proof
def test_a_card_that_turns_to_another_host_later_gets_nothing_more(agents: Agents) -> None:
    with (
        agents.serve() as other,
        agents.serve() as mine,
        A2AClient({"ag": {"url": mine["url"], "token": TOKEN}}) as client,
    ):
        echo = by_skill(client)["echo"]
        mine["endpoint"] = f"{other['url']}/a2a"
        mine.restart()
        with pytest.raises(ToolError, match="names"):
            client.sources()[0].discover()
        with pytest.raises(ToolError, match="names"):
            echo.run({"message": "x"})
        assert lines(other, "") == []


def test_even_a_request_to_another_host_would_bear_no_credentials(agents: Agents) -> None:
    import asyncio

    with agents.serve() as mine, agents.serve() as other:

        async def ask() -> None:
            async with A2AConnection(
                "ag", RemoteAgent(mine["url"], TOKEN, {"X-Key": TOKEN})
            )._open_http() as http:
                for url in (mine["url"], other["url"]):
                    await http.get(f"{url}/.well-known/agent-card.json")

        asyncio.run(ask())
        assert lines(mine, "GET")[0].count(TOKEN) == 2
        assert TOKEN not in lines(other, "GET")[0]


def test_a_redirect_is_not_followed(agents: Agents) -> None:
    with agents.serve() as other:
        mine = agents.shared(
            fault="redirect", endpoint=f"{other['url']}/.well-known/agent-card.json"
        )
        with A2AClient(
            {"ag": {"url": mine["url"], "token": TOKEN}, "open": {"url": mine["url"]}}
        ) as client:
            assert client.tools() == []
            assert "HTTP 302. This client does not follow redirects" in client.errors["ag"]
        assert lines(other, "") == []


def test_two_clients_with_one_agent_id_keep_their_tokens_and_contexts_apart(agents: Agents) -> None:
    with agents.serve() as mine:
        with (
            A2AClient({"ag": {"url": mine["url"], "token": "token-a"}}) as a,
            A2AClient({"ag": {"url": mine["url"], "token": "token-b"}}) as b,
        ):
            asks = {"a": by_skill(a)["ask"], "b": by_skill(b)["ask"]}
            tasks: dict[str, list[str]] = {"a": [], "b": []}

            def work(who: str) -> None:
                for _ in range(10):
                    first = asks[who].run({"message": "x"}, ToolContext("the same"))
                    assert asks[who].run({"message": "red"}, ToolContext("the same")).meta == {
                        **first.meta,
                        "state": "completed",
                    }
                    tasks[who].append(first.meta["contextId"])

            started = [in_thread(lambda who=who: work(who)) for who in ("a", "b")]
            for thread, outcome in started:
                thread.join()
                assert outcome == [None]
            assert len(set(tasks["a"])) == len(set(tasks["b"])) == 1
            assert set(tasks["a"]) != set(tasks["b"])
        posts = lines(mine, "POST")
        assert (
            sum("Bearer token-a " in line for line in posts)
            == sum("Bearer token-b " in line for line in posts)
            == 20
        )


def test_no_secret_is_logged_at_any_level(agents: Agents, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    mine = agents.shared(token=TOKEN)
    for wrong in ("", "-wrong"):
        with A2AClient(
            {"ag": {"url": mine["url"], "token": TOKEN + wrong, "headers": {"X-Key": TOKEN}}}
        ) as client:
            for tool in client.tools()[:2]:
                tool.run({"message": "x"})
            client.sources()[0].health(5.0)
    assert "HTTP 401" in caplog.text
    assert TOKEN not in caplog.text


# --- leftovers ---


def test_no_thread_and_no_socket_is_left_after_close(variant: Running) -> None:
    before = Owned()
    for _ in range(2):
        with A2AClient({"ag": {"url": variant["url"]}}, timeout=10.0) as client:
            tools = by_skill(client)
            work: list[Callable[[], Any]] = [
                lambda tool=tools[skill], number=number: tool.run(
                    {"message": "x"}, ToolContext(f"c{number}")
                )
                for skill in ("hang", "echo", "everything", "ask", "refuse")
                for number in range(4)
            ]
            started = [in_thread(one) for one in work]
            assert before.new_threads() <= 1 + len(work)  # one thread for all agents
            for thread, _ in started[4:]:
                thread.join()
        for thread, _ in started[:4]:  # ended by `close`
            thread.join()
        assert all(isinstance(outcome[0], ToolError) for _, outcome in started[:4] + started[16:])
        assert all(not isinstance(outcome[0], Exception) for _, outcome in started[4:16])
        before.wait_until_released()


def test_a_client_works_again_after_close_its_old_tools_included(agents: Agents) -> None:
    client = A2AClient({"ag": {"url": agents.shared()["url"]}})
    echo = by_skill(client)["echo"]
    client.close()
    client.close()
    assert echo.run({"message": "x"}).text == "echo: x"
    assert next(tool.name for tool in client) == "ag.echo"
    client.close()


def test_a_client_that_is_dropped_without_close_ends_its_thread(agents: Agents) -> None:
    before = Owned()
    client = A2AClient({"ag": {"url": agents.shared()["url"]}})
    tools = by_skill(client)
    del client
    gc.collect()
    assert tools["echo"].run({"message": "x"}).success  # the tools still hold the client
    del tools
    gc.collect()
    before.wait_until_released()


def test_an_interpreter_that_exits_without_close_leaves_no_noise_and_no_task(
    agents: Agents,
) -> None:
    import sys

    shared = agents.shared()
    source = (
        "import sys, threading; from holdfast.tools.a2a import A2AClient; from"
        " holdfast.tools.context import ToolContext\nclient = A2AClient({'ag': {'url':"
        f" {shared['url']!r}}}}})\nhang = next(tool for tool in client if tool.name =="
        " 'ag.hang')\nbegun = threading.Event()\ncontext = ToolContext('c', progress=lambda text:"
        " begun.set())\nthreading.Thread(target=hang.run, args=({'message': 'x'}, context),"
        " daemon=True).start()\nbegun.wait(10); print('bye')"
    )
    before = len(lines(shared, "cancelled"))
    process = forks.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    assert process.stdout == "bye\n"
    assert "Task was destroyed" not in process.stderr
    assert len(lines(shared, "cancelled")) > before


def test_calls_from_many_threads_find_one_card(agents: Agents) -> None:
    with agents.serve() as mine, A2AClient({"ag": {"url": mine["url"]}}) as client:
        echo = by_skill(client)["echo"]
        client.sources()[0].close()  # so that none of them finds a connection
        started = [
            in_thread(lambda number=number: echo.run({"message": str(number)}).text)
            for number in range(20)
        ]
        for thread, _ in started:
            thread.join()
        assert [outcome for _, outcome in started] == [[f"echo: {number}"] for number in range(20)]
        assert len(lines(mine, "GET")) == 2
