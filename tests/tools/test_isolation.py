"""Tests of the process tier: the data that crosses to the process and back, and its end."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, events
from holdfast.content import ToolCall, ToolResult
from holdfast.errors import (
    ConfigurationError,
    ToolCancelled,
    ToolError,
    ToolTimeout,
    ToolValidationError,
)
from holdfast.tools import Cancellation, RetryPolicy, Tool, ToolContext, ToolManager
from tests.data import isolated as callbacks
from tests.leftovers import Owned
from tests.paths import REPO
from tests.samples import one_in
from tests.waiting import until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
AT_ONCE = RetryPolicy(2, "none")
OWNER = "HOLDFAST_OWNER"


def isolated_tool(callback: Any, **options: Any) -> Tool:
    return Tool(getattr(callback, "__name__", "t"), "", callback, isolation="process", **options)


def run(
    callback: Any,
    arguments: dict[str, Any] | None = None,
    context: ToolContext | None = None,
    **options: Any,
) -> ToolResult:
    tool = isolated_tool(callback, **options)
    return ToolManager([tool]).run(ToolCall("1.0", tool.name, arguments or {}), context)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    before = Owned()
    yield
    before.wait_until_released()


# --- data that crosses ---


@pytest.mark.slow
def test_a_call_runs_in_a_process_of_its_own_and_gives_back_what_it_would_here() -> None:
    assert run(callbacks.add.callback, {"a": 1}).text == "3"
    assert run(callbacks.add.callback, {"a": "1", "b": 5}).text == "6"
    pids = {run(callbacks.about).structured_content["pid"] for _ in range(2)}
    assert len(pids | {os.getpid()}) == 3


@pytest.mark.slow
def test_the_decorated_function_can_still_be_called_as_one() -> None:
    assert callbacks.add(1, 1) == 2
    assert callbacks.add.isolation == "process"
    assert callbacks.add.run({"a": 1}).text == "3"


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**63,
        1.5,
        "é\n\u2028",
        "",
        [],
        [1, [None]],
        {"a": {"b": [1.0, "x"]}},
        10**15,
    ],
)
def test_json_values_cross_both_ways_without_loss(value: Any) -> None:
    result = run(callbacks.plain, {"value": value})
    here = ToolManager([Tool("plain", "", callbacks.plain)]).run(
        ToolCall("1.0", "plain", {"value": value})
    )
    assert result == here
    assert result.success


@pytest.mark.slow
def test_megabytes_cross_both_ways() -> None:
    text = "x" * 5_000_000
    assert run(callbacks.plain, {"value": text}).text == text


@pytest.mark.slow
def test_the_callback_gets_what_its_signature_asks_for() -> None:
    order = {"item": "i", "howMany": "3", "secret": "s3cret"}
    values = {
        "order": order,
        "color": "red",
        "day": "2026-01-02",
        "kind": "x",
        "many": [order, order],
    }
    for arguments in (
        values,
        {**values, "order": json.dumps(order)},
    ):  # models often quote whole objects
        result = run(callbacks.types, arguments)
        assert result.structured_content == {
            "item": "i",
            "count": "3",
            "secret": "s3cret",
            "color": "RED",
            "day": "date 2026-01-02",
            "kind": "x",
            "many": "2",
        }


@pytest.mark.slow
def test_wrong_arguments_are_refused_before_any_process_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    result = run(callbacks.types, {"order": {}, "color": "blue"})
    assert result.error is not None
    assert result.error.type == "validation"
    assert result == ToolManager([Tool("types", "", callbacks.types)]).run(
        ToolCall("1.0", "types", {"order": {}, "color": "blue"})
    )
    with pytest.raises(ToolValidationError, match="not JSON"):
        isolated_tool(callbacks.plain).call({"value": object()}, ToolContext())


@pytest.mark.slow
def test_a_given_schema_and_a_wrapped_one_hold_here_as_there() -> None:
    schema = {"type": "object", "properties": {"value": {"type": "integer"}}}
    assert run(callbacks.plain, {"value": "3"}, input_schema=schema).text == "3"
    assert run(callbacks.plain, {"value": 4}, input_schema={"type": "integer"}).text == "4"
    assert not run(callbacks.plain, {"value": "x"}, input_schema=schema).success


@pytest.mark.slow
def test_results_of_every_kind_cross() -> None:
    assert run(callbacks.content) == callbacks.content()
    assert run(callbacks.nothing) == ToolResult()
    assert run(callbacks.coroutine, {"a": 4}).text == "4"
    assert (
        run(callbacks.bad_result).text
        == ToolManager([callbacks.bad_result]).run(ToolCall("1.0", "bad_result")).text
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "file",
        "key",
        "busy",
        "timeout",
        "denied",
        "tool",
        "validation",
        "unsayable",
        "unicode",
        "group",
    ],
)
def test_a_failure_is_told_in_the_words_and_classes_that_it_has_in_one_process(how: str) -> None:
    result = run(callbacks.failing, {"how": how})
    assert result == ToolManager([callbacks.failing]).run(ToolCall("1.0", "failing", {"how": how}))
    assert result.error is not None


@pytest.mark.slow
def test_a_developer_finds_where_it_failed_in_a_note() -> None:
    with pytest.raises(ToolError) as caught:
        isolated_tool(callbacks.failing).run({"how": "file"})
    assert "isolated.py" in caught.value.__notes__[0]
    assert "FileNotFoundError" in caught.value.__notes__[0]
    with pytest.raises(ToolValidationError, match="not so"):
        isolated_tool(callbacks.failing).run({"how": "validation"})


@pytest.mark.slow
def test_static_and_class_methods_are_found_by_their_names() -> None:
    assert run(callbacks.Places.static, {"a": 1}).text == "2"
    assert run(callbacks.Places.klass, {"a": 1}).text == "Places 1"


@pytest.mark.slow
def test_an_isolated_tool_may_call_another() -> None:
    assert run(callbacks.nested, {"a": 1}).text == "from inside: 3"


# --- the callback's view of its call ---


@pytest.mark.slow
@LINUX
def test_the_context_crosses_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    with open(tmp_path / "f", "w") as opened:
        os.set_inheritable(opened.fileno(), True)
        context = ToolContext("c", "7.1", 3, mark=lambda: {OWNER: "mark"})
        report = run(callbacks.about, {}, context).structured_content
    assert (report["conversation"], report["call"], report["attempt"], report["key"]) == (
        "c",
        "7.1",
        3,
        "c:7.1",
    )
    assert report["marks"] == {OWNER: "mark"}
    assert set(report["environment"]) <= {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "TERM",
        OWNER,
        "LC_CTYPE",
    }
    assert report["environment"][OWNER] == "mark"
    assert len(report["fds"]) <= 5, report[
        "links"
    ]  # stdin, stdout, stderr, the channel, and the listing's own
    assert not any(str(tmp_path) in link for link in report["links"])
    assert report["argv"] == [""]
    assert report["imported"] == report["pid"]


@pytest.mark.slow
def test_progress_is_heard_in_order_before_the_result() -> None:
    steps: list[str] = []
    assert (
        run(callbacks.progress, {"count": 500}, ToolContext("c", "1.0", progress=steps.append)).text
        == "done"
    )
    assert steps == [f"step {n}" for n in range(500)]


@pytest.mark.slow
def test_a_listener_that_raises_ends_the_call_as_it_does_in_one_process() -> None:
    def refuse(message: str) -> None:
        raise ConnectionError("nobody listens")

    result = run(callbacks.progress, {"count": 5}, ToolContext("c", "1.0", progress=refuse))
    here = ToolManager([callbacks.progress]).run(
        ToolCall("1.0", "progress", {"count": 5}), ToolContext("c", "1.0", progress=refuse)
    )
    assert result == here


@pytest.mark.slow
def test_there_is_no_runtime_and_the_model_is_told_so() -> None:
    result = run(callbacks.runtime, {}, ToolContext("c", "1.0", runtime=object()))
    assert "no context.runtime" in result.text
    assert result.is_error


@pytest.mark.slow
@pytest.mark.parametrize("what", ["output", "secret", "spawn"])
def test_what_only_the_parent_has_is_named_as_missing(what: str) -> None:
    result = run(callbacks.lacks, {"what": what}, ToolContext("c", "1.0"))
    assert f"where there is no context.{what}" in result.text
    assert result.is_error


@pytest.mark.slow
def test_what_is_printed_stays_out_of_the_channel(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "holdfast.tools.isolation"):
        assert run(callbacks.babble, {"text": "x" * 1000, "times": 500}).text == "said"
    assert "oops" in caplog.text
    assert len(caplog.text) < 5000


@pytest.mark.slow
def test_what_is_to_be_cleaned_up_is_cleaned_up_at_the_end_of_the_call(tmp_path: Path) -> None:
    assert run(callbacks.clean_up, {"file": str(tmp_path / "f")}).text == "done"
    assert (tmp_path / "f").read_text() == "cleaned"


# --- its end ---


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("callback", [callbacks.forever, callbacks.locked, callbacks.sleeping])
def test_a_timeout_ends_the_work_even_under_the_interpreters_lock(callback: Any) -> None:
    before = time.monotonic()
    result = run(callback, timeout=0.4)
    assert time.monotonic() - before < 20
    assert result.error is not None
    assert result.error.type == "timeout"
    assert "did not answer within 0.4 s" in result.text
    assert "still be running" not in result.text
    with pytest.raises(ToolTimeout, match="its process was ended, with all that it had started"):
        isolated_tool(callback, timeout=0.3).run({})


@pytest.mark.slow
@LINUX
def test_a_timeout_ends_all_that_it_started_wherever_that_went(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(ToolTimeout):
        isolated_tool(callbacks.stubborn, timeout=1.5).run({"file": str(file)})
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 5
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.slow
@LINUX
def test_what_a_call_has_started_ends_with_it_also_if_all_went_well(tmp_path: Path) -> None:
    assert run(callbacks.family, {"file": str(tmp_path / "pids")}).text == "started"
    assert not [pid for pid in (tmp_path / "pids").read_text().split() if alive(int(pid))]
    assert run(callbacks.thread_left).text == "done"


@pytest.mark.slow
@LINUX
def test_a_cancel_ends_it_at_once(tmp_path: Path) -> None:
    file, token = tmp_path / "pids", Cancellation()
    tool = isolated_tool(callbacks.stubborn)
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(tool.run({"file": str(file)}, ToolContext("c", "1.0", cancelled=token)))
        except ToolError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until(file.exists)
    before = time.monotonic()
    token.cancel()
    thread.join(30)
    assert time.monotonic() - before < 20
    assert isinstance(outcome[0], ToolCancelled)
    assert "with all that it had started" in str(outcome[0])
    assert not [pid for pid in file.read_text().split() if alive(int(pid))]
    with pytest.raises(ToolCancelled):
        tool.run({"file": str(file)}, ToolContext("c", "1.0", cancelled=token))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "expected"),
    [(callbacks.patient, "ended when asked"), (callbacks.deaf, "was cancelled")],
)
def test_one_that_knows_of_the_cancel_is_asked_first_and_then_killed(
    callback: Any, expected: str, tmp_path: Path
) -> None:
    file, token = tmp_path / "file", Cancellation()
    threading.Thread(
        target=lambda: (until(lambda: file.exists() and file.read_text()), token.cancel())
    ).start()
    result = run(callback, {"file": str(file)}, ToolContext("c", "1.0", cancelled=token))
    assert expected in result.text
    if callback is callbacks.patient:
        assert file.read_text() == "cleaned up"
    else:
        assert not alive(int(file.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("exit", "exit code 3."),
        ("_exit", "exit code 4."),
        ("SIGKILL", r"exit code 137 \(SIGKILL\)"),
        ("SIGSEGV", r"exit code 139 \(SIGSEGV\)"),
    ],
)
def test_one_that_ends_without_an_answer_says_how_and_its_last_words(how: str, ending: str) -> None:
    result = run(callbacks.leaving, {"how": how})
    assert re.search(
        f"'leaving' failed: its process ended before it answered, with {ending}.*It printed last:"
        " .*last words",
        result.text,
        re.DOTALL,
    )
    assert result.error is not None
    assert result.error.type == "internal"


@pytest.mark.slow
@LINUX
def test_one_that_closes_everything_is_ended_too() -> None:
    assert "ended before it answered" in run(callbacks.closing).text


# --- with the manager and conversations ---


@pytest.mark.slow
def test_retries_are_announced_and_keep_the_idempotency_key(tmp_path: Path) -> None:
    announced: list[int] = []
    tool = isolated_tool(callbacks.flaky, retry=AT_ONCE)
    result = ToolManager([tool]).run(
        ToolCall("1.0", "flaky", {"file": str(tmp_path / "log")}),
        ToolContext("c", "1.0"),
        announced.append,
    )
    assert result.text == "attempt 2"
    assert announced == [2]
    assert (tmp_path / "log").read_text() == "1 c:1.0\n2 c:1.0\n"


@LINUX
@pytest.mark.proof
def test_many_calls_four_at_a_time_leave_nothing_behind() -> None:
    manager = ToolManager([callbacks.add, isolated_tool(callbacks.echo_context, timeout=60.0)])
    before = Owned()
    wrong: list[str] = []

    def work(thread: int) -> None:
        for n in range(24 // one_in(1)):
            result = manager.call("add", {"a": n, "b": thread})
            echo = manager.call("echo_context", {}, ToolContext("c", f"{thread}.{n}"))
            wrong.extend(
                one.text
                for one, right in ((result, str(n + thread)), (echo, f"{thread}.{n}"))
                if one.text != right
            )

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    before.wait_until_released()


def scripted(name: str, arguments: dict[str, Any]) -> ScriptedLLM:
    return ScriptedLLM([(name, arguments), "done", "done"])


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_interrupt_and_close_end_the_process_and_the_conversation_goes_on(
    how: str, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    conversation = Conversation(
        Agent(scripted("stubborn", {"file": str(file)}), tools=[isolated_tool(callbacks.stubborn)])
    )
    with conversation:
        conversation.start_thread()
        conversation.send_message("go")
        until(file.exists)
        before = time.monotonic()
        getattr(conversation, how)()
        until(lambda: not [pid for pid in file.read_text().split() if alive(int(pid))])
        assert time.monotonic() - before < 20
        until(
            lambda: any(
                isinstance(event, events.ToolCallFinished) for event in conversation.get_history()
            )
        )
        result = next(
            event.result
            for event in conversation.get_history()
            if isinstance(event, events.ToolCallFinished)
        )
        assert "its process was ended, with all that it had started" in result.text


PROGRAM = textwrap.dedent("""
    import sys
    from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool, ToolManager
    from tests.data import isolated
    tool = Tool("stubborn", "", isolated.stubborn, isolation="process")
    if sys.argv[1] == "alone":
        tool.run({"file": sys.argv[2]})
    else:
        llm = ScriptedLLM([("stubborn", {"file": sys.argv[2]}), "done"])
        with SQLiteStore(sys.argv[1]) as store, Conversation(Agent(llm, tools=[tool]), store, id="c") as conversation:
            conversation.send_message("go")
            conversation.run()
