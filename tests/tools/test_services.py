"""Tests of misbehaving services, which change without end, are closed during discovery, or start a
discovery themselves; and of pins that several managers share."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, MCPClient, ScriptedLLM, Tool, ToolError, ToolManager
from holdfast.content import ToolCall
from holdfast.errors import ConfigurationError, StoreError, ToolNotFound
from holdfast.tools import discovery
from holdfast.tools import manager as manager_module
from holdfast.tools.a2a import A2ATool
from holdfast.tools.a2a.parts import AgentSkill
from holdfast.tools.pins import Pins
from holdfast.tools.sources import SourceHealth
from tests import forks
from tests.waiting import until


class Service:
    """A service in this process. `offers` has descriptions by names, and can be changed; `during`
    runs in each discovery."""

    kind = "mcp"

    def __init__(
        self, id: str, *names: str, lazy: bool = False, during: Callable[[], object] = lambda: None
    ) -> None:
        self.id = id
        self.lazy = lazy
        self.offers = {name: f"Does {name}." for name in names}
        self.during = during
        self.discoveries = 0
        self.ending: Callable[[], object] = lambda: None
        self.changed: Callable[[], None] = lambda: None

    def discover(self) -> list[Tool]:
        self.discoveries += 1
        self.during()
        return [
            remote(f"{self.id}.{name}", description) for name, description in self.offers.items()
        ]

    def watch(self, on_change: Callable[[], None]) -> None:
        self.changed = on_change

    def health(self, timeout: float) -> SourceHealth:
        return SourceHealth(self.id, True)

    def close(self) -> None:
        self.ending()


class Remote(Tool):
    tool_type = "mcp_tool"


def remote(name: str, description: str) -> Tool:
    return Remote(name, description, lambda: name, {"type": "object"})


def manager_of(
    *services: Service, tools: Iterable[Tool] = (), pins: Pins | None = None
) -> ToolManager:
    return ToolManager(tools, services, pins=pins, discover=False)  # pyright: ignore


def names(manager: ToolManager) -> list[str]:
    return [tool.name for tool in manager.list_tools()]


def fails(message: str) -> Callable[[], object]:
    def fail() -> None:
        raise ToolError(message, "network")

    return fail


# --- pins ---

_PINNING = """
import sys
from holdfast import Tool
from holdfast.tools.pins import Pins
pins = Pins(sys.argv[1])
for n in range(30):
    assert pins.check(Tool(f"{sys.argv[2]}.t{n}", "", lambda: None)) == ""
