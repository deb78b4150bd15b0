"""The serial form of an agent: its contents, that the same agent comes out of it, and that it
has no secret."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Agent,
    Conversation,
    FallbackLLM,
    Limits,
    LocalRuntime,
    ScriptedLLM,
    Tool,
    ToolCall,
    ToolManager,
    ToolRegistry,
    tool,
)
from holdfast.agent.confirmation import Verdict
from holdfast.agent.load import load_agent
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.errors import ConfigurationError, LLMTimeout, RateLimited
from holdfast.llm import LLM, RecordedLLM, RouterLLM
from holdfast.tools.config.dumper import Dumper
from holdfast.tools.config.variables import fill
from holdfast.tools.document import load
from holdfast.tools.hooks import Hook
from holdfast.tools.pins import Pins
from holdfast.tools.preset.planning import register_planning_tools
from tests import forks
from tests.data import remote_parts as parts
from tests.model_server import ModelServer, text
from tests.paths import DATA
from tests.samples import examples

SERVER = str(DATA / "mcp_server.py")


def restore(agent: Agent, **options: Any) -> Agent:
    """Return the agent that comes out of the serial form of `agent`."""
    form = form_of(agent)
    copy = Agent.from_json(
        agent.to_json(), variables=form.secrets, builtins=agent.tools.list_tools(), **options
    )
    assert form_of(copy) == form, "an agent that has travelled travels on unchanged"
    return copy


def first_request(
    agent: Agent, server: ModelServer
) -> tuple[bytes, dict[str, str], dict[str, Any]]:
    """Return the body and headers that a model server receives in the agent's first request, and
    the agent's event."""
    number = len(server.requests)
    with Conversation(agent, id="c-1") as conversation:
        conversation.send_message("Hello ${HOME} $${x}")
        state = conversation.run()
    request = server.requests[number]
    headers = {name: value for name, value in request.headers.items() if name != "date"}
    event = next(event for event in state.events if event.type == "agent")
    agent_event = {
        name: value
        for name, value in json.loads(event.to_json()).items()
        if name not in ("id", "timestamp")
    }
    return request.body, {**headers, "path": request.path}, agent_event


def refusal(agent: Agent) -> str:
    with pytest.raises(ConfigurationError) as caught:
        agent.to_json()
    return str(caught.value)


# --- the same requests ---

SETTINGS: list[dict[str, Any]] = [
    {},
    {
        "temperature": 0,
        "top_p": 0.5,
        "max_output_tokens": 7,
        "seed": 0,
        "parallel_tool_calls": False,
        "max_retries": 0,
    },
    {
        "stop": "END",
        "reasoning_effort": "low",
        "timeout": 60.5,
        "connect_timeout": 3,
        "deadline": 90,
    },
    {
        "stop": ["${a}", "$${b}", "$"],
        "response_format": {
            "type": "object",
            "title": "${t}",
            "properties": {"a": {"type": "null"}},
        },
    },
    {
        "headers": {"X-Key": "hunter2-hunter2", "User-Agent": "me, ${you}!"},
        "extra_body": {"top_k": 3, "user": "$${x}", "deep": [{"a": None}]},
    },
    {"stream": True, "prompt_caching": False, "tool_calls": "text"},
    {"send_reasoning": "tags", "think_tags": True},
    {"send_reasoning": False, "think_tags": False},
    {
        "wire": "anthropic_messages",
        "max_output_tokens": 4000,
        "reasoning_budget": 2000,
        "max_retries": 0,
    },
    {"wire": "openai_responses", "max_retries": 0},
    {"wire": "gemini", "max_retries": 0},
]


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: "-".join(options) or "none")
def test_an_llm_asks_the_same_after_it_has_travelled(options: dict[str, Any]) -> None:
    with ModelServer(lambda _: text("Hi.")) as server:
        url = server.url + "?key=in-the-query&alt=json" if not options else server.url
        agent = Agent(
            LLM("some/model", "sk-0123456789", url, **options),
            [parts.add, parts.Counted()],
            system_prompt="Say ${what} you $${mean}, $$${or} $ {not}.",
            system_prompt_extensions=["Ünïcode ✓"],
            microagents=["A note."],
        )
        other = restore(agent)
        assert isinstance(other.llm, LLM)
        assert other.llm.arguments() == {
            **agent.llm.arguments(),
            "stop": other.llm.arguments()["stop"],
        }  # type: ignore[attr-defined]
        first, second = (
            first_request(agent, server),
            first_request(other, server),
        )  # the answer is invalid on other wires; the request is the same
        assert first == second
        assert b"Say ${what} you $${mean}, $$${or} $ {not}." in first[0]
    for form in (agent.to_json(), repr(form_of(agent)).encode()):
        assert b"sk-0123456789" not in form
        assert b"hunter2" not in form
        assert b"in-the-query" not in form


