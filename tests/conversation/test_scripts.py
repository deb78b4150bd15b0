"""Code mode: the calls of scripts are calls, and a script that runs again takes the same path."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationState,
    ConversationStatus,
    MemoryStore,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolAnnotations,
    ToolContext,
    tool,
)
from holdfast import events as ev
from holdfast.agent.code import CodeMode, stub_of
from holdfast.content import ToolCall, ToolResult
from holdfast.conversation.replay import replay
from holdfast.errors import ConfigurationError
from holdfast.store import Store
from holdfast.tools.hooks import Hook
from tests.remote_parts import KEY, AgentServerProcess
from tests.waiting import until

pytest.importorskip("pydantic_monty")

S = ConversationStatus


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with (
        MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", "process")
    ) as backend:
        yield backend


class Shelf:
    """Tools whose effects a test counts."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    def tools(self) -> list[Tool]:
        def look(item: str) -> dict[str, Any]:
            """Looks."""
            return {"item": item, "length": len(item)}

        def put(item: str, count: int = 1) -> str:
            """Puts."""
            self.effects.append(item)
            return f"{count} {item}"

        def fail(item: str) -> str:
            """Fails."""
            raise ValueError(f"no {item}")

        reads = ToolAnnotations(read_only=True)
        return [tool(annotations=reads)(look), tool(put), tool(fail)]


def agent_of(script: str, shelf: Shelf, **more: Any) -> Agent:
    more.setdefault("code", True)
    return Agent(ScriptedLLM([("run_code", {"code": script}), "Done."]), shelf.tools(), **more)


def run(script: str, shelf: Shelf | None = None, **more: Any) -> tuple[str, ConversationState]:
    """Return the result of a script that an agent writes, and the state after its run."""
    agent = agent_of(script, shelf or Shelf(), **more)
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        state = conversation.run()
        assert replay(state.events, agent).same
        return result_of(state).text, state


def result_of(state: ConversationState, call_id: str = "") -> ToolResult:
    answer = next(event for event in state.events if isinstance(event, ev.AssistantReplied))
    target = call_id or answer.calls[0].id
    return next(
        event.result
        for event in state.events
        if isinstance(event, ev.ToolCallFinished) and event.call_id == target
    )


# --- a script ---


def test_ten_dependent_calls_in_one_answer() -> None:
    code = "x = 'a'\nfor i in range(10):\n    x = (await put(item=x))[2:] + str(i)\nx"
    shelf = Shelf()
    text, state = run(code, shelf)
    assert text == "a0123456789"
    assert shelf.effects == ["a" + "0123456789"[:i] for i in range(10)]
    assert state.steps == 2
    starts = [event.call_id for event in state.events if isinstance(event, ev.ToolCallStarted)]
    assert starts == ["4.0", *[f"4.0.{n}" for n in range(10)]]
    assert ev.needed_version(state.events) == 4


def test_the_model_is_shown_the_script_alone() -> None:
    agent = agent_of("print(await look(item='abc'))\n(await put('x'))", Shelf())
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        conversation.run()
    assert isinstance(agent.llm, ScriptedLLM)
    messages = agent.llm.requests[1].messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[-1]["content"] == "{'item': 'abc', 'length': 3}\n1 x"


def test_tools_of_other_arguments_stay_the_models() -> None:
    agent = Agent(
        ScriptedLLM([]), Shelf().tools(), planning="tool", output_type={"type": "string"}, code=True
    )
    assert [one.name for one in agent.tool_definitions()] == ["run_code", "plan", "finish"]
    assert agent.tool_definitions() is agent.tool_definitions()


def test_a_failure_is_an_exception_and_names_have_hints() -> None:
    code = """
for attempt in (lambda: fail(item="x"), lambda: puts(item="x"), lambda: put(1, 2, 3)):
    try:
        await attempt()
    except Exception as error:
        print(type(error).__name__, error)
"""
    text, _ = run(code)
    assert text.splitlines() == [
        "RuntimeError 'fail' failed: ValueError: no x",
        "NameError name 'puts' is not defined. Did you mean 'put'?",
        "TypeError put() takes keyword arguments.",
    ]


