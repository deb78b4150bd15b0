"""Hooks that are commands: JSON input and output, exit codes, bounds, environments, and real
processes that must not outlive the conversation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    LLM,
    Agent,
    Conversation,
    ConversationStatus,
    Hook,
    LocalRuntime,
    RemoteConversation,
    RemoteWorkspace,
    ScriptedLLM,
    SQLiteStore,
    Tool,
    ToolCall,
    ToolManager,
    load_agent,
)
from holdfast import events as ev
from holdfast.cli.render import Renderer
from holdfast.cli.text import TextLine
from holdfast.errors import ConfigurationError, HookDenied
from holdfast.server.policy import Policy, check_agent
from holdfast.store import MemoryStore
from holdfast.tools import ToolContext
from holdfast.tools.hooks import Hooks
from tests import forks, remote_parts
from tests.leftovers import Owned
from tests.waiting import until

CALL = ToolCall("", "add", {"a": 1, "b": 2})


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", f"import json, sys\nasked = json.load(sys.stdin)\n{code}"]


def say(answer: Any) -> list[str]:
    return python(f"print(json.dumps({answer!r}))")


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def run(script: list[Any], *hooks: Hook, **more: Any) -> Conversation:
    conversation = Conversation(Agent(ScriptedLLM(script), [add], hooks=hooks, **more))
    conversation.send_message("go")
    conversation.run()
    return conversation


def events_of(conversation: Conversation, kind: type[Any]) -> list[Any]:
    return [event for event in conversation.get_history() if isinstance(event, kind)]


# --- each place ---


def test_a_command_is_told_what_it_is_about_at_every_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    note = python(f"open({str(log)!r}, 'a').write(json.dumps(asked) + chr(10))")
    hooks = [
        Hook(command=note, on=on, when="both" if on in ("tool", "model") else "before")
        for on in ("tool", "model", "message", "stop")
    ]
    hooks += [Hook(command=note, on=on) for on in ("start", "end")]
    with Conversation(
        Agent(ScriptedLLM([CALL, "done"]), [add], hooks=hooks), id="c"
    ) as conversation:
        conversation.send_message("go")
        conversation.run()
    inputs = [json.loads(line) for line in log.read_text().splitlines()]
    assert {one["conversation_id"] for one in inputs} == {"c"}
    assert [(one["on"], one["when"]) for one in inputs] == [
        ("message", "before"),
        ("start", "before"),
        ("model", "before"),
        ("model", "after"),
        ("tool", "before"),
        ("tool", "after"),
        ("model", "before"),
        ("model", "after"),
        ("stop", "before"),
        ("end", "before"),
    ]
    message, start, before_model, answer, before, after, again, *_, stop, end = inputs
    assert (message["text"], message["sender"], message["content"]) == (
        "go",
        "user",
        [{"type": "text", "text": "go"}],
    )
    assert start["reopened"] is False
    assert before_model["model"] == "scripted"
    assert [event["type"] for event in before_model["news"]] == ["message", "status"]
    assert answer["answer"]["calls"] == [{"name": "add", "arguments": {"a": 1, "b": 2}}]
    assert before["call"]["name"] == "add"
    assert before["call"]["arguments"] == {"a": 1, "b": 2}
    assert after["result"]["content"] == [{"type": "text", "text": "3"}]
    assert again["news"][0]["type"] == "assistant"
    events = stop.pop("events")
    assert [event["type"] for event in events][-3:] == [
        "toolCallStarted",
        "toolResult",
        "assistant",
    ]
    assert stop == {
        "on": "stop",
        "when": "before",
        "conversation_id": "c",
        "text": "done",
        "denied": 0,
    }
    assert end["status"] == "finished"


def test_a_command_changes_denies_and_adds_to_calls() -> None:
    conversation = run(
        [CALL, "done"], Hook(command=say({"arguments": {"a": 5, "b": 6}, "context": "Changed."}))
    )
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "11\nChanged."
    conversation.close()
    conversation = run(
        [CALL, "done"],
        Hook(command=say({"result": {"content": [{"type": "text", "text": "cached"}]}})),
    )
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "cached"
    conversation.close()
    for command in (say({"deny": "not now"}), shell("echo not now >&2; exit 2")):
        conversation = run([CALL, "done"], Hook(command=command, name="guard"))
        assert (
            events_of(conversation, ev.ToolCallFinished)[0].result.text
            == "'add' was not run: its hook guard denied it: not now"
        )
        conversation.close()


def test_a_command_changes_denies_and_adds_elsewhere() -> None:
    conversation = run(
        ["rude", "fine"],
        Hook(command=say({"text": "GO"}), on="message"),
        Hook(command=say({"context": "The branch is main."}), on="model", name="git"),
        Hook(
            command=python(
                "'rude' in asked['answer']['text'] and sys.exit('x') if 0 else None\nif 'rude' in"
                " asked['answer']['text']: print('{\"deny\": \"be polite\"}')\nelse:"
                " print(json.dumps({'text': 'FINE'}))"
            ),
            on="model",
            when="after",
        ),
        Hook(
            command=python("print(json.dumps({'deny': 'go on'}) if not asked['denied'] else '')"),
            on="stop",
            name="stop",
        ),
    )
    conversation.close()
    texts = [event.text for event in events_of(conversation, ev.MessageAdded)]
    assert texts[:2] == ["GO", "The branch is main."]
    assert "be polite" in texts[2]
    assert texts[3] == "go on"
    assert [event.text for event in events_of(conversation, ev.AssistantReplied)][:2] == [
        "",
        "FINE",
    ]


def test_a_command_changes_the_calls_of_an_answer() -> None:
    command = python(
        "calls = asked['answer']['calls']\nfor call in calls: call['arguments']['a'] ="
        " 10\nprint(json.dumps({'calls': calls}) if calls else '')"
    )
    conversation = run([CALL, "done"], Hook(command=command, on="model", when="after"))
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "12"
    conversation.close()


# --- failures ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (shell("echo broken >&2; exit 1"), "the command ended with exit code 1: broken"),
        (shell("kill -9 $$"), "the command was ended by signal 9"),
        (shell("echo nonsense"), "the command's output is not JSON"),
        (shell("echo []"), "printed a JSON list"),
        (
            say({"denied": "x"}),
            "the command printed the key 'denied'; permitted here: deny, context, arguments, result",
        ),
        (say({"arguments": 5}), "arguments, which takes an object"),
        (say({"deny": 5}), "deny, which takes a string"),
        (say({"result": {"content": 5}}), "printed result, which takes a ToolResult"),
        (say({"arguments": {}, "result": {"content": []}}), "only one is permitted"),
        (["/no/such/program"], "the command could not be started"),
        (shell("head -c 2000000 /dev/zero"), "printed more than 1,000,000 bytes"),
        (shell("sleep 60"), "did not answer within 0.5 s"),
        (shell("exec >&- 2>&-; sleep 60"), "did not answer within 0.5 s"),
    ],
)
def test_a_command_that_fails_denies(command: list[str], problem: str) -> None:
    owned = Owned()
    timeout = 0.5 if "sleep" in command[-1] else 30.0
    conversation = run([CALL, "done"], Hook(command=command, name="guard", timeout=timeout))
    [result] = events_of(conversation, ev.ToolCallFinished)
    assert result.result.is_error
    assert f"'add' was not run: its hook guard failed: " in result.result.text  # noqa: F541
    assert problem in result.result.text
    assert events_of(conversation, ev.NoteRecorded)[0].about == "hook:guard"
    conversation.close()
    owned.wait_until_released()


def test_a_command_that_does_not_read_or_reads_much_is_served_alike() -> None:
    conversation = run(
        [ToolCall("", "add", {"a": 1, "b": 2}), "done"], Hook(command=shell("exit 0"))
    )
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "3"
    conversation.close()
    big = "x" * 1_000_000
    conversation = Conversation(
        Agent(
            ScriptedLLM(["done"]),
            hooks=[
                Hook(
                    command=python("print(json.dumps({'text': str(len(asked['text']))}))"),
                    on="message",
                )
            ],
        )
    )
    assert conversation.send_message(big).text == "1000000"
    with pytest.raises(HookDenied):
        Conversation(
            Agent(ScriptedLLM([]), hooks=[Hook(command=shell("exit 1"), on="message")])
        ).send_message(big)
    conversation.close()


@pytest.mark.slow
def test_what_a_command_leaves_running_is_ended_with_its_group(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    owned = Owned()
    conversation = run(
        [CALL, "done"], Hook(command=shell(f"sleep 300 >/dev/null 2>&1 & echo $! > {pid}"))
    )
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "3"
    until(lambda: not _alive(int(pid.read_text())))
    conversation.close()
    owned.wait_until_released()


def test_who_left_the_group_and_holds_the_output_does_not_hold_up_the_hook() -> None:
    began = time.monotonic()
    conversation = run([CALL, "done"], Hook(command=shell("setsid sleep 60 & exit 0")))
    assert events_of(conversation, ev.ToolCallFinished)[0].result.text == "3"
    assert time.monotonic() - began < 30
    conversation.close()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_an_interrupt_and_a_close_kill_a_command_with_its_group(how: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    conversation = Conversation(
        Agent(
            ScriptedLLM([CALL, "done"]),
            [add],
            hooks=[Hook(command=shell(f"sleep 300 & echo $$ $! > {pids}; wait"))],
        )
    )
    conversation.start_thread()
    conversation.send_message("go")
    processes = until(lambda: pids.exists() and pids.read_text().split())
    began = time.monotonic()
    if how == "interrupt":
        conversation.interrupt()
        assert conversation.wait(30) is ConversationStatus.PAUSED
    conversation.close()
    assert time.monotonic() - began < 20
    for pid in processes:
        until(lambda pid=pid: not _alive(int(pid)))


# --- environment and working directory ---


def test_a_command_has_the_least_environment_its_own_and_the_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PLANTED", "xyzzy")
    path = tmp_path / "seen"
    with LocalRuntime(tmp_path) as runtime:
        agent = Agent(
            ScriptedLLM([CALL, "done"]),
            [add],
            hooks=[Hook(command=shell(f"env > {path}; pwd >> {path}"), env={"MINE": "1"})],
        )
        with Conversation(agent, runtime=runtime) as conversation:
            conversation.send_message("go")
            conversation.run()
    lines = path.read_text().splitlines()
    names = {line.partition("=")[0] for line in lines[:-1]}
    assert {"MINE", "PATH", "HOME", "HOLDFAST_OWNER"} <= names
    assert "PLANTED" not in names
    assert lines[-1] == str(tmp_path)


def test_secrets_are_taken_out_of_what_a_command_says() -> None:
    key = "sk-very-secret-0123456789"
    hooks = [
        Hook(
            command=shell('echo "refused with $API_TOKEN" >&2; exit 2'),
            env={"API_TOKEN": "tok-abcdefgh"},
            name="a",
        ),
        Hook(command=say({"context": f"the key is {key}"}), on="stop", name="b"),
        Hook(command=say({"context": f"the key is {key}"}), on="model", name="c"),
        Hook(command=shell(f"echo '{key}' >&2; exit 1"), on="start", name="d"),
    ]

    class LLMWithKey(LLM):
        def completion(self, *_: Any, **more: Any) -> Any:
            return scripted.completion(*_, **more)

    scripted = ScriptedLLM([CALL, "done"])
    with Conversation(Agent(LLMWithKey("openai/gpt-5", key), [add], hooks=hooks)) as conversation:
        conversation.send_message("go")
        conversation.run()
        everything = b"\n".join(event.to_json() for event in conversation.get_history()).decode()
    assert key not in everything
    assert "tok-abcdefgh" not in everything
    assert "refused with ***" in everything
    assert "the key is ***" in everything


# --- files, forms, policies ---

HOOKS: list[dict[str, Any]] = [
    {"on": "model", "after": "builtins:print"},
    {
        "on": "stop",
        "command": ["true"],
        "timeout": 60,
        "env": {"CHECK_TOKEN": "${TOKEN}"},
        "name": "check",
    },
    {"before": "builtins:print", "tools": "git.*"},
]


def test_hooks_are_loaded_from_a_file_and_written_again() -> None:
    agent = load_agent(
        {"model": {"use": "scripted", "parameters": {"script": ["x"]}}, "hooks": HOOKS},
        variables={"TOKEN": "tok-abcdefgh"},
    )
    assert [hook.on for hook in agent.hooks] == ["model", "stop", "tool"]
    assert agent.hooks[1] == Hook(
        on="stop", command=["true"], timeout=60, env={"CHECK_TOKEN": "tok-abcdefgh"}, name="check"
    )
    data = agent.to_json()
    assert b"tok-abcdefgh" not in data
    again = Agent.from_json(data, variables={"secret_1": "tok-abcdefgh"})
    assert again.hooks == agent.hooks
    assert again.to_json() == data
    with pytest.raises(
        ConfigurationError, match=r"hooks\[0\].before is .*which another process could not import"
    ):
        Agent(ScriptedLLM(["x"]), hooks=[Hook(lambda *_: None, on="message")]).to_json()


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ({"on": "nowhere", "before": "a:b"}, "hooks.*on.*it takes 'tool'"),
        ({"on": "stop"}, "a hook has before, after"),
        ({"command": ["x"], "before": "a:b"}, "use one hook for each"),
        ({"on": "stop", "after": "a:b"}, "there is no after"),
        ({"command": "rm -rf"}, "a list of arguments"),
    ],
)
def test_a_hook_of_a_file_that_does_not_fit_is_named(hook: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load_agent({"model": {"use": "scripted", "parameters": {"script": ["x"]}}, "hooks": [hook]})


@pytest.mark.parametrize("where", ["agent", "tools", "server", "tool"])
def test_an_agent_server_runs_no_commands_of_a_clients_hooks(where: str) -> None:
    form: dict[str, Any] = {"model": "openai/gpt-5"}
    hook = {"command": ["touch", "/tmp/x"]}
    if where == "agent":
        form["hooks"] = [hook]
    elif where == "tools":
        form["tools"] = {"hooks": [hook]}
    elif where == "server":
        form["tools"] = {"mcp_servers": {"a": {"command": "x", "hooks": [hook]}}}
    else:
        form["tools"] = {"builtin": [{"name": "a", "hooks": [hook]}]}
    with pytest.raises(ConfigurationError, match="runs no commands of a client's hooks"):
        check_agent(form, Policy(["*"]))
    assert (
        check_agent(
            {"model": "openai/gpt-5", "tools": {"mcp_servers": {"a": {"command": "x"}}}}, Policy()
        )
        == []
    )


def test_an_agent_server_imports_no_hooks_beyond_its_policy() -> None:
    form = {"model": "openai/gpt-5", "hooks": [{"on": "model", "before": "os:system"}]}
    with pytest.raises(ConfigurationError, match="policy does not allow the module 'os'"):
        check_agent(form, Policy())
    assert check_agent(form, Policy(["os"])) == ["os"]


PARTS = """
from holdfast.tools.hooks import Add, Deny

