"""Tests of `holdfast.testing.wires`: the conformance kit passes Holdfast's wires and one that a
user wrote, and every one of its checks finds a wire that is broken in that way."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast import LLM, Agent, Conversation, RouterLLM, SQLiteStore
from holdfast import events as ev
from holdfast.conversation.replay import replay
from holdfast.errors import BadRequest, BadResponse, ConfigurationError, StreamInterrupted
from holdfast.llm.completion import NO_NATIVE, Completion, Delta
from holdfast.llm.wires import WIRES, wire
from holdfast.testing import wires
from holdfast.testing.wires import mutations, reading
from tests.model_server import ModelServer, Request
from tests.paths import REPO, SHARED
from tests.waiting import until

sys.path.insert(0, str(REPO / "examples"))

from ollama_wire import OllamaWire

RECORDED = SHARED / "provider_traffic"
OLLAMA = REPO / "tests" / "data" / "ollama_chat.json"
NAMES = [name + suffix for name in WIRES for suffix in ("", "+text")]


def own_exchanges(name: str) -> list[wires.RecordedExchange]:
    """Return the exchanges that ship with Holdfast. A wire whose calls are text expects no calls of
    the provider's."""
    shipped = wires.shipped(name.removesuffix("+text"))
    return [one for one in shipped if not name.endswith("+text") or "calls" not in one.name]


# --- wires that pass ---


@pytest.mark.parametrize(
    "case",
    [case for name in NAMES for case in wires.cases(wire(name), own_exchanges(name), limit=150)],
    ids=str,
)
def test_a_wire_of_holdfast_passes(case: wires.WireCase) -> None:
    case.run()


@pytest.mark.parametrize("case", wires.cases(OllamaWire(), wires.load(OLLAMA), limit=1000), ids=str)
def test_a_wire_of_a_stranger_passes(case: wires.WireCase) -> None:
    case.run()


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_every_change_of_the_own_recordings_is_survived(name: str) -> None:
    report = wires.check(wire(name), wires.shipped(name), limit=20_000)
    assert report.failures == ()


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded traffic in {RECORDED}")
@pytest.mark.parametrize("name", WIRES)
def test_a_wire_passes_with_real_traffic(name: str) -> None:
    exchanges = wires.load(RECORDED / name)
    assert len(exchanges) >= 33
    assert sum(any(one.is_stream for one in each.responses) for each in exchanges) >= 4
    assert sum(each.following is not None for each in exchanges) >= 15
    report = wires.check(wire(name), exchanges, limit=200)
    assert report.failures == (), str(report)


def test_a_wire_may_be_given_by_its_name() -> None:
    names = [case.name for case in wires.cases("openai_chat+text", limit=1)]
    assert names == [case.name for case in wires.cases(wire("openai_chat+text"), limit=1)]
    report = wires.check("openai_chat", wires.shipped("openai_chat")[:1], limit=5)
    assert (report.failures, report.passed > 5) == ((), True)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ("nope", "wire takes one of openai_chat, .*, not 'nope'"),
        ("", "wire takes one of"),
        (None, "cases: wire takes one of openai_chat, .* None has no name, bound"),
        (object(), "or a Wire object"),
        (OllamaWire, r"takes an object, not the class OllamaWire: OllamaWire\(\)"),
    ],
)
def test_what_is_no_wire_is_refused(given: Any, pattern: str) -> None:
    for run in (wires.cases, wires.check):
        with pytest.raises(ConfigurationError, match=pattern):
            run(given)


def test_what_is_no_recording_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"takes recordings, not a path: load\('a.json'\)"):
        wires.cases("openai_chat", "a.json")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"takes what load\(path\) returns"):
        wires.check("openai_chat", [{"response": {}}])  # type: ignore[list-item]


# --- wires that do not pass ---


class Broken:
    """The wire of Chat Completions with one fault: some of its members are replaced."""

    name = "openai_chat"

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        return getattr(CHAT, name)


CHAT: Any = wire("openai_chat")


class BrokenStream:
    """A parser of Chat Completions with one fault."""

    closed = done = False

    def __init__(self) -> None:
        self.parser = CHAT.stream()

    def feed(self, chunk: bytes, on_delta: Any = None) -> None:
        self.parser.feed(chunk, on_delta)

    def finish(self) -> Completion:
        return self.parser.finish()


class Decoding(BrokenStream):
    def feed(self, chunk: bytes, on_delta: Any = None) -> None:
        super().feed(chunk.decode("utf-8", "replace").encode(), on_delta)


