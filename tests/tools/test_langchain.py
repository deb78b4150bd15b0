"""Tests of LangChain's tools as ours and ours as LangChain's: with stand-ins that need nothing, and
with langchain-core where it is installed."""

import asyncio
import base64
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast import Agent, Conversation, ScriptedLLM, events
from holdfast.content import (
    AudioContent,
    EmbeddedResource,
    FileContent,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolCall,
    ToolResult,
)
from holdfast.errors import ConfigurationError, ToolError, ToolValidationError
from holdfast.tools import RetryPolicy, Tool, ToolAnnotations, ToolContext, ToolManager, tool

FOLDER = Path(sys.prefix) / "langchain"  # compiled for this Python
PNG = base64.b64encode(b"\x89PNG").decode()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def nothing() -> None: ...


class Message:
    """The result that LangChain's tools return for a call."""

    def __init__(self, content: Any, artifact: Any = None, status: str = "success") -> None:
        self.content = content
        self.artifact = artifact
        self.status = status


class Duck:
    """The smallest class that is a LangChain tool."""

    description = "Quack."

    def __init__(self, outcome: Any, schema: Any = SCHEMA, name: str = "duck") -> None:
        self.name = name
        self.tool_call_schema = schema
        self.outcome = outcome
        self.requests: list[dict[str, Any]] = []

    def invoke(self, request: dict[str, Any]) -> Any:
        self.requests.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class AsyncDuck:
    name, description, tool_call_schema = "duck", "", SCHEMA

    async def ainvoke(self, request: dict[str, Any]) -> Any:
        await asyncio.sleep(0.01 if request["args"]["a"] < 9 else 1000)
        if request["args"]["a"] == 2:
            raise ConnectionError("gone")
        return Message(f"{threading.current_thread().name} {request['args']}")


def run(
    tool: Any, arguments: dict[str, Any], context: ToolContext | None = None, **options: Any
) -> ToolResult:
    converted = Tool.from_langchain(tool, **options)
    manager = ToolManager([converted])
    try:
        return manager.run(ToolCall("1.0", converted.name, arguments), context)
    finally:
        manager.close()


# --- stand-ins ---


def test_a_langchain_tool_is_told_and_called_as_langchains_agents_do() -> None:
    duck = Duck(Message("quack"))
    tool = Tool.from_langchain(duck)
    assert (tool.name, tool.description, tool.tool_type, tool.input_schema) == (
        "duck",
        "Quack.",
        "custom",
        SCHEMA,
    )
    assert run(duck, {"a": "3"}, ToolContext("c", "7.1")) == ToolResult("quack")
    assert duck.requests == [{"type": "tool_call", "name": "duck", "args": {"a": 3}, "id": "7.1"}]
    assert tool.run({"a": 1}).text == "quack"
    assert duck.requests[1]["id"]


def test_its_name_and_policies_can_be_set() -> None:
    options = {
        "annotations": ToolAnnotations(read_only=True),
        "category": "x",
        "timeout": 2.0,
        "retry": RetryPolicy(1),
    }
    tool = Tool.from_langchain(Duck(Message("x"), name="has spaces"), "fine", **options)
    assert (
        tool.name,
        tool.annotations.read_only,
        tool.category,
        tool.timeout,
        tool.retry,
    ) == ("fine", True, "x", 2.0, RetryPolicy(1))
    assert tool.run({"a": 1}).text == "x"
    with pytest.raises(ConfigurationError, match=r"name takes 1 to 128 letters.*'has spaces'"):
        Tool.from_langchain(Duck(Message("x"), name="has spaces"))


class Nested(BaseModel):
    """Deep."""

    x: int = Field(description="how much", ge=1)


class Arguments(BaseModel):
    kind: Literal["a", "b"]
    nested: Nested
    many: list[Nested] = []


