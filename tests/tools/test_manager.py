"""Tests of one agent's tools: found by name, changed while in use, and each call ends with a
result."""

from __future__ import annotations

import contextvars
import multiprocessing
import re
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
from email.message import Message as Headers
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.content import ToolCall, ToolResult
from holdfast.errors import (
    ConfigurationError,
    RateLimited,
    ToolCancelled,
    ToolError,
    ToolNotFound,
    ToolTimeout,
)
from holdfast.tools import RetryPolicy, Tool, ToolAnnotations, ToolContext, ToolManager
from holdfast.tools.names import wire_name
from tests import forks

IDEMPOTENT = ToolAnnotations(idempotent=True)
READ_ONLY = ToolAnnotations(read_only=True)
AT_ONCE = RetryPolicy(3, "none")


def shell(command: str) -> str:
    return command


def tool_named(name: str, callback: Any = shell, **options: Any) -> Tool:
    return Tool(name, "", callback, **options)


def run(
    callback: Any, context: ToolContext | None = None, before_attempt: Any = None, **options: Any
) -> ToolResult:
    return ToolManager([Tool("t", "", callback, **options)]).run(
        ToolCall("1.0", "t"), context, before_attempt
    )


class Failing:
    """A callback that fails with `error` in its first `times` calls."""

    def __init__(self, error: Exception, times: int = 99) -> None:
        self.error = error
        self.times = times
        self.attempts: list[int] = []

    def __call__(self, context: ToolContext) -> str:
        self.attempts.append(context.attempt)
        if len(self.attempts) <= self.times:
            raise self.error
        return "done"


# --- the set ---


def test_tools_are_listed_in_order_and_by_category_and_type() -> None:
    manager = ToolManager([tool_named("b", category="x"), shell, tool_named("a", category="x")])
    assert [tool.name for tool in manager.list_tools()] == ["b", "shell", "a"]
    assert [tool.name for tool in manager.list_tools(category="x")] == ["b", "a"]
    assert manager.list_tools(tool_type="mcp_tool") == []
    assert len(manager.list_tools("x", "local_function")) == 2


def test_an_unknown_tool_is_answered_with_the_nearest_and_with_all_names() -> None:
    manager = ToolManager([shell, tool_named("read_file"), tool_named("write_file")])
    for name, near in (
        ("shel", "shell"),
        ("SHELL", "shell"),
        ("read_fil", "read_file"),
        ("ReadFile", "read_file"),
    ):
        expected = (
            f"Unknown tool '{name}'. Did you mean '{near}'? This agent has: shell, read_file,"
            " write_file."
        )
        with pytest.raises(ToolNotFound) as caught:
            manager.get(name)
        assert str(caught.value) == expected
        result = manager.run(ToolCall("1.0", name))
        assert (result.text, result.error and result.error.type) == (expected, "not_found")
    with pytest.raises(ToolNotFound, match=r"Unknown tool 'zzz'. This agent has: no tools."):
        ToolManager().get("zzz")


@pytest.mark.slow
def test_the_answer_to_an_unknown_tool_stays_short_however_many_there_are() -> None:
    manager = ToolManager([tool_named(f"tool_{n}") for n in range(300)])
    with pytest.raises(ToolNotFound, match=r"Did you mean 'tool_299'.* and 260 more.") as caught:
        manager.get("tool_2999")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("shell", "two tools named 'shell'"),
        ("my__shell", "'my.shell' and 'my__shell'.*one name, 'my__shell'"),
    ],
)
def test_two_tools_of_one_name_are_refused(name: str, pattern: str) -> None:
    manager = ToolManager([shell, tool_named("my.shell")])
    with pytest.raises(ConfigurationError, match=pattern):
        manager.register(tool_named(name))
    with pytest.raises(ConfigurationError, match=pattern):
        ToolManager([shell, tool_named("my.shell"), tool_named(name)])
    assert len(manager.list_tools()) == 2


@pytest.mark.parametrize("tools", [None, 5, "shell", tool_named("a"), [5], ["shell"], [None]])
def test_what_is_no_list_of_tools_is_refused(tools: Any) -> None:
    with pytest.raises(ConfigurationError, match="tools takes"):
        ToolManager(tools)