""")


@pytest.mark.slow
@LINUX
@pytest.mark.parametrize("where", ["alone", "conversation"])
def test_a_sigkill_of_the_owner_leaves_nothing_running(where: str, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    store = "alone" if where == "alone" else str(tmp_path / "store.db")
    with subprocess.Popen([sys.executable, "-c", PROGRAM, store, str(file)], cwd=REPO) as process:
        until(file.exists)
        pids = [int(pid) for pid in file.read_text().split()]
        assert all(map(alive, pids))
        if where == "conversation":
            assert OWNER.encode() in Path(f"/proc/{pids[0]}/environ").read_bytes()
        process.kill()
        before = time.monotonic()
        until(lambda: not [pid for pid in pids if alive(pid)])
        assert time.monotonic() - before < 20


@pytest.mark.slow
@LINUX
def test_a_sigkill_of_the_owner_is_noticed_though_another_child_holds_its_pipes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pids"
    program = PROGRAM.replace(
        "tool = ",
        "import os, threading, time; threading.Timer(0.5, lambda: os.fork() or"
        " time.sleep(20)).start(); tool = ",
    )
    group = subprocess.Popen(
        [sys.executable, "-c", program, "alone", str(file)],
        cwd=REPO,
        start_new_session=True,
    )
    with group as process:
        until(file.exists)
        time.sleep(0.6)
        pids = [int(pid) for pid in file.read_text().split()]
        process.kill()
        until(lambda: not [pid for pid in pids if alive(pid)])
        os.killpg(process.pid, signal.SIGKILL)


# --- modules that another process cannot import ---


@pytest.mark.slow
def test_a_callback_that_another_process_cannot_import_is_refused_when_the_tool_is_made() -> None:
    def inner() -> None: ...

    class Callable:
        def __call__(self) -> None: ...

    for callback, why in (
        (lambda: None, "is a lambda"),
        (inner, "is defined inside of a function"),
        (callbacks.Places().method, "is a method of an object"),
        (Callable(), "has no name to import it by"),
        (functools.partial(callbacks.plain, 1), "has no name to import it by"),
    ):
        with pytest.raises(
            ConfigurationError,
            match=f"Tool 't': isolation='process' .*{why}.*Give a function defined at the top",
        ):
            Tool("t", "", callback, isolation="process")


@pytest.mark.slow
def test_a_callback_whose_name_means_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = callbacks.plain
    monkeypatch.setattr(callbacks, "plain", callbacks.nothing)
    with pytest.raises(
        ConfigurationError, match=r"'plain' in 'tests.data.isolated' is something else"
    ):
        isolated_tool(original)
    monkeypatch.delattr(callbacks, "plain")
    with pytest.raises(ConfigurationError, match=r"'plain' in 'tests.data.isolated' is not there"):
        isolated_tool(original)


@pytest.mark.slow
def test_what_is_not_isolation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="isolation takes 'process' or None, not 'thread'"):
        Tool("t", "", callbacks.plain, isolation="thread")  # pyright: ignore[reportArgumentType]

    class Own(Tool):
        def call(self, arguments: dict[str, Any], context: ToolContext) -> Any: ...

    with pytest.raises(ConfigurationError, match="has its own `call`"):
        Own("t", "", isolation="process")


SCRIPT = """
import os
from holdfast.tools import Tool, tool
from pydantic import BaseModel