def test_a_schema_is_kept_whole_whether_it_is_a_dict_or_a_model() -> None:
    dumped = Arguments.model_json_schema()
    for schema in (Arguments, dumped, {**dumped, "title": "duck", "description": "Quack."}):
        input_schema = Tool.from_langchain(Duck(Message("x"), schema)).input_schema
        assert input_schema in (
            dumped,
            {key: value for key, value in dumped.items() if key != "title"},
        )
        assert input_schema["$defs"] == dumped["$defs"]
        assert input_schema["properties"] == dumped["properties"]
    old = SimpleNamespace(schema=lambda: SCHEMA)  # pydantic 1
    assert Tool.from_langchain(Duck(Message("x"), old)).input_schema == SCHEMA


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "tool",
        Duck,
        SimpleNamespace(name="x"),
        SimpleNamespace(name=1, invoke=print),
        Tool("t", "", nothing),
    ],
)
def test_what_is_no_langchain_tool_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="from_langchain takes a LangChain tool"):
        Tool.from_langchain(value)


def test_one_without_a_usable_schema_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'duck' has no schema"):
        Tool.from_langchain(Duck(None, None))
    broken = SimpleNamespace(model_json_schema=lambda: 1 / 0)
    with pytest.raises(
        ConfigurationError, match="'duck': its schema cannot be made: ZeroDivisionError"
    ):
        Tool.from_langchain(Duck(None, broken))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("plain", TextContent("plain")),
        ({"type": "text", "text": "t"}, TextContent("t")),
        (
            {"type": "image", "base64": PNG, "mime_type": "image/jpeg"},
            ImageContent(b"\x89PNG", "image/jpeg"),
        ),
        (
            {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
            ImageContent(b"\x89PNG"),
        ),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": PNG}},
            ImageContent(b"\x89PNG", "image/gif"),
        ),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{PNG}"}},
            ImageContent(b"\x89PNG", "image/webp"),
        ),
        (
            {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"},
            ImageContent(b"\x89PNG"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            FileContent(url="https://x/y.png", mime_type="image/png"),
        ),
        (
            {"type": "image_url", "image_url": {"url": "/files/y.png"}},
            ResourceLink("/files/y.png", mime_type="image/png"),
        ),
        (
            {"type": "image", "url": "DATA:image/svg+xml,%3Csvg/%3E"},
            ImageContent(b"<svg/>", "image/svg+xml"),
        ),
        (
            {"type": "image", "url": "https://x/y", "mime_type": "image/gif"},
            FileContent(url="https://x/y", mime_type="image/gif"),
        ),
        (
            {"type": "audio", "base64": PNG, "mime_type": "audio/mp3"},
            AudioContent(b"\x89PNG", "audio/mp3"),
        ),
        (
            {"type": "file", "base64": PNG, "mime_type": "application/pdf"},
            EmbeddedResource(
                {"uri": "data:application/pdf", "mimeType": "application/pdf", "blob": PNG}
            ),
        ),
        (
            {"type": "image", "base64": "no base64!"},
            TextContent('{"type":"image","base64":"no base64!"}'),
        ),
        ({"type": "json", "json": {"a": 1}}, TextContent('{"type":"json","json":{"a":1}}')),
        ({"odd": object}, TextContent("""{"odd":"<class 'object'>"}""")),
        ("\ud800", TextContent("?")),
    ],
)
def test_every_kind_of_content_becomes_a_block(block: Any, expected: Any) -> None:
    assert run(Duck(Message([block])), {"a": 1}).content == (expected,)


@pytest.mark.parametrize(
    ("artifact", "structured"),
    [
        (None, None),
        ({"n": 1}, {"n": 1}),
        ("s", "s"),
        (Nested(x=1), {"x": 1}),
        (object(), None),
        (float("nan"), None),
    ],
)
def test_an_artifact_is_for_programs_if_json_can_hold_it(artifact: Any, structured: Any) -> None:
    result = run(Duck(Message("said", artifact)), {"a": 1})
    assert (result.text, result.structured_content, result.success) == ("said", structured, True)


