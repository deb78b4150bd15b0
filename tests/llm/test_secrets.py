"""A planted key is searched in every shown or stored part of a model call: on every wire, with
every fault."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, FallbackLLM, LocalRuntime, SQLiteStore
from holdfast.errors import ConfigurationError, LLMError
from holdfast.llm import LLM, RecordedLLM, RouterLLM
from tests.model_server import Drop, ModelServer, Stall, Stream, Truncated

KEY = "sk-planted-0123456789-secret"
HEADER = "tok-planted-9876543210-secret"
PASSWORD = "planted-pass-5555"
QUERY = "query-planted-4444"
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
PLANTED = (
    KEY,
    HEADER,
    PASSWORD,
    QUERY,
    BASIC,
    "sk-planted-0123456789",
    "c2stcGxhbnRlZC0wMTIzNDU2Nzg5",
)
WIRES = {
    "openai_chat": "m",
    "openai_responses": "gpt-5",
    "anthropic_messages": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
}

ALL = f"{KEY} {HEADER} {QUERY} {BASIC} {PASSWORD}"
REPEATS = {
    "error": {
        "message": f"Incorrect API key provided: {ALL}.",
        "code": "invalid_api_key",
        "status": "UNAUTHENTICATED",
    }
}
FAR = 290  # characters: a message is cut behind them, in the midst of a key
FAULTS: dict[str, Any] = {
    "refused": (401, {"content-type": "application/json"}, REPEATS),
    "cut off": (
        401,
        {"content-type": "application/json"},
        {"error": {"message": f"{'x' * FAR}{KEY}"}},
    ),
    "cut off in an answer": (
        200,
        {"content-type": "application/json"},
        {"hello": f"{'x' * (FAR - 10)}{KEY}"},
    ),
    "cut off in a stream": Stream([f"data: {'x' * (FAR - 3)}{KEY}\n\n".encode()]),
    "cut off in a size": (
        f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{'x' * 24}{KEY}\r\n".encode()
    ),
    "no text": (401, {"content-type": "application/json"}, b"\xff\xfe " + ALL.encode()),
    "not json": (401, {"content-type": "text/html"}, f"<html>{ALL}</html>"),
    "server error": (500, {"x-request-id": "req-1"}, f"{ALL} broke it"),
    "redirect": (302, {"location": f"https://elsewhere.example/?key={KEY}"}, ""),
    "wrong shape": (200, {"content-type": "application/json"}, {"hello": KEY, "token": HEADER}),
    "malformed": (200, {"content-type": "application/json"}, f'{{"choices": [{KEY} {HEADER}'),
    "no http": f"220 smtp.example {KEY} {HEADER}\r\n\r\n".encode(),
    "cut": Truncated({"id": KEY * 20}, 100),
    "drop": Drop(),
    "stall": Stall(5),
    "stream of garbage": Stream([f"data: {KEY} {HEADER}\n\n".encode()]),
    "error in a stream": Stream(
        [f"event: error\ndata: {json.dumps({'type': 'error', **REPEATS})}\n\n".encode()]
    ),
}


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def visible_text(error: BaseException) -> str:
    parts = [str(error), repr(error), "".join(traceback.format_exception(error))]
    for one in chain(error):
        parts += [repr(one.args), repr(vars(one)), repr(getattr(one, "__notes__", ""))]
        if isinstance(one, LLMError):
            parts.append(repr(pickle.dumps(one)))
    return "\n".join(parts)


def clean(text: str | bytes, where: str) -> None:
    text = text if isinstance(text, str) else text.decode("latin-1")
    for secret in PLANTED:
        assert secret not in text, f"{secret} is in {where}: {text[:2000]}"
        assert secret.encode().hex() not in text, f"{secret} is in {where} as hex: {text[:2000]}"
    assert KEY[:10] not in text, f"a part of the key is in {where}: {text[:2000]}"


def model(wire: str, url: str, **more: Any) -> LLM:
    headers = {"CF-Access-Client-Secret": HEADER, "X-Gateway": f"Basic {BASIC}"}
    return LLM(
        WIRES[wire],
        KEY,
        f"{url}?code={QUERY}",
        wire=wire,
        headers=headers,
        max_retries=0,
        timeout=0.3,
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wire", WIRES)
def test_no_fault_shows_a_key(
    wire: str, fault: str, stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ModelServer(lambda request: FAULTS[fault]) as server:
        llm = model(wire, server.url, stream=stream)
        with pytest.raises(LLMError) as caught:
            llm.completion("hello")
        clean(visible_text(caught.value), "the exception")
        store = SQLiteStore(tmp_path / "c.db")
        recorded = RecordedLLM(llm, tmp_path / "tape", "record")
        for number, one in enumerate(
            (llm, FallbackLLM([llm, llm]), RouterLLM(lambda request: "a", {"a": llm}), recorded)
        ):
            with Conversation(Agent(one), store, f"c{number}") as conversation:
                conversation.send_message("hello")
                state = conversation.run()
                assert state.error is not None
                clean(state.to_json(), "the state")
                clean(
                    repr(one)
                    + repr(one.parameters())
                    + repr(conversation)
                    + repr(conversation.get_history()),
                    "a repr",
                )
        store.close()
        assert any(
            KEY in "".join(request.headers.values()) for request in server.requests
        )  # the key did go out
    for path in tmp_path.iterdir():
        clean(path.read_bytes(), path.name)
    clean(caplog.text + repr([record.__dict__ for record in caplog.records]), "the log")


@pytest.mark.parametrize(
    "arguments",
    [
        {"headers": [("Authorization", f"Bearer {KEY}")]},
        {"headers": {"Authorization": f"Bearer {KEY}", 1: "x"}},
        {"headers": {"X-Token": HEADER + "\n"}},
        {"headers": KEY},
        {"proxy": f"http://user:{PASSWORD}/x@proxy:3128"},
        {"proxy": f"http://user/{PASSWORD}@proxy:3128"},
        {"proxy": f"http://user:{PASSWORD}?x@proxy:3128"},
        {"proxy": f"http://user:{PASSWORD}#x@proxy:3128"},
        {"proxy": f"http://user:{PASSWORD}@[x"},
        {"base_url": f"https://user:{PASSWORD}/x@host/v1"},
        {"base_url": f"https://user:{PASSWORD}@host/v1"},
        {"base_url": f"user:{PASSWORD}/x@host/v1"},
        {"base_url": f"ftp://host/v1?key={QUERY}"},
        {"base_url": f"https://host/v1?{QUERY}#x"},
        {"base_url": f"https://host/v1#{QUERY}"},
        {"base_url": f"https://user:{PASSWORD}@host/v1".encode()},
    ],
)
def test_a_wrong_argument_is_not_shown_where_it_may_hold_a_secret(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LLM(**{"model": "m", "base_url": "http://host/v1", **arguments})
    clean(visible_text(caught.value), "the exception")


def test_what_a_header_says_that_is_no_secret_stays_readable() -> None:
    message = (
        "Unexpected value `context-1m-2025-08-07` for the `anthropic-beta` header. Your EMPTY key"
        " is no key."
    )
    with (
        ModelServer([(400, {}, {"error": {"message": message}})]) as server,
        pytest.raises(LLMError, match=re.escape(message)),
    ):
        LLM(
            "m",
            "EMPTY",
            server.url,
            headers={"anthropic-beta": "context-1m-2025-08-07"},
            max_retries=0,
        ).completion("hello")


def test_a_proxy_that_repeats_its_password_is_not_repeated() -> None:
    refusal = (407, {}, f"no such user {BASIC} {PASSWORD}")
    with ModelServer([refusal]) as server:
        llm = LLM(
            "m",
            KEY,
            "http://model.example/v1",
            proxy=f"http://user:{PASSWORD}@127.0.0.1:{server.port}",
            max_retries=0,
        )
        with pytest.raises(LLMError) as caught:
            llm.completion("hello")
    clean(visible_text(caught.value), "the exception")


def test_a_proxys_password_is_shown_nowhere() -> None:
    llm = LLM(
        "m",
        KEY,
        "http://model.example/v1",
        proxy=f"http://user:{PASSWORD}@127.0.0.1:9",
        max_retries=0,
    )
    with pytest.raises(LLMError) as caught:
        llm.completion("hello")
    clean(visible_text(caught.value) + repr(llm) + repr(llm.parameters()), "the exception")


def test_nothing_that_holds_a_key_can_be_pickled(tmp_path: Path) -> None:
    llm = LLM("m", KEY, "http://localhost:1")
    for holder in (
        llm,
        FallbackLLM([llm]),
        RouterLLM(clean, {"a": llm}),
        RecordedLLM(llm, tmp_path / "t"),
    ):  # pyright: ignore
        with pytest.raises(TypeError, match=r"its api_key would be in the bytes|cannot pickle"):
            pickle.dumps(holder)
    with pytest.raises(TypeError, match=r"cannot be pickled|cannot pickle"):
        pickle.dumps(Agent(llm))


def test_commands_of_the_agent_do_not_see_it(tmp_path: Path) -> None:
    from tests.model_server import calls, text

    with (
        ModelServer(
            [calls(("terminal", {"command": "env; cat /proc/$$/environ"})), text("done")]
        ) as server,
        LocalRuntime(tmp_path) as runtime,
    ):
        with Conversation(Agent(LLM("m", KEY, server.url), runtime.tools)) as conversation:
            conversation.send_message("look")
            conversation.run()
        clean(server.requests[1].body, "what the command saw")
        assert "PATH" in server.requests[1].body.decode()
