"""Secrets of a conversation: which calls get them, and that their values never come back."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    Agent,
    Conversation,
    LocalRuntime,
    MemoryStore,
    ScriptedLLM,
    SQLiteStore,
    ToolContext,
    ToolError,
    tool,
)
from holdfast import events as ev
from holdfast.content import FileContent, ImageContent, ResourceLink, TextContent, ToolResult
from holdfast.errors import BadRequest, ConfigurationError, NotFound
from holdfast.tools.secrets import Secret, Secrets, StreamMask

VALUE = 'ghp_"q7\\x/Zü9+' + "k" * 20
SECRETS = {"GITHUB_TOKEN": VALUE}


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(tmp_path) as runtime:
        yield runtime


def run(agent: Agent, **options: Any) -> Conversation:
    conversation = Conversation(agent, **{"secrets": SECRETS, **options})
    conversation.send_message("Go.")
    conversation.run()
    return conversation


def journal(conversation: Conversation) -> str:
    return "\n".join(ev.encode(event).decode() for event in conversation.get_history())


def last_result(conversation: Conversation) -> str:
    events = [e for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)]
    return events[-1].result.text


# --- which calls get them ---


def test_a_command_gets_the_variables_that_it_names_and_no_others(runtime: LocalRuntime) -> None:
    script = [
        ("terminal", {"command": 'printf %s "$GITHUB_TOKEN" | wc -c; env | grep -c NPM'}),
        ("terminal", {"command": "env | grep -c TOKEN"}),
        "Done.",
    ]
    model = ScriptedLLM(script)
    with run(
        Agent(model, runtime.tools), secrets={**SECRETS, "NPM_TOKEN": "n" * 20}
    ) as conversation:
        results = [
            e.result.text.split()
            for e in conversation.get_history()
            if isinstance(e, ev.ToolCallFinished)
        ]
    assert results[0][:2] == [str(len(VALUE.encode())), "0"]
    assert results[1][0] == "0"  # the next command does not inherit it


def test_the_model_reads_names_and_descriptions_and_never_a_value() -> None:
    model = ScriptedLLM(["Done."])
    secrets = {"DB_PASSWORD": Secret("correct horse battery", "of the staging database")}
    with run(Agent(model), secrets=secrets) as conversation:
        head = next(e for e in conversation.get_history() if isinstance(e, ev.AgentConfigured))
    assert "- DB_PASSWORD: of the staging database" in head.system_prompt
    assert "correct horse" not in head.system_prompt + journal(conversation)
    assert [part.name for part in head.prompt_parts][-1] == "secrets"


def test_a_tool_asks_for_a_secret_by_name() -> None:
    values: list[str] = []

    @tool
    def fetch(context: ToolContext) -> str:
        """Fetch."""
        values.append(context.secret("GITHUB_TOKEN"))
        return "fetched with " + values[-1]

    with run(Agent(ScriptedLLM([("fetch", {}), "Done."]), [fetch])) as conversation:
        assert last_result(conversation) == "fetched with <secret:GITHUB_TOKEN>"
    assert values == [VALUE]


def test_an_unknown_name_is_told_with_those_that_exist() -> None:
    @tool
    def fetch(context: ToolContext) -> str:
        """Fetch."""
        return context.secret("NPM_TOKEN")

    with run(Agent(ScriptedLLM([("fetch", {}), "Done."]), [fetch])) as conversation:
        assert "no secret 'NPM_TOKEN'" in last_result(conversation)
        assert "GITHUB_TOKEN" in last_result(conversation)
    with pytest.raises(NotFound, match="conversation without secrets"):
        ToolContext().secret("X")


def test_a_child_has_the_secrets_that_it_is_given_and_masks_them_all(runtime: LocalRuntime) -> None:
    command = {"command": "echo $A_TOKEN/$B_TOKEN/$C; cat key"}
    (runtime.workdir / "key").write_text("b" * 20)
    store = MemoryStore()

    @tool
    def ask(context: ToolContext) -> str:
        """Ask a child."""
        worker = Agent(ScriptedLLM([("terminal", command), "ok"]), runtime.tools)
        with context.spawn(worker, "Work.", secrets=["A_TOKEN"]) as child:
            return child.run().answer

    secrets = {"A_TOKEN": "a" * 20, "B_TOKEN": "b" * 20}
    with run(Agent(ScriptedLLM([("ask", {}), "Done."]), [ask]), secrets=secrets, store=store) as it:
        [child] = it.children
        events = store.read(child.id)
    text = next(e.result.text for e in events if isinstance(e, ev.ToolCallFinished))
    assert text.splitlines()[0] == "<secret:A_TOKEN>//"
    assert "<secret:B_TOKEN>" in text.splitlines()[1]
    head = next(e for e in events if isinstance(e, ev.AgentConfigured))
    assert "A_TOKEN" in head.system_prompt
    assert "B_TOKEN" not in head.system_prompt


def test_a_function_is_asked_at_each_use_and_earlier_values_stay_masked() -> None:
    values = iter(["first-value-0123", "second-value-456"])

    @tool
    def use(context: ToolContext) -> str:
        """Use."""
        return context.secret("KEY")

    @tool
    def both() -> str:
        """Show both."""
        return "first-value-0123 and second-value-456"

    script = [("use", {}), ("use", {}), ("both", {}), "Done."]
    with run(Agent(ScriptedLLM(script), [use, both]), secrets={"KEY": lambda: next(values)}) as it:
        assert last_result(it) == "<secret:KEY> and <secret:KEY>"
        assert "value-" not in journal(it)


def test_a_function_that_fails_is_the_calls_error_without_its_message(
    runtime: LocalRuntime,
) -> None:
    def rotate() -> str:
        raise OSError(f"the vault said {VALUE}")

    script = [("terminal", {"command": "echo $KEY"}), "Done."]
    with run(Agent(ScriptedLLM(script), runtime.tools), secrets={"KEY": rotate}) as conversation:
        assert "its function raised OSError" in last_result(conversation)
        assert "vault" not in journal(conversation)


# --- values in outputs ---


def forms(value: str) -> dict[str, str]:
    data = value.encode()
    return {
        "plain": value,
        "json": json.dumps({"a": value}),
        "wide json": json.dumps({"a": value}, ensure_ascii=False),
        "json in json": json.dumps(json.dumps({"a": value})),
        "base64": base64.b64encode(data).decode(),
        "base64 after one byte": base64.b64encode(b"x" + data).decode(),
        "base64 between": base64.b64encode(b"ab" + data + b"cde").decode(),
        "url-safe base64": base64.urlsafe_b64encode(data).decode(),
        "quoted": quote(value, safe=""),
        "path": quote(value),
    }


@pytest.mark.parametrize("name", forms(VALUE))
def test_each_form_is_masked(name: str) -> None:
    form = forms(VALUE)[name]
    masked = Secrets(SECRETS).mask(f"[{form}]")
    assert VALUE not in masked
    core = form[5:-5]
    assert core not in masked, masked
    assert "GITHUB_TOKEN" in masked or "SECRET" in masked


def test_base64_that_holds_a_secret_still_decodes() -> None:
    data = b'{"token": "' + VALUE.encode() + b'"}'
    masked = Secrets(SECRETS).mask(base64.b64encode(data).decode())
    decoded = base64.b64decode(masked, validate=True)
    assert len(decoded) == len(data)
    assert VALUE.encode() not in decoded
    assert VALUE.encode()[4:-4] not in decoded


def test_a_command_that_prints_a_secret_in_many_forms(runtime: LocalRuntime) -> None:
    python = "import os, json; v = os.environ['GITHUB_TOKEN']; print(v, json.dumps(v), repr(v))"
    commands = [
        'echo "$GITHUB_TOKEN"',
        'printf %s "$GITHUB_TOKEN" | base64 -w0',
        f'GITHUB_TOKEN="$GITHUB_TOKEN" {sys.executable} -c "{python}"',
        'echo "$GITHUB_TOKEN" > kept; cat kept',
    ]
    script = [
        *[("terminal", {"command": one}) for one in commands],
        ("read_file", {"path": "kept"}),
    ]
    with run(Agent(ScriptedLLM([*script, "Done."]), runtime.tools)) as conversation:
        text = journal(conversation)
        assert "<secret:GITHUB_TOKEN>" in last_result(conversation)
    for form in forms(VALUE).values():
        assert form[8:-8] not in text


def test_a_value_that_is_split_over_two_answers_of_one_command(runtime: LocalRuntime) -> None:
    command = (
        'printf %s "${GITHUB_TOKEN:0:9}"; while [ ! -e go ]; do sleep 0.01; done;'
        ' printf "%s\\n" "${GITHUB_TOKEN:9}"'
    )
    script = [
        ("terminal", {"command": command, "wait": 0.3}),
        ("write_file", {"path": "go", "content": ""}),
        ("terminal_input", {"wait": 10}),
        "Done.",
    ]
    with run(Agent(ScriptedLLM(script), runtime.tools)) as conversation:
        text = journal(conversation)
        assert last_result(conversation).startswith("<secret:GITHUB_TOKEN>")
    assert VALUE[:9] not in text
    assert VALUE[9:] not in text


def test_a_large_output_is_masked_in_its_file_and_in_the_store(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    command = 'for n in $(seq 4000); do echo "line $n $GITHUB_TOKEN"; done'
    script = [("terminal", {"command": command}), "Done."]
    with (
        SQLiteStore(tmp_path / "s.db") as store,
        run(Agent(ScriptedLLM(script), runtime.tools), store=store) as conversation,
    ):
        [finished] = [e for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)]
        whole = conversation.get_output(finished.call_id).text
        output = Path(finished.result.meta["outputFile"]).read_text()
    assert VALUE not in output
    assert VALUE not in whole
    assert output.count("<secret:GITHUB_TOKEN>") == 4000
    for file in tmp_path.glob("s.db*"):
        assert VALUE.encode() not in file.read_bytes()


def test_errors_progress_questions_logs_and_deltas(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    progress: list[str] = []
    questions: list[str] = []
    deltas: list[str] = []

    @tool
    def fails(context: ToolContext) -> str:
        """Fail."""
        context.report_progress(f"using {VALUE}")
        context.ask(f"May I use {VALUE}?")
        raise ToolError(f"401 for {VALUE}") from ValueError(VALUE)

    @tool
    def raises() -> str:
        """Raise."""
        raise RuntimeError(f"bad key {VALUE}")

    @tool
    def meta() -> ToolResult:
        """Return it everywhere."""
        return ToolResult(
            (TextContent(VALUE),), {VALUE: [VALUE, {"a": VALUE.encode().hex()}]}, {"m": VALUE}
        )

    def on_question(question: Any) -> None:
        questions.append(question.message)

    model = ScriptedLLM(
        [("fails", {}), ("raises", {}), ("meta", {}), f"It is {VALUE}!"], stream=True
    )
    with run(
        Agent(model, [fails, raises, meta]),
        on_progress=lambda _, text: progress.append(text),
        on_question=on_question,
        on_delta=lambda delta: deltas.append(delta.text),
    ) as conversation:
        text = journal(conversation)
        assert conversation.state.answer == "It is <secret:GITHUB_TOKEN>!"
    for place in (text, caplog.text, *progress, *questions, "".join(deltas), repr(conversation)):
        assert VALUE not in place
        assert json.dumps(VALUE)[1:-1] not in place
    assert progress == ["using <secret:GITHUB_TOKEN>"]
    assert questions == ["May I use <secret:GITHUB_TOKEN>?"]
    assert "".join(deltas).endswith("It is <secret:GITHUB_TOKEN>!")


def test_a_message_of_the_user_is_masked_and_a_request_has_no_value() -> None:
    model = ScriptedLLM(["Done."])
    with Conversation(Agent(model), secrets=SECRETS) as conversation:
        conversation.send_message(f"My token is {VALUE}.")
        conversation.run()
        assert conversation.get_history()[0].content[0].text == (  # type: ignore[union-attr]
            "My token is <secret:GITHUB_TOKEN>."
        )
    assert VALUE not in str(model.requests[0].text)


def test_a_reopened_conversation_sends_the_same_bytes(tmp_path: Path) -> None:
    @tool
    def look() -> str:
        """Look."""
        return VALUE

    with SQLiteStore(tmp_path / "s.db") as store:
        model = ScriptedLLM([("look", {}), "One.", "Two."])
        with run(Agent(model, [look]), store=store, id="c") as conversation:
            first = model.requests[-1].body
        model = ScriptedLLM(["Two."])
        with Conversation(Agent(model, [look]), store, "c", secrets=SECRETS) as again:
            again.send_message("More.")
            again.run()
            assert [type(e) for e in again.get_history()].count(ev.AgentConfigured) == 1
        assert model.requests[0].body.startswith(first[: first.rindex(b"]")])
        assert conversation.id == "c"


def test_a_fork_has_the_secrets_of_its_origin() -> None:
    @tool
    def look(context: ToolContext) -> str:
        """Look."""
        return context.secret("GITHUB_TOKEN")

    agent = Agent(ScriptedLLM(["One.", ("look", {}), "Two."]), [look])
    with run(agent) as conversation, conversation.fork() as fork:
        fork.send_message("Look.")
        fork.run()
        assert last_result(fork) == "<secret:GITHUB_TOKEN>"


def test_own_words_that_equal_a_secret_stay() -> None:
    """A secret that equals a status or an event's type must not make the journal unreadable."""
    for value in ("finished", "assistant", "timestamp", "toolCalls"):
        with run(Agent(ScriptedLLM(["Done."])), secrets={"WORD": value}) as conversation:
            assert conversation.state.status.value == "finished"
            assert [
                ev.decode(ev.encode(e)) for e in conversation.get_history()
            ] == conversation.get_history()