def test_what_is_no_message_is_a_result_too() -> None:
    assert run(Duck("plain"), {"a": 1}).text == "plain"
    assert run(Duck({"n": 1}), {"a": 1}).structured_content == {"n": 1}
    assert run(Duck(None), {"a": 1}) == ToolResult()
    assert run(Duck(Message(5)), {"a": 1}).text == "5"
    assert "LangGraph Command" in run(Duck(SimpleNamespace(goto="x", update={})), {"a": 1}).text


class ToolException(Exception):
    pass


def test_failures_are_told_with_their_types() -> None:
    result = run(Duck(Message("went wrong", status="error")), {"a": 1})
    assert result.is_error
    assert result.error is not None
    assert (result.text, result.error.type) == ("went wrong", "internal")
    for error, kind, text in (
        (ToolException("do it otherwise"), "internal", "do it otherwise"),
        (ConnectionError("gone"), "network", "'duck' failed: ConnectionError: gone"),
        (TimeoutError("late"), "timeout", "'duck' failed: TimeoutError: late"),
        (NotImplementedError("not yet"), "internal", "'duck' failed: NotImplementedError: not yet"),
    ):
        result = run(Duck(error), {"a": 1})
        assert result.error is not None
        assert (result.error.type, result.text) == (kind, text)
    with pytest.raises(ToolError, match="do it otherwise"):
        Tool.from_langchain(Duck(ToolException("do it otherwise"))).run({"a": 1})


def test_wrong_arguments_do_not_reach_it() -> None:
    duck = Duck(Message("x"))
    assert (
        run(duck, {}).text
        == "'duck' was not run: a is required. It takes: a. Send the call again with all of it"
        " right."
    )
    assert "b is not one of its parameters" in run(duck, {"a": 1, "b": 2}).text
    assert duck.requests == []
    assert run(
        Duck(Message("x"), {**SCHEMA, "additionalProperties": True}), {"a": 1, "b": 2}
    ).success


def test_an_async_only_tool_runs_on_the_loop_and_is_classified_and_cancelled_like_others() -> None:
    assert run(AsyncDuck(), {"a": 1}).text == "holdfast-async {'a': 1}"
    assert Tool.from_langchain(AsyncDuck()).run({"a": 1}).text.startswith("holdfast-async")
    assert run(AsyncDuck(), {"a": 2}).error == run(Duck(ConnectionError("gone")), {"a": 1}).error
    before = time.monotonic()
    result = run(AsyncDuck(), {"a": 9}, timeout=0.2)
    assert time.monotonic() - before < 20
    assert "did not answer within 0.2 s" in result.text


def test_return_direct_is_ignored_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    duck = Duck(Message("x"))
    duck.return_direct = True  # pyright: ignore[reportAttributeAccessIssue]
    with caplog.at_level(logging.WARNING):
        assert run(duck, {"a": 1}).text == "x"
    assert "return_direct of the LangChain tool 'duck' is ignored" in caplog.text


