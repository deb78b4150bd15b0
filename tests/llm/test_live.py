"""Checks against real providers, for developers with a key:

    python -m pytest tests/llm/test_live.py --live openai=sk-... --live anthropic=sk-ant-... --live
    gemini=AIza...

The option is `--live PROVIDER[:MODEL][@URL]=KEY` and may be repeated; without it all checks are
skipped. OpenAI is checked on both of its wires. Other providers than these three are checked on
Chat Completions, and need the name of a model (`groq:openai/gpt-oss-20b=...`). A URL is the base
URL of a server in the provider's place. A run costs a few cents. The key appears nowhere: neither
in the names of tests nor in reports (`conftest.py`).

`test_aimock.py` runs all checks against a server of its own.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationStatus,
    ImageContent,
    Message,
    TextContent,
    Tool,
    tool,
)
from holdfast import events as ev
from holdfast.errors import (
    AuthenticationError,
    Cancelled,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from holdfast.llm import Delta
from holdfast.tools.context import Cancellation

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "gemini": "gemini-2.5-flash"}
WIRES = {
    "openai": ("openai_responses", "openai_chat"),
    "anthropic": ("anthropic_messages",),
    "gemini": ("gemini",),
}
SMALL = {"openai": "gpt-3.5-turbo"}  # a window of 16,385 tokens
WINDOW = 250_000  # tokens: a longer prompt is a megabyte, and its refusal costs nothing

CAPITAL = "What is the capital of France? Answer with its name alone."
WEATHER = (
    "What is the weather in Paris and in Rome? Call the tool once for each, both in one go, and"
    " then tell me both temperatures."
)
COLOUR = "What colour is this picture? Answer with one word in English."
FORM = "Name the largest city of Japan and its population in millions."
THINK_1 = "Which is warmer now, Paris or Rome? Use the tool; do not guess."
THINK_2 = "And is Oslo colder than both? Use the tool for it."
COUNT = "Count from 1 to 1000 in English words, separated by commas, without leaving any out."
FILLER = "and so on "
NO_MODEL = "no-such-model-as-this"

WARMTH = {"Paris": 17, "Rome": 23, "Oslo": 4}


@dataclass(frozen=True)
class Live:
    """The model, address and key of a live check. The repr has no key."""

    provider: str
    wire: str
    model: str
    url: str | None
    key: str = field(repr=False)

    def llm(self, model: str = "", **more: Any) -> LLM:
        name = model or self.model
        where = (
            {"model": name, "base_url": self.url}
            if self.url
            else {"model": f"{self.provider}/{name}"}
        )
        return LLM(**{**where, "api_key": self.key, "wire": self.wire, "deadline": 300, **more})


def parse_live(spec: str) -> list[Live]:
    """Return the checks that a value of `--live` names, one for each wire. An error does not
    repeat the value: it may contain a key."""
    who, _, key = spec.partition("=")
    name, _, url = who.partition("@")
    provider, _, model = name.partition(":")
    model = model or MODELS.get(provider, "")
    if not key or not provider or not model:
        raise pytest.UsageError(
            "--live takes PROVIDER=KEY, or PROVIDER:MODEL=KEY for providers other than "
            + ", ".join(MODELS)
            + "."
        )
    return [
        Live(provider, wire, model, url or None, key)
        for wire in WIRES.get(provider, ("openai_chat",))
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    checks = [
        live for spec in metafunc.config.getoption("--live") or () for live in parse_live(spec)
    ]
    if "live" not in metafunc.fixturenames:
        return
    if checks:
        metafunc.parametrize("live", checks, ids=[f"{live.model}-{live.wire}" for live in checks])
    else:
        metafunc.parametrize(
            "live",
            [pytest.param(None, marks=pytest.mark.skip("needs a key: --live PROVIDER=KEY"))],
            ids=["no-key"],
        )


plain_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])


def thermometer() -> tuple[Tool, list[str]]:
    cities: list[str] = []
    lock = threading.Lock()

    @tool
    def temperature(city: str) -> str:
        """The temperature in a city at this moment, in degrees Celsius."""
        with lock:
            cities.append(city)
        return f"{next((warmth for name, warmth in WARMTH.items() if name in city), 10)} °C"

    return temperature, cities


def answers(conversation: Conversation) -> list[ev.AssistantReplied]:
    return [event for event in conversation.get_history() if isinstance(event, ev.AssistantReplied)]


# --- answers ---


@plain_and_streamed
def test_a_question_is_answered(live: Live, stream: bool) -> None:
    deltas: list[Delta] = []
    answer = live.llm(stream=stream).completion(CAPITAL, on_delta=deltas.append)
    assert "Paris" in answer.text
    assert answer.stop_reason == "stop"
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert answer.wire == live.wire
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == (
        answer.text if stream else ""
    )


@plain_and_streamed
def test_a_turn_with_parallel_calls(live: Live, stream: bool) -> None:
    temperature, cities = thermometer()
    with Conversation(Agent(live.llm(stream=stream), tools=[temperature])) as conversation:
        conversation.send_message(WEATHER)
        state = conversation.run()
        assert state.status is ConversationStatus.FINISHED, state.error
        assert len(answers(conversation)[0].calls) == 2
    assert len(cities) == 2
    assert "17" in state.answer
    assert "23" in state.answer


def test_a_picture_is_seen(live: Live) -> None:
    answer = live.llm().completion([Message((TextContent(COLOUR), ImageContent(red_png(64))))])
    assert "red" in answer.text.lower()


@plain_and_streamed
def test_an_answer_comes_in_the_form_that_was_asked_for(live: Live, stream: bool) -> None:
    schema = {
        "title": "city",
        "type": "object",
        "properties": {"name": {"type": "string"}, "millions": {"type": "integer"}},
        "required": ["name", "millions"],
        "additionalProperties": False,
    }
    answer = json.loads(live.llm(stream=stream, response_format=schema).completion(FORM).text)
    assert {name: type(value) for name, value in answer.items()} == {"name": str, "millions": int}


@plain_and_streamed
def test_thinking_with_tools_over_two_turns(live: Live, stream: bool) -> None:
    """The provider accepts the answers with calls that go back (signatures, encrypted
    reasoning), within a turn and in the next one."""
    by_tokens = live.wire in ("anthropic_messages", "gemini")
    effort: dict[str, Any] = (
        {"reasoning_budget": 1024} if by_tokens else {"reasoning_effort": "low"}
    )
    if live.wire == "anthropic_messages":
        effort["max_output_tokens"] = 4096
    temperature, cities = thermometer()
    with Conversation(
        Agent(live.llm(stream=stream, **effort), tools=[temperature])
    ) as conversation:
        for prompt in (THINK_1, THINK_2):
            conversation.send_message(prompt)
            state = conversation.run()
            assert state.status is ConversationStatus.FINISHED, state.error
        natives = [bool(answer.native) for answer in answers(conversation) if answer.calls]
    assert len(cities) >= 3
    assert natives
    # Gemini signs if it thinks at all, and Chat Completions of OpenAI show nothing of it.
    assert any(natives) or live.wire in ("openai_chat", "gemini")


# --- refusals ---


def test_a_wrong_key_is_refused(live: Live) -> None:
    with pytest.raises(AuthenticationError) as caught:
        live.llm(api_key="sk-this-is-no-key-of-anyone").completion(CAPITAL)
    assert "no-key" not in str(caught.value)


def test_an_unknown_model_is_not_found(live: Live) -> None:
    with pytest.raises(ModelNotFound):
        live.llm(NO_MODEL).completion(CAPITAL)


def test_a_prompt_beyond_the_window_is_too_long(live: Live) -> None:
    model = live.llm(SMALL.get(live.provider, ""), max_retries=0)
    window = model.info.context_window if model.info else None
    if not window or window > WINDOW:
        pytest.skip("no model of a small window is known here")
    try:
        answer = model.completion(FILLER * (window // 2))  # some three tokens each
    except RateLimited:
        pytest.skip("the account's rate is less than the model's window")
    except ContextTooLong:
        return
    pytest.fail(f"{answer.usage.input_tokens} tokens went into a window of {window}")


# --- cancelling ---


def test_a_cancel_ends_a_stream_within_a_tenth_of_a_second(live: Live) -> None:
    cancelled = Cancellation()
    raised: list[float] = []

    def cancel() -> None:
        raised.append(time.monotonic())
        cancelled.cancel()

    timers: list[threading.Timer] = []

    def on_delta(delta: Delta) -> None:
        if not timers and delta.kind == "text":
            timers.append(threading.Timer(0.05, cancel))
            timers[0].start()

    with pytest.raises(Cancelled):
        live.llm(stream=True, max_output_tokens=4000).completion(
            COUNT, on_delta=on_delta, cancelled=cancelled
        )
    assert time.monotonic() - raised[0] < 0.1


def red_png(size: int) -> bytes:
    """Return a red square as a PNG, written by hand (https://www.w3.org/TR/png-3/)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\x00" + b"\xff\x00\x00" * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