def test_a_provider_item_that_holds_a_secret_is_left_out_as_a_whole() -> None:
    secrets = Secrets(SECRETS)
    native = [{"type": "thinking", "thinking": VALUE, "signature": "s"}]
    import msgspec

    event = ev.AssistantReplied(
        seq=1, id="a", timestamp=ev.EPOCH, text="x", native=msgspec.Raw(msgspec.json.encode(native))
    )
    masked = secrets.mask_value(event)
    assert bytes(masked.native) == b""
    assert ev.decode(ev.record(masked), 1) == masked


def test_a_value_that_goes_back_in_odd_ways(caplog: pytest.LogCaptureFixture) -> None:
    """Numbers, keys, forms of questions, causes of errors, truncated messages, requests of
    tools, cleanups, and answers of the model itself."""
    number = "17000000001234"
    secrets = {**SECRETS, "NUMBER": number}
    question_list: list[Any] = []
    inner = ScriptedLLM(["ok"] * 9)

    @tool
    def odd(context: ToolContext) -> ToolResult:
        """Return it."""
        schema = {"type": "object", "properties": {"a": {"type": "string", "default": VALUE}}}
        context.ask("Yes?", schema, asker=VALUE)
        context.llm.completion(f"Use {VALUE}")  # type: ignore[union-attr]

        def cleanup() -> None:
            raise ValueError(VALUE)

        context.on_close("key", cleanup)
        content = {VALUE: 1, "<secret:GITHUB_TOKEN>": int(number), "list": [int(number)]}
        return ToolResult((TextContent("x"),), content)

    @tool
    def caused() -> str:
        """Fail."""
        raise ToolError("plain") from ValueError(VALUE)

    @tool
    def long() -> str:
        """Fail at length."""
        raise RuntimeError("x" * (10_000 - 12) + VALUE)

    model = ScriptedLLM([("odd", {}), ("caused", {}), ("long", {}), ("none", {VALUE: VALUE}), "."])
    conversation = run(
        Agent(model, [odd, caused, long]), secrets=secrets, on_question=question_list.append
    )
    with conversation:
        text = journal(conversation)
        requests = str([request.text for request in model.requests])
        finished = [e for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)]
    assert finished[0].result.structured_content == {
        "<secret:GITHUB_TOKEN>": 1,
        "<secret:GITHUB_TOKEN>'": "<secret:NUMBER>",
        "list": ["<secret:NUMBER>"],
    }
    for place in (text, requests, str(question_list), caplog.text):
        assert VALUE[:8] not in place
        assert number not in place
    assert inner.requests == []