def test_everything_else_that_an_agent_takes_comes_out_the_same() -> None:
    agent = Agent(
        ScriptedLLM([]),
        [parts.add, parts.Counted()],
        system_prompt="",
        limits=Limits(steps=None, tokens=5, cost=None, seconds=1.5),
        parallel_calls=3,
        output_limit=10**10,
        confirm={"git.*": "deny", "use": "ask", "*": "allow"},
        condenser=parts.Shortener(3),
    )
    other = restore(agent)
    assert (other.system_prompt, other.limits, other.parallel_calls, other.output_limit) == (
        "",
        agent.limits,
        3,
        10**10,
    )
    assert repr(other.confirm) == repr(agent.confirm)
    assert other.condenser == agent.condenser
    assert [one.name for one in other.tools.list_tools()] == ["add", "counted"]
    assert other.definitions(None) == agent.definitions(None)


def test_models_within_models_keep_their_names_their_order_and_their_rules() -> None:
    small, large = LLM("gpt-4o-mini", "key-number-one"), LLM("gpt-4o", "key-number-two")
    fallback = FallbackLLM(
        {"b": large, "a": small, "c": FallbackLLM([small, small])},
        on=(RateLimited, LLMTimeout),
        sticky=False,
    )
    router = RouterLLM(parts.pick, {"small": small, "large": fallback})
    agent = Agent(router)
    other = restore(agent).llm
    assert isinstance(other, RouterLLM)
    assert other.pick is parts.pick
    inner = other.models["large"]
    assert isinstance(inner, FallbackLLM)
    assert (list(inner.models), inner.sticky, inner.on) == (
        ["b", "a", "c"],
        False,
        (RateLimited, LLMTimeout),
    )
    assert list(inner.models["c"].models) == ["gpt-4o-mini", "gpt-4o-mini#2"]  # type: ignore[attr-defined]
    assert other.parameters() == router.parameters()
    assert set(form_of(agent).secrets.values()) == {"key-number-one", "key-number-two"}
    assert restore(Agent(FallbackLLM([small], on=parts.passing))).llm.on is parts.passing  # type: ignore[attr-defined]
    assert restore(Agent(FallbackLLM([small], on=RateLimited))).llm.on == (RateLimited,)  # type: ignore[attr-defined]


def test_a_script_travels_if_it_is_data_that_has_not_begun() -> None:
    script = [
        "Hi ${you}",
        ("add", {"a": 1}),
        ["and", ToolCall("my-id", "add", {"a": 2}), {"name": "add"}],
        ToolCall("", "add", {"b": "$${x}"}),
    ]
    one = Agent(ScriptedLLM(script, "mine", delay=0.001, stream=True))
    other = restore(one)
    for _ in script:
        first, second = one.llm.completion("x"), other.llm.completion("x")
        assert msgspec.structs.replace(first, duration=0.0) == msgspec.structs.replace(
            second, duration=0.0
        )
    assert "begun" in refusal(one)
    assert "code" in refusal(Agent(ScriptedLLM(lambda _: "x")))
    assert "RateLimited" in refusal(Agent(ScriptedLLM([RateLimited("slow")])))
    assert restore(Agent(parts.answers)).llm is parts.answers


def test_parts_travel_by_their_place_in_a_module_or_by_their_fields() -> None:
    agent = Agent(
        ScriptedLLM([]), confirm=parts.ready, condenser=parts.Shortener(5, api_key="sk-0123456789")
    )
    other = restore(agent)
    assert other.confirm is parts.ready
    assert other.condenser == agent.condenser
    assert b"sk-0123456789" not in agent.to_json()
    assert type(restore(Agent(ScriptedLLM([]), confirm=parts.Never())).confirm) is parts.Never
    assert restore(Agent(ScriptedLLM([]), confirm=parts.Strict(["a"]))).confirm == parts.Strict(
        ["a"]
    )