class Model(BaseModel):
    x: int

@tool(isolation="process")
def mine(model: Model) -> str:
    return f"{type(model).__name__} {model.x} {os.getpid() == OWN}"

OWN = int(os.environ.get("OWN", 0))
"""
MAIN = 'if __name__ == "__main__":\n    import sys; print(mine.run({"model": {"x": 1}}).text)\n'


@pytest.mark.slow
def test_a_script_with_a_guard_is_imported_by_its_path_and_its_main_part_is_not_run(
    tmp_path: Path,
) -> None:
    script = tmp_path / "my script.py"
    script.write_text(SCRIPT + MAIN)
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert process.stdout == "Model 1 False\n"
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(SCRIPT + MAIN)
    process = subprocess.run(
        [sys.executable, "-m", "pack"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert process.stdout == "Model 1 False\n"


@pytest.mark.slow
def test_a_script_without_a_guard_is_refused_since_it_would_be_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + 'print("effect")')
    for command in ([str(script)], ["-c", SCRIPT]):
        process = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        assert (
            "ConfigurationError: Tool 'mine': isolation='process' has another process import the"
            " callback" in process.stderr
        )
        assert "effect" not in process.stdout


@pytest.mark.slow
def test_a_module_that_calls_its_tool_while_it_is_imported_does_not_breed(tmp_path: Path) -> None:
    (tmp_path / "breeding.py").write_text(
        "from holdfast.tools import tool\n@tool(isolation='process')\ndef mine() -> str:\n   "
        " return 'x'\nprint(mine.run({}).text)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", "import breeding"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert "calls it while it is being imported" in process.stderr
    assert process.stdout == ""


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_there_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "going.py").write_text("def mine() -> str:\n    return 'x'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import going  # pyright: ignore[reportMissingImports]

    tool = isolated_tool(going.mine)
    (tmp_path / "going.py").write_text("def mine(:")
    with pytest.raises(
        ToolError,
        match="'mine' was not run: its process cannot import 'mine' from 'going': SyntaxError",
    ) as caught:
        tool.run({})
    assert not caught.value.retryable
    sys.modules.pop("going")


@pytest.mark.slow
def test_no_python_to_start_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert (
        "'add' was not run: no process could be started for it"
        in ToolManager([callbacks.add]).run(ToolCall("1", "add", {"a": 1})).text
    )


@pytest.mark.slow
def test_an_agent_without_isolated_tools_loads_nothing_of_this() -> None:
    program = (
        "import sys; from holdfast import Tool, ToolManager; import holdfast.tools.manager;"
        " print([m for m in sys.modules if 'isolation' in m])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
