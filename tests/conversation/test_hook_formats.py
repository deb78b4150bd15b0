"""Hook scripts in the formats of Claude Code and OpenHands, run unchanged: shell and Python,
JSON and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Conversation, ConversationStatus, Hook, LocalRuntime, ScriptedLLM
from holdfast import events as ev
from holdfast.agent.condensers import WindowCondenser
from holdfast.errors import ConfigurationError, HookDenied
from holdfast.server.policy import Policy, check_agent, check_parts
from holdfast.tools import ToolContext
from holdfast.tools.hook_answers import PLACES, HookAnswer, HookFailed
from holdfast.tools.hook_formats import FOREIGN, HookOutput

CLAUDE, OPENHANDS = "claude-code", "openhands"
MESSAGE = {
    "on": "message",
    "when": "before",
    "conversation_id": "c",
    "text": "hi",
    "sender": "user",
}


def script(folder: Path, text: str, name: str = "hook.sh") -> list[str]:
    """Write a script file into a repository and return the shell command that names it in the
    settings."""
    path = folder / name
    path.write_text(text)
    program = sys.executable if name.endswith(".py") else "bash"
    return ["sh", "-c", f'"{program}" "{path}"']


@contextmanager
def conversation_of(
    folder: Path, answers: list[Any], *hooks: Hook, **more: Any
) -> Iterator[Conversation]:
    with LocalRuntime(folder) as runtime:
        condenser = WindowCondenser(keep=2)
        agent = Agent(ScriptedLLM(answers), runtime.tools, hooks=hooks, condenser=condenser)
        with Conversation(agent, id="c", runtime=runtime, **more) as conversation:
            yield conversation


def run(folder: Path, answers: list[Any], *hooks: Hook, **more: Any) -> list[Any]:
    with conversation_of(folder, answers, *hooks, **more) as conversation:
        conversation.send_message("go")
        conversation.run()
        return list(conversation.get_history())


def results(events: list[Any]) -> list[str]:
    return [event.result.text for event in events if isinstance(event, ev.ToolCallFinished)]


def added_messages(events: list[Any]) -> list[str]:
    return [
        event.text
        for event in events
        if isinstance(event, ev.MessageAdded) and event.sender == "holdfast"
    ]


def notes(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, ev.NoteRecorded)]


# --- input of a script ---


def test_claude_codes_input_at_every_event(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = script(tmp_path, f'(cat; echo " $CLAUDE_PROJECT_DIR") >> "{log}"\n')
    places = [place for place in PLACES if place[0] != "model"]
    hooks = [Hook(on=on, when=when, command=command, format=CLAUDE) for on, when in places]
    answers = [("write_file", {"path": "a.txt", "content": "x"}), "done", "again"]
    with conversation_of(tmp_path, answers, *hooks) as conversation:
        for text in ("go", "on"):
            conversation.send_message(text)
            conversation.run()
        conversation.condense("keep names")
        conversation.run()
    lines = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    assert {folder for _, folder in lines} == {str(tmp_path)}
    inputs = [json.loads(data) for data, _ in lines]
    by_event = {one["hook_event_name"]: one for one in inputs}
    assert list(by_event) == [
        "UserPromptSubmit",
        "SessionStart",
        "PreToolUse",
        "PostToolUse",
        "Stop",
        "PreCompact",
        "SessionEnd",
    ]
    for one in inputs:
        assert (one["session_id"], one["cwd"]) == ("c", str(tmp_path))
        assert one["permission_mode"] == "default"
        assert bool(one["transcript_path"]) is (one["hook_event_name"] == "Stop")
    assert inputs[0]["prompt"] == "go"
    assert by_event["SessionStart"]["source"] == "startup"
    before, after = by_event["PreToolUse"], by_event["PostToolUse"]
    path = str(tmp_path / "a.txt")
    assert (before["tool_name"], before["tool_use_id"]) == ("Write", "4.0")
    assert before["tool_input"] == {"file_path": path, "content": "x"}
    assert after["tool_input"] == before["tool_input"]
    assert (after["tool_response"]["filePath"], after["tool_response"]["success"]) == (path, True)
    assert by_event["Stop"]["stop_hook_active"] is False
    assert by_event["Stop"]["last_assistant_message"] == "again"
    assert by_event["PreCompact"]["trigger"] == "manual"
    assert by_event["PreCompact"]["custom_instructions"] == "keep names"
    assert by_event["SessionEnd"]["reason"] == "other"


def test_openhands_input_and_variables(tmp_path: Path) -> None:
    log = tmp_path / "log"
    variables = "$OPENHANDS_EVENT_TYPE:$OPENHANDS_TOOL_NAME:$OPENHANDS_SESSION_ID"
    command = script(tmp_path, f'(cat; echo " {variables}:$OPENHANDS_PROJECT_DIR") >> "{log}"\n')
    places = [place for place in PLACES if place[0] != "model"]
    hooks = [Hook(on=on, when=when, command=command, format=OPENHANDS) for on, when in places]
    run(tmp_path, [("terminal", {"command": "echo hi"}), "done"], *hooks)
    lines = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    assert [words for _, words in lines] == [
        f"UserPromptSubmit::c:{tmp_path}",
        f"SessionStart::c:{tmp_path}",
        f"PreToolUse:terminal:c:{tmp_path}",
        f"PostToolUse:terminal:c:{tmp_path}",
        f"Stop::c:{tmp_path}",
        f"SessionEnd::c:{tmp_path}",
    ]
    inputs = [json.loads(data) for data, _ in lines]
    assert inputs[0]["message"] == "go"
    assert (inputs[2]["tool_name"], inputs[2]["tool_input"]) == ("terminal", {"command": "echo hi"})
    assert inputs[3]["tool_response"]["content"][0]["text"].startswith("hi")
    assert inputs[4]["metadata"] == {"reason": "finish"}
    assert set(inputs[0]) == {
        "event_type",
        "tool_name",
        "tool_input",
        "tool_response",
        "message",
        "session_id",
        "working_dir",
        "metadata",
    }


@pytest.mark.parametrize(
    ("matcher", "seen"),
    [
        ("file_editor", ["create", "view", "str_replace", "view"]),
        ("/file_.*/", ["create", "view", "str_replace", "view"]),
        ("term.*|x", ["echo hi", "echo hi"]),
        ("file", []),
    ],
)
def test_openhands_names_and_matchers(tmp_path: Path, matcher: str, seen: list[str]) -> None:
    log = tmp_path / "log"
    hook = Hook(
        command=script(tmp_path, f"jq -r .tool_input.command >> {log}"),
        format=OPENHANDS,
        matcher=matcher,
    )
    editor = "str_replace_based_edit_tool"
    calls = [
        ("write_file", {"path": "a.txt", "content": "x"}),
        ("read_file", {"path": "a.txt"}),
        ("edit_file", {"path": "a.txt", "old": "x", "new": "y"}),
        (editor, {"command": "view", "path": "a.txt"}),
        ("terminal", {"command": "echo hi"}),
        ("terminal_background", {"command": "echo hi"}),
    ]
    with LocalRuntime(tmp_path) as runtime:
        agent = Agent(ScriptedLLM([calls, "done"]), runtime.all_tools, hooks=[hook])
        with Conversation(agent) as conversation:
            conversation.send_message("go")
            conversation.run()
    assert (log.read_text() if log.exists() else "").splitlines() == seen


@pytest.mark.parametrize(
    ("matcher", "runs"), [("startup|clear", True), ("resume", False), ("^start", True)]
)
def test_a_matcher_of_a_beginning_names_its_source(
    tmp_path: Path, matcher: str, runs: bool
) -> None:
    command = script(tmp_path, "echo Be brief.\n")
    hook = Hook(on="start", command=command, format=CLAUDE, matcher=matcher)
    assert added_messages(run(tmp_path, ["done"], hook)) == ["Be brief."] * runs


@pytest.mark.parametrize("fields", [{"format": CLAUDE, "matcher": "("}, {"matcher": "Bash"}])
def test_a_matcher_that_cannot_be_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="matcher"):
        Agent(ScriptedLLM([]), hooks=[Hook(command=["true"], **fields)])


LOOP = """\
[ -e stop ] && exit 0
touch stop
path=$(jq -r .transcript_path)
jq -s '[.[].message.content[] | .name // .text // .content]' -c "$path" > seen
grep '"role":"assistant"' "$path" | tail -1 | jq '{decision: "block", reason: .message.content[0].text}'
"""


def test_a_stop_hook_reads_the_transcript(tmp_path: Path) -> None:
    hook = Hook(on="stop", command=script(tmp_path, LOOP), format=CLAUDE)
    events = run(tmp_path, [("terminal", {"command": "echo hi"}), "Once.", "Twice."], hook)
    assert added_messages(events) == ["Once."]
    transcript = json.loads((tmp_path / "seen").read_text())
    assert (transcript[:2], transcript[3:]) == (["go", "Bash"], ["Once."])
    assert transcript[2].startswith("hi\n")


# --- PreToolUse ---

BLOCK_BY_CODE = """\
input=$(cat)
case "$(echo "$input" | jq -r .tool_input.command)" in
  *"rm -rf"*) echo "nothing is removed here" >&2; exit 2 ;;
