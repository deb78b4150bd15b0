"""Tests of A2A agents as tools: real agent processes of both protocol versions, over both
transports. Misbehaving agents are in test_a2a_faults.py."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Agent, Conversation, ImageContent, ScriptedLLM, TextContent, ToolManager
from holdfast.content import AudioContent, EmbeddedResource, ResourceLink
from holdfast.errors import ConfigurationError, ToolError, ToolValidationError
from holdfast.store import MemoryStore
from holdfast.tools.a2a import A2AClient, AgentMemory, WaitingTask
from holdfast.tools.a2a.config import RemoteAgent, origin, read_agents
from holdfast.tools.a2a.parts import AgentAnswer, AgentSkill, result_of, schema_of
from holdfast.tools.context import ToolContext
from holdfast.tools.sources import Source
from tests.a2a_parts import TOKEN, VARIANTS, Agents, Running, by_skill, lines, needs_a2a
from tests.leftovers import Owned
from tests.waiting import until

pytestmark = needs_a2a
SKILLS = [
    "echo",
    "everything",
    "form",
    "failed",
    "rejected",
    "canceled",
    "ask",
    "auth",
    "work",
    "hang",
    "crash",
    "die",
]
SKILLS += ["refuse", "reply", "nothing", "odd_one", "pieces", "repeat"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with Agents(tmp_path_factory.mktemp("a2a")) as shared_agents:
        yield shared_agents


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: Any, agents: Agents) -> Running:
    version, transport, streaming = request.param
    return agents.shared(version=version, transport=transport, streaming=streaming)


@pytest.fixture
def client(variant: Running) -> Iterator[A2AClient]:
    with A2AClient({"ag": {"url": variant["url"]}}, timeout=10.0, call_timeout=20.0) as client:
        yield client


# --- without an agent ---


@pytest.mark.slow
@pytest.mark.parametrize("config", [None, {}])
def test_a_config_without_agents_gives_no_tools_and_starts_nothing(config: Any) -> None:
    before = Owned()
    with A2AClient(config) as client:
        assert [*client] == client.tools() == client.sources() == []
        assert before.new_threads() == 0


def test_importing_the_room_loads_neither_a2a_nor_asyncio() -> None:
    source = (
        "import sys; from holdfast.tools.a2a import A2AClient; c = A2AClient({'a': {'url':"
        " 'http://x'}}); c.sources(); c.close();print([m for m in ('a2a', 'asyncio', 'anyio',"
        " 'httpx', 'google.protobuf', 'pydantic') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_without_the_package_each_agent_says_what_to_install() -> None:
    source = (
        "import sys; sys.modules['a2a'] = None; from holdfast.tools.a2a import A2AClient; c ="
        " A2AClient({'a': {'url': 'http://x'}});assert c.tools() == []; print(c.errors['a']);"
        " print(c.sources()[0].health(1).detail)"
    )
    outputs = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert outputs[0] == outputs[1]
    assert "pip install 'holdfast[a2a]'" in outputs[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"a": {"url": "http://x", "tokn": "t"}},
            "A2A agent 'a' has an unknown key 'tokn'. Did you mean 'token'",
        ),
        (
            {"a": {"url": "http://x", "headers": {"k": 1}}},
            "A2A agent 'a': headers: Expected `str`, got `int`",
        ),
        ({"a": {"url": "http://x", "lazy": "yes"}}, "A2A agent 'a': lazy"),
        ({"a": {"url": "http://x", "timeout": 0}}, "A2A agent 'a': timeout takes"),
        ({"a": {"url": "http://x", "call_timeout": -1}}, "A2A agent 'a': call_timeout takes"),
        ({"a": {"url": "ftp://x"}}, "A2A agent 'a': url takes an http"),
        ({"a": {"url": "http://user:pass@x"}}, "A2A agent 'a': url takes no user"),
        ({"a": {"url": "http://x?key=1"}}, "A2A agent 'a': url takes no user"),
        ({"a": {"url": "http://x", "origins": ["x"]}}, "A2A agent 'a': origins takes addresses"),
        (
            {"a": {"url": "http://x", "token": "a\nb"}},
            "A2A agent 'a': token and headers take printable",
        ),
        (
            {"a": {"url": "http://x", "headers": {"k": "a\r\nb"}}},
            "A2A agent 'a': token and headers take printable",
        ),
        (
            {"a": {"url": "http://x", "token": "t", "headers": {"authorization": "x"}}},
            "A2A agent 'a': give token or an Authorization header",
        ),
        ({"a": {}}, "A2A agent 'a' takes a mapping with url"),
        ({"a": "x"}, "A2A agent 'a' takes a mapping with url"),
        ({"a.b": {"url": "http://x"}}, "A2A agent 'a.b': an id takes"),
        ([], "config takes a mapping"),
    ],
)
def test_a_wrong_config_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        A2AClient(config)


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": 0},
        {"timeout": None},
        {"timeout": "1"},
        {"call_timeout": -1},
        {"call_timeout": True},
    ],
)
def test_a_wrong_timeout_is_refused_by_name(option: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        A2AClient({}, **option)


def test_no_secret_is_in_a_config_error_or_a_repr() -> None:
    for part in (
        {"token": [TOKEN]},
        {"headers": {"k": [TOKEN]}},
        {"headers": TOKEN},
        {"token": TOKEN + "\n"},
    ):
        with pytest.raises(ConfigurationError) as caught:
            A2AClient({"a": {"url": "http://x", **part}})
        assert TOKEN not in str(caught.value)
    config = {"a": {"url": "http://x", "token": TOKEN, "headers": {"k": TOKEN}}}
    client = A2AClient(config)
    assert TOKEN not in repr([client, client.sources(), read_agents(config, 1.0, None)])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Host/a", "https://host:443"),
        ("http://host:80", "http://host:80"),
        ("http://h@host/", "http://host:80"),
        ("https://host:8443", "https://host:8443"),
        ("ftp://host", ""),
        ("host", ""),
        ("http://", ""),
        ("http://host:x", ""),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


def test_a_url_may_be_that_of_the_card() -> None:
    assert (
        RemoteAgent("http://h/x/").card_url
        == RemoteAgent("http://h/x").card_url
        == "http://h/x/.well-known/agent-card.json"
    )
    assert RemoteAgent("http://h/cards/mine.json").card_url == "http://h/cards/mine.json"


@pytest.mark.parametrize(
    ("modes", "properties", "required"),
    [
        ((), ["message"], ["message"]),
        (("text/plain",), ["message"], ["message"]),
        (("text", "data"), ["message", "data"], ["message"]),
        (("application/json",), ["data"], ["data"]),
        (("text/plain", "image/png"), ["message", "files"], ["message"]),
        (("application/pdf",), ["files"], ["files"]),
        (("*/*",), ["message", "data", "files"], ["message"]),
    ],
)
def test_a_skill_takes_what_its_input_modes_allow(
    modes: tuple[str, ...], properties: list[str], required: list[str]
) -> None:
    schema = schema_of(AgentSkill("s", "", modes))
    assert list(schema["properties"]) == properties
    assert schema["required"] == required


def test_a_file_type_is_one_of_the_modes_unless_these_have_wildcards() -> None:
    def kind(*modes: str) -> Any:
        return schema_of(AgentSkill("s", "", modes))["properties"]["files"]["items"]["properties"][
            "mime_type"
        ]

    assert kind("text/plain", "image/png", "text/csv")["enum"] == ["image/png", "text/csv"]
    assert "enum" not in kind("image/*")


def test_a_memory_is_bounded_and_gives_a_waiting_task_to_one_call_alone() -> None:
    memory = AgentMemory()
    memory.keep("", "s", "context", None)
    assert memory.take("", "s") == ("", None)
    for number in range(1001):
        memory.keep(
            f"conversation{number}",
            "s",
            f"context{number}",
            WaitingTask("task", "input-required", ""),
        )
    assert memory.take("conversation0", "s") == ("", None)
    assert memory.take("conversation1", "other") == ("context1", None)
    assert memory.take("conversation1", "s") == (
        "context1",
        WaitingTask("task", "input-required", ""),
    )
    assert memory.take("conversation1", "s") == ("context1", None)


def test_a_picture_that_models_cannot_see_and_bytes_that_are_not_the_text_they_claim_are_resources() -> (
    None
):
    from a2a.types import Part

    parts = [
        Part(raw=b"<svg/>", media_type="image/svg+xml"),
        Part(raw=b"\xff", media_type="text/plain"),
        Part(raw=b"x"),
        Part(),
    ]
    result = result_of("ag", "ag.x", AgentAnswer("completed", parts=parts), True)
    assert result.content == (
        EmbeddedResource({"uri": "a2a://ag/", "mimeType": "image/svg+xml", "text": "<svg/>"}),
        EmbeddedResource({"uri": "a2a://ag/", "mimeType": "text/plain", "blob": "/w=="}),
        EmbeddedResource(
            {"uri": "a2a://ag/", "mimeType": "application/octet-stream", "blob": "eA=="}
        ),
    )


def test_data_that_json_cannot_say_is_refused() -> None:
    from a2a.types import Part

    part = Part()
    part.data.number_value = float("nan")
    with pytest.raises(ToolError, match="cannot be read"):
        result_of("ag", "ag.x", AgentAnswer("completed", parts=[part]), True)


# --- every version, transport and way of answering ---


@pytest.mark.slow
def test_each_skill_is_a_tool(client: A2AClient) -> None:
    tools = client.tools()
    assert (
        [tool.name for tool in tools]
        == [f"ag.{skill}" for skill in SKILLS]
        == [tool.name for tool in [*client]]
    )
    assert client.errors == {}
    echo = tools[0]
    assert (echo.tool_type, echo.category) == ("a2a_tool", "a2a")
    assert (
        echo.description
        == "Says what it was told.\n\nExamples of messages:\n- Say hello.\n\nDone by another agent,"
        " Tester."
    )
    assert not echo.annotations.repeatable


def test_a_message_goes_with_the_skills_own_id_in_the_version_of_the_card(
    client: A2AClient, variant: Running
) -> None:
    result = by_skill(client)["odd_one"].run({"message": "hällo"})
    assert (result.text, result.is_error, result.meta["state"]) == (
        "echo: hällo",
        False,
        "completed",
    )
    assert lines(variant, "execute odd/one")[-1].endswith("text=hällo")
    posts = lines(variant, "POST")
    assert posts
    assert all(f"version={variant['version']} " in line for line in posts)
    assert all(("stream" in line) == variant["streaming"] for line in posts if "message" in line)


def test_a_lone_message_is_an_answer(client: A2AClient) -> None:
    result = by_skill(client)["reply"].run({"message": "x"})
    assert (result.text, result.is_error) == ("reply: x", False)
    assert result.meta.keys() == {"contextId"}


@pytest.mark.slow
def test_a_task_that_says_nothing_is_a_success_without_content(client: A2AClient) -> None:
    result = by_skill(client)["nothing"].run({"message": "x"})
    assert (result.content, result.structured_content, result.is_error) == ((), None, False)


@pytest.mark.slow
def test_every_kind_of_part_goes_there_and_comes_back(client: A2AClient, variant: Running) -> None:
    files = [
        {"mime_type": "image/png", "text": "not really", "name": "a.png"},
        {"mime_type": "image/png", "bytes": "iVA="},
        {"mime_type": "image/png", "uri": "https://files.example/b.png"},
    ]
    result = by_skill(client)["everything"].run(
        {"message": "all", "data": {"n": 1, "deep": [None, {"x": 2.5}]}, "files": files}
    )
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    assert "".join(texts[:-2]) == "first, second"
    assert texts[-1] == "that was all"
    assert [block for block in result.content if not isinstance(block, TextContent)] == [
        ImageContent(b"\x89PNG...", "image/png"),
        AudioContent(b"RIFF", "audio/wav"),
        EmbeddedResource({"uri": "a2a://ag/a%20b.csv", "mimeType": "text/csv", "text": "a,b"}),
        EmbeddedResource(
            {"uri": "a2a://ag/thing", "mimeType": "application/x-thing", "blob": "AP8="}
        ),
        ResourceLink("https://files.example/big.zip?x=1", "big.zip", "application/zip"),
    ]
    assert result.data["count"] == 3
    assert type(result.data["count"]) is int
    got = result.data["got"]
    assert got[0]["text"] == "all"
    assert got[1]["data"] == {"n": 1, "deep": [None, {"x": 2.5}]}
    assert [{key: part.get(key) for key in ("raw", "url", "mediaType")} for part in got[2:]] == [
        {"raw": "bm90IHJlYWxseQ==", "url": None, "mediaType": "image/png"},
        {"raw": "iVA=", "url": None, "mediaType": "image/png"},
        {"raw": None, "url": "https://files.example/b.png", "mediaType": "image/png"},
    ]


@pytest.mark.slow
def test_a_skill_without_text_takes_data_alone(client: A2AClient) -> None:
    form = by_skill(client)["form"]
    assert form.run({"data": {"name": "Ada"}}).data == {"name": "Ada"}
    with pytest.raises(ToolValidationError, match="data is required"):
        form.run({})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "message"),
    [
        (
            {"text": "a", "uri": "b"},
            r"files\[0\] takes one of text, bytes or uri; it has text and uri",
        ),
        ({}, r"files\[0\] takes one of text, bytes or uri; it has none"),
        ({"bytes": "!"}, r"files\[0\].bytes is not base64"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_before_the_agent_is_asked(
    agents: Agents, file: Any, message: str
) -> None:
    with (
        A2AClient({"ag": {"url": agents.shared()["url"]}}) as client,
        pytest.raises(ToolValidationError, match=message),
    ):
        by_skill(client)["everything"].run(
            {"message": "x", "files": [{"mime_type": "image/png", **file}]}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skill", "kind", "beginning", "note"),
    [
        (
            "failed",
            "unknown",
            "half of it\nthe printer is on fire",
            "reports that this task failed",
        ),
        ("rejected", "validation", "not on a Sunday", "refused this task"),
        ("canceled", "cancelled", "", "The agent cancelled the task"),
        (
            "auth",
            "authentication",
            "Open https://login.example and sign in.",
            "Ask the user for it; then call ag.auth again",
        ),
    ],
)
def test_a_task_that_does_not_complete_is_an_error_that_says_what_to_do(
    client: A2AClient, skill: str, kind: str, beginning: str, note: str
) -> None:
    result = by_skill(client)[skill].run({"message": "x"}, ToolContext("c"))
    assert result.is_error
    assert result.error is not None
    assert result.error.type == kind
    assert result.text.startswith(beginning)
    assert note in result.text
    assert result.error.message == result.text
    assert result.meta["state"] == ("auth-required" if skill == "auth" else skill)


@pytest.mark.slow
def test_a_question_is_a_result_and_the_next_call_goes_on_with_its_task(
    client: A2AClient, variant: Running
) -> None:
    ask = by_skill(client)["ask"]
    first = ask.run({"message": "paint"}, ToolContext("c"))
    assert (first.is_error, first.meta["state"]) == (False, "input-required")
    assert first.text.startswith("Which colour?\n")
    assert "Call ag.ask again with the answer as the message" in first.text
    second = ask.run({"message": "hm"}, ToolContext("c"))
    assert second.meta == first.meta
    third = ask.run({"message": "blue"}, ToolContext("c"))
    assert third.text == f"painted blue in {first.meta['taskId']}"
    assert third.meta == {**first.meta, "state": "completed"}
    # no open task any more: a new task, in the same context
    fourth = ask.run({"message": "red"}, ToolContext("c"))
    assert fourth.meta["taskId"] != first.meta["taskId"]
    assert fourth.meta["contextId"] == first.meta["contextId"]


@pytest.mark.slow
def test_an_authorised_task_goes_on_with_the_next_message(client: A2AClient) -> None:
    auth = by_skill(client)["auth"]
    first = auth.run({"message": "please"}, ToolContext("c"))
    second = auth.run({"message": "released"}, ToolContext("c"))
    assert (second.text, second.meta["taskId"], second.is_error) == (
        "thank you",
        first.meta["taskId"],
        False,
    )


@pytest.mark.slow
def test_a_task_that_was_authorised_elsewhere_is_not_asked_twice(
    agents: Agents, variant: Running
) -> None:
    with (
        agents.serve(**variant.kind()) as mine,
        A2AClient({"ag": {"url": mine["url"]}}, timeout=10.0) as client,
    ):
        auth = by_skill(client)["auth"]
        first = auth.run({"message": "out of band"}, ToolContext("c"))
        assert first.meta["state"] == "auth-required"
        urllib.request.urlopen(
            urllib.request.Request(f"{mine['url']}/release", method="POST"), timeout=5
        ).close()
        until(lambda: lines(mine, "went on"))
        time.sleep(0.3)  # its last event arrives a moment later
        deadline = time.monotonic() + 20.0
        second = auth.run({"message": "go on"}, ToolContext("c"))
        assert time.monotonic() < deadline
        assert (second.text, second.meta["taskId"]) == ("done without a word", first.meta["taskId"])
        assert len(lines(mine, "execute")) == 1


@pytest.mark.slow
def test_what_an_agent_says_while_it_works_is_progress(client: A2AClient, variant: Running) -> None:
    progress_texts: list[tuple[str, str]] = []
    here = threading.current_thread().name
    context = ToolContext(
        "c", progress=lambda text: progress_texts.append((threading.current_thread().name, text))
    )
    assert by_skill(client)["work"].run({"message": "0.4"}, context).text == "a garden"
    assert {thread for thread, _ in progress_texts} == {here}  # never on the loop's thread
    texts = [text for _, text in progress_texts]
    assert "digging" in texts
    assert "planting" in texts
    assert texts.count("digging") == 1


def test_progress_that_raises_harms_nothing(
    client: A2AClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: str) -> None:
        raise ValueError("no ears")

    assert by_skill(client)["echo"].run({"message": "x"}, ToolContext("c", progress=broken)).success
    assert "no ears" in caplog.text


@pytest.mark.slow
def test_an_error_of_the_protocol_is_classified_by_its_code(
    client: A2AClient, variant: Running
) -> None:
    tools = by_skill(client)
    for text, kind in (("params", "validation"), ("operation", "validation")):
        with pytest.raises(ToolError, match="A2A agent 'ag' failed the call: ") as caught:
            tools["refuse"].run({"message": text})
        if (variant["version"], variant["transport"], variant["streaming"]) == (
            "0.3",
            "HTTP+JSON",
            True,
        ):
            assert caught.value.error_type == "network"  # the SDK's agent breaks the connection off
        else:
            assert caught.value.error_type == kind
            assert "refused by the agent." in str(caught.value)
    with pytest.raises(ToolError) as caught:
        tools["crash"].run({"message": "x"})
    assert caught.value.error_type in ("internal", "network")
    assert tools["echo"].run({"message": "x"}).success


@pytest.mark.slow
def test_a_waiting_task_that_the_agent_has_forgotten_is_not_found_and_then_forgotten_here(
    agents: Agents, variant: Running
) -> None:
    with (
        agents.serve(**variant.kind()) as mine,
        A2AClient({"ag": {"url": mine["url"]}}, timeout=10.0) as client,
    ):
        ask = by_skill(client)["ask"]
        assert ask.run({"message": "paint"}, ToolContext("c")).meta["state"] == "input-required"
        mine.restart()
        if (variant["version"], variant["transport"], variant["streaming"]) != (
            "0.3",
            "HTTP+JSON",
            True,
        ):  # see above
            with pytest.raises(ToolError) as caught:
                ask.run({"message": "blue"}, ToolContext("c"))
            assert caught.value.error_type == "not_found"
            assert ask.run({"message": "blue"}, ToolContext("c")).text.startswith("painted blue")


# --- conversations ---


def test_calls_of_one_conversation_share_a_context_and_others_do_not(agents: Agents) -> None:
    with A2AClient({"ag": {"url": agents.shared()["url"]}}) as client:
        tools = by_skill(client)
        contexts = [
            tools[skill].run({"message": "x"}, ToolContext(conversation)).meta["contextId"]
            for skill, conversation in (
                ("echo", "a"),
                ("ask", "a"),
                ("reply", "a"),
                ("echo", "b"),
                ("echo", ""),
                ("echo", ""),
            )
        ]
        assert contexts[0] == contexts[1] == contexts[2]
        assert len(set(contexts)) == 4
        question = tools["ask"].run({"message": "x"})
        # nothing is remembered without a conversation
        assert "Call ag.ask again with the whole request" in question.text


def test_a_waiting_task_belongs_to_its_skill(agents: Agents) -> None:
    with A2AClient({"ag": {"url": agents.shared()["url"]}}) as client:
        tools = by_skill(client)
        question = tools["ask"].run({"message": "x"}, ToolContext("a"))
        assert (
            tools["echo"].run({"message": "x"}, ToolContext("a")).meta["taskId"]
            != question.meta["taskId"]
        )
        assert (
            tools["ask"].run({"message": "red"}, ToolContext("a")).meta["taskId"]
            == question.meta["taskId"]
        )


@pytest.mark.slow
def test_an_agent_that_asks_the_same_again_is_heard_and_its_old_question_is_not(
    agents: Agents,
) -> None:
    for streaming in (True, False):
        with A2AClient({"ag": {"url": agents.shared(streaming=streaming)["url"]}}) as client:
            repeat = by_skill(client)["repeat"]
            first = repeat.run({"message": "x"}, ToolContext("a"))
            second = repeat.run({"message": "y"}, ToolContext("a"))
            assert (first.text.splitlines()[0], second.text.splitlines()[0]) == (
                "asked by x",
                "asked by y",
            )
            assert second.meta == first.meta


def test_a_text_that_is_streamed_in_pieces_is_one_text(agents: Agents) -> None:
    with A2AClient({"ag": {"url": agents.shared()["url"]}}) as client:
        assert by_skill(client)["pieces"].run({"message": "x"}).content == (
            TextContent("Hello, world"),
            TextContent("!"),
        )


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_question_can_be_answered_after_close(agents: Agents, whole: bool) -> None:
    client = A2AClient({"ag": {"url": agents.shared()["url"]}})
    ask = by_skill(client)["ask"]
    first = ask.run({"message": "paint"}, ToolContext("c"))
    (client if whole else client.sources()[0]).close()
    other = ask.run({"message": "paint"}, ToolContext("d"))
    assert other.meta["contextId"] != first.meta["contextId"]
    second = ask.run({"message": "blue"}, ToolContext("c"))
    client.close()
    assert second.text == f"painted blue in {first.meta['taskId']}"
    assert second.meta["contextId"] == first.meta["contextId"]
    assert ask.remote_name == "ask"  # pyright: ignore[reportAttributeAccessIssue]: an A2ATool


@pytest.mark.slow
def test_an_agent_calls_a_skill_by_its_wire_name_and_a_conversation_that_is_opened_again_goes_on(
    agents: Agents,
) -> None:
    model = ScriptedLLM(
        [
            ("ag__ask", {"message": "paint"}),
            "Which colour?",
            ("ag__ask", {"message": "blue"}),
            lambda request: f"It says {request.text}",
        ]
        * 2
    )
    client = A2AClient({"ag": {"url": agents.shared()["url"]}})
    agent = Agent(model, ToolManager([], client.sources()))
    store = MemoryStore()
    for id in ("a", "b"):
        with Conversation(agent, store, id) as conversation:
            conversation.send_message("Paint it.")
            assert conversation.run().answer == "Which colour?"
        with Conversation(agent, store, id) as conversation:
            conversation.send_message("Blue.")
            state = conversation.run()
            assert "painted blue" in state.answer
            first_task, second_task = (
                event.result.meta["taskId"] for event in state.events if event.type == "toolResult"
            )
            assert first_task == second_task
    client.close()


def test_every_attempt_of_one_call_bears_the_same_message_id(agents: Agents) -> None:
    shared = agents.shared()
    with A2AClient({"ag": {"url": shared["url"]}}) as client:
        echo = by_skill(client)["echo"]
        for context in (
            ToolContext("c", "1.0", 1),
            ToolContext("c", "1.0", 2),
            ToolContext("c", "2.0"),
            ToolContext("c"),
            ToolContext("", "1.0"),
        ):
            echo.run({"message": "attempt"}, context)
    ids = [
        line.split("message=")[1].split()[0]
        for line in lines(shared, "execute echo")
        if line.endswith("text=attempt")
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


# --- the source ---


def test_each_agent_is_a_source(agents: Agents) -> None:
    config = {
        "one": {"url": agents.shared()["url"], "lazy": True},
        "two": {"url": "http://127.0.0.1:9"},
    }
    with A2AClient(config, timeout=5.0) as client:
        sources: list[Source] = [*client.sources()]
        one, two = sources
        assert [(source.id, source.kind, source.lazy) for source in sources] == [
            ("one", "a2a", True),
            ("two", "a2a", False),
        ]
        one.watch(lambda: None)
        assert one.discover()[0].name == "one.echo"
        health = one.health(5.0)
        assert (health.id, health.ok, health.detail) == (
            "one",
            True,
            "Tester 7, A2A 1.0 over JSONRPC",
        )
        assert health.seconds > 0
        with pytest.raises(
            ToolError, match="'two' could not be asked for its card: ConnectError"
        ) as caught:
            two.discover()
        assert caught.value.error_type == "network"
        assert not two.health(5.0).ok
        one.close()
        two.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-a2a"]
        assert one.discover()[0].run({"message": "again"}).text == "echo: again"


@pytest.mark.proof
def test_an_extended_card_is_read_by_those_who_have_a_token(agents: Agents) -> None:
    for version in ("1.0", "0.3"):
        for transport in ("JSONRPC", "HTTP+JSON"):
            shared = agents.shared(version=version, transport=transport, extended=True)
            with A2AClient(
                {"mine": {"url": shared["url"], "token": TOKEN}, "theirs": {"url": shared["url"]}}
            ) as client:
                assert [tool.name for tool in client if tool.name.endswith(".secret")] == [
                    "mine.secret"
                ]
                assert by_skill(client)["echo"].run({"message": "x"}).text == "echo: x"


@pytest.mark.slow
def test_skills_that_cannot_be_tools_are_left_out_and_said(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    skill = {"name": "x", "description": "x", "tags": []}
    skills = [
        {**skill, "id": "a b"},
        {**skill, "id": "a/b"},
        {**skill, "id": "x" * 130},
        {**skill, "id": ""},
    ]
    mine, empty = agents.shared(card={"skills": skills}), agents.shared(card={"skills": []})
    with A2AClient({"ag": {"url": mine["url"]}, "no": {"url": empty["url"]}}) as client:
        assert [tool.name for tool in client] == ["ag.a_b"]
        assert set(client.errors) == {"ag.a_b", f"ag.{'x' * 130}", "ag.", "no"}
        assert "names no skill" in client.errors["no"]
        assert all(why in caplog.text for why in client.errors.values())


@pytest.mark.slow
def test_a_manager_asks_a_lazy_agent_when_one_of_its_skills_is_named(agents: Agents) -> None:
    from holdfast import ToolManager

    with agents.serve() as mine, A2AClient({"ag": {"url": mine["url"], "lazy": True}}) as client:
        manager = ToolManager(sources=client.sources())
        manager.discover()
        assert not manager.exists("ag.echo")
        assert lines(mine, "") == []
        assert manager.call("ag.echo", {"message": "x"}).text == "echo: x"
        assert [tool.name for tool in manager.list_tools(tool_type="a2a_tool")] == [
            f"ag.{skill}" for skill in SKILLS
        ]
        manager.close()
