"""Tests of MCP servers whose schemas, lists and answers attack the process that reads them."""

from __future__ import annotations

import http.server
import json
import logging
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.content import ToolCall
from holdfast.errors import ToolError, ToolTimeout
from holdfast.tools.manager import ToolManager
from holdfast.tools.mcp import MCPClient
from tests.paths import DATA

SERVER = DATA / "mcp_scripted_server.py"
OPEN = {"type": "object"}
NO_END = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
EVIL_TEXT = "a" * 60 + "!"


def content(text: str = "fine", **more: Any) -> str:
    result = {"content": [{"type": "text", "text": text}], "resultType": "complete", **more}
    return '{"jsonrpc":"2.0","id":@ID@,"result":' + json.dumps(result) + "}"


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of one KB that needs 2 ** levels checks of one value."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    return {
        "type": "object",
        "$ref": "#/$defs/d0",
        "$defs": {**defs, f"d{levels}": {"type": "object"}},
    }


Serve = Callable[..., dict[str, Any]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return a function that writes a server's script and returns its entry in `mcpServers`."""

    def entry_of(
        tools: list[Any], answers: dict[str, str] | None = None, modern: bool = False, **more: Any
    ) -> dict[str, Any]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"tools": tools, "answers": answers or {}, "modern": modern}))
        return {"command": sys.executable, "args": ["-S", str(SERVER), str(path)], **more}

    return entry_of


def tool(name: str, input_schema: Any = OPEN, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": input_schema, **more}


ERAS = pytest.mark.parametrize("modern", [False, True], ids=["2025-11-25", "2026-07-28"])


# --- patterns ---


@ERAS
def test_a_pattern_that_never_ends_freezes_neither_a_call_nor_a_result(
    serve: Serve, modern: bool
) -> None:
    answer = content(structuredContent={"a": EVIL_TEXT})
    tools = [tool("in", NO_END), tool("out", OPEN, outputSchema=NO_END), tool("good")]
    with MCPClient(
        {"srv": serve(tools, {"in": content(), "out": answer, "good": content()}, modern)}
    ) as client:
        manager = ToolManager([], client.sources())
        manager.discover()
        refused = manager.run(ToolCall("1.0", "srv.in", {"a": EVIL_TEXT}))
        assert (refused.error is not None, "does not match '^(a+)+$'" in refused.text) == (
            True,
            True,
        )
        assert manager.run(ToolCall("1.1", "srv.in", {"a": "aaa"})).text == "fine"
        with pytest.raises(
            ToolError,
            match=(
                r"'srv.out' answered with structured content that does not fit its output"
                r" schema: a: "
            ),
        ):
            manager.call("srv.out", {})
        assert manager.call("srv.good", {}).text == "fine"


def test_a_pattern_that_takes_no_linear_time_is_named_and_left_to_its_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^(?!no)"},
            "b": {"type": "string", "pattern": "^x"},
        },
    }
    with (
        MCPClient({"srv": serve([tool("t", schema)], {"t": content()})}) as client,
        caplog.at_level(logging.WARNING, "holdfast"),
    ):
        evil_tool = client.tools()[0]
        for _ in range(2):
            assert evil_tool.run({"a": "no"}).text == "fine"
        with pytest.raises(ToolError, match="b: 'y' does not match"):
            evil_tool.run({"b": "y"})
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [
        "Tool 'srv.t': input_schema: the pattern '^(?!no)' is not enforced: it has look-around."
    ]


# --- schemas that need unbounded work ---