esac
"""
BLOCK_BY_JSON = """\
import json, sys
given = json.load(sys.stdin)
if given["tool_name"] == "Bash" and "rm -rf" in given["tool_input"]["command"]:
    print(json.dumps({"hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "nothing is removed here",
    }}))
"""
BLOCK_BY_BOTH = """\
if grep -q "rm -rf"; then
  echo '{"decision": "deny", "reason": "nothing is removed here"}'
  exit 2
fi
"""


@pytest.mark.parametrize(
    ("format", "name", "text"),
    [
        (CLAUDE, "hook.sh", BLOCK_BY_CODE),
        (CLAUDE, "hook.py", BLOCK_BY_JSON),
        (CLAUDE, "hook.sh", BLOCK_BY_BOTH),
        (OPENHANDS, "hook.sh", BLOCK_BY_CODE),
        (OPENHANDS, "hook.sh", BLOCK_BY_BOTH),
    ],
)
def test_a_guard_of_commands(tmp_path: Path, format: str, name: str, text: str) -> None:
    hook = Hook(command=script(tmp_path, text, name), tools="terminal", format=format, name="g")
    calls = [("terminal", {"command": "rm -rf x"}), ("terminal", {"command": "echo fine"})]
    denied, ran = results(run(tmp_path, [*calls, "done"], hook))
    assert denied == "'terminal' was not run: its hook g denied it: nothing is removed here"
    assert ran.startswith("fine")


def test_other_exit_codes_deny_nothing_and_are_noted(tmp_path: Path) -> None:
    command = script(tmp_path, "echo oops >&2; exit 1\n")
    for format in (CLAUDE, OPENHANDS):
        hook = Hook(command=command, format=format, name="g")
        events = run(tmp_path, [("terminal", {"command": "echo fine"}), "done"], hook)
        assert results(events)[0].startswith("fine")
        assert "the command ended with exit code 1, which denies nothing: oops" in notes(events)


@pytest.mark.parametrize(
    "text",
    [
        "echo '{\"hookSpecificOutput\": {'",
        'echo \'{"decision": "dney"}\'',
        "kill -9 $$",
        "no-such-program",
        "sleep 60",
    ],
)
@pytest.mark.slow
def test_a_guard_that_is_broken_denies(tmp_path: Path, text: str) -> None:
    hook = Hook(command=script(tmp_path, text), format=CLAUDE, name="g", timeout=1)
    [denied] = results(run(tmp_path, [("terminal", {"command": "echo fine"}), "done"], hook))
    assert "its hook g failed" in denied


def test_changed_input_and_added_context(tmp_path: Path) -> None:
    text = """\
