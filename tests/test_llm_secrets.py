"""A planted key is looked for wherever something of a model call is shown or kept: on every wire, with every fault."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, FallbackLLM, LocalRuntime, SQLiteStore
from holdfast.errors import LLMError
from holdfast.llm import LLM, RecordedLLM, RouterLLM
from tests.model_server import Drop, ModelServer, Stall, Stream, Truncated

KEY = "sk-planted-0123456789-secret"
HEADER = "tok-planted-9876543210-secret"
PASSWORD = "planted-pass-5555"
PLANTED = (KEY, HEADER, PASSWORD, "sk-planted-0123456789", "c2stcGxhbnRlZC0wMTIzNDU2Nzg5")
WIRES = {"openai_chat": "m", "openai_responses": "gpt-5", "anthropic_messages": "claude-sonnet-4-5", "gemini": "gemini-2.5-flash"}

REPEATS = {"error": {"message": f"Incorrect API key provided: {KEY} ({HEADER}).", "code": "invalid_api_key", "status": "UNAUTHENTICATED"}}
FAULTS: dict[str, Any] = {
    "refused": (401, {"content-type": "application/json"}, REPEATS),
    "not json": (401, {"content-type": "text/html"}, f"<html>{KEY} {HEADER}</html>"),
    "server error": (500, {"x-request-id": "req-1"}, f"{KEY} broke it: {HEADER}"),
    "redirect": (302, {"location": f"https://elsewhere.example/?key={KEY}"}, ""),
    "wrong shape": (200, {"content-type": "application/json"}, {"hello": KEY, "token": HEADER}),
    "malformed": (200, {"content-type": "application/json"}, f'{{"choices": [{KEY} {HEADER}'),
    "no http": f"220 smtp.example {KEY} {HEADER}\r\n\r\n".encode(),
    "cut": Truncated({"id": KEY * 20}, 100),
    "drop": Drop(),
    "stall": Stall(5),
    "stream of garbage": Stream([f"data: {KEY} {HEADER}\n\n".encode()]),
    "error in a stream": Stream([f"event: error\ndata: {json.dumps({'type': 'error', **REPEATS})}\n\n".encode()]),
}


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def shown(error: BaseException) -> str:
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


def model(wire: str, url: str, **more: Any) -> LLM:
    headers = {"X-Custom-Token": HEADER}
    return LLM(WIRES[wire], KEY, url, wire=wire, headers=headers, max_retries=0, timeout=0.3, **more)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wire", WIRES)
def test_no_fault_shows_a_key(wire: str, fault: str, stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ModelServer(lambda request: FAULTS[fault]) as server:
        llm = model(wire, server.url, stream=stream)
        with pytest.raises(LLMError) as caught:
            llm.completion("hello")
        clean(shown(caught.value), "the exception")
        store = SQLiteStore(tmp_path / "c.db")
        recorded = RecordedLLM(llm, tmp_path / "tape")
        for number, one in enumerate((llm, FallbackLLM([llm, llm]), RouterLLM(lambda request: "a", {"a": llm}), recorded)):
            with Conversation(Agent(one), store, f"c{number}") as conversation:
                conversation.send_message("hello")
                state = conversation.run()
                assert state.error is not None
                clean(state.to_json(), "the state")
                clean(repr(one) + repr(one.parameters()) + repr(conversation) + repr(conversation.get_history()), "a repr")
        store.close()
        assert any(KEY in "".join(request.headers.values()) for request in server.requests)  # it did go out
    for path in tmp_path.iterdir():
        clean(path.read_bytes(), path.name)
    clean(caplog.text + repr([record.__dict__ for record in caplog.records]), "the log")


def test_a_proxys_password_is_shown_nowhere() -> None:
    llm = LLM("m", KEY, "http://model.example/v1", proxy=f"http://user:{PASSWORD}@127.0.0.1:9", max_retries=0)
    with pytest.raises(LLMError) as caught:
        llm.completion("hello")
    clean(shown(caught.value) + repr(llm) + repr(llm.parameters()), "the exception")


def test_nothing_that_holds_a_key_can_be_pickled(tmp_path: Path) -> None:
    llm = LLM("m", KEY, "http://localhost:1")
    for holder in (llm, FallbackLLM([llm]), RouterLLM(lambda request: "a", {"a": llm}), RecordedLLM(llm, tmp_path / "t"), Agent(llm)):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.dumps(holder)


def test_commands_of_the_agent_do_not_see_it(tmp_path: Path) -> None:
    from tests.model_server import calls, text

    with (
        ModelServer([calls(("terminal", {"command": "env; cat /proc/$$/environ"})), text("done")]) as server,
        LocalRuntime(tmp_path) as runtime,
    ):
        with Conversation(Agent(LLM("m", KEY, server.url), runtime.tools)) as conversation:
            conversation.send_message("look")
            conversation.run()
        clean(server.requests[1].body, "what the command saw")
        assert "PATH" in server.requests[1].body.decode()
