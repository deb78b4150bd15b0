"""`FallbackLLM` and `RouterLLM`: alone, in conversations, across a save and a resume, in
replays."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Conversation,
    ConversationStatus,
    FallbackLLM,
    Limits,
    ScriptedLLM,
    SQLiteStore,
)
from holdfast import events as ev
from holdfast.content import Message, Usage
from holdfast.conversation.replay import replay
from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    Cancelled,
    ConfigurationError,
    ContextTooLong,
    LLMError,
    RateLimited,
    ServerError,
    StreamInterrupted,
)
from holdfast.llm import LLM, Completion, Delta, RouterLLM, RouterRequest, Transcript
from holdfast.tools.context import Cancellation
from tests.model_server import Drop, ModelServer, Stream, sse, text


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def two(
    first: list[Any], second: list[Any], **more: Any
) -> tuple[FallbackLLM, ScriptedLLM, ScriptedLLM]:
    one, other = ScriptedLLM(first, model="one"), ScriptedLLM(second, model="two")
    return FallbackLLM([one, other], **more), one, other


# --- fallback ---


def test_the_first_model_answers_while_it_can() -> None:
    llm, one, two_ = two(["hi"], [])
    answer = llm.completion("hello")
    assert (answer.text, answer.route) == ("hi", "one")
    assert (len(one.requests), len(two_.requests)) == (1, 0)


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("slow"),
        ServerError("down"),
        AuthenticationError("key"),
        StreamInterrupted("cut"),
    ],
)
def test_the_next_model_is_asked_when_one_fails(
    error: LLMError, caplog: pytest.LogCaptureFixture
) -> None:
    llm, one, other = two([error], ["hi"])
    answer = llm.completion("hello", system="Be good.")
    assert (answer.text, answer.route) == ("hi", "two")
    assert one.requests[0].messages == other.requests[0].messages
    assert f"one failed: {error}" in caplog.text


@pytest.mark.parametrize("error", [BadRequest("wrong"), ContextTooLong("long"), Cancelled("stop")])
def test_what_is_wrong_with_the_request_moves_nothing(error: LLMError) -> None:
    llm, _, other = two([error], ["hi"])
    with pytest.raises(type(error)):
        llm.completion("hello")
    assert not other.requests


def test_which_failures_move_on_can_be_said() -> None:
    llm, _, _ = two([ContextTooLong("long")], ["hi"], on=[ContextTooLong])
    assert llm.completion("hello").route == "two"
    llm, _, _ = two([ServerError("down")], ["hi"], on=[ContextTooLong])
    with pytest.raises(ServerError):
        llm.completion("hello")
    llm, _, _ = two([ServerError("down", status=503)], ["hi"], on=lambda error: error.status == 503)
    assert llm.completion("hello").route == "two"


def test_when_all_fail_the_last_error_tells_of_the_others() -> None:
    llm, _, _ = two([RateLimited("slow down")], [ServerError("down", status=500)])
    with pytest.raises(ServerError, match="down") as caught:
        llm.completion("hello")
    assert caught.value.__notes__ == ["Before that one failed: RateLimited: slow down"]


def test_an_error_that_moves_nothing_tells_of_those_before_it_too() -> None:
    llm, _, _ = two([RateLimited("slow down")], [BadRequest("wrong here")])
    with pytest.raises(BadRequest) as caught:
        llm.completion("hello")
    assert caught.value.__notes__ == ["Before that one failed: RateLimited: slow down"]


def test_a_cancel_moves_nothing_whatever_is_to() -> None:
    for on in (LLMError, lambda error: True):
        llm, _, other = two([Cancelled("stop")], ["hi"], on=on)
        with pytest.raises(Cancelled):
            llm.completion("hello")
        assert not other.requests
    token = Cancellation()

    def fail(request: Any) -> Any:
        token.cancel()
        raise ServerError("down")

    llm, _, other = two([fail], ["hi"])
    with pytest.raises(ServerError):
        llm.completion("hello", cancelled=token)
    assert not other.requests


def test_a_conversation_stays_with_the_model_that_answered() -> None:
    llm, one, other = two([ServerError("down"), "never"], ["hi", "again"])
    transcript = Transcript.from_messages("hello")
    transcript.append(llm.completion(transcript))
    transcript.say("more")
    assert llm.completion(transcript).route == "two"
    assert (len(one.requests), len(other.requests)) == (1, 2)


def test_one_that_is_not_sticky_begins_with_the_first() -> None:
    llm, _, _ = two([ServerError("down"), "back"], ["hi"], sticky=False)
    transcript = Transcript.from_messages("hello")
    transcript.append(llm.completion(transcript))
    transcript.say("more")
    assert llm.completion(transcript).route == "one"


def test_the_ones_before_are_asked_too_when_the_sticky_one_fails() -> None:
    llm, _, _ = two([ServerError("down"), "back"], ["hi", ServerError("down")])
    transcript = Transcript.from_messages("hello")
    transcript.append(llm.completion(transcript))
    transcript.say("more")
    assert llm.completion(transcript).route == "one"


def test_a_watcher_is_told_to_forget_what_a_failed_model_said() -> None:
    deltas: list[Delta] = []
    with ModelServer([Stream([sse(text("half an answer")).encode()[:600]], end=False)]) as server:
        broken = LLM("m", base_url=server.url, stream=True, max_retries=0)
        FallbackLLM([broken, ScriptedLLM(["whole"], stream=True)]).completion(
            "hello", on_delta=deltas.append
        )
        broken.close()
    kinds = [delta.kind for delta in deltas]
    assert kinds[0] == "text"
    assert kinds.count("restart") == 1
    broken_off: list[Delta] = []
    with ModelServer(
        [Stream([sse(text("half an answer")).encode()[:600]], end=False)] * 2
    ) as server:
        broken = LLM("m", base_url=server.url, stream=True, max_retries=0)
        with pytest.raises(StreamInterrupted):
            FallbackLLM([broken, broken]).completion("hello", on_delta=broken_off.append)
    assert [delta.kind for delta in broken_off].count("restart") == 1
    assert broken_off[-1].kind == "text"
    assert "".join(delta.text for delta in deltas[kinds.index("restart") :]) == "whole"


def test_a_save_and_a_resume_change_nothing(tmp_path: Path) -> None:
    """The model that answered last is called first again, also by another process: the journal
    has its name."""
    store = SQLiteStore(tmp_path / "c.db")
    llm, _, _ = two([ServerError("down")], [("add", {"a": 1, "b": 2}), "3."])
    with Conversation(Agent(llm, [add]), store, "c") as conversation:
        conversation.send_message("1 + 2?")
        assert conversation.run().answer == "3."
    again, one, other = two(["never"], ["Bye."])
    with Conversation(Agent(again, [add]), store, "c") as conversation:
        conversation.send_message("Thanks.")
        assert conversation.run().answer == "Bye."
        journal = conversation.get_history()
    assert (len(one.requests), len(other.requests)) == (0, 1)
    assert [event.route for event in journal if isinstance(event, ev.AssistantReplied)] == [
        "two"
    ] * 3
    assert (
        len([event for event in journal if isinstance(event, ev.AgentConfigured)]) == 1
    )  # the agent did not change
    result = replay(journal, Agent(two([], [])[0], [add]))
    assert (result.same, result.requests, result.hashed) == (True, 3, 3)
    store.close()


def test_a_replay_sees_that_a_route_was_given_other_parameters() -> None:
    with ModelServer([text("Hello.")]) as server:
        inner = LLM("m", base_url=server.url, temperature=0.5)
        with Conversation(Agent(FallbackLLM({"a": inner}))) as conversation:
            conversation.send_message("Hi.")
            conversation.run()
            journal = conversation.get_history()
        assert server.requests[0].json["temperature"] == 0.5
    assert replay(journal, Agent(FallbackLLM({"a": inner}))).same
    other = replay(journal, Agent(FallbackLLM({"a": inner.replace(temperature=0.7)})))
    assert other.difference is not None
    assert '-        "temperature": 0.5\n+        "temperature": 0.7' in other.difference.text


def test_the_journaled_parameters_are_those_that_are_sent() -> None:
    """The journaled parameters count until a new `Agent` event replaces them."""
    with ModelServer(lambda request: text("Hello.")) as server:
        llm = FallbackLLM([LLM("m", base_url=server.url, temperature=0.1)])
        head = ev.AgentConfigured(
            seq=1,
            id="a",
            timestamp=ev.EPOCH,
            system_prompt="",
            model=llm.model,
            parameters={
                "routes": {
                    "m": {"model": "m", "parameters": {"wire": "openai_chat", "temperature": 0.9}}
                }
            },
        )
        llm.completion(Transcript.from_messages("Hi."), head=head)
        assert server.requests[0].json["temperature"] == 0.9


def test_composites_within_composites_know_their_way() -> None:
    inner, _, _ = two([ServerError("down"), "never"], ["hi", "again"])
    llm = FallbackLLM({"both": inner, "last": ScriptedLLM([])})
    transcript = Transcript.from_messages("hello")
    transcript.append(llm.completion(transcript))
    assert transcript.items[-1].route == "both > two"  # pyright: ignore
    with Conversation(
        Agent(FallbackLLM({"both": two([ServerError("x")], ["hi", "ho"])[0]}))
    ) as conversation:
        for word in ("a", "b"):
            conversation.send_message(word)
            conversation.run()
        result = replay(conversation.get_history())
        assert (result.same, result.hashed) == (True, 2)


def test_each_of_nested_composites_finds_its_own_part_of_the_way() -> None:
    first = ScriptedLLM([RateLimited("busy"), "never"])
    inner = FallbackLLM({"gpt": first, "spare": ScriptedLLM(["one", "two", "three"])})
    last: list[str] = []

    def pick(request: RouterRequest) -> str:
        last.append(request.last)
        return "gpt"

    llm = FallbackLLM(
        {"gpt": RouterLLM(pick, {"spare": ScriptedLLM([]), "gpt": inner}), "spare": ScriptedLLM([])}
    )
    transcript = Transcript.from_messages("hello")
    for _ in range(3):
        answer = llm.completion(transcript)
        assert answer.route == "gpt > gpt > spare"
        transcript.append(answer)
        transcript.say("more")
    assert last == ["", "gpt", "gpt"]
    assert len(first.requests) == 1


def test_a_connection_that_fails_moves_on_over_real_sockets() -> None:
    with ModelServer([Drop(), Drop()]) as bad, ModelServer([text("fine")]) as good:
        llm = FallbackLLM([LLM("a", base_url=bad.url, max_retries=1), LLM("b", base_url=good.url)])
        with Conversation(Agent(llm, limits=Limits(steps=3))) as conversation:
            conversation.send_message("hello")
            assert conversation.run().status is ConversationStatus.FINISHED
        assert (len(bad.requests), len(good.requests)) == (2, 1)


def test_what_a_composite_is_made_of_is_checked() -> None:
    for wrong in (
        "gpt-5",
        [],
        [LLM],
        {"a": 1},
        {1: ScriptedLLM([])},
        {"a > b": ScriptedLLM([])},
        5,
    ):
        with pytest.raises(ConfigurationError, match="FallbackLLM: models takes"):
            FallbackLLM(wrong)  # pyright: ignore
    for wrong in (LookupError, [ValueError], "all", 5, []):
        with pytest.raises(ConfigurationError, match="FallbackLLM: on takes"):
            FallbackLLM([ScriptedLLM([])], on=wrong)  # pyright: ignore
    with pytest.raises(ConfigurationError, match="RouterLLM: models takes a mapping"):
        RouterLLM(lambda request: "a", [ScriptedLLM([])])  # pyright: ignore
    with pytest.raises(ConfigurationError, match="RouterLLM: pick takes"):
        RouterLLM("a", {"a": ScriptedLLM([])})  # pyright: ignore
    with pytest.raises(AttributeError, match="frozen"):
        FallbackLLM([ScriptedLLM([])]).sticky = False  # pyright: ignore


def test_one_model_twice_has_two_names() -> None:
    llm = FallbackLLM(
        [ScriptedLLM([ServerError("down")], model="m"), ScriptedLLM(["hi"], model="m")]
    )
    assert llm.completion("hello").route == "m#2"
    assert llm.model == "fallback(m, m#2)"


def test_a_composite_shows_no_key_and_has_the_dearest_price() -> None:
    llm = FallbackLLM([LLM("gpt-4o-mini", "sk-planted"), LLM("gpt-4o", "sk-planted")])
    assert "sk-planted" not in repr(llm) + repr(llm.parameters()) + llm.model
    usage = Usage(1000, 1000)
    assert llm.cost(usage) == LLM("gpt-4o").cost(usage)
    assert FallbackLLM([LLM("gpt-4o"), ScriptedLLM([])]).cost(usage) is None


# --- router ---


def test_a_function_picks() -> None:
    requests: list[Any] = []

    def pick(request: RouterRequest) -> str:
        requests.append((request.system, request.last, len(request.items), request.tools[0].name))
        return "large" if len(request.items) > 1 else "small"

    small, large = (
        ScriptedLLM([("add", {"a": 1, "b": 2})], model="s"),
        ScriptedLLM(["3."], model="l"),
    )
    agent = Agent(RouterLLM(pick, {"small": small, "large": large}), [add], system_prompt="Add.")
    with Conversation(agent) as conversation:
        conversation.send_message("1 + 2?")
        assert conversation.run().answer == "3."
        journal = conversation.get_history()
    assert [event.route for event in journal if isinstance(event, ev.AssistantReplied)] == [
        "small",
        "large",
    ]
    assert requests == [("Add.", "", 1, "add"), ("Add.", "small", 3, "add")]
    requests.clear()
    assert replay(journal, agent).same
    assert not requests  # the journal has the model that answered


def test_a_router_without_a_conversation() -> None:
    llm = RouterLLM(lambda request: "a", {"a": ScriptedLLM(["hi"])})
    assert llm.completion([Message("hello")], [], system="Be good.").route == "a"


def test_a_name_that_is_none_is_said() -> None:
    llm = RouterLLM(lambda request: "b", {"a": ScriptedLLM(["hi"])})
    with pytest.raises(ConfigurationError, match="RouterLLM: pick returns one of a, not 'b'"):
        llm.completion("hello")


def test_many_conversations_share_a_composite() -> None:
    """All memory is in the journals: each conversation has its own route."""

    def first(request: Any) -> Any:
        if "fail" in request.messages[1]["content"]:
            raise ServerError("down")
        return "one"

    llm = FallbackLLM(
        [ScriptedLLM(first, model="one"), ScriptedLLM(lambda request: "two", model="two")]
    )
    routes: dict[str, set[str]] = {}

    def talk(name: str) -> None:
        with Conversation(Agent(llm)) as conversation:
            for _ in range(5):
                conversation.send_message(name)
                conversation.run()
            routes[name] = {
                event.route
                for event in conversation.get_history()
                if isinstance(event, ev.AssistantReplied)
            }

    threads = [
        threading.Thread(target=talk, args=(f"{'fail' if n % 2 else 'go'} {n}",)) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: next(iter(models)) for name, models in routes.items()} == {
        name: "two" if "fail" in name else "one" for name in routes
    }
    assert all(len(models) == 1 for models in routes.values())


def test_a_completion_of_anybody_gets_its_route() -> None:
    class Mine:
        model = "mine"

        def completion(self, *_: Any, **__: Any) -> Completion:
            return Completion("hi")

        def parameters(self) -> dict[str, Any]:
            return {}

        def cost(self, usage: Usage) -> None:
            return None

        def close(self) -> None:
            pass

    assert FallbackLLM([Mine()]).completion("hello").route == "mine"


def test_its_function_of_an_error_is_asked_only_about_one_that_decides() -> None:
    names: list[str] = []

    def moves_on(error: LLMError) -> bool:
        names.append(type(error).__name__)
        return True

    def failing(error: LLMError) -> ScriptedLLM:
        return ScriptedLLM([error], model=f"m{id(error)}")

    with pytest.raises(ServerError):
        FallbackLLM([failing(ServerError("a")), failing(ServerError("b"))], on=moves_on).completion(
            "x"
        )
    assert names == ["ServerError"]  # not for the last one's error
    with pytest.raises(Cancelled):
        FallbackLLM([failing(Cancelled("a")), failing(ServerError("b"))], on=moves_on).completion(
            "x"
        )
    assert names == ["ServerError"]