class Satisfied(BrokenStream):
    """A parser that takes the part that has arrived for the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.text_so_far = ""

    def feed(self, chunk: bytes, on_delta: Any = None) -> None:
        def note_text(delta: Delta) -> None:
            self.text_so_far += delta.text if delta.kind == "text" else ""
            on_delta(delta)

        super().feed(chunk, note_text)

    def finish(self) -> Completion:
        try:
            return super().finish()
        except StreamInterrupted:
            return Completion(self.text_so_far, wire="openai_chat")


class Hasty(BrokenStream):
    def finish(self) -> Completion:
        return with_fields(super().finish(), stop_reason="stop", response_id="")


class Silent(BrokenStream):
    def feed(self, chunk: bytes, on_delta: Any = None) -> None:
        super().feed(chunk, lambda delta: None)


class Strict(BrokenStream):
    def feed(self, chunk: bytes, on_delta: Any = None) -> None:
        if mutations.UNKNOWN.encode() in chunk:
            raise BadResponse("An unknown event.")
        super().feed(chunk, on_delta)


def with_fields(answer: Completion, **fields: Any) -> Completion:
    return msgspec.structs.replace(answer, **fields)


def impatient(data: bytes) -> Completion:
    json.loads(data)["usage"]["prompt_tokens"] + 0
    return CHAT.parse(data)


def endless(data: bytes) -> Completion:
    while b'"usage"' not in data:
        if STOP:
            raise BadResponse("At last.")
    return CHAT.parse(data)


def strict(data: bytes) -> Completion:
    if mutations.UNKNOWN.encode() in data:
        raise BadResponse("An unknown field.")
    return CHAT.parse(data)


STOP: list[bool] = []
COUNTER: Iterator[int] = iter(range(10**9))


def head_with(make: Callable[[], bytes]) -> Callable[..., Any]:
    def head(*arguments: Any) -> Any:
        built = CHAT.head(*arguments)
        return msgspec.structs.replace(built, prefix=b'{"user":"%b",' % make() + built.prefix[1:])

    return head


def numbered(head: Any, fragments: Any, stream: bool) -> bytes:
    body = CHAT.body(head, fragments, stream)
    return b'{"count":%d,' % len(fragments) + body[1:]


def without_extra(model: str, prompt: str, tools: Any, parameters: Any, names: Any) -> Any:
    rest = {key: value for key, value in parameters.items() if key != "extra_body"}
    return CHAT.head(model, prompt, tools, rest, names)


def lost_pairs(batch: Any, names: Any, family: str = "") -> bytes:
    calls = [
        (changed_call(call, provider_id=f"other_{number}"), result)
        for number, (call, result) in enumerate(batch)
    ]
    return CHAT.results(calls, names)


def changed_call(call: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(call, **fields)


FAULTS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "reading",
        "text",
        {"parse": lambda data: with_fields(CHAT.parse(data), text="")},
        "text is ''",
    ),
    ("reading", "text", {"name": "other"}, "the answer's wire is 'openai_chat', not 'other'"),
    (
        "reading",
        "busy",
        {"error": lambda *_: BadRequest("no", status=429)},
        "the error's type is 'BadRequest', not 'RateLimited'",
    ),
    ("reading", "busy", {"error": lambda *_: None}, "is not an LLMError"),
    ("streamed", "text", {"stream": Hasty}, "response_id is ''"),
    ("cuts", "text", {"stream": Decoding}, "the answer differs from that of the whole stream"),
    ("cuts", "text", {"stream": Silent}, "the text deltas are ''"),
    ("truncation", "text", {"stream": Satisfied}, "a part of the stream is another answer"),
    ("mutations", "text", {"parse": impatient}, "which is not an LLMError"),
    ("additions", "text", {"parse": strict}, "an unknown field in"),
    ("additions", "text", {"stream": Strict}, "an unknown event before"),
    (
        "return",
        "calls",
        {
            "assistant": lambda text, calls, native, *rest: CHAT.assistant(
                text, calls, NO_NATIVE, *rest
            )
        },
        "of the answer is not in it",
    ),
    ("requests", "text", {"head": head_with(lambda: b"%d" % next(COUNTER))}, "other bytes"),
    ("requests", "text", {"body": numbered}, "finds it in its cache"),
    ("requests", "text", {"head": head_with(lambda: b'"')}, "it is not JSON"),
    (
        "calls",
        "",
        {"call_id": lambda call, family="": f"{CHAT.call_id(call)}x"[:700]},
        "which it made itself",
    ),
    ("calls", "", {"results": lost_pairs}, "cannot be told apart"),
    (
        "content",
        "",
        {"user": lambda content, family="": CHAT.user([block for block in content if block.text])},
        "it cannot be made: AttributeError",
    ),
    ("head", "", {"head": without_extra}, "`extra_body` is not merged in"),
    ("head", "", {"headers": lambda key: {"Authorization": "Bearer"}}, "the headers carry the key"),
    ("head", "", {"path": lambda model, stream: "chat"}, "does not begin with '/'"),
    ("errors", "", {"error": lambda status, *_: BadRequest("no", status=status)}, "BadRequest"),
    (
        "errors",
        "",
        {"error": lambda status, headers, body, *_: CHAT.error(status, {}, body)},
        "retry_after is None, not 7.0",
    ),
    (
        "errors",
        "",
        {"error": lambda status, headers, body, *_: json.loads(body)},
        "`error` raised JSONDecodeError",
    ),
]


@pytest.mark.parametrize(
    ("check", "exchange", "members", "reason"),
    FAULTS,
    ids=[f"{check}-{number}" for number, (check, *_) in enumerate(FAULTS)],
)
def test_a_fault_is_found_by_its_check(
    check: str, exchange: str, members: dict[str, Any], reason: str
) -> None:
    name = f"openai_chat-{exchange}-{check}" if exchange else check
    checks = wires.cases(Broken(**members), wires.shipped("openai_chat"), limit=400)  # pyright: ignore
    case = next(one for one in checks if str(one) == name)
    with pytest.raises(wires.CheckFailed) as raised:
        case.run()
    assert reason in str(raised.value)
    sound = wires.cases(Broken(), wires.shipped("openai_chat"), limit=400)  # pyright: ignore
    next(one for one in sound if str(one) == name).run()


def test_a_wire_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "HANG_SECONDS", 0.3)
    try:
        report = wires.check(Broken(parse=endless), wires.shipped("openai_chat")[:1], limit=400)  # pyright: ignore
    finally:
        STOP.append(True)
    # the abandoned thread ends, since other tests fork
    until(lambda: all(one.name != "wire-check" for one in threading.enumerate()))
    assert [failure.case for failure in report.failures] == ["openai_chat-text-mutations"]
    assert "no end after 0.3 seconds" in str(report)


def test_swapped_events_must_change_nothing() -> None:
    exchange = next(one for one in wires.shipped("anthropic_messages") if one.swaps)
    illegal = msgspec.structs.replace(exchange, swaps=((4, 5),))
    assert wires.check(wire("anthropic_messages"), [exchange], limit=20).failures == ()
    (failure,) = wires.check(wire("anthropic_messages"), [illegal], limit=20).failures
    assert "events 4 and 5 in the other order: the answer changes: text is" in failure.reason


def test_what_the_recorded_client_sent_back_is_asked_for() -> None:
    """Check an exchange without `carried`: a signature of the answer that is in the recording's
    next request."""
    (exchange,) = (one for one in wires.shipped("openai_chat") if one.name == "openai_chat-calls")
    sealed = exchange.response.body["choices"][0]["message"]["reasoning_details"][0]["data"]
    bare = msgspec.structs.replace(exchange, carried=())
    followed = msgspec.structs.replace(bare, following={"messages": [{"sealed": sealed}]})
    forgetful = Broken(
        assistant=lambda text, calls, native, *rest: CHAT.assistant(text, calls, NO_NATIVE, *rest)
    )
    assert wires.check(forgetful, [bare], limit=5).failures == ()  # pyright: ignore
    (failure,) = wires.check(forgetful, [followed], limit=5).failures  # pyright: ignore
    assert failure.case == "openai_chat-calls-return"
    assert sealed in failure.reason
    assert wires.check(CHAT, [followed], limit=5).failures == ()


def test_an_error_that_is_read_as_an_answer_is_found() -> None:
    (busy,) = (one for one in wires.shipped("openai_chat") if one.name == "openai_chat-busy")
    wrong = msgspec.structs.replace(busy, expected={"text": "hi"})
    (failure,) = wires.check(CHAT, [wrong], limit=5).failures
    assert "an answer is expected, and the wire raised RateLimited" in failure.reason
    plain = wires.shipped("openai_chat")[0]
    wrong = msgspec.structs.replace(plain, expected={"error": {"type": "BadRequest"}})
    failures = wires.check(CHAT, [wrong], limit=5).failures
    assert "an error is expected, and the wire read the answer" in failures[0].reason


def test_a_report_says_what_failed() -> None:
    report = wires.check(Broken(path=lambda model, stream: "chat"))  # pyright: ignore
    assert str(report).startswith("3 checks passed, 1 failed\nhead: the path and the headers: the")
    assert str(wires.check(CHAT)) == "4 checks passed, 0 failed"


def test_a_recording_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no recording: no file \*\.json"):
        wires.load(tmp_path)
    (tmp_path / "a.json").write_text('{"interactions": 5}')
    with pytest.raises(ConfigurationError, match=r"a\.json is not a recording: Expected `array`"):
        wires.load(tmp_path)
    with pytest.raises(ConfigurationError, match="comes with no recording of a wire 'x'"):
        wires.shipped("x")


# --- a user's wire in an LLM ---


def ollama(request: Request) -> Any:
    """Answer like Ollama: a call, then the last result."""
    assert request.path == "/api/chat"
    base = {"model": "qwen3", "created_at": "2026-11-23T09:00:00Z"}
    counts = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 4}
    last = request.messages[-1]
    if last["role"] == "user":
        call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        message = {"role": "assistant", "content": "", "thinking": "Add.", "tool_calls": [call]}
    else:
        message = {"role": "assistant", "content": f"It is {last['content']}."}
    if not request.json["stream"]:
        body = json.dumps({**base, "message": message, **counts})
        return (200, {"content-type": "application/json; charset=utf-8"}, body)
    end = {**base, "message": {"role": "assistant", "content": ""}, **counts}
    lines = [{**base, "message": message, "done": False}, end]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return (200, {"content-type": "application/x-ndjson"}, text)


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_speaks_a_wire_of_ones_own(stream: bool, tmp_path: Path) -> None:
    with ModelServer(ollama) as server, SQLiteStore(tmp_path / "c.db") as store:
        url = server.url.removesuffix("/v1")
        agent = Agent(LLM("qwen3", base_url=url, wire=OllamaWire(), stream=stream), [add])
        for _ in range(2):  # the second time it is read from the store
            with Conversation(agent, store, "c") as conversation:
                conversation.send_message("1 + 2?")
                assert conversation.run().answer == "It is 3."
                events = conversation.get_history()
    assert [message["role"] for message in server.requests[3].messages[1:]] == [
        *("user", "assistant", "tool", "assistant", "user", "assistant", "tool"),
    ]
    assert server.requests[1].messages[2]["thinking"] == "Add."
    assert server.requests[3].messages[2]["thinking"] == "Add."
    answers = [event for event in events if isinstance(event, ev.AssistantReplied)]
    assert {answer.wire for answer in answers} == {"ollama_chat"}
    assert answers[0].usage.input_tokens == 9
    report = replay(events, agent)
    assert (report.same, report.requests, report.hashed) == (True, 4, 4)
    # Without the agent the wire is unknown, and only the course is compared.
    assert (replay(events).same, replay(events).hashed) == (True, 0)
    router = Agent(RouterLLM(lambda _: "a", {"a": agent.llm}), [add])
    assert "model:" in str(replay(events, router).difference)
    agent.llm.close()


def test_a_wire_of_ones_own_can_have_its_calls_as_text() -> None:
    def answer(request: Request) -> Any:
        assert "tools" not in request.json
        content = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
        message = {"role": "assistant", "content": content}
        return {"model": "m", "message": message, "done": True, "done_reason": "stop"}

    with ModelServer(answer) as server:
        url = server.url.removesuffix("/v1")
        llm = LLM("qwen3", base_url=url, wire=OllamaWire(), tool_calls="text")
        assert llm.wire.name == "ollama_chat+text"
        tool = SimpleNamespace(name="add", description="", input_schema={"type": "object"})
        answer_ = llm.completion("1 + 2?", [tool])
        llm.close()
    assert [call.arguments for call in answer_.calls] == [{"a": 1, "b": 2}]


def test_a_model_keeps_its_wire_when_it_is_replaced_and_shows_only_its_name() -> None:
    own = OllamaWire()
    llm = LLM("qwen3", base_url="http://localhost:11434", wire=own)
    assert llm.replace(temperature=0.5).wire is own
    assert llm.parameters() == {"wire": "ollama_chat", "host": "localhost"}
    assert repr(llm) == "LLM('qwen3', base_url='http://localhost:11434')"
    with pytest.raises(ConfigurationError, match="reasoning_budget is not supported"):
        llm.replace(reasoning_budget=5)
    with pytest.raises(ConfigurationError, match=r"llm\.wire is an object of this process"):
        Agent(llm).to_json()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ollama", "wire takes one of openai_chat, .*, or a Wire object, not 'ollama'"),
        (OllamaWire, "wire takes one of .*, not <class"),
        (5, "5 has no name, bound, path"),
        (Broken(name="a b"), "a wire's name takes 1 to 64 letters"),
        (Broken(name=None), "a wire's name takes 1 to 64 letters"),
        (Broken(), "a wire of your own cannot be named 'openai_chat'"),
    ],
    ids=["name", "class", "number", "spaces", "none", "taken"],
)
def test_something_else_is_no_wire(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LLM("m", base_url="http://localhost:1", wire=given)