"""


@pytest.mark.slow
def test_processes_with_one_file_of_pins_keep_each_others(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    work = [forks.Popen([sys.executable, "-c", _PINNING, str(path), id]) for id in ("a", "b", "c")]
    assert [process.wait(60) for process in work] == [0, 0, 0]
    assert len(json.loads(path.read_bytes())) == 90
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pins.json", "pins.json.lock"]


def test_pins_honour_the_approvals_of_another_process(tmp_path: Path) -> None:
    mine, theirs = Pins(tmp_path / "pins.json"), Pins(tmp_path / "pins.json")
    assert theirs.check(remote("a.t", "One.")) == ""
    # seen first by the other
    assert mine.check(remote("a.t", "Two.")) == 'description was "One.", is "Two."'
    theirs.approve(remote("a.t", "Two."))
    assert mine.check(remote("a.t", "Two.")) == ""


def test_the_folder_of_pins_is_made_and_errors_name_the_file(tmp_path: Path) -> None:
    manager = manager_of(Service("s", "t"), pins=Pins(tmp_path / "not" / "there" / "pins.json"))
    assert [tool.name for tool in manager.discover()] == ["s.t"]
    assert (tmp_path / "not" / "there" / "pins.json").exists()
    (tmp_path / "pins.json.lock").mkdir()
    manager = manager_of(Service("s", "t"), pins=Pins(tmp_path / "pins.json"))
    assert manager.discover() == []
    assert f"Pins: '{tmp_path}/pins.json' cannot be written" in manager.errors["s"]
    with pytest.raises(StoreError, match=r"Pins: .*cannot be written"):
        Pins(tmp_path / "pins.json").approve(remote("s.t", ""))
    (tmp_path / "half.json").write_text('{"s.t": {"hash": "1"}}')
    with pytest.raises(ConfigurationError, match="is not a file of pins"):
        Pins(tmp_path / "half.json")


def test_what_is_approved_is_what_was_shown() -> None:
    service = Service("s", "t")
    manager = manager_of(service, pins=Pins())
    manager.discover()
    service.offers["t"] = "Harmless."
    manager.discover("s", force=True)
    reason = manager.held["s.t"]
    service.offers["t"] = "Evil."
    manager.discover("s", force=True)
    with pytest.raises(
        ConfigurationError,
        match=(
            r"'s.t' was not approved: it has changed since it was shown as .*Harmless.*held back"
            r" now: .*Evil"
        ),
    ):
        manager.approve("s.t", reason)
    assert (names(manager), list(manager.held)) == ([], ["s.t"])
    manager.approve("s.t", manager.held["s.t"])
    assert manager.get("s.t").description == "Evil."


@pytest.mark.parametrize("first", ["hold", "approve"])
def test_two_definitions_are_never_told_in_the_same_words(first: str) -> None:
    service = Service("s", "t")
    manager = manager_of(service, pins=Pins(first=first))
    reasons: set[str] = set()
    manager.discover()
    for end in ("harmless", "evil", "worse"):
        service.offers["t"] = "x" * 200 + end  # longer than the part that is shown
        manager.discover("s", force=True)
        reasons.add(manager.held["s.t"])
    assert len(reasons) == 3
    pins = Pins()
    pins.check(Tool("t", "", lambda: None, {"type": "object", "default": 1}))
    # equal, to Python
    assert pins.check(Tool("t", "", lambda: None, {"type": "object", "default": True}))


def test_remote_tools_that_are_registered_are_held_back_too() -> None:
    pay = remote("s.pay", "Pays.")
    manager = ToolManager([pay, Tool("local", "", lambda: 1)], pins=Pins(first="hold"))
    assert (names(manager), manager.held) == (["local"], {"s.pay": "it is new"})
    for name in ("s.pay", "s__pay"):
        assert "held back until somebody approves" in manager.run(ToolCall("1", name)).text
    with pytest.raises(ConfigurationError, match=r"two tools named 's.pay'"):
        manager.register(remote("s.pay", "Other."))
    assert manager.approve("s.pay", "it is new") is pay
    assert (names(manager), manager.held) == (["local", "s.pay"], {})


def test_what_a_remote_skill_is_called_there_is_pinned() -> None:
    class Agent:
        id = "a"

    before, now = (
        A2ATool(Agent(), AgentSkill("pay now", "Pays.")),
        A2ATool(Agent(), AgentSkill("pay/now", "Pays.")),
    )  # pyright: ignore
    assert before.name == now.name
    pins = Pins()
    assert pins.check(before) == ""
    assert pins.check(now) == 'remoteName was "pay now", is "pay/now"'
    assert pins.check(A2ATool(Agent(), AgentSkill(now.name.partition(".")[2], "Pays.")))  # pyright: ignore


def test_an_older_list_never_replaces_a_newer_one() -> None:
    class Slow(Pins):
        def check_all(self, tools: Iterable[Tool]) -> dict[str, str]:
            checked = super().check_all(tools)
            if threading.current_thread().name == "slow":
                waits.set()
                assert goes_on.wait(30)
            return checked

    waits, goes_on = threading.Event(), threading.Event()
    service = Service("s", "t")
    manager = manager_of(service, pins=Slow())
    manager.discover()
    # offers its earlier tools again
    slow = threading.Thread(target=lambda: manager.discover("s"), name="slow")
    slow.start()
    assert waits.wait(30)
    service.offers["t"] = "Evil."
    manager.discover("s", force=True)
    assert list(manager.held) == ["s.t"]
    goes_on.set()
    slow.join()
    assert (names(manager), list(manager.held)) == ([], ["s.t"])


# --- discovery ---


def test_services_are_asked_one_after_the_other_where_no_thread_is_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def scarce(work: Callable[[], None], name: str) -> object:
        started.append(name)
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        return start(work, name)

    start = discovery.start_thread
    monkeypatch.setattr(discovery, "start_thread", scarce)
    services = [Service(f"s{n}", "t") for n in range(5)]
    manager = manager_of(*services)
    assert len(manager.discover()) == 5
    assert [service.discoveries for service in services] == [1] * 5
    assert all(status.ok for status in manager.health().values())
    manager.close()


def test_an_interrupt_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def no_thread(work: Callable[[], None], name: str) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(discovery, "start_thread", no_thread)
    first, second = Service("first", "t", during=interrupt), Service("second", "t")
    manager = manager_of(first, second)
    with pytest.raises(KeyboardInterrupt):
        manager.discover()
    first.during = lambda: None
    again = threading.Thread(target=manager.discover, daemon=True)
    again.start()
    again.join(30)
    assert not again.is_alive()
    assert names(manager) == ["first.t", "second.t"]


def test_what_a_close_cuts_short_is_asked_anew() -> None:
    ending = threading.Event()
    service = Service("a", "t")

    def cut_short() -> None:
        if service.discoveries == 1:
            assert ending.wait(30)
            raise ToolError("The client was closed before it answered.", "network")

    service.during, service.ending = cut_short, lambda: (ending.set(), time.sleep(0.05))
    manager = manager_of(service)
    asker = threading.Thread(target=manager.discover)
    asker.start()
    until(lambda: service.discoveries == 1)
    manager.close()
    asker.join()
    manager.discover()
    assert (names(manager), manager.errors, service.discoveries) == (["a.t"], {}, 2)


def test_who_asks_while_it_is_closed_waits_for_that() -> None:
    closing, end = threading.Event(), threading.Event()
    service = Service("a", "t")
    service.ending = lambda: (closing.set(), end.wait(30))
    manager = manager_of(service)
    manager.discover()
    closer = threading.Thread(target=manager.close)
    closer.start()
    assert closing.wait(30)
    asker = threading.Thread(target=manager.discover)
    asker.start()
    time.sleep(0.1)
    assert service.discoveries == 1  # its new connection would have been closed
    end.set()
    closer.join()
    asker.join()
    assert service.discoveries == 2


def test_what_connects_after_a_close_is_closed_again() -> None:
    go_on, open = threading.Event(), [0]
    service = Service("a", "t")
    service.during = lambda: (go_on.wait(30), open.append(1))
    service.ending = lambda: open.clear()
    manager = manager_of(service)
    asker = threading.Thread(target=manager.discover)
    asker.start()
    until(lambda: service.discoveries == 1)
    manager.close()
    go_on.set()
    asker.join()
    assert (open, manager.summary()["services"]) == ([], {"a": "not asked"})


@pytest.mark.slow
def test_a_service_that_announces_changes_without_end_is_asked_seldom() -> None:
    service = Service("s", "t")
    service.during = lambda: service.changed()
    manager = manager_of(service)
    began = time.monotonic()
    manager.discover()
    definitions = manager.definitions()
    time.sleep(2.0)
    until(lambda: service.discoveries >= 2)
    assert service.discoveries <= 1 + time.monotonic() - began
    assert manager.definitions() is definitions  # an unchanged list is the same object
    manager.close()
    count = service.discoveries
    time.sleep(0.2)
    assert service.discoveries == count
    until(
        lambda: (
            not [thread for thread in threading.enumerate() if thread.name == "holdfast-discover-s"]
        ),
        seconds=10.0,
    )


def test_a_service_that_asks_for_itself_is_told_so() -> None:
    service = Service("s", "t")
    manager = manager_of(service)
    service.during = manager.discover
    thread = threading.Thread(target=manager.discover, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert "'s' is being asked for its tools, and would wait for itself" in manager.errors["s"]


def test_services_that_ask_for_each_other_are_told_so() -> None:
    both = threading.Barrier(2)
    a, b = Service("a", "t"), Service("b", "t")
    manager = manager_of(a, b)
    a.during = lambda: (both.wait(30), manager.discover("b"))
    b.during = lambda: (both.wait(30), manager.discover("a"))
    thread = threading.Thread(target=manager.discover, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(manager.errors) == 1  # the other service was listed
    a.during = lambda: manager.discover("c")  # no circle
    manager.add_source(Service("c", "t"))  # pyright: ignore
    assert [tool.name for tool in manager.discover("a", force=True)] == ["a.t"]


# --- names ---


def test_the_service_of_a_name_is_the_exact_one_then_the_longest() -> None:
    short, long = Service("a", "x", "b__y", lazy=True), Service("a__b", "tool", lazy=True)
    manager = manager_of(short, long)
    assert manager.call("a__b.tool").text == "a__b.tool"
    assert short.discoveries == 0
    assert manager.get("a__x").name == "a.x"
    manager = manager_of(Service("a", "b__y", lazy=True), Service("a__b", "tool", lazy=True))
    assert manager.get("a__b__y").name == "a.b__y"  # the longer one has none of that name


def test_a_tool_that_was_taken_out_stays_out() -> None:
    service, lazy = Service("s", "t", "u"), Service("z", "mail", lazy=True)
    manager = manager_of(service, lazy)
    manager.discover()
    manager.discover("z")
    assert manager.unregister("s.t").name == "s.t"
    manager.unregister("z.mail")
    manager.discover("s")
    service.offers["v"] = "New."
    service.changed()
    until(lambda: manager.exists("s.v"))
    manager.discover(force=True)
    assert manager.search("mail") == []
    manager.want(["z.mail"])
    assert names(manager) == ["find_tools", "s.u", "s.v"]
    with pytest.raises(ToolNotFound):
        manager.get("z.mail")
    manager.discover("s", force=True)
    assert manager.exists("s.t")
    mine = manager.register(Tool("z.mail", "", lambda: "mine"))
    assert manager.get("z.mail") is mine


def test_an_agent_that_cannot_be_made_leaves_nothing_in_a_shared_manager() -> None:
    manager = manager_of(Service("b"))
    with pytest.raises(ConfigurationError, match="two services named 'b'"):
        Agent(ScriptedLLM([]), manager, mcp_servers={"a": {"command": "x"}, "b": {"command": "x"}})
    assert list(manager.summary()["services"]) == ["b"]
    Agent(ScriptedLLM([]), manager, mcp_servers={"mcpServers": {}})


def test_an_unknown_tool_is_told_with_why_its_service_has_none() -> None:
    manager = manager_of(Service("git", during=fails("No such program.")))
    for name in ("git.status", "git__status"):
        assert (
            "Its service 'git' could not be asked: No such program. "
            in manager.run(ToolCall("1", name)).text
        )
    lazy = manager_of(Service("git", lazy=True, during=fails("No such program.")))
    assert (
        "'git' could not be asked: No such program. " in lazy.run(ToolCall("1", "git.status")).text
    )


def test_tools_that_a_search_found_are_deferred_and_its_result_names_them() -> None:
    manager = manager_of(Service("s", "t"), Service("z", "mail", "post", lazy=True))
    manager.discover()
    result = manager.call("find_tools", {"query": "mail"})
    assert result.meta == {"holdfast/tools": ["z.mail"]}
    assert result.text.startswith("- z.mail: ")
    deferred = {one.name: one.deferred for one in manager.definitions()}
    assert deferred == {"find_tools": False, "s.t": False, "z.mail": True}
    manager.discover("z")  # all tools of the service are in: no search brought them
    deferred = {one.name: one.deferred for one in manager.definitions()}
    assert deferred["z.mail"] is deferred["z.post"] is False
    assert manager.call("find_tools", {"query": "nothing of the kind"}).meta == {}


def test_find_tools_tells_of_tools_that_are_held_back() -> None:
    service = Service("z", "send_mail", lazy=True)
    manager = manager_of(service, pins=Pins(first="hold"))
    listing = manager.call("find_tools", {"query": "mail"}).text
    assert listing == "- z.send_mail: held back until somebody approves it; it cannot be called."
    manager.approve("z.send_mail")
    assert "Does send_mail." in manager.call("find_tools", {"query": "mail"}).text


# --- a conversation that goes on ---


def test_tools_that_were_found_before_are_wanted_again() -> None:
    clock, other, down = (
        Service("clock", "now", "set", lazy=True),
        Service("other", "t", lazy=True),
        Service("down", lazy=True, during=fails("Down.")),
    )
    manager = manager_of(clock, other, down, Service("here", "t"))
    agent = Agent(ScriptedLLM([]), manager)
    agent.connections.connect(["find_tools", "clock.now", "down.t", "gone.t", "here.t"])
    assert names(manager) == ["find_tools", "clock.now", "here.t"]  # the order of the configuration
    assert (clock.discoveries, other.discoveries, down.discoveries) == (1, 0, 1)
    agent.connections.connect(["clock.now", "down.t"])
    assert (clock.discoveries, down.discoveries) == (1, 1)
    assert [tool.name for tool in manager.discover("clock")] == ["clock.now", "clock.set"]


def test_a_tool_of_the_name_of_a_service_is_none() -> None:
    """Check a tool that was found and whose name is a service's id: the name does not bring in all
    tools of that service."""
    service = Service("s", "a", "b", lazy=True)
    manager = manager_of(service)
    manager.search("a")
    manager.want(["s"])
    assert names(manager) == ["find_tools", "s.a"]


# --- a server process ---

_ENDLESS = """
import json, sys
def say(**said): print(json.dumps({"jsonrpc": "2.0", **said}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        say(id=asked["id"], result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                                    "serverInfo": {"name": "x", "version": "1"}})
    elif asked.get("method") == "tools/list":
        open(sys.argv[1], "a").write("list\\n")
        say(method="notifications/tools/list_changed")
        say(id=asked["id"], result={"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
    elif "id" in asked:
        say(id=asked["id"], error={"code": -32601, "message": "no"})
"""


@pytest.mark.slow
def test_a_server_that_announces_changes_at_each_list_is_asked_seldom(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config: dict[str, Any] = {"x": {"command": sys.executable, "args": ["-c", _ENDLESS, str(log)]}}
    with ToolManager(sources=MCPClient(config).sources()) as manager:
        manager.discover()
        time.sleep(2.0)
        assert names(manager) == ["x.t"]
    count = len(log.read_text().splitlines())
    assert count <= 5


# --- discovery at construction ---


def test_a_manager_asks_its_services_when_it_is_made_and_a_failure_raises_nothing() -> None:
    good, lazy, bad = (
        Service("good", "t"),
        Service("lazy", "t", lazy=True),
        Service("bad", during=fails("It is out.")),
    )
    with ToolManager([], [good, lazy, bad]) as manager:  # pyright: ignore
        assert names(manager) == ["find_tools", "good.t"]
        assert manager.errors == {"bad": "It is out."}
        assert (good.discoveries, lazy.discoveries, bad.discoveries) == (1, 0, 1)
        assert [one["function"]["name"] for one in manager.get_llm_definitions()] == [
            "find_tools",
            "good__t",
        ]
        assert (good.discoveries, bad.discoveries) == (1, 1)


def test_a_manager_waits_so_long_for_slow_services_and_the_next_discovery_waits_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager_module, "_CONSTRUCTOR_DISCOVERY_SECONDS", 0.1)
    goes_on = threading.Event()
    slow, good = Service("slow", "t", during=lambda: goes_on.wait(10)), Service("good", "t")
    with ToolManager([], [slow, good]) as manager:  # pyright: ignore
        assert names(manager) == ["good.t"]
        assert "'slow' has not listed its tools within 0.1 s" in manager.errors["slow"]
        goes_on.set()
        assert [tool.name for tool in manager.discover()] == ["slow.t", "good.t"]
        assert manager.errors == {}
        assert slow.discoveries == 1


def test_without_discovery_a_manager_asks_nobody_until_it_is_told_to() -> None:
    service = Service("s", "t")
    with ToolManager([], [service], discover=False) as manager:  # pyright: ignore
        assert (names(manager), manager.summary()["services"], service.discoveries) == (
            [],
            {"s": "not asked"},
            0,
        )
        assert [one["function"]["name"] for one in manager.get_llm_definitions()] == ["s__t"]
        assert service.discoveries == 1


# --- the order of the configuration ---


@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_the_order_of_tools_is_the_configurations_whichever_service_answers_first(
    first: str,
) -> None:
    answered = threading.Event()
    services = {id: Service(id, "t", "u") for id in ("a", "b", "c")}

    def last(id: str) -> Callable[[], object]:
        return lambda: answered.wait(10) if id != first else None

    for id, service in services.items():
        service.during = last(id)
    local = Tool("local", "", lambda: 1)
    manager = manager_of(*services.values(), tools=[local])
    watch = threading.Thread(
        target=lambda: (until(lambda: f"{first}.t" in names(manager)), answered.set())
    )
    watch.start()
    manager.discover()
    watch.join()
    manager.register(Tool("later", "", lambda: 1))
    expected = ["local", "later", "a.t", "a.u", "b.t", "b.u", "c.t", "c.u"]
    assert names(manager) == [one.name for one in manager.definitions()] == expected
    manager.close()


def test_tools_of_lazy_services_stand_where_the_configuration_has_their_service() -> None:
    manager = manager_of(Service("lazy", "x", "y", lazy=True), Service("eager", "t"))
    manager.discover()
    manager.search("y")
    manager.search("x")
    assert names(manager) == ["find_tools", "lazy.x", "lazy.y", "eager.t"]
    manager.close()


def test_of_two_services_with_one_wire_name_the_first_of_the_configuration_has_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = manager_of(Service("a", "b__c"), Service("a__b", "c"))
    manager.discover("a__b")
    assert names(manager) == ["a__b.c"]
    for _ in range(2):
        manager.discover("a", force=True)
        assert names(manager) == ["a.b__c"]
    assert [record.getMessage() for record in caplog.records] == [
        "'a__b.c' of the service 'a__b' is left out: model APIs would see it under another tool's"
        " name."
    ]
    assert manager.summary()["services"] == {"a": 1, "a__b": 0}
    manager.close()


# --- objects that are handed out ---


def test_nothing_that_is_handed_out_changes_what_a_model_is_told(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}}
    shared = Tool("t", "", lambda a: a, schema, output_schema={"type": "object", "properties": {}})
    mine = ToolManager([shared], concurrency={"t": 2}, result_limit={"t": 200}, result_dir=tmp_path)
    theirs = ToolManager([shared])
    before = repr(theirs.definitions())
    handed_out: list[Any] = [
        mine.get_schema("t"),
        mine.get_tool_info("t")["input_schema"],
        mine.get_tool_info("t")["output_schema"],
        shared.input_schema,
        shared.inputSchema,
        shared.output_schema,
        shared.outputSchema,
        *[
            mine.get_llm_definitions(names, style)[0]
            for names in (None, ["t"])
            for style in ("openai_chat", "anthropic", "gemini", "mcp")
        ],
        mine.rules.concurrency,
        mine.rules.result_limit,
    ]

    def spoil(value: Any) -> None:
        for item in (
            list(value.values())
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else ()
        ):
            spoil(item)
        (
            value.update(evil=1)
            if isinstance(value, dict)
            else value.append("evil")
            if isinstance(value, list)
            else None
        )

    for thing in handed_out:
        spoil(thing)
    spoil(schema)
    assert repr(mine.definitions()) == repr(theirs.definitions()) == before
    expected = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x"]}},
        "required": ["a"],
    }
    assert mine.get_schema("t") == expected
    assert "evil" not in repr((mine.get_llm_definitions(), mine.get_tool_info("t"), mine.rules))
    with pytest.raises(TypeError, match="cannot be changed; change a copy"):
        mine.definitions()[0].input_schema["evil"] = 1
    with pytest.raises(TypeError, match="cannot be changed"):
        mine.definitions()[0].input_schema["properties"]["a"]["enum"].append("evil")
    mine.definitions()[0].input_schema.copy()["fine"] = 1