def test_what_load_agent_had_code_make_travels_as_it_was_written() -> None:
    source = {
        "model": "gpt-4o-mini",
        "condenser": {
            "use": "tests.data.remote_parts:Stateful",
            "parameters": {"what": "${PASSPHRASE}"},
        },
        "tools": {
            "mcp_servers": {
                "own": {
                    "command": sys.executable,
                    "args": [SERVER],
                    "env": {"T": "${PASSPHRASE}"},
                    "concurrency": 2,
                }
            }
        },
    }
    agent = load_agent(source, variables={"PASSPHRASE": "open sesame"})
    other = restore(agent)
    assert other.condenser.what == "open sesame"  # type: ignore[union-attr]
    assert b"sesame" not in agent.to_json()
    assert other.tools.rules.concurrency == {"own.*": 2}


@pytest.mark.slow
def test_mcp_servers_travel_without_their_secrets_and_their_tools_with_them() -> None:
    servers = {
        "own": {
            "command": sys.executable,
            "args": [SERVER],
            "env": {"TOKEN": "hunter2", "LEFT": "${LEFT_TO_THE_SERVER}"},
        },
        "far": {
            "url": "https://user:hunter2@host.example/mcp?k=hunter2",
            "headers": {"Authorization": "Bearer hunter2"},
            "lazy": True,
        },
        "db": {
            "command": "db",
            "args": ["postgres://me:hunter2@db/x", "--plain", "${kept}"],
            "lazy": True,
            "call_timeout": 3,
        },
    }
    agent = Agent(ScriptedLLM(["Hi."]), [parts.add], mcp_servers={"mcpServers": servers})
    form = form_of(agent)
    assert b"hunter2" not in agent.to_json()
    assert form.mapping["tools"]["builtin"] == ["add"]  # find_tools comes from the lazy server
    assert form.mapping["tools"]["mcp_servers"]["own"]["env"]["LEFT"] == "${LEFT_TO_THE_SERVER}"
    other = Agent.from_json(
        agent.to_json(), variables={**form.secrets, "LEFT_TO_THE_SERVER": "x"}, builtins=[parts.add]
    )
    assert other.mcp_servers["far"]["url"] == servers["far"]["url"]
    assert other.mcp_servers["db"] == {
        "command": "db",
        "args": servers["db"]["args"],
        "lazy": True,
        "call_timeout": 3,
    }
    assert (
        [one.name for one in other.tools.list_tools()]
        == [one.name for one in agent.tools.list_tools()]
        == ["add", "find_tools"]
    )
    own = Agent(
        ScriptedLLM(["Hi."]),
        [parts.add],
        mcp_servers={"own": {"command": sys.executable, "args": [SERVER]}},
    )
    with Conversation(own) as conversation:
        conversation.send_message("Hi")
        conversation.run()
        assert any(one.name.startswith("own.") for one in own.tools.list_tools())
        assert [one.name for one in tools_of(own)] == ["add"]


def test_guards_and_limits_of_a_tool_manager_travel_or_nothing_does() -> None:
    manager = ToolManager(
        [parts.add],
        hooks=[Hook(before=parts.before, tools="a*")],
        concurrency={"*": 4, "add": 1},
        result_limit=None,
    )
    other = restore(Agent(ScriptedLLM([]), manager))
    assert other.tools.rules.concurrency == {"*": 4, "add": 1}
    assert [(hook.before, hook.tools) for hook in other.tools.rules.hooks] == [
        ("tests.data.remote_parts:before", "a*")
    ]
    assert "hooks[0].before" in refusal(
        Agent(ScriptedLLM([]), ToolManager([], hooks=[Hook(before=lambda call, context: None)]))
    )
    assert "git.?" in refusal(Agent(ScriptedLLM([]), ToolManager([], concurrency={"git.?": 1})))


def test_pins_are_a_file_of_this_machine(tmp_path: Path) -> None:
    assert "pins" in refusal(
        Agent(ScriptedLLM([]), ToolManager([], pins=Pins(tmp_path / "pins.json")))
    )