def test_a_conversation_uses_one_like_any_tool() -> None:
    duck = Duck(Message("quack"))
    with Conversation(
        Agent(ScriptedLLM([("duck", {"a": 1}), "done"]), tools=[Tool.from_langchain(duck)])
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
        results = [
            event.result.text
            for event in conversation.get_history()
            if isinstance(event, events.ToolCallFinished)
        ]
    assert results == ["quack"]
    assert duck.requests[0]["id"]


def test_neither_direction_imports_langchain_before_it_is_needed() -> None:
    program = (
        "import sys, holdfast.tools.langchain; from holdfast import Tool;T = type('T', (),"
        " dict(name='t', description='', tool_call_schema={'type': 'object'}, invoke=lambda self,"
        " request: 'x'));assert Tool.from_langchain(T()).run({}).text == 'x';print([m for m in"
        " sys.modules if m.startswith('langchain')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.skipif("langchain_core" in sys.modules, reason="langchain-core is there")
def test_without_langchain_the_way_out_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langchain_core.tools", None)
    with pytest.raises(
        ConfigurationError, match="to_langchain needs langchain-core; pip install langchain-core"
    ):
        Tool("t", "", nothing).to_langchain()


# --- langchain-core ---


@pytest.fixture(scope="module")
def langchain() -> Iterator[Any]:
    """Import langchain-core from a folder of its own, behind the project's own packages, and remove
    it from this process after these tests."""
    if not (FOLDER / "langchain_core").is_dir():
        pytest.skip("needs: pip install --target .venv/langchain 'langchain-core>=1.7,<1.8'")
    before = set(sys.modules)
    sys.path.append(str(FOLDER))
    try:
        import langchain_core.tools as found  # pyright: ignore

        yield found
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(FOLDER)):
                del sys.modules[name]


def call(tool: Any, arguments: dict[str, Any]) -> Any:
    return tool.invoke({"type": "tool_call", "name": tool.name, "args": arguments, "id": "p1"})


@tool
def order(
    kind: Literal["a", "b"],
    nested: Nested,
    many: Annotated[list[Nested], Field(max_length=2)] = [],  # noqa: B006
) -> dict[str, Any]:
    """Order it."""
    return {"kind": kind, "sum": nested.x + sum(one.x for one in many)}


ARGUMENTS = {"kind": "a", "nested": {"x": 1}, "many": [{"x": 2}]}


@pytest.mark.slow
def test_ours_is_a_structured_tool_with_the_same_schema(langchain: Any) -> None:
    converted = order.to_langchain()
    assert isinstance(converted, langchain.StructuredTool)
    assert (converted.name, converted.description, converted.args_schema) == (
        "order",
        "Order it.",
        order.input_schema,
    )
    assert Tool("srv.x", "", nothing).to_langchain().name == "srv__x"
    from langchain_core.utils.function_calling import convert_to_openai_tool  # pyright: ignore

    function = convert_to_openai_tool(converted)["function"]
    assert function["name"] == "order"
    assert function["parameters"]["properties"]["kind"] == order.input_schema["properties"]["kind"]
    assert function["parameters"]["properties"]["nested"] == {
        **order.input_schema["$defs"]["Nested"]
    }


def test_ours_answers_with_content_and_our_result_as_the_artifact(langchain: Any) -> None:
    message = call(order.to_langchain(), ARGUMENTS)
    assert (message.content, message.status, message.tool_call_id) == (
        '{"kind":"a","sum":3}',
        "success",
        "p1",
    )
    assert message.artifact == order.run(ARGUMENTS)
    assert order.to_langchain().invoke(ARGUMENTS) == '{"kind":"a","sum":3}'
    assert (
        asyncio.run(
            order.to_langchain().ainvoke(
                {"type": "tool_call", "name": "order", "args": ARGUMENTS, "id": "p2"}
            )
        ).artifact
        == message.artifact
    )


def test_our_failures_are_told_to_the_model(langchain: Any) -> None:
    def fail(how: str) -> str:
        if how == "result":
            return ToolResult.failure("no luck")  # type: ignore[return-value]
        raise ConnectionError("gone")

    converted = Tool("fail", "", fail).to_langchain()
    for how, expected in (("result", "no luck"), ("raise", "'fail' failed: ConnectionError: gone")):
        message = call(converted, {"how": how})
        assert (message.status, message.content) == ("error", expected)
    message = call(converted, {})
    assert message.status == "error"
    assert "how is required" in message.content
    converted.handle_tool_error = lambda error: error.result.error.type
    assert call(converted, {"how": "raise"}).content == "network"
    converted.handle_tool_error = False
    with pytest.raises(langchain.ToolException, match="gone"):
        call(converted, {"how": "raise"})


def test_parameters_with_langchains_own_names_arrive(langchain: Any) -> None:
    def odd(config: str, run_manager: str, callbacks: str, self: str) -> str:
        return " ".join((config, run_manager, callbacks, self))

    arguments = {"config": "1", "run_manager": "2", "callbacks": "3", "self": "4"}
    converted = Tool("odd", "", odd).to_langchain()
    assert call(converted, arguments).content == "1 2 3 4"
    assert (
        asyncio.run(
            converted.ainvoke({"type": "tool_call", "name": "odd", "args": arguments, "id": "x"})
        ).content
        == "1 2 3 4"
    )


def test_images_and_the_rest_go_out_as_blocks_that_a_message_takes(langchain: Any) -> None:
    blocks = [
        TextContent("t"),
        ImageContent(b"\x89PNG"),
        AudioContent(b"\x89PNG"),
        ResourceLink("file:///x", "x"),
        EmbeddedResource({"uri": "u", "text": "inside"}),
        EmbeddedResource({"uri": "u", "blob": PNG, "mimeType": "a/b"}),
    ]
    message = call(Tool("t", "", lambda: ToolResult(blocks)).to_langchain(), {})
    assert message.content == [
        {"type": "text", "text": "t"},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
        {"type": "file", "base64": PNG, "mime_type": "audio/wav"},
        {"type": "text", "text": "x: file:///x"},
        {"type": "text", "text": "inside"},
        {"type": "file", "base64": PNG, "mime_type": "a/b"},
    ]
    assert message.content_blocks[1]["type"] == "image"


def test_timeouts_and_retries_and_async_callbacks_hold_outside_too(langchain: Any) -> None:
    tries: list[int] = []

    def flaky(context: ToolContext) -> str:
        tries.append(context.attempt)
        if len(tries) < 3:
            raise ConnectionError("once more")
        return context.call_id

    first = call(Tool("flaky", "", flaky, retry=RetryPolicy(2, "none")).to_langchain(), {}).content
    assert tries == [1, 2, 3]
    assert first
    # each call has a key of its own
    assert call(Tool("flaky", "", flaky).to_langchain(), {}).content != first

    async def later(a: int) -> int:
        await asyncio.sleep(0.01 if a else 1000)
        return a

    converted = Tool("later", "", later, timeout=0.3).to_langchain()
    assert call(converted, {"a": 1}).content == "1"
    assert "did not answer within 0.3 s" in call(converted, {"a": 0}).content


def test_a_cancelled_task_cancels_the_call(langchain: Any) -> None:
    cancellations: list[bool] = []

    def wait(context: ToolContext) -> None:
        cancellations.append(context.cancelled.wait(5))

    async def main() -> None:
        task = asyncio.create_task(Tool("wait", "", wait).to_langchain().ainvoke({}))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancellations == [True]


def test_theirs_keeps_its_schema_and_behaviour(langchain: Any) -> None:
    @langchain.tool
    def search(query: str, nested: Nested, limit: Annotated[int, Field(ge=1)] = 3) -> str:
        """Look it up."""
        return f"{query} {type(nested).__name__} {nested.x} {limit}"

    tool = Tool.from_langchain(search)
    shown_schema = search.tool_call_schema.model_json_schema()
    assert tool.input_schema == {
        key: value for key, value in shown_schema.items() if key not in ("title", "description")
    }
    assert (tool.name, tool.description) == ("search", "Look it up.")
    assert run(search, {"query": "q", "nested": {"x": 1}}).text == "q Nested 1 3"
    assert "limit" in run(search, {"query": "q", "nested": {"x": 1}, "limit": 0}).text
    back = tool.to_langchain()
    assert back.args_schema == tool.input_schema
    assert call(back, {"query": "q", "nested": {"x": 1}}).content == "q Nested 1 3"


def test_round_trips_give_back_the_tool(langchain: Any) -> None:
    assert Tool.from_langchain(order.to_langchain()) is order
    renamed = Tool.from_langchain(order.to_langchain(), "other")
    assert renamed.input_schema == order.input_schema
    assert renamed.run(ARGUMENTS) == order.run(ARGUMENTS)  # the whole result, by the artifact

    def fail() -> str:
        raise ConnectionError("gone")

    failing = Tool("fail", "", fail).to_langchain()
    failing.handle_tool_error = False
    result = run(failing, {}, name="other")
    assert result.error is not None
    assert (result.error.type, result.error.retryable) == ("network", True)


def test_injected_arguments_are_hidden_filled_in_and_refused_from_a_model(langchain: Any) -> None:
    @langchain.tool
    def who(
        a: int,
        call_id: Annotated[str, langchain.InjectedToolCallId],
        user: Annotated[str, langchain.InjectedToolArg] = "nobody",
    ) -> str:
        """Who."""
        return f"{a} {call_id} {user}"

    tool = Tool.from_langchain(who)
    assert list(tool.input_schema["properties"]) == ["a"]
    assert run(who, {"a": 1}, ToolContext("c", "7.1")).text == "1 7.1 nobody"
    with pytest.raises(
        ToolValidationError, match=r"user is not one of its parameters\. It takes: a"
    ):
        tool.run({"a": 1, "user": "root"})

    @langchain.tool
    def needs(a: int, user: Annotated[str, langchain.InjectedToolArg]) -> str:
        """Needs."""
        return user

    with pytest.raises(
        ConfigurationError, match="'needs' needs 'user', which only LangGraph injects"
    ):
        Tool.from_langchain(needs)


def test_content_and_artifact_and_images_come_in(langchain: Any) -> None:
    @langchain.tool(response_format="content_and_artifact")
    def picture(a: int) -> Any:
        """Draw."""
        return [
            {"type": "text", "text": "here"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        ], {"a": a}

    result = run(picture, {"a": 5})
    assert result.content == (TextContent("here"), ImageContent(b"\x89PNG"))
    assert result.structured_content == {"a": 5}


def test_async_only_tools_and_those_whose_run_is_not_implemented_run(langchain: Any) -> None:
    @langchain.tool
    async def later(a: int) -> str:
        """Later."""
        await asyncio.sleep(0.01)
        return f"{a} {threading.current_thread().name}"

    assert run(later, {"a": 1}).text == "1 holdfast-async"

    class Own(langchain.BaseTool):
        name: str = "own"
        description: str = "d"

        def _run(self, a: int) -> str:
            raise NotImplementedError("only async")

        async def _arun(self, a: int) -> str:
            if a == 0:
                raise NotImplementedError("not for 0")
            return f"async {a}"

    assert run(Own(), {"a": 1}).text == "async 1"
    assert "NotImplementedError: not for 0" in run(Own(), {"a": 0}).text


def test_its_errors_are_ours(langchain: Any) -> None:
    @langchain.tool
    def fail(how: str) -> str:
        """Fail."""
        if how == "word":
            raise langchain.ToolException("try the other door")
        if how == "inner":
            Nested(x="no")  # type: ignore[arg-type]
        raise PermissionError("no")

    for how, kind, expected in (
        ("word", "internal", "try the other door"),
        ("inner", "internal", "'fail' failed: ValidationError"),
        ("denied", "authentication", "'fail' failed: PermissionError: no"),
    ):
        converted = run(fail, {"how": how})
        assert converted.error is not None
        assert converted.error.type == kind
        assert expected in converted.text

    class Strict(BaseModel):
        a: int = Field(multiple_of=2)

        def model_post_init(self, context: Any) -> None:
            pass

    structured = langchain.StructuredTool.from_function(
        lambda a: a, name="strict", description="d", args_schema=Strict
    )
    converted = Tool.from_langchain(structured)
    with pytest.raises(ToolValidationError, match="'strict' was not run"):
        converted.call({"a": 3}, ToolContext())
    handled = langchain.StructuredTool.from_function(
        lambda a: 1 / 0, name="h", description="d", args_schema=Strict, handle_validation_error=True
    )
    found_handled = (
        ToolManager([Tool.from_langchain(handled)]).list_tools()[0].call({"a": 3}, ToolContext())
    )
    assert found_handled.is_error


def test_a_tool_of_one_text_has_the_schema_of_one_text(langchain: Any) -> None:
    theirs = langchain.Tool(name="upper", func=str.upper, description="d")
    tool = Tool.from_langchain(theirs)
    assert tool.input_schema == {
        "type": "object",
        "properties": {"tool_input": {"type": "string"}},
        "required": ["tool_input"],
    }
    assert run(theirs, {"tool_input": "x"}).text == "X"