@ERAS
def test_a_schema_that_doubles_at_each_level_is_left_out_before_it_is_used(
    serve: Serve, modern: bool
) -> None:
    evil = [tool("in", doubling(26)), tool("out", OPEN, outputSchema=doubling(26)), tool("good")]
    answers = {"out": content(structuredContent={}), "good": content()}
    config = {"evil": serve(evil, answers, modern), "other": serve([tool("good")], answers, modern)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client = MCPClient(config)
    assert [one.name for one in client.tools()] == ["evil.good", "other.good"]
    for which, argument in (("in", "input_schema"), ("out", "output_schema")):
        beginning = (
            f"MCP server 'evil' has a tool that cannot be used. Tool 'evil.{which}': {argument}"
            " takes too much work"
        )
        assert client.errors[f"evil.{which}"].startswith(beginning)
    assert [one.run({}).text for one in client.tools()] == ["fine", "fine"]
    client.close()
    # KB; the import of the mcp package is most of it
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.slow
def test_a_schema_that_doubles_with_the_depth_of_a_value_meets_the_budget(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    node = {
        "type": "object",
        "properties": {"n": {"allOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/node"}]}},
    }
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/node"}},
        "$defs": {"node": node},
    }
    value: dict[str, Any] = {}
    for _ in range(40):
        value = {"n": value}
    answers = {"in": content(), "out": content(structuredContent=value), "good": content()}
    config = {
        "srv": serve(
            [tool("in", schema), tool("out", OPEN, outputSchema=schema), tool("good")], answers
        )
    }
    with MCPClient(config) as client, caplog.at_level(logging.WARNING, "holdfast"):
        into, out, good = client.tools()
        manager = ToolManager([into])
        refused = manager.run(ToolCall("1.0", into.name, value))
        assert (
            "input_schema cannot be applied: checking this value takes too much work."
            in refused.text
        )
        finished = threading.Event()

        def meanwhile() -> None:  # the connection's thread is free while a result is checked
            assert good.run({}).text == "fine"
            finished.set()

        thread = threading.Thread(target=meanwhile)
        thread.start()
        assert out.run({}).structured_content == value
        assert finished.wait(10.0)
        thread.join()
    assert (
        "its result is not checked against its output_schema: checking this value takes too much"
        " work." in caplog.text
    )


# --- answers that cannot be read ---

MANY = '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":{"a":[%s1]}}}' % (
    "[]," * 1_100_000
)
UNREADABLE = {
    "surrogate": (
        r'{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"\ud800"}]}}'
    ),
    "surrogate first": (
        r'{"result":{"content":[{"type":"text","text":"\ud800"}]},"id":@ID@,"jsonrpc":"2.0"}'
    ),
    "deep": (
        '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":%s}}'
        % ("[" * 240 + "]" * 240)
    ),
    "very deep": (
        '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":%s}}'
        % ("[" * 50_000 + "]" * 50_000)
    ),
    "very deep first": (
        '{"result":{"structuredContent":%s},"jsonrpc":"2.0","id":@ID@}'
        % ("[" * 50_000 + "]" * 50_000)
    ),
    "digits": (
        '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[],"structuredContent":{"n":%s}}}'
        % ("9" * 5000)
    ),
    "text": '{"jsonrpc":"2.0","id":@ID@,"result":"text"}',
    "nothing": '{"jsonrpc":"2.0","id":@ID@}',
    "no version": '{"id":@ID@,"result":{"content":[]}}',
    "cut": '{"jsonrpc":"2.0","id":@ID@,"result":{"content":[',
    "batch": '[{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]}}]',
    "id of a float": '{"jsonrpc":"2.0","id":@ID@.0,"result":{"content":[]}}',
    "no id": '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
}


@ERAS
def test_an_answer_over_stdio_that_cannot_be_read_is_its_calls_error_at_once(
    serve: Serve, modern: bool
) -> None:
    tools = [tool(name.replace(" ", "-")) for name in (*UNREADABLE, "good")]
    answers = {
        **{name.replace(" ", "-"): text for name, text in UNREADABLE.items()},
        "good": content(),
    }
    with MCPClient({"srv": serve(tools, answers, modern)}, call_timeout=20.0) as client:
        *broken, good = client.tools()
        for one in broken:
            with pytest.raises(ToolError) as caught:
                one.run({})
            assert not isinstance(caught.value, ToolTimeout), one.name
            expected = "what?" if one.name.endswith("no-id") else "its answer cannot be read"
            assert expected in str(caught.value), one.name
            assert len(str(caught.value)) < 500
            assert good.run({}).text == "fine"  # the connection still works


@pytest.mark.slow
def test_an_answer_of_a_million_values_is_not_parsed(serve: Serve) -> None:
    """Check that the answer is refused unparsed. The parser would hold the interpreter's lock for
    all that time."""
    with MCPClient(
        {"srv": serve([tool("many"), tool("good")], {"many": MANY, "good": content()})}
    ) as (client):
        many, good = client.tools()
        with pytest.raises(ToolError, match="cannot be read: it has more than 250,000 JSON values"):
            many.run({})
        assert good.run({}).text == "fine"


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["json", "events"])
def test_an_answer_of_a_million_values_over_http_is_not_parsed(stream: bool) -> None:
    answers = {"many": MANY, "good": content()}
    web = Web([tool(name) for name in answers], answers, stream)
    try:
        with MCPClient({"web": {"url": web.url}}, call_timeout=60.0) as client:
            many, good = client.tools()
            with pytest.raises(ToolError) as caught:
                many.run({})
            assert not isinstance(caught.value, ToolTimeout)
            assert good.run({}).text == "fine"
    finally:
        web.stop()