def test_an_error_of_the_model_shows_none_to_observers_and_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reports: list[str] = []

    class Observed(ScriptedLLM):
        def complete(self, call: Any) -> Any:
            raise BadRequest(f"no such key {VALUE}")

    class Watcher:
        def asking(self, *arguments: Any) -> Any:
            class Span:
                def end(self, *arguments: Any) -> None:
                    reports.append(repr(arguments))

                def __getattr__(self, name: str) -> Any:
                    return lambda *arguments, **more: reports.append(repr((arguments, more)))

            return Span()

        def __getattr__(self, name: str) -> Any:
            return lambda *arguments, **more: None

    with Conversation(Agent(Observed([])), secrets=SECRETS) as conversation:
        conversation.send_message("Go.")
        conversation.run()
        assert conversation.state.error is not None
        assert conversation.state.error.message == "no such key <secret:GITHUB_TOKEN>"
    assert VALUE not in caplog.text + "".join(reports)


def test_a_rotated_value_that_an_earlier_call_asks_for_is_masked() -> None:
    values = iter(["old-value-000000", "old-value-111111"])
    earlier = Secrets({"KEY": lambda: next(values)})
    assert earlier.get("KEY") == "old-value-000000"
    now = Secrets({"KEY": "new-value-222222"}).replacing(earlier)
    assert earlier.get("KEY") == "old-value-111111"  # of a call that still runs
    text = "old-value-000000 old-value-111111 new-value-222222"
    assert now.mask(text) == earlier.mask(text) == " ".join(["<secret:KEY>"] * 3)