def test_a_tool_is_found_by_its_wire_name_too() -> None:
    manager = ToolManager([tool_named("files.read")])
    assert manager.get("files__read").name == "files.read"
    assert manager.exists("files.read")
    assert not manager.exists("files__read")
    assert manager.get_schema("files.read")["required"] == ["command"]


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("shell", "shell"),
        ("a-b_C9", "a-b_C9"),
        ("server.tool", "server__tool"),
        ("a.b.c", "a__b__c"),
        ("x" * 64, "x" * 64),
    ],
)
def test_a_name_that_model_apis_allow_is_kept_and_dots_become_two_underscores(
    name: str, wire: str
) -> None:
    assert wire_name(name) == wire


@pytest.mark.slow
@given(
    st.lists(st.from_regex(r"[A-Za-z0-9_.\-]{60,128}", fullmatch=True), unique=True, max_size=5),
    st.text(max_size=3),
)
def test_a_long_name_is_cut_and_still_its_own(names: list[str], odd: str) -> None:
    long = [
        *names,
        *[f"{name[:100]}{n}" for n, name in enumerate(names)],
        "x" * 65,
        "x" * 66,
        "x." * 33,
        "x." * 32 + "y",
        f"{odd} ü",
    ]
    wires = {name: wire_name(name) for name in long}
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire) for wire in wires.values())
    assert len(set(wires.values())) == len(wires)


def test_definitions_are_the_same_object_until_the_set_changes() -> None:
    manager = ToolManager([shell])
    first = manager.definitions()
    assert manager.definitions() is first
    manager.register(tool_named("files.read"))
    second = manager.definitions()
    assert [(d.name, d.wire_name) for d in second] == [
        ("shell", "shell"),
        ("files.read", "files__read"),
    ]
    assert second[0] == first[0]
    manager.unregister("files.read")
    assert manager.definitions() == first


def test_a_tool_that_was_taken_out_can_be_replaced() -> None:
    manager = ToolManager([tool_named("a.b")])
    removed = manager.unregister("a.b")
    assert removed.name == "a.b"
    manager.register(tool_named("a__b"))
    with pytest.raises(ToolNotFound):
        manager.unregister("a.b")


@pytest.mark.slow
def test_tools_are_replaced_at_one_moment_and_keep_their_places() -> None:
    def tool_named(name: str) -> Tool:
        return Tool.from_function(lambda: "", name=name)

    manager = ToolManager(
        [tool_named("first"), tool_named("a"), tool_named("b"), tool_named("last")]
    )
    lists: set[tuple[str, ...]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            lists.add(tuple([tool.name for tool in manager.definitions()]))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(200):
            manager.replace(["a", "b", "gone"], [tool_named("c"), tool_named("b")])
            manager.replace(["c", "b"], [tool_named("b"), tool_named("a")])
    finally:
        over.set()
        thread.join()
    assert lists <= {
        ("first", "a", "b", "last"),
        ("first", "b", "last", "c"),
        ("first", "b", "last", "a"),
    }
    before = manager.list_tools()
    for new in (["first"], ["x", "x"], ["a.b", "a__b"]):
        with pytest.raises(ConfigurationError):
            manager.replace(["a", "b"], [tool_named(name) for name in new])
        assert manager.list_tools() == before


@pytest.mark.slow
def test_making_one_tools_schema_holds_up_no_one() -> None:
    manager = ToolManager()
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Tool):
        @property
        def input_schema(self) -> dict[str, Any]:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(30)
            return {"type": "object"}

    manager.register(Slow("slow", "", shell))
    thread = threading.Thread(target=manager.definitions)
    thread.start()
    assert inside.wait(30)
    manager.register(tool_named("other"))
    assert manager.exists("other")
    go_on.set()
    thread.join()
    assert [definition.name for definition in manager.definitions()] == ["slow", "other"]