@pytest.mark.parametrize(
    "broken",
    [
        r'{"name":"bad\ud800","inputSchema":{"type":"object"}}',
        r'{"name":"bad","description":"\udc00","inputSchema":5}',
        '{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"maximum":%s}}}}'
        % ("9" * 5_000),
        '{"name":"bad","inputSchema":{"type":"object","properties":{"a":%s}}}'
        % ('{"not":' * 300 + "{}" + "}" * 300),
        '{"name":"bad","inputSchema":{"type":"object","properties":{"a":%s}}}'
        % ('{"not":' * 30_000 + "{}" + "}" * 30_000),
    ],
    ids=["name", "description", "digits", "deep", "very deep"],
)
def test_a_tool_that_makes_its_list_unreadable_is_left_out_alone(
    tmp_path: Path, broken: str
) -> None:
    listed = json.dumps([tool("good")])[:-1] + f",{broken}]"
    program = tmp_path / "server.py"
    program.write_text(
        "import json, sys\n"
        f"LISTED = {listed!r}\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if 'id' not in asked:\n"
        "        continue\n"
        "    found = {\n"
        '        \'initialize\': \'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},\'\n'
        '        \'"serverInfo":{"name":"s","version":"1"}}\',\n'
        "        'tools/list': '{\"tools\":%s}' % LISTED,\n"
        '        \'tools/call\': \'{"content":[{"type":"text","text":"fine"}]}\',\n'
        "    }.get(asked['method'])\n"
        '    result = \'"error":{"code":-32601,"message":"no"}\' if found is None else \'"result":\' + found\n'
        '    print(\'{"jsonrpc":"2.0","id":%s,%s}\' % (json.dumps(asked[\'id\']), result), flush=True)\n'
    )
    with MCPClient({"srv": {"command": sys.executable, "args": [str(program)]}}) as client:
        assert [one.run({}).text for one in client.tools()] == ["fine"]
        assert [name.startswith("srv.bad") for name in client.errors] == [True]


def test_a_cursor_that_repeats_ends_the_list(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"tools": [tool("good")], "answers": {"good": content()}}))
    program = tmp_path / "server.py"
    source = (DATA / "mcp_scripted_server.py").read_text()
    altered = source.replace(
        'found = {"tools": SCRIPT["tools"]}',
        'found = {"tools": SCRIPT["tools"], "nextCursor": "x"}',
    )
    assert altered != source
    program.write_text(altered)
    server = {"command": sys.executable, "args": [str(program), str(script)]}
    with MCPClient({"srv": server}) as client:
        assert client.tools()[0].run({}).text == "fine"


class Web:
    """An MCP server over HTTP: each answer is one JSON body, or (`stream`) one event."""

    def __init__(self, tools: list[Any], answers: dict[str, str], stream: bool) -> None:
        kind = "text/event-stream" if stream else "application/json"

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(
                self, status: int, body: bytes = b"", kind: str = "application/json"
            ) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer(405)

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if "id" not in request:
                    return self.answer(202)
                reply: dict[str, Any] = {"error": {"code": -32601, "message": "unknown"}}
                if request["method"] == "initialize":
                    info = {"name": "web", "version": "1"}
                    reply = {
                        "result": {
                            "protocolVersion": "2025-11-25",
                            "capabilities": {"tools": {}},
                            "serverInfo": info,
                        }
                    }
                elif request["method"] == "tools/list":
                    reply = {"result": {"tools": tools}}
                elif request["method"] == "tools/call":
                    text = answers[request["params"]["name"]].replace(
                        "@ID@", json.dumps(request["id"])
                    )
                    return self.answer(
                        200,
                        f"event: message\ndata: {text}\n\n".encode() if stream else text.encode(),
                        kind,
                    )
                return self.answer(
                    200, json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}).encode()
                )

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/mcp"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["json", "events"])
def test_an_answer_over_http_that_cannot_be_read_is_its_calls_error_at_once(stream: bool) -> None:
    answers = {
        **{name.replace(" ", "-"): text for name, text in UNREADABLE.items()},
        "good": content(),
    }
    web = Web([tool(name) for name in answers], answers, stream)
    try:
        with MCPClient({"web": {"url": web.url}}, call_timeout=20.0) as client:
            *broken, good = client.tools()
            for one in broken:
                with pytest.raises(ToolError) as caught:
                    one.run({})
                assert not isinstance(caught.value, ToolTimeout), one.name
                assert len(str(caught.value)) < 500
                assert good.run({}).text == "fine"
    finally:
        web.stop()