# --- secrets ---


def test_a_key_that_names_a_variable_stays_for_whoever_knows_it() -> None:
    agent = Agent(LLM("gpt-4o", "${OPENAI_API_KEY}", headers={"X": "Bearer ${OTHER}"}))
    form = form_of(agent)
    assert form.secrets == {}
    assert form.mapping["model"]["api_key"] == "${OPENAI_API_KEY}"
    other = Agent.from_json(agent.to_json(), variables={"OPENAI_API_KEY": "sk-real", "OTHER": "o"})
    assert other.llm.arguments()["api_key"] == "sk-real"  # type: ignore[attr-defined]
    assert other.llm.arguments()["headers"] == {"X": "Bearer o"}  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match="'OPENAI_API_KEY' is not given"):
        Agent.from_json(agent.to_json())
    assert "secret_1" in refusal(Agent(LLM("gpt-4o", "${secret_1}")))


def test_one_secret_has_one_name_and_short_ones_are_secrets_too() -> None:
    form = form_of(
        Agent(FallbackLLM([LLM("gpt-4o", "k"), LLM("gpt-4o", "k", proxy="http://u:p@localhost:1")]))
    )
    assert form.secrets == {"secret_1": "k", "secret_2": "u:p"}


@pytest.mark.parametrize(
    "url",
    [
        "http://h/v1?k",
        "http://h/v1?k=v&alt=json&&x=",
        "http://h:1/$a/v1?q=$$b&c=$",
        "http://h/v1?e=a@b.c",
    ],
)
def test_every_address_comes_out_as_it_went_in(url: str) -> None:
    agent = Agent(LLM("m", base_url=url, wire="openai_chat"))
    assert restore(agent).llm.arguments()["base_url"] == url  # type: ignore[attr-defined]


@given(
    st.lists(
        st.sampled_from(
            [
                "$",
                "{",
                "}",
                "${",
                "$${",
                "1",
                ":-",
                " ",
                "\n",
                "/",
                "?",
                "&",
                "=",
                "#",
                "@",
                "://",
                "%",
            ]
        ),
        max_size=12,
    ).map("".join)
)
@settings(max_examples=examples(300), deadline=None)
def test_every_text_and_every_address_comes_out_as_it_went_in(value: str) -> None:
    dumper = Dumper()
    texts = {
        "text": dumper.text("x", value),
        "url": dumper.url("x", f"http://h{value}"),
        "list": dumper.data("x", [value, {value: value}]),
    }
    document, _ = load(texts)
    copy = fill(document, dumper.secrets)
    assert copy == {"text": value, "url": f"http://h{value}", "list": [value, {value: value}]}


# --- agents without a serial form ---


class Mine:
    """A model class of the program itself."""

    model = "mine"

    def __init__(self) -> None:
        self.state = object()

    def completion(self, *_: Any, **__: Any) -> Any: ...

    def parameters(self) -> dict[str, Any]:
        return {}

    def cost(self, usage: Any) -> None:
        return None

    def close(self) -> None: ...


def test_what_has_no_serial_form_is_named_with_the_way_out(tmp_path: Path) -> None:
    class Local:
        def decide(self, call: Any, risk: Any) -> Verdict:
            return Verdict("allow")

    small = LLM("gpt-4o")
    cases: list[tuple[Agent, str]] = [
        (
            Agent(small, confirm=Local()),
            "confirm is a test_what_has_no_serial_form_is_named_with_the_way_out.<locals>.Local",
        ),
        (
            Agent(small, condenser=parts.Stateful(1)),
            "condenser is a Stateful of tests.data.remote_parts",
        ),
        (Agent(RouterLLM(lambda _: "a", {"a": small})), "llm.pick is "),
        (Agent(FallbackLLM([small], on=lambda _: True)), "llm.on is "),
        (Agent(LLM("gpt-4o", ssl_context=ssl.create_default_context())), "llm.ssl_context"),
        (Agent(FallbackLLM({"x": Mine()})), "llm.models['x'] is a Mine"),
        (Agent(RecordedLLM(small, tmp_path / "tape.jsonl")), "llm is a RecordedLLM"),
        (Agent(small, condenser=parts.Shortener(float("nan"))), "condenser: Shortener.keep is nan"),  # type: ignore[arg-type]
        (Agent(small, system_prompt="\ud800"), "system_prompt holds half a character"),
    ]
    for agent, problem in cases:
        message = refusal(agent)
        assert message.startswith(f"Agent: {problem}"), message
    assert "at the top of a module" in refusal(cases[0][0])