def test_pieces_that_take_turns_are_masked_each_for_itself() -> None:
    texts: list[str] = []
    from holdfast.conversation.deltas import _MaskedDeltas
    from holdfast.llm.completion import Delta

    masked = _MaskedDeltas(Secrets(SECRETS), lambda delta: texts.append(delta.text))
    for at in range(0, len(VALUE), 5):
        for index in (0, 1):
            masked(Delta("tool", VALUE[at : at + 5], index))
    masked.flush()
    assert "".join(texts) == "<secret:GITHUB_TOKEN>" * 2


def test_the_reason_of_a_retry_is_masked_and_passed_on() -> None:
    from holdfast.conversation.deltas import _MaskedDeltas
    from holdfast.llm.completion import Delta

    deltas: list[Delta] = []
    masked = _MaskedDeltas(Secrets(SECRETS), deltas.append)
    masked(Delta("retry", index=1, reason=f"RateLimited: {VALUE}", seconds=2.0, most=5))
    [retry] = deltas
    assert (retry.kind, retry.index, retry.seconds, retry.most) == ("retry", 1, 2.0, 5)
    assert retry.reason.startswith("RateLimited: ")
    assert VALUE not in retry.reason


# --- the stream ---


def test_a_value_that_begins_like_another_is_masked_whole_however_it_is_cut() -> None:
    secrets = Secrets({"A": "prefix12", "B": "prefix12-the-rest-of-B"})
    whole = b"x prefix12-the-rest-of-B y prefix12 z"
    for cut in range(len(whole)):
        mask = StreamMask(secrets)
        out = mask.feed(whole[:cut]) + mask.feed(whole[cut:]) + mask.flush()
        assert out == b"x <secret:B> y <secret:A> z", cut


