"""`LiteLLM`: with a stand-in for the package, and with the real one where it is installed
(`.ci/run` does that)."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast import Agent, Conversation, ConversationStatus
from holdfast.conversation.replay import replay
from holdfast.errors import (
    AuthenticationError,
    BadResponse,
    Cancelled,
    ConfigurationError,
    LLMConnectionError,
    LLMTimeout,
    RateLimited,
)
from holdfast.llm import Completion, Delta, LiteLLM, Transcript
from holdfast.tools.context import Cancellation
from tests.model_server import ModelServer, calls, sse, text

KEY = "sk-planted-secret"
PACKAGE = Path(sys.prefix) / "litellm"  # compiled for this Python


class Dumpable:
    """A result of litellm: an object that returns its JSON."""

    def __init__(self, body: dict[str, Any] | str) -> None:
        self.body = body if isinstance(body, str) else json.dumps(body)

    def model_dump_json(self, **_: Any) -> str:
        return self.body


def install(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[dict[str, Any]]:
    """Install a stand-in for the package; return the arguments of each call."""
    calls: list[dict[str, Any]] = []
    queue = list(answers)

    def completion(**arguments: Any) -> Any:
        calls.append(arguments)
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if arguments.get("stream"):
            return (
                Dumpable(line[6:])
                for line in sse(answer).splitlines()
                if line.startswith("data: {")
            )
        return Dumpable(answer)

    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(completion=completion))  # pyright: ignore
    return calls


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_over_litellm(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls_of_litellm = install(monkeypatch, calls(("add", {"a": 1, "b": 2})), text("3."))
    llm = LiteLLM(
        "bedrock/some-model",
        stream=stream,
        temperature=0.5,
        api_key=KEY,
        aws_region_name="eu-north-1",
    )
    agent = Agent(llm, [add])
    with Conversation(agent) as conversation:
        conversation.send_message("1 + 2?")
        assert conversation.run().answer == "3."
        journal = conversation.get_history()
    assert (
        calls_of_litellm[1]["model"],
        calls_of_litellm[1]["temperature"],
        calls_of_litellm[1]["api_key"],
        calls_of_litellm[1]["num_retries"],
    ) == ("bedrock/some-model", 0.5, KEY, 0)
    assert [message["role"] for message in calls_of_litellm[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert KEY not in "".join(event.to_json().decode() for event in journal)
    assert journal[-1].type == "status"
    result = replay(journal, agent)
    assert (result.same, result.hashed) == (True, 2)


def test_deltas_are_told_and_a_cancel_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, text("a long answer"), text("another"))
    deltas: list[Delta] = []
    assert LiteLLM("m").completion("hello", on_delta=deltas.append).text == "a long answer"
    assert "".join(delta.text for delta in deltas) == "a long answer"
    token = Cancellation()
    with pytest.raises(Cancelled):
        LiteLLM("m").completion("hello", on_delta=lambda delta: token.cancel(), cancelled=token)


def failure(
    kind: str, status: int | None = None, headers: dict[str, str] | None = None
) -> Exception:
    error = type(kind, (Exception,), {})(f"{kind} of {KEY}")
    error.status_code = status
    error.response = SimpleNamespace(headers=headers or {})
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (failure("AuthenticationError", 401), AuthenticationError),
        (failure("RateLimitError", 429, {"Retry-After": "7"}), RateLimited),
        (failure("Timeout", 408), LLMTimeout),
        (failure("APIConnectionError", 500), LLMConnectionError),
        (failure("Strange"), BadResponse),
    ],
)
def test_failures_are_typed_and_hold_no_key(
    error: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, error)
    with pytest.raises(expected) as caught:
        LiteLLM("m", max_retries=0, api_key=KEY).completion("hello")
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    if expected is RateLimited:
        assert caught.value.retry_after == 7  # pyright: ignore


def test_a_passing_failure_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = install(
        monkeypatch, failure("RateLimitError", 429, {"retry-after-ms": "1"}), text("hi")
    )
    assert LiteLLM("m", stream=False).completion("hello").text == "hi"
    assert len(attempts) == 2


def test_a_watcher_is_told_to_forget_what_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, text("x"), text("Hello world"))
    whole = sys.modules["litellm"].completion
    tries: list[int] = []

    def breaks_off(**arguments: Any) -> Any:
        tries.append(1)
        chunks = list(whole(**arguments))
        return iter(chunks[:2] if len(tries) == 1 else chunks)

    monkeypatch.setattr(sys.modules["litellm"], "completion", breaks_off)
    deltas: list[Delta] = []
    assert LiteLLM("m").completion("hello", on_delta=deltas.append).text == "Hello world"
    kinds = [delta.kind for delta in deltas]
    assert kinds[:3] == ["text", "retry", "restart"]
    assert "".join(delta.text for delta in deltas[3:]) == "Hello world"


def test_what_could_not_be_told_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, text("hi"))
    transcript = Transcript.from_messages("hello")
    native = msgspec.Raw(
        b'[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a"}]'
    )
    transcript.append(Completion("a", model="claude-x", wire="anthropic_messages", native=native))
    transcript.say("more")
    answer = LiteLLM("m", stream=False).completion(transcript)
    assert answer.host == "litellm"
    assert answer.notes[0].startswith("1 answer of claude-x went to m as text and calls only")


def test_no_secret_of_its_settings_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "extra_headers": {"X-Gateway": "Bearer plain-secret-998877"},
        "litellm_params": {"inner": [{"api_key": "nested-secret-1"}]},
        "vertex_credentials": '{"private": "a-secret"}',
    }
    error = failure("Strange")
    error.args = (f"{secrets} plain-secret-998877 {json.dumps(secrets)}",)
    install(monkeypatch, error)
    llm = LiteLLM("m", max_retries=0, **secrets, max_tokens=5, thinking={"budget_tokens": 9})
    with pytest.raises(BadResponse) as caught:
        llm.completion("hello")
    for message in (str(caught.value), str(llm.parameters()), repr(llm)):
        for secret in ("plain-secret", "nested-secret", "a-secret"):
            assert secret not in message
    assert llm.parameters() == {
        "wire": "openai_chat",
        "host": "litellm",
        "litellm_params": {"inner": [{}]},
        "max_tokens": 5,
        "thinking": {"budget_tokens": 9},
    }


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast\[litellm\]'"):
        LiteLLM("m")


def test_it_shows_no_key_and_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    llm = LiteLLM(
        "m",
        api_key=KEY,
        aws_secret_access_key=KEY,
        extra_headers={"x": KEY},
        top_p=0.5,
        client=object(),
    )
    assert llm.parameters() == {"wire": "openai_chat", "host": "litellm", "top_p": 0.5}
    assert KEY not in repr(llm)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(llm)
    with pytest.raises(AttributeError, match="frozen"):
        llm.model = "other"
    with pytest.raises(ConfigurationError, match="model takes"):
        LiteLLM("")


@pytest.mark.proof
@pytest.mark.skipif(
    not PACKAGE.exists(), reason=f"litellm is not installed in {PACKAGE}; .ci/run does that"
)
def test_the_real_package() -> None:
    program = """
        import sys
        from holdfast import Agent, Conversation
        from holdfast.errors import AuthenticationError
        from holdfast.llm import LiteLLM

        def add(a: int, b: int) -> int:
            "Adds."
            return a + b

        for stream in (False, True):
            llm = LiteLLM("openai/some-model", api_base=sys.argv[1], api_key="sk-planted-secret", stream=stream, max_retries=0)
            with Conversation(Agent(llm, [add])) as conversation:
                conversation.send_message("1 + 2?")
                print(conversation.run().answer, conversation.state.usage.input_tokens)
        try:
            llm.completion("hello")
        except AuthenticationError as error:
            assert "sk-planted-secret" not in str(error)
            print("refused", error.status)
    """
    turn = [calls(("add", {"a": 1, "b": 2})), text("It is 3.")]
    refused = (
        401,
        {"content-type": "application/json"},
        {"error": {"message": "wrong key sk-planted-secret", "code": "invalid_api_key"}},
    )
    with ModelServer([*turn, *map(sse, turn), refused, refused]) as server:
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), server.url],
            env={**os.environ, "PYTHONPATH": str(PACKAGE), "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["It is 3. 20", "It is 3. 20", "refused 401"]


def test_a_run_ends_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, failure("AuthenticationError", 401))
    with Conversation(Agent(LiteLLM("m", max_retries=0))) as conversation:
        conversation.send_message("hello")
        assert conversation.run().status is ConversationStatus.ERROR