def test_calls_run_side_by_side_where_that_is_safe() -> None:
    together = threading.Barrier(3, timeout=10)
    order: list[str] = []

    @tool(annotations=ToolAnnotations(read_only=True))
    def meet(name: str) -> str:
        """Waits for two others."""
        together.wait()
        return name

    @tool
    def alone(name: str) -> str:
        """Runs alone."""
        order.append(name)
        time.sleep(0.01)
        order.append(name)
        return name

    code = (
        "import asyncio\nprint(await asyncio.gather(*[meet(name=n) for n in 'abc'],"
        " alone(name='d'), alone(name='e')))"
    )
    agent = Agent(ScriptedLLM([("run_code", {"code": code}), "Done."]), [meet, alone], code=True)
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        assert result_of(conversation.run()).text == "['a', 'b', 'c', 'd', 'e']"
    assert order == ["d", "d", "e", "e"]


def test_a_call_that_is_not_awaited_does_not_run_and_is_told() -> None:
    shelf = Shelf()
    text, _ = run("put(item='x')\nprint('end')", shelf)
    assert shelf.effects == []
    assert text == 'end\n[Not run, because the script did not await it: put({"item":"x"})]'


def test_hooks_limits_and_masks_surround_nested_calls(store: Store) -> None:
    names: list[str] = []

    def look(call: ToolCall, context: ToolContext) -> None:
        names.append(call.name)

    shelf = Shelf()
    agent = agent_of("print(await put(item='s3cret-value'))", shelf, hooks=[Hook(before=look)])
    with Conversation(agent, store, "c", secrets={"KEY": "s3cret-value"}) as conversation:
        conversation.send_message("Go.")
        state = conversation.run()
    assert names == ["run_code", "put"]
    assert "s3cret" not in str(state.to_json())


# --- bad scripts ---


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
            "TimeoutE",
        ),
        (
            "x = []\nwhile True:\n    try:\n        x.append('a' * 1000)\n    except: pass",
            "MemoryErr",
        ),
        ("while True:\n    try:\n        print('x' * 1000)\n    except: pass", "printed more than"),
        ("print('x' * 2_000_000)\nprint('y')", "printed more than 1,000,500 characters"),
        ("print('x' * 2_000_000)\nawait put(item='x')\nwhile True: pass", "printed more than"),
        ("print('x' * 900_000)\nprint('y')", "more characters were left out"),
        ("import numpy", "No module named 'numpy'"),
        ("print(open('/etc/passwd').read())", "Error"),
        ("import os\nprint(os.environ)", "not supported"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
        ("(", "SyntaxError"),
        ("while True:\n    try:\n        await nothing()\n    except: pass", "RuntimeError"),
        (
            "while True:\n    try:\n        await fail(item='x')\n    except: pass",
            "it may make 50 calls",
        ),
        ("await put(item=object())", "Error"),
        ("x = []\nx.append(x)\nawait put(item=x)", "Error"),
        ("1 / 0", "ZeroDivisionError"),
        ("async def f(n): return await f(n + 1)\nawait f(0)", "RecursionError"),
        ("def f(n):\n    yield n", "does not yet support yield"),
        ("x = 10 ** 10 ** 10", "MemoryError"),
        ("x = 'a' * 10 ** 12", "MemoryError"),
        ("x = f'{1:>10000000000}'", "MemoryError"),
        ("[[[k for k in range(999)] for j in range(999)] for i in range(999)]", "MemoryError"),
        ("x = " + "(" * 5_000 + "1" + ")" * 5_000, "too deeply nested"),
        ("raise ValueError('z' * 10 ** 6 + 'the end')", "the end"),
        ("x = 1\nfor _ in range(10 ** 5): x = [x]\nx", "nested too deeply"),
        ("x = 1\nfor _ in range(10 ** 5): x = [x]\nawait put(item=x)", "deeper than 100 levels"),
        ("await put(item=float('nan'))", "which is not JSON"),
        ("await put(item=[1.0, {'a': float('-inf'), 'b': None}])", "which is not JSON"),
        ("for i in range(10_000): await look(item='x')", "it may make 50 calls"),
        (
            "import asyncio\nawait asyncio.gather(*[look(item='x') for i in range(10_000)])",
            "and 45 more",
        ),
        ("raise SystemExit('3')", "SystemExit"),
    ],
)
def test_a_bad_script_is_bounded_and_told_in_one_message(code: str, problem: str) -> None:
    # On a busy machine memory takes a while to fill. A script that prints ends long before.
    seconds = {"TimeoutE": 0.3, "printed more than": 600}.get(problem, 30)
    limits = CodeMode(seconds=seconds, memory=20_000_000, output=500, calls=50)
    text, state = run(code, code=limits)
    assert problem in text
    assert len(text) < 1500
    assert state.status is S.FINISHED
    assert state.answer == "Done."