@given(st.data(), st.lists(st.sampled_from(["ghp", "_", VALUE, VALUE[:7], "k", "ü", "\n"])))
def test_no_division_of_a_stream_shows_more_than_the_whole(data: Any, words: list[str]) -> None:
    secrets = Secrets(SECRETS)
    whole = "".join(words).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    mask, out = StreamMask(secrets), b""
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        out += mask.feed(whole[start:end])
    out += mask.flush()
    assert out == secrets.mask_bytes(whole)


def test_what_cannot_begin_a_value_is_passed_on_at_once() -> None:
    mask = StreamMask(Secrets(SECRETS))
    assert mask.feed(b"Password: ") == b"Password: "
    assert mask.feed(b"a gh") == b"a "
    assert mask.feed(b"ost") == b"ghost"


# --- bad input ---


@pytest.mark.parametrize(
    ("secrets", "problem"),
    [
        ({"A B": "12345678"}, "names of environment variables"),
        ({"": "12345678"}, "names of environment variables"),
        ({"TOKEN": "1234567"}, "fewer than 8 characters"),
        ({"TOKEN": " " * 9}, "fewer than 8 characters"),
        ({"TOKEN": "1234567\0"}, "NUL"),
        ({"TOKEN": "1234567\ud800"}, "surrogate"),
        ({"TOKEN": 12345678}, "takes a str or a function"),
        ({"TOKEN": b"12345678"}, "takes a str or a function"),
        ({"PATH": "/usr/local/bin"}, "changes how programs start"),
        ({"BASH_ENV": "/usr/local/bin"}, "changes how programs start"),
        ({"LD_PRELOAD": "/usr/local/bin"}, "changes how programs start"),
        (["TOKEN"], "takes a mapping"),
        ({"TOKEN": "secret:T"}, "part of the text that masks it"),
    ],
)
def test_bad_secrets_are_refused_and_not_shown(secrets: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        Conversation(Agent(ScriptedLLM([])), secrets=secrets)
    assert "1234567" not in str(caught.value)


def test_no_repr_has_a_value() -> None:
    secret = Secret("12345678", "d")
    secrets = Secrets({"A": secret})
    conversation = Conversation(Agent(ScriptedLLM([])), secrets=secrets)
    for one in (secret, secrets, conversation, conversation.hosting, ToolContext(secrets=secrets)):
        assert "12345678" not in repr(one)
    assert repr(secrets) == "Secrets(A)"


def test_two_threads_that_use_a_rotating_secret() -> None:
    numbers = iter(range(10**8, 10**9))
    secrets = Secrets({"KEY": lambda: str(next(numbers))})
    got: list[str] = []

    def use() -> None:
        got.extend(secrets.get("KEY") for _ in range(200))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert secrets.mask(" ".join(got)) == " ".join(["<secret:KEY>"] * 800)


def test_a_process_of_another_command_does_not_have_it(runtime: LocalRuntime) -> None:
    script = [
        ("terminal", {"command": "sleep 30 & echo $!"}),
        ("terminal", {"command": 'echo "$GITHUB_TOKEN" > /dev/null; echo $!'}),
        "Done.",
    ]
    with run(Agent(ScriptedLLM(script), runtime.tools)) as conversation:
        pid = next(
            e.result.text for e in conversation.get_history() if isinstance(e, ev.ToolCallFinished)
        ).split()[0]
        assert VALUE.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        subprocess.run(["kill", pid], check=False)
        assert os.environ.get("GITHUB_TOKEN") != VALUE


def test_names_and_addresses_of_content_are_masked() -> None:
    token = "0123456789-token"
    blocks = [
        ResourceLink(f"file:///{token}", token, mime_type=token),
        FileContent(b"x", f"text/{token}", name=f"{token}.txt"),
        FileContent(url=f"https://e.org/{token}"),
        ImageContent(b"x", f"image/{token}"),
    ]

    @tool
    def look() -> ToolResult:
        """Looks."""
        return ToolResult(blocks)

    llm = ScriptedLLM([("look", {}), "Done."])
    with Conversation(Agent(llm, [look]), secrets={"TOKEN": token}) as conversation:
        conversation.send_message(["Read these.", *blocks])
        conversation.run()
        assert token not in journal(conversation)
        assert journal(conversation).count("<secret:TOKEN>") >= 10
    assert token not in str([request.json for request in llm.requests])