def test_a_log_line_among_the_answers_harms_nothing(serve: Serve) -> None:
    noise = 'Listening, as {"id": 1} says\n{"level":"info","id":7}\n\n' + content()
    with MCPClient({"srv": serve([tool("t")], {"t": noise})}) as client:
        assert client.tools()[0].run({}).text == "fine"


def test_a_call_has_a_default_timeout_that_a_server_can_raise_or_disable(serve: Serve) -> None:
    silent = serve([tool("t")], {"t": ""})
    config = {
        "default": silent,
        "own": {**silent, "call_timeout": 0.2},
        "none": {**silent, "call_timeout": None},
    }
    with MCPClient(config) as client:
        assert [source.call_timeout for source in client.sources()] == [600.0, 0.2, None]
        with pytest.raises(ToolTimeout, match=r"'own.t' did not answer within 0.2 s"):
            client.tools()[1].run({})
    assert [source.call_timeout for source in MCPClient(config, call_timeout=None).sources()] == [
        None,
        0.2,
        None,
    ]


# --- lists with a bad tool ---

BAD: dict[str, tuple[Any, str]] = {
    "empty": (tool("empty", {}), 'its inputSchema does not say "type": "object"'),
    "true": (tool("true", True), "its inputSchema is a boolean, not an object"),
    "string": (tool("string", {"type": "string"}), 'its inputSchema does not say "type": "object"'),
    "none": ({"name": "none"}, "its inputSchema is missing, not an object"),
    "properties": (
        tool("properties", {"type": "object", "properties": 5}),
        "input_schema has properties 5",
    ),
    "property": (
        tool("property", {"type": "object", "properties": {"a": 5}}),
        "input_schema has properties",
    ),
    "required": (
        tool("required", {"type": "object", "required": "a"}),
        "input_schema has required 'a'",
    ),
    "inner": (
        tool("inner", {"type": "object", "properties": {"a": {"type": "strnig"}}}),
        "input_schema has properties.a.type 'strnig'",
    ),
    "no spaces": (tool("no spaces"), "name takes 1 to 128 letters"),
    "described": (tool("described", description=5), "its description is a number, not a string"),
    "output": (tool("output", outputSchema=[]), "its outputSchema is an array, not an object"),
    "endless": (tool("endless", {"type": "object", "$ref": "#"}), "refers to itself without end"),
    "deep": (
        tool("deep", {"type": "object", "default": json.loads("[" * 150 + "]" * 150)}),
        "has more than 100 levels",
    ),
    "enum": (
        tool("enum", {"type": "object", "properties": {"a": {"enum": [*range(60_000)]}}}),
        "has more than 50,000 values",
    ),
}


@pytest.mark.slow
@ERAS
def test_each_bad_tool_is_left_out_with_one_warning_and_the_others_work(
    serve: Serve, modern: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [
        tool("first"),
        *[bad for bad, _ in BAD.values()],
        "text",
        tool("last", {"type": "object", "properties": {"a": True}}),
    ]
    with MCPClient(
        {"srv": serve(tools, {"first": content(), "last": content()}, modern)}
    ) as client:
        with caplog.at_level(logging.WARNING, "holdfast"):
            manager = ToolManager([], client.sources())
            assert [one.name for one in manager.discover()] == ["srv.first", "srv.last"]
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == len(BAD) + 1
        for name, (_, fault) in BAD.items():
            (message,) = [
                warning
                for warning in warnings
                if f"Tool 'srv.{name}':" in warning or f"not 'srv.{name}'." in warning
            ]
            assert "MCP server 'srv' has a tool that cannot be used." in message
            assert fault in message
        assert manager.errors == {}
        assert manager.call("srv.last", {"a": 1}).text == "fine"


def test_hints_that_are_no_booleans_are_no_fault_of_the_tool(serve: Serve) -> None:
    hints = {"readOnlyHint": "yes", "idempotentHint": True, "title": 5}
    with MCPClient({"srv": serve([tool("t", annotations=hints)], trusted=True)}) as client:
        annotations = client.tools()[0].annotations
    assert (annotations.read_only, annotations.idempotent) == (False, True)


def test_a_list_that_is_none_says_so(serve: Serve) -> None:
    nothing: Any = {"a": 1}
    with MCPClient({"srv": serve(nothing), "good": serve([tool("t")])}, timeout=20.0) as client:
        assert [one.name for one in client.tools()] == ["good.t"]
        assert "tools" in client.errors["srv"]
        assert "it ended" not in client.errors["srv"]