def test_an_interrupt_ends_a_script_that_computes() -> None:
    agent = agent_of("while True: pass", Shelf(), code=CodeMode(seconds=60))
    with Conversation(agent) as conversation:
        conversation.start_thread()
        conversation.send_message("Go.")
        until(lambda: any(e.type == "toolCallStarted" for e in conversation.get_history()))
        time.sleep(0.2)
        conversation.interrupt()
        until(lambda: conversation.state.pending_calls == ())
        error = result_of(conversation.state).error
        assert error is not None
        assert error.type == "cancelled"


# --- decisions ---

TWO = "print(await put(item='a'))\nprint(await put(item='b'))"


def test_an_approval_parks_the_script_without_a_thread(store: Store) -> None:
    shelf = Shelf()
    agent = agent_of(TWO, shelf, confirm=["put"])
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("Go.")
        state = conversation.run()
        assert state.status is S.WAITING_FOR_CONFIRMATION
        assert [one.call.id for one in state.pending_confirmations] == ["4.0.0"]
        assert not [t for t in threading.enumerate() if t.name.startswith("holdfast-call")]
    with Conversation(agent, store, "c") as conversation:  # as another process would
        assert conversation.run().status is S.WAITING_FOR_CONFIRMATION
        conversation.approve("4.0.0")
        state = conversation.run()
        assert shelf.effects == ["a"]
        assert [one.call.id for one in state.pending_confirmations] == ["4.0.1"]
        conversation.reject("4.0.1", "enough")
        state = conversation.run()
    assert state.status is S.FINISHED
    assert shelf.effects == ["a"]
    text = result_of(state).text
    assert text.startswith("1 a\n")
    assert "RuntimeError: Not run: the user rejected this call: enough" in text


def test_parallel_calls_wait_for_their_decisions_side_by_side() -> None:
    effects: list[str] = []

    @tool(parallel=True)
    def put(item: str) -> str:
        """Puts."""
        effects.append(item)
        return item

    code = "import asyncio\nawait asyncio.gather(put(item='a'), put(item='b'))"
    model = ScriptedLLM([("run_code", {"code": code}), "Done."])
    with Conversation(Agent(model, [put], code=True, confirm=["put"])) as conversation:
        conversation.send_message("Go.")
        assert len(conversation.run().pending_confirmations) == 2
        conversation.approve("4.0.1")
        conversation.run()
        assert effects == ["b"]
        conversation.approve("4.0.0")
        assert result_of(conversation.run()).text == '["a","b"]'


def test_an_interrupt_ends_a_parked_script() -> None:
    shelf = Shelf()
    agent = agent_of(
        "try:\n    await put(item='a')\nexcept: pass\nawait put(item='b')", shelf, confirm=["put"]
    )
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        conversation.run()
        conversation.interrupt()
        conversation.resume()
        state = conversation.run()
        assert state.status is S.FINISHED
        assert "interrupted" in result_of(state).text
        assert shelf.effects == []


def test_a_pause_between_two_calls_holds_the_script() -> None:
    shelf = Shelf()
    agent = agent_of(TWO, shelf)
    with Conversation(agent) as conversation:
        shelf.effects = Pausing(conversation)
        conversation.send_message("Go.")
        state = conversation.run()
        assert (state.status, list(shelf.effects)) == (S.PAUSED, ["a"])
        conversation.resume()
        state = conversation.run()
        assert (state.status, list(shelf.effects)) == (S.FINISHED, ["a", "b"])


class Pausing(list[str]):
    """A list that pauses a conversation when it gets its first item."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation

    def append(self, item: str) -> None:
        super().append(item)
        if len(self) == 1:
            self._conversation.pause()


# --- repetition ---


def test_a_script_that_runs_again_gets_the_same_results_time_and_randomness() -> None:
    code = """
import asyncio, random, datetime, time
async def chain(name):
    a = await look(item=name)
    return (await look(item=name * a["length"]), random.random())
print(await asyncio.gather(chain("ab"), chain("c"), look(item="d"), chain("e")))
print(datetime.datetime.now(), time.time(), random.randint(0, 10**9))
for i in range(3):
    print(await put(item=str(random.random())))
"""
    text, state = run(code)

    def forbidden(item: str, count: int = 1) -> str:
        raise AssertionError("called again")

    end = seq_of_result(state, "4.0") - 1
    tools = [Tool("look", "", forbidden), Tool("put", "", forbidden)]
    agent = Agent(ScriptedLLM(["Done."]), tools, code=True)
    with Conversation.from_state(state.at(end), agent, id="copy") as conversation:
        assert result_of(conversation.run()).text == text


def test_a_script_goes_on_from_every_event() -> None:
    code = """