import json, sys
given = json.load(sys.stdin)
given["tool_input"]["content"] = given["tool_input"]["content"].upper()
print(json.dumps({"hookSpecificOutput": {
    "hookEventName": "PreToolUse", "permissionDecision": "allow",
    "updatedInput": given["tool_input"], "additionalContext": "Written in capitals.",
}, "systemMessage": "changed"}))
"""
    hook = Hook(command=script(tmp_path, text, "hook.py"), tools="write_file", format=CLAUDE)
    events = run(tmp_path, [("write_file", {"path": "a.txt", "content": "x"}), "done"], hook)
    assert (tmp_path / "a.txt").read_text() == "X"
    assert results(events)[0].endswith("Written in capitals.")
    assert "changed" in notes(events)


def test_ask_asks_the_user(tmp_path: Path) -> None:
    answer = (
        '{"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}}'
    )
    hook = Hook(command=script(tmp_path, f"echo '{answer}'"), format=CLAUDE, name="g")
    call = ("terminal", {"command": "echo fine"})
    questions: list[str] = []

    def decide(question: ev.Question) -> bool:
        questions.append(question.message)
        return True

    [ran] = results(run(tmp_path, [call, "done"], hook, on_question=decide))
    assert ran.startswith("fine")
    assert questions == ['sure?\nterminal {"command":"echo fine"}']
    [denied] = results(run(tmp_path, [call, "done"], hook))  # no user can be asked
    assert "its hook g denied it: sure?" in denied


# --- PostToolUse ---


@pytest.mark.parametrize(
    "text",
    [
        "echo 'run the formatter' >&2; exit 2",
        'echo \'{"decision": "block", "reason": "run the formatter"}\'',
        'echo \'{"hookSpecificOutput": {"additionalContext": "run the formatter"}}\'',
    ],
)
def test_a_hook_after_a_call_tells_the_model(tmp_path: Path, text: str) -> None:
    hook = Hook(command=script(tmp_path, text), when="after", format=CLAUDE)
    [ran] = results(run(tmp_path, [("terminal", {"command": "echo fine"}), "done"], hook))
    assert ran.startswith("fine")
    assert ran.endswith("run the formatter")


def test_a_hook_after_a_call_may_replace_its_output(tmp_path: Path) -> None:
    answer = '{"hookSpecificOutput": {"updatedToolOutput": "covered"}}'
    hook = Hook(command=script(tmp_path, f"echo '{answer}'"), when="after", format=CLAUDE)
    assert results(run(tmp_path, [("terminal", {"command": "echo x"}), "d"], hook)) == ["covered"]


def test_a_failed_call_runs_no_hook_after_it(tmp_path: Path) -> None:
    for format in (CLAUDE, OPENHANDS):
        hook = Hook(command=script(tmp_path, "touch ran"), when="after", format=format)
        run(tmp_path, [("read_file", {"path": "missing"}), "done"], hook)
        assert not (tmp_path / "ran").exists()


# --- messages, ends, beginnings ---


@pytest.mark.parametrize(
    ("format", "text", "added"),
    [
        (CLAUDE, "echo branch is main", ["branch is main"]),
        (CLAUDE, 'echo \'{"hookSpecificOutput": {"additionalContext": "main"}}\'', ["main"]),
        (OPENHANDS, 'echo \'{"additionalContext": "branch: main"}\'', ["branch: main"]),
        (OPENHANDS, "echo branch is main", []),
    ],
)
def test_context_for_a_message(tmp_path: Path, format: str, text: str, added: list[str]) -> None:
    hook = Hook(on="message", command=script(tmp_path, text), format=format)
    assert added_messages(run(tmp_path, ["done"], hook)) == added


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (CLAUDE, 'echo \'{"decision": "block", "reason": "no"}\''),
        (CLAUDE, 'echo \'{"continue": false, "stopReason": "no"}\''),
        (CLAUDE, "echo no >&2; exit 2"),
        (OPENHANDS, 'echo \'{"decision": "deny", "reason": "no"}\''),
        (OPENHANDS, 'echo \'{"continue": false, "reason": "no"}\''),
        (OPENHANDS, "echo no >&2; exit 2"),
    ],
)
def test_a_message_is_denied(tmp_path: Path, format: str, text: str) -> None:
    hook = Hook(on="message", command=script(tmp_path, text), format=format, name="g")
    with (
        conversation_of(tmp_path, [], hook) as conversation,
        pytest.raises(HookDenied, match="its hook g denied it: no"),
    ):
        conversation.send_message("hi")


def test_a_stop_hook_of_claude_code_sends_the_agent_back_once(tmp_path: Path) -> None:
    text = """\