def test_what_is_no_serial_form_is_refused_with_its_place() -> None:
    for data in (
        b"\xff",
        b"[]",
        b"{",
        b'{"model": 1}',
        b'{"model": "gpt-4o", "a": 1}',
        b'{"model": "gpt-4o", "model": "b"}',
        b"[" * 99_999,
    ):
        with pytest.raises(ConfigurationError, match="agent"):
            Agent.from_json(data)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (
            {"fallback": ["gpt-4o"], "pick": "a:b"},
            "a model with fallback takes sticky and on alone",
        ),
        ({"name": "a", "sticky": True}, "sticky is for one with fallback"),
        ({"router": {"a": "gpt-4o"}}, "pick"),
        ({"router": {"a": "gpt-4o"}, "pick": "os:nothing_there"}, "has no 'nothing_there'"),
        ({"fallback": ["gpt-4o"], "on": ["RateLimitd"]}, "Did you mean 'RateLimited'?"),
        ({"fallback": []}, "at least one"),
        ({"fallback": {"a": {"name": "gpt-4o", "temperature": 9}}}, "model.fallback.a.temperature"),
    ],
)
def test_a_composite_that_does_not_fit_is_named(model: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_agent({"model": model})
    assert problem in str(caught.value)


# --- descriptions of tools ---


def test_a_tool_has_a_module_if_another_process_can_have_it_by_that() -> None:
    registry = ToolRegistry()
    registry.import_module("tests.data.remote_parts")
    registry.register_tool("here", lambda: Tool("here", "", lambda: "x"))

    @tool
    def local() -> str:
        return "x"

    with LocalRuntime() as runtime:
        tools: list[Tool | Callable[..., Any]] = [
            *runtime.tools,
            parts.add,
            registry.create("greet"),
            parts.Counted(),
            *register_planning_tools(),
            parts.plain,
            local,
            registry.create("here"),
            Tool.from_function(parts.Stateful(1).condense, name="bound"),
        ]
        forms = {form.name: form for form in tools_of(Agent(ScriptedLLM([]), tools))}
    assert {name: form.module for name, form in forms.items()} == {
        **dict.fromkeys([one.name for one in runtime.tools], "holdfast.runtime"),
        **dict.fromkeys(["add", "greet", "counted"], "tests.data.remote_parts"),
        "plan": "holdfast.tools.preset.planning",
        **dict.fromkeys(["plain", "local", "here", "bound"], ""),
    }
    data = json.loads(forms["plan"].to_json())
    assert data["annotations"] == {
        "readOnly": True,
        "destructive": False,
        "idempotent": True,
        "openWorld": False,
    }
    assert data["inputSchema"] == forms["plan"].input_schema
    assert type(forms["plan"]).from_json(forms["plan"].to_json()) == forms["plan"]


def test_a_tool_that_depends_on_what_its_factory_was_called_with_stays_here() -> None:
    assert [
        form.module for form in tools_of(Agent(ScriptedLLM([]), [parts.make_greet("Hei")]))
    ] == [""]


@pytest.mark.slow
def test_tools_of_the_program_itself_have_no_module(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from holdfast import Agent, ScriptedLLM, tool\nfrom holdfast.agent.serial_form import"
        " tools_of\n@tool\ndef mine() -> str: return 'x'\ndef fn() -> str: return"
        " 'y'\nprint([form.module for form in tools_of(Agent(ScriptedLLM([]), [mine, fn]))])\nfrom"
        " holdfast.llm import LLM, RouterLLM\ndef pick(request): return 'a'\ntry:"
        " Agent(RouterLLM(pick, {'a': LLM('gpt-4o')})).to_json()\nexcept ValueError as error:"
        " print(error)\n"
    )
    lines = forks.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert lines[0] == "['', '']"
    assert lines[1].startswith(
        "Agent: llm.pick is pick of __main__, which another process could not import"
    )