@pytest.mark.slow
def test_tools_come_and_go_while_other_threads_list_and_call() -> None:
    manager = ToolManager([tool_named("steady", lambda: "ok")])
    stop = threading.Event()
    trouble: list[Any] = []

    def churn(mine: str) -> None:
        for n in range(150):
            manager.register(tool_named(f"{mine}.{n}", lambda: "ok"))
            if n % 2:
                manager.unregister(f"{mine}.{n}")

    def use() -> None:
        try:
            while not stop.is_set():
                assert manager.call("steady").text == "ok"
                assert len({d.wire_name for d in manager.definitions()}) >= 1
                for tool in manager.list_tools()[-2:]:
                    result = manager.run(ToolCall("1.0", tool.name))
                    assert result.success or (result.error and result.error.type == "not_found"), (
                        result
                    )
        except BaseException as error:
            trouble.append(error)

    users = [threading.Thread(target=use) for _ in range(3)]
    churners = [threading.Thread(target=churn, args=(name,)) for name in "abcd"]
    for thread in users + churners:
        thread.start()
    for thread in churners:
        thread.join()
    stop.set()
    for thread in users:
        thread.join()
    assert trouble == []
    assert len(manager.list_tools()) == 1 + 4 * 75
    assert len(manager.definitions()) == 1 + 4 * 75


# --- calls ---


def test_call_raises_what_run_would_tell_the_model() -> None:
    def fails() -> None:
        raise ConnectionResetError("gone")

    manager = ToolManager([tool_named("fails", fails), shell])
    with pytest.raises(ToolError, match="'fails' failed: ConnectionResetError: gone") as caught:
        manager.call("fails")
    assert (caught.value.error_type, caught.value.retryable) == ("network", True)
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    with pytest.raises(ToolError, match="command is required"):
        manager.call("shell")
    assert manager.call("shell", {"command": "ls"}).text == "ls"


def test_a_result_that_says_it_failed_is_a_result() -> None:
    assert run(lambda: ToolResult("no", is_error=True)) == ToolResult("no", is_error=True)


def test_a_call_that_could_not_be_read_is_answered_and_not_run() -> None:
    ran: list[int] = []
    result = ToolManager([tool_named("t", lambda: ran.append(1))]).run(
        ToolCall("1.0", "t", raw="{", invalid="the arguments are not JSON")
    )
    assert result.error is not None
    assert (result.error.type, result.text) == (
        "validation",
        "'t' was not run: the arguments are not JSON",
    )
    assert ran == []


class HTTPStatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("status")
        self.response = type("Response", (), {"status_code": status})()


class ReadTimeout(type("TimeoutException", (Exception,), {})):  # as httpx names them
    pass


class ConnectError(type("TransportError", (Exception,), {})):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (TimeoutError("t"), "timeout"),
        (subprocess.TimeoutExpired("make", 5.0), "timeout"),
        (multiprocessing.TimeoutError(), "timeout"),
        (ConnectionError("c"), "network"),
        (ConnectionRefusedError("c"), "network"),
        (PermissionError("p"), "authentication"),
        (FileNotFoundError("f"), "not_found"),
        (ValueError("rate limit timeout 429"), "internal"),
        (KeyError("k"), "internal"),
        (Unspeakable(), "internal"),
        (HTTPStatusError(401), "authentication"),
        (HTTPStatusError(404), "not_found"),
        (HTTPStatusError(429), "rate_limit"),
        (HTTPStatusError(503), "network"),
        (HTTPStatusError(504), "timeout"),
        (HTTPStatusError(500), "internal"),
        (urllib.error.HTTPError("http://x", 403, "no", Headers(), None), "authentication"),
        (urllib.error.URLError("no route"), "network"),
        (ReadTimeout("r"), "timeout"),
        (ConnectError("r"), "network"),
        (RateLimited("slow down", status=429), "rate_limit"),
        (ToolError("mine", "rate_limit"), "rate_limit"),
        (ToolTimeout("mine"), "timeout"),
        (ToolCancelled("mine"), "cancelled"),
        (ExceptionGroup("g", [ValueError("v")]), "internal"),
        (RecursionError("deep"), "internal"),
        (MemoryError(), "internal"),
    ],
)
def test_an_error_is_classified_by_its_type_and_status_never_by_its_words(
    error: Exception, error_type: str
) -> None:
    result = run(Failing(error))
    assert result.error is not None
    assert (result.error.type, result.is_error) == (error_type, True)
    assert result.text == result.error.message
    assert ToolResult.from_json(result.to_json()) == result