if [ "$(jq -r .stop_hook_active)" = true ]; then exit 0; fi
echo '{"decision": "block", "reason": "run the tests"}'
"""
    hook = Hook(on="stop", command=script(tmp_path, text), format=CLAUDE)
    with conversation_of(tmp_path, ["done", "tested"], hook) as conversation:
        conversation.send_message("go")
        state = conversation.run()
    assert (state.status, state.answer) == (ConversationStatus.FINISHED, "tested")
    assert added_messages(list(conversation.get_history())) == ["run the tests"]


@pytest.mark.parametrize(
    ("format", "text", "goes_on"),
    [
        (CLAUDE, 'echo \'{"hookSpecificOutput": {"additionalContext": "again"}}\'', True),
        (CLAUDE, 'echo \'{"continue": false, "decision": "block", "reason": "again"}\'', False),
        (OPENHANDS, 'echo \'{"decision": "deny", "additionalContext": "again"}\'; exit 2', True),
        (OPENHANDS, 'echo \'{"decision": "allow", "additionalContext": "again"}\'', False),
    ],
)
def test_the_end_of_a_run(tmp_path: Path, format: str, text: str, goes_on: bool) -> None:
    command = f"if [ -e asked ]; then exit 0; fi; touch asked; {text}"
    hook = Hook(on="stop", command=script(tmp_path, command), format=format)
    assert added_messages(run(tmp_path, ["done", "more"], hook)) == (["again"] if goes_on else [])


def test_the_beginning_of_a_conversation_adds_context(tmp_path: Path) -> None:
    hook = Hook(on="start", command=script(tmp_path, "echo Use tabs."), format=CLAUDE)
    assert added_messages(run(tmp_path, ["done"], hook)) == ["Use tabs."]


def test_a_condensation_can_be_blocked(tmp_path: Path) -> None:
    hook = Hook(on="condensation", command=script(tmp_path, "echo no >&2; exit 2"), format=CLAUDE)
    with conversation_of(tmp_path, ["a", "b", "c"], hook) as conversation:
        for text in ("go", "on"):
            conversation.send_message(text)
            conversation.run()
        conversation.condense()
        conversation.run()
        failed = [
            event.failed
            for event in conversation.get_history()
            if isinstance(event, ev.HistoryCondensed) and event.failed
        ]
    assert failed
    assert "no" in failed[0]


@pytest.mark.parametrize("format", [CLAUDE, OPENHANDS])
@pytest.mark.parametrize(
    "out",
    [b"null", b"[1", b"\xff\xfe", b'{"decision": null}', b'{"additionalContext": {"a": 1}}',
     b'{"hookSpecificOutput": "x"}', b"{}", b"", b"text", b'{"reason": 3}'],
)  # fmt: skip
def test_odd_output_is_no_decision(format: str, out: bytes) -> None:
    place = PLACES["message", "before"]
    answer = FOREIGN[format].answer(HookOutput(0, out, b""), MESSAGE, place, ToolContext(), "g")
    assert answer is None or (isinstance(answer, HookAnswer) and answer.deny is None)


@pytest.mark.parametrize("format", [CLAUDE, OPENHANDS])
def test_deep_output_fails(format: str) -> None:
    out = b'{"a":' * 5000 + b"1" + b"}" * 5000
    with pytest.raises(HookFailed):
        FOREIGN[format].answer(
            HookOutput(0, out, b""), MESSAGE, PLACES["message", "before"], ToolContext(), "g"
        )


# --- on a server ---


def test_a_client_may_have_hook_commands_if_the_operator_allows_them() -> None:
    model = {"use": "scripted", "parameters": {"script": []}}
    command = {"command": ["guard"], "format": "claude-code"}
    inner = {"model": model, "hooks": [command]}
    forms: list[dict[str, Any]] = [
        {"model": model, "hooks": [command]},
        {"model": model, "tools": {"hooks": [command]}},
        {"model": model, "delegates": {"x": inner}},
        {"model": model, "hooks": [{"agent": inner, "on": "stop"}]},
        {"model": model, "hooks": [{"agent": {"model": model, "tools": {"hooks": [command]}}}]},
    ]
    for form in forms:
        with pytest.raises(ConfigurationError, match="allow-hook-commands"):
            check_agent(form, Policy())
        assert check_agent(form, Policy(hook_commands=True)) == []
        check_parts(form, Policy(hook_commands=True))


def test_code_that_a_hooks_model_or_agent_names_needs_the_policy() -> None:
    model = {"use": "scripted", "parameters": {"script": []}}
    used = {"use": "evil:Model"}
    forms: list[dict[str, Any]] = [
        {"model": model, "hooks": [{"prompt": "x", "model": used}]},
        {"model": model, "hooks": [{"agent": {"model": used}}]},
        {"model": model, "hooks": [{"agent": {"model": model, "skills": ["/etc"]}}]},
        {"model": model, "confirm": {"judge": "x", "model": used}},
        {"model": model, "confirm": {"strictest": [{"judge": "x", "model": used}]}},
    ]
    for form in forms:
        with pytest.raises(ConfigurationError, match=r"evil|reads no skills"):
            check_agent(form, Policy(hook_commands=True))
    program = {"mcp_servers": {"x": {"command": "x"}}}
    boxed = {"model": model, "hooks": [{"agent": {"model": model, "tools": program}}]}
    check_agent(boxed, Policy())
    with pytest.raises(ConfigurationError, match="starts no programs"):
        check_agent(boxed, Policy(programs=False))


@pytest.mark.parametrize("format", [CLAUDE, OPENHANDS])
@pytest.mark.parametrize(
    ("out", "runs"),
    [
        ('{"decision": "ask"}', False),  # no user can answer
        ('{"decision": "defer"}', False),
        ('[{"decision": "deny"}]', False),
        ('\ufeff{"decision": "deny"}', False),
        ('\ufeff{"decision": "allow"}', True),
        ('{"continue": "false"}', False),
        ('{"continue": 0}', False),
        ('{"continue": null}', True),
        ('{"continue": true}', True),
        ("[info] all is well", True),
        ("all is well", True),
    ],
)
def test_an_unclear_answer_never_lets_a_call_run(
    tmp_path: Path, format: str, out: str, runs: bool
) -> None:
    hook = Hook(command=["printf", "%s", out], tools="terminal", format=format, name="guard")
    run(tmp_path, [("terminal", {"command": "touch ran"}), "done"], hook)
    assert (tmp_path / "ran").exists() is runs