def polite(message, context):
    return Deny("be polite") if "!" in message.text else message.text.upper()

def date(situation, context):
    return Add("It is Sunday.")
"""


@pytest.mark.slow
def test_hooks_of_a_remote_conversation_are_asked_on_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hook_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    program = remote_parts._PROGRAM.replace("Policy([])", 'Policy(["hook_parts"])')
    monkeypatch.setattr(
        remote_parts, "_PROGRAM", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{program}"
    )
    agent = Agent(
        ScriptedLLM(["Hello."]),
        hooks=[
            Hook("hook_parts:polite", on="message", name="tone"),
            Hook("hook_parts:date", on="model", name="date"),
        ],
    )
    with (
        remote_parts.AgentServerProcess(tmp_path) as server,
        RemoteWorkspace(server.url, remote_parts.KEY) as space,
    ):
        with RemoteConversation(agent, space) as conversation:
            assert conversation.send_message("hello").text == "HELLO"
            for _ in range(2):
                with pytest.raises(HookDenied, match="its hook tone denied it: be polite"):
                    conversation.send_message("hello!")
            state = conversation.run()
            assert [event.text for event in state.events if isinstance(event, ev.MessageAdded)] == [
                "HELLO",
                "It is Sunday.",
            ]
            assert conversation.replay().same
        with pytest.raises(ConfigurationError, match="runs no commands"):
            RemoteConversation(
                Agent(ScriptedLLM(["x"]), hooks=[Hook(command=["true"])]), space
            ).send_message("go")
        with pytest.raises(ConfigurationError, match="policy does not allow"):
            RemoteConversation(
                Agent(ScriptedLLM(["x"]), hooks=[Hook("os:system", on="stop")]), space
            ).send_message("go")


def test_a_note_is_shown_in_one_line() -> None:
    note = ev.NoteRecorded(
        seq=1,
        id="a",
        timestamp=ev.EPOCH,
        about="hook:dlp",
        text="changed the model's answer: text\nand more",
    )
    assert Renderer().lines(note) == [
        TextLine("dim", "(note, hook:dlp: changed the model's answer: text and more)")
    ]


def test_a_managers_hook_may_be_a_command() -> None:
    hooks = Hooks([Hook(command=say({"deny": "no"}), name="guard")])
    with pytest.raises(Exception, match="its hook guard denied it: no"):
        hooks.before(CALL, ToolContext(), [])


# --- kill -9 in the middle of a hook ---

PROGRAM = '''
import sys
from pathlib import Path
from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool, ToolAnnotations, ToolCall
from holdfast.tools.hooks import Add, Deny, Hook

folder, place, wait = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "wait"
repeatable, place = place.startswith("repeatable "), place.removeprefix("repeatable ")
on, _, after = place.partition(" ")

def add(a: int, b: int) -> int:
    """Add."""
    with open(folder / "ran", "a") as file:
        file.write("x")
    return a + b

def context(situation, context):
    return Add("The branch is main.")

command = ["sh", "-c", f"echo $$ >> {folder}/asked; " + ("exec sleep 300" if wait else "exit 0")]
guard = Hook(command=command, on=on, when="after" if after else "before", timeout=600)

class Condenser:
    def shorten(self, work):
        from holdfast.agent.condenser import Condensed
        return Condensed(hidden=(work.pieces[0].seq,), summary="short")

with SQLiteStore(folder / "store.db") as store:
    fresh = not store.read("c")
    answered = sum(event.type == "assistant" for event in store.read("c"))
    script = [ToolCall("", "add", {"a": 1, "b": 2}), "done"][answered:]
    tool = Tool.from_function(add, annotations=ToolAnnotations(idempotent=repeatable))
    agent = Agent(ScriptedLLM(script), [tool], condenser=Condenser(), hooks=[Hook(context, on="model", name="git"), guard])
    with Conversation(agent, store, "c") as conversation:
        if fresh and on == "message":
            from holdfast.commands import Send
            with Conversation(Agent(ScriptedLLM([])), store, "c") as first:
                first.pause()  # so that there is a conversation
            store.post("c", Send("go"), "k")
        if fresh and on != "message":
            conversation.send_message("go")
        conversation.hosting.drain_inbox()
        state = conversation.run()
        if on == "condensation" and not any(event.type == "condensation" and event.hidden for event in state.events):
            conversation.condense()
    print(state.status)
'''


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "tool",
        "tool after",
        "repeatable tool",
        "repeatable tool after",
        "model",
        "model after",
        "message",
        "stop",
        "condensation",
        "start",
        "end",
    ],
)
def test_a_kill_in_the_middle_of_a_hook_loses_nothing_and_its_guard_is_asked_again(
    place: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = forks.Popen(
        [sys.executable, str(program), str(tmp_path), place, "wait"], stdout=subprocess.DEVNULL
    )
    pid_file = tmp_path / "asked"
    try:
        until(lambda: pid_file.exists() and pid_file.read_text().strip(), seconds=60)
        [hook] = map(int, pid_file.read_text().split())
        assert _alive(hook)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    successor = forks.run(
        [sys.executable, str(program), str(tmp_path), place, "go"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert successor.returncode == 0, successor.stderr
    assert not _alive(hook)  # the next owner ends it first
    with SQLiteStore(tmp_path / "store.db") as store:
        events = store.read("c")
    texts = [
        event.text
        for event in events
        if isinstance(event, ev.MessageAdded) and event.about != "hook:sh@model"
    ]
    assert texts[:2] == ["go", "The branch is main."]
    assert texts.count("The branch is main.") == 1
    assert texts.count("go") == 1
    statuses = [event.status for event in events if isinstance(event, ev.StatusChanged)]
    assert statuses[-1] == "finished"
    assert not [event for event in events if isinstance(event, ev.ErrorRecorded)]
    if place not in ("tool", "tool after"):
        assert len(pid_file.read_text().split()) > 1
    results = [event for event in events if isinstance(event, ev.ToolCallFinished)]
    assert len(results) == 1
    if place == "tool after":  # the tool ran and its outcome is unknown, so it does not run again
        assert (tmp_path / "ran").read_text() == "x"
        assert results[0].result.meta["outcome"] == "unknown"
    elif place == "tool":  # by the journal, the call had begun
        assert not (tmp_path / "ran").exists()
        assert results[0].result.meta["outcome"] == "unknown"
    else:
        assert results[0].result.text == "3"
    if place == "condensation":
        assert [
            event for event in events if isinstance(event, ev.HistoryCondensed) and event.hidden
        ]
    else:
        with Conversation(Agent(ScriptedLLM([]), [add]), MemoryStore()) as conversation:
            from holdfast.conversation.replay import replay

            assert replay(events).same
            assert not conversation.get_history()


@pytest.mark.slow
def test_a_hook_that_is_asked_from_many_threads_at_once_leaves_nothing(tmp_path: Path) -> None:
    owned = Owned()
    conversation = Conversation(
        Agent(ScriptedLLM([]), hooks=[Hook(command=say({"text": "heard"}), on="message")])
    )
    threads = [
        threading.Thread(target=conversation.send_message, args=(str(number),))
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [event.text for event in events_of(conversation, ev.MessageAdded)] == ["heard"] * 12
    conversation.close()
    assert os.path.exists(tmp_path)
    owned.wait_until_released()


def test_a_command_runs_in_a_process_with_more_than_a_thousand_open_files() -> None:
    program = """
import os, resource
from holdfast import Hook, ToolManager
from holdfast.content import ToolCall
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
manager = ToolManager(hooks=[Hook(command=["true"])])
def ran() -> str:
    return "ran"
manager.register(ran)
print(manager.run(ToolCall("1", "ran", {})).text)
"""
    process = forks.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.stdout == "ran\n", process.stderr


def test_a_command_reads_its_request_from_a_pipe_and_no_file_has_it() -> None:
    """A process that outlives the command has nowhere to write: its output is a closed pipe."""
    links = "import os; print([os.readlink(f'/proc/self/fd/{n}')[:5] for n in range(3)])"
    stderr = f"import sys; sys.stdout = sys.stderr; {links}"
    hook = Hook(command=[sys.executable, "-c", f"{stderr}; raise SystemExit(3)"])
    manager = ToolManager([Tool("t", "", lambda: "")], hooks=[hook])
    assert "['pipe:', 'pipe:', 'pipe:']" in manager.run(ToolCall("1", "t", {})).text