def test_a_failure_names_its_tool_and_a_huge_message_is_cut() -> None:
    assert run(Failing(ValueError("bad"))).text == "'t' failed: ValueError: bad"
    assert len(run(Failing(ValueError("x" * 1_000_000))).text) < 11_000
    assert run(Failing(ValueError("lone \udcff"))).text == "'t' failed: ValueError: lone ?"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("timeout", [None, 5])
def test_what_is_no_exception_passes_through(kind: Any, timeout: float | None) -> None:
    def leaves() -> None:
        raise kind

    with pytest.raises(kind):
        run(leaves, timeout=timeout, retry=AT_ONCE)


# --- retries ---


@pytest.mark.parametrize(
    ("error", "options", "attempts"),
    [
        (ConnectionError(), {}, 1),  # its effect may have happened
        (ConnectionError(), {"annotations": ToolAnnotations(destructive=False)}, 1),
        (ToolError("m", "network", max_retries=2, backoff="none"), {}, 1),
        (ToolError("m", "network", max_retries=2, backoff="none"), {"annotations": IDEMPOTENT}, 3),
        (ToolError("m", "network", max_retries=2, backoff="none"), {"annotations": READ_ONLY}, 3),
        (ToolError("m", "network", retryable=False), {"annotations": IDEMPOTENT}, 1),
        (ToolError("m", "validation"), {"annotations": IDEMPOTENT, "retry": AT_ONCE}, 1),
        (PermissionError(), {"retry": AT_ONCE}, 1),
        (ConnectionError(), {"retry": AT_ONCE}, 4),
        (TimeoutError(), {"retry": AT_ONCE}, 4),
        (ValueError(), {"retry": RetryPolicy(1, "fixed", 0.001)}, 2),
        (ValueError(), {"retry": RetryPolicy(2, "exponential", 0.001)}, 3),
        (ConnectionError(), {"annotations": IDEMPOTENT, "retry": RetryPolicy(0)}, 1),
    ],
)
def test_a_call_is_repeated_only_if_that_is_safe_or_was_asked_for(
    error: Exception, options: dict[str, Any], attempts: int
) -> None:
    failing = Failing(error)
    announced: list[int] = []
    result = run(failing, None, announced.append, **options)
    assert failing.attempts == list(range(1, attempts + 1))
    assert announced == list(range(2, attempts + 1))
    assert result.is_error


def test_a_call_that_works_at_last_is_a_success() -> None:
    failing = Failing(ConnectionError(), times=2)
    assert run(failing, retry=AT_ONCE).text == "done"
    assert failing.attempts == [1, 2, 3]


def test_attempts_before_a_crash_count() -> None:
    failing = Failing(ConnectionError())
    announced: list[int] = []
    run(failing, ToolContext(attempt=3), announced.append, retry=AT_ONCE)
    assert failing.attempts == [3, 4]
    assert announced == [4]


def test_what_before_attempt_raises_ends_the_call() -> None:
    failing = Failing(ConnectionError())

    def refuse(attempt: int) -> None:
        raise LookupError(f"no attempt {attempt}")

    with pytest.raises(LookupError, match="no attempt 2"):
        run(failing, None, refuse, retry=AT_ONCE)
    assert failing.attempts == [1]


def test_a_cancel_ends_the_wait_before_the_next_attempt() -> None:
    failing, context = Failing(ConnectionError("gone")), ToolContext()
    timer = threading.Timer(0.02, context.cancelled.cancel)
    timer.start()
    began = time.monotonic()
    result = run(failing, context, retry=RetryPolicy(3, "fixed", 30))
    timer.join()
    assert time.monotonic() - began < 20
    assert result.error is not None
    assert result.error.type == "cancelled"
    assert (
        "cancelled while waiting to be tried again after: 't' failed: ConnectionError: gone"
        in result.text
    )
    assert failing.attempts == [1]