import asyncio
print(await asyncio.gather(*[look(item=n) for n in ("a", "bc", "d")]))
for n in ("x", "y"):
    print(await put(item=n))
"""
    text, state = run(code)
    started = set[str]()
    ends = seq_of_result(state, "4.0")
    for seq in range(6, ends):
        match state.events[seq - 1]:
            case ev.ToolCallStarted(call_id=id):
                started.add(id)
            case ev.ToolCallFinished(call_id=id):
                started.discard(id)
            case _:
                pass
        shelf = Shelf()
        agent = Agent(ScriptedLLM(["Done."]), shelf.tools(), code=True)
        with Conversation.from_state(state.at(seq), agent, id="copy") as conversation:
            copied = conversation.run()
        after = result_of(copied)
        if started:
            assert after.meta == {"outcome": "unknown"}, seq
        else:
            assert after.text == text, seq
        settled = {e.call_id for e in state.events[:seq] if isinstance(e, ev.ToolCallFinished)}
        assert len(shelf.effects) <= 2 - len(settled & {"4.0.3", "4.0.4"})
        assert replay(copied.events, agent).same


def seq_of_result(state: ConversationState, call_id: str) -> int:
    return next(
        event.seq
        for event in state.events
        if isinstance(event, ev.ToolCallFinished) and event.call_id == call_id
    )


def test_a_script_that_differs_or_another_interpreter_ends_with_script_diverged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, state = run(TWO)
    middle = next(
        e.seq
        for e in state.events
        if getattr(e, "call_id", "") == "4.0.0" and isinstance(e, ev.ToolCallFinished)
    )
    before = state.at(middle)
    wrong = [
        event
        if not isinstance(event, ev.AssistantReplied)
        else ev.decode(ev.encode(event).replace(b"item='a'", b"item='z'"))
        for event in before.events
    ]
    shelf = Shelf()
    agent = Agent(ScriptedLLM(["Done."]), shelf.tools(), code=True)
    with Conversation.from_state(ConversationState("c", wrong), agent, id="a") as conversation:
        text = result_of(conversation.run()).text
    assert text.startswith("ScriptDiverged")
    assert 'call 4.0.0 is now put({"item":"z"}), not put({"item":"a"})' in text
    import pydantic_monty

    monkeypatch.setattr(pydantic_monty, "__version__", "9.9")
    with Conversation.from_state(before, agent, id="b") as conversation:
        text = result_of(conversation.run()).text
    assert "its interpreter is now monty 9.9, not monty 1.4.0" in text
    assert shelf.effects == []


def test_a_fork_inside_a_script_closes_its_calls(store: Store) -> None:
    agent = agent_of(TWO, Shelf(), confirm=["put"])
    with Conversation(agent, store, "c") as conversation:
        conversation.send_message("Go.")
        conversation.run()
        with conversation.fork(agent=Agent(ScriptedLLM(["Forked."]), code=True)) as fork:
            state = fork.run()
    assert state.answer == "Forked."
    assert "forked" in result_of(state, "4.0.0").text
    assert result_of(state).meta == {"outcome": "unknown"}


# --- functions ---


def test_many_tools_are_found_on_demand() -> None:
    def make(number: int) -> Tool:
        def act(value: int) -> int:
            return value + number

        return Tool(f"unit{number}.add", f"Adds {number} to a value.", act)

    code = "print(await find_functions(query='adds 77'))\nawait unit77__add(value=1)"
    tools = [make(number) for number in range(100)]
    model = ScriptedLLM([("run_code", {"code": code}), "Done."])
    agent = Agent(model, tools, code=CodeMode(stubs=1000))
    description = agent.tool_definitions()[0].description
    assert "unit77__add" in description
    assert "Adds 77" not in description
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        text = result_of(conversation.run()).text
    assert "async def unit77__add(*, value: int) -> Any:" in text
    assert text.endswith("\n78")


@pytest.mark.parametrize("stubs", [20_000, 0])
def test_a_replay_has_the_functions_that_were_registered_then(stubs: int) -> None:
    def make(name: str) -> Tool:
        return Tool(name, f"Adds by {name}.", lambda value: value + 1)

    code = ("run_code", {"code": "print(1)"})
    model = ScriptedLLM([code, "One.", code, "Two.", code, "Three."])
    agent = Agent(model, [make("uno"), make("dos")], code=CodeMode(stubs=stubs))
    with Conversation(agent) as conversation:
        for change in (lambda: None, lambda: agent.tools.register(make("tres")), later(agent)):
            change()
            conversation.send_message("Go.")
            conversation.run()
        events = conversation.state.events
    descriptions = [e.tools[0].description for e in events if isinstance(e, ev.AgentConfigured)]
    assert ["tres" in text for text in descriptions] == [False, True, True]
    assert ["dos" in text for text in descriptions] == [True, True, False]
    again = Agent(
        ScriptedLLM([]), [make(name) for name in ("uno", "dos", "tres")], code=agent.code.mode
    )
    assert replay(events, again).same, str(replay(events, again))
    again.tools.register(make("cuatro"))
    assert "cuatro" in str(replay(events, again))
    again.tools.unregister("cuatro")
    again.tools.unregister("dos")
    assert "dos" in str(replay(events, again))


def later(agent: Agent) -> Callable[[], Tool]:
    return lambda: agent.tools.unregister("dos")


PYTHONS = ["list", "open", "print", "Exception", "class", "asyncio", "json", "time", "1st", "input"]


@pytest.mark.parametrize("name", PYTHONS)
def test_a_tool_with_a_name_of_python_has_a_function_beside_it(name: str) -> None:
    own = Tool(name, "", lambda value: f"tool {value}")
    code = f"import asyncio, json, time\nprint(len(list('ab')), await tool_{name}(value=1))"
    agent = Agent(ScriptedLLM([("run_code", {"code": code}), "Done."]), [own], code=True)
    with Conversation(agent) as conversation:
        conversation.send_message("Go.")
        assert result_of(conversation.run()).text == "2 tool 1"


def test_stubs_are_python_with_the_types_of_the_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"], "description": 'The "kind".'},
            "when": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
            "not-a-name": {"type": "integer"},
        },
        "required": ["rows"],
        "$defs": {
            "row": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "next": {"$ref": "#/$defs/row"}},
                "required": ["id"],
            }
        },
    }
    declaration = Tool(
        "t", 'Says """hi""" \\ ', lambda **_: None, schema, {"type": "array", "items": {}}
    )
    stub = stub_of("t", declaration)
    compile(stub, "stub", "exec")
    assert stub.startswith(
        "async def t(*, rows: list[TypedDict[{'id': int, 'next': NotRequired[TypedDict["
    )
    assert "kind: Literal['a', 'b'] = None, when: str | None = None) -> list[Any]:" in stub


def test_the_setting_is_in_agent_files_and_is_checked() -> None:
    for setting in (True, CodeMode(seconds=2.5)):
        agent = Agent(LLM("openai/gpt-4o", api_key="k"), code=setting)
        again = Agent.from_json(agent.to_json(), variables={"secret_1": "k"})
        assert again.code is not None
        assert again.code.mode == (CodeMode() if setting is True else setting)
    with pytest.raises(ConfigurationError, match="Agent: code takes"):
        Agent(ScriptedLLM([]), code="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="CodeMode: seconds"):
        CodeMode(seconds=0)


def test_an_agent_without_code_imports_nothing_of_it() -> None:
    program = (
        "import sys; from holdfast import Agent, Conversation, ScriptedLLM; c = Conversation(Agent(ScriptedLLM(['Hi.'])));"
        " c.send_message('x'); c.run(); c.close();"
        " print([m for m in sys.modules if 'monty' in m or m in ('holdfast.agent.code',"
        " 'holdfast.conversation.scripts')])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


# --- on an agent server ---


@pytest.mark.slow
def test_the_functions_of_a_script_may_run_in_the_client_of_a_server(tmp_path: Path) -> None:
    def shout(text: str) -> str:
        """Says it louder."""
        return text.upper()

    code = "a = await shout(text='here')\nprint(await shout(text=a + ' and there'))"
    agent = Agent(ScriptedLLM([("run_code", {"code": code}), "Done."]), [shout], code=True)
    with (
        AgentServerProcess(tmp_path, grace=1.5) as server,
        RemoteWorkspace(server.url, KEY) as space,
        RemoteConversation(agent, space, client_tools=True) as conversation,
    ):
        conversation.send_message("Go.")
        state = conversation.run()
        assert state.status is S.FINISHED
        assert result_of(state).text == "HERE AND THERE"
        starts = [e for e in state.events if isinstance(e, ev.ToolCallStarted) and e.runner]
        assert [e.call_id for e in starts] == ["4.0.0", "4.0.1"]