def test_a_cancelled_call_is_not_tried_again() -> None:
    context = ToolContext()

    def fails() -> None:
        context.cancelled.cancel()
        raise ConnectionError("because it was cancelled")

    announced: list[int] = []
    result = run(fails, context, announced.append, retry=AT_ONCE)
    assert (announced, result.error and result.error.type) == ([], "network")


def test_a_wrong_call_is_not_tried_again() -> None:
    announced: list[int] = []
    manager = ToolManager([tool_named("shell", retry=AT_ONCE)])
    manager.run(ToolCall("1.0", "shell", {"command": 5}), before_attempt=announced.append)
    assert announced == []


# --- timeouts ---


def test_a_tool_that_honours_its_timeout_is_stopped() -> None:
    stopped: list[bool] = []

    def waits(context: ToolContext) -> None:
        stopped.append(context.cancelled.wait(10))

    result = run(waits, timeout=0.02)
    assert result.error is not None
    assert (result.error.type, stopped) == ("timeout", [True])
    assert result.text == "'t' did not answer within 0.02 s and was given up."


@pytest.mark.slow
def test_a_tool_that_ignores_its_timeout_is_given_up_and_said_so() -> None:
    release = threading.Event()
    began = time.monotonic()
    result = run(lambda: release.wait(60), timeout=0.02)
    assert time.monotonic() - began < 20
    assert "It did not stop when asked to and may still be running." in result.text
    release.set()


def test_a_timeout_of_the_callbacks_own_is_told_apart() -> None:
    def fails() -> None:
        raise TimeoutError("the database is asleep")

    for timeout in (None, 5):
        result = run(fails, timeout=timeout)
        assert result.error is not None
        assert (result.error.type, result.text) == (
            "timeout",
            "'t' failed: TimeoutError: the database is asleep",
        )


def test_a_tool_in_time_gives_its_result_and_its_errors_from_its_own_thread() -> None:
    assert run(lambda: threading.current_thread().name, timeout=5).text == "holdfast-call-1.0"
    assert run(Failing(ValueError("bad")), timeout=5).text == "'t' failed: ValueError: bad"
    assert "which is not JSON" in run(lambda: object(), timeout=5).text


def test_wrong_arguments_start_no_thread() -> None:
    manager = ToolManager([tool_named("shell", timeout=5)])
    result = manager.run(
        ToolCall("1.0", "shell"), start_thread=lambda *_: pytest.fail("a thread was started")
    )
    assert result.error is not None
    assert result.error.type == "validation"


def test_a_cancel_from_outside_reaches_a_timed_call() -> None:
    context = ToolContext("conv", "1.0")

    def waits(context: ToolContext) -> str:
        return f"{context.cancelled.wait(5)} in {context.idempotency_key}"

    timer = threading.Timer(0.02, context.cancelled.cancel)
    timer.start()
    assert run(waits, context, timeout=10).text == "True in conv:1.0"
    timer.join()
    assert context.cancelled._callbacks == []


def test_a_timed_call_sees_the_callers_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")
    assert run(lambda: variable.get(), timeout=5).text == "mine"


def test_a_timeout_is_retried_once_where_that_is_safe() -> None:
    attempts: list[int] = []

    def waits(context: ToolContext) -> None:
        attempts.append(context.attempt)
        context.cancelled.wait(10)

    run(waits, timeout=0.01, retry=RetryPolicy(1, "none"))
    assert attempts == [1, 2]


@pytest.mark.slow
def test_ctrl_c_while_a_timed_call_runs_cancels_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import _thread, threading
        from holdfast.content import ToolCall
        from holdfast.tools import Tool, ToolContext, ToolManager
        seen = threading.Event()
        def waits(context: ToolContext) -> None:
            _thread.interrupt_main()
            if context.cancelled.wait(10):
                seen.set()
        try:
            ToolManager([Tool("t", "", waits, timeout=10)]).run(ToolCall("1.0", "t"))
        except KeyboardInterrupt:
            print("interrupted", seen.wait(5))
        """)
    )
    process = forks.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.stdout == "interrupted True\n", process.stderr
