"""`ID` on the command line: every command takes a full id or an unambiguous prefix, for a file and
for a server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore, Tool, ToolContext
from holdfast.cli.server import is_id
from holdfast.errors import ConfigurationError
from holdfast.server.limits import checked_id
from tests.cli.test_commands import holdfast, options
from tests.cli.test_remote_command import KEY, AgentServer
from tests.model_server import ModelServer, text


def hello(store: SQLiteStore, id: str) -> None:
    """Run a conversation with one message and one answer."""
    with Conversation(Agent(ScriptedLLM(["Hello."])), store, id) as conversation:
        conversation.send_message(f"I am {id}")
        conversation.run()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a store with `4f0c91`, whose call spawned a child conversation, and `4a17`."""
    child = Agent(ScriptedLLM(["Hello from the child."]))

    def ask_child(context: ToolContext) -> str:
        """Asks a child."""
        return context.spawn(child, "go").run().answer or ""

    with SQLiteStore(tmp_path / "s.db", "process") as store:
        agent = Agent(ScriptedLLM([[("ask_child", {})], "Done."]), [Tool.from_function(ask_child)])
        with Conversation(agent, store, "4f0c91") as conversation:
            conversation.send_message("Ask")
            conversation.run()
        hello(store, "4a17")
        assert {entry.id for entry in store.list()} == {"4f0c91", "4f0c91.4.0", "4a17"}
    return tmp_path / "s.db"


def ids(path: Path) -> set[str]:
    """Return the ids of all conversations in the store."""
    with SQLiteStore(path, read_only=True) as store:
        return {entry.id for entry in store.list()}


def check_usage_error(ended: subprocess.CompletedProcess[str], *phrases: str) -> None:
    """Check that a command ended with a one-line usage error that has all phrases."""
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    for phrase in phrases:
        assert phrase in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "chat"])
def test_a_prefix_goes_on_with_the_conversation_it_names(name: str, path: Path) -> None:
    words = ["run", "more"] if name == "run" else ["chat"]
    with ModelServer([text("Again.")]) as server:
        ended = holdfast(
            *words,
            *options(server, path.parent),
            "--store",
            str(path),
            "--id",
            "4f0",
            stdin="more\n",
        )
        assert ended.returncode == 0, ended
        assert server.requests[0].messages[-1]["content"] == "more"
        assert len(server.requests[0].messages) > 3
    assert "continuing 4f0c91 (" in ended.stderr
    assert " --id 4f0c91 " in ended.stderr
    assert ids(path) == {"4f0c91", "4f0c91.4.0", "4a17"}


@pytest.mark.slow
def test_an_ambiguous_prefix_is_an_error_that_lists_the_candidates(path: Path) -> None:
    with ModelServer([]) as server:
        store_options = [*options(server, path.parent), "--store", str(path)]
        for words in (
            ["run", "more", *store_options, "--id", "4"],
            ["chat", *store_options, "--id", "4"],
            ["show", str(path), "4"],
            ["tell", str(path), "4", "pause"],
            ["stats", str(path), "4"],
            ["replay", str(path), "4"],
            ["export", str(path), "4"],
        ):
            ended = holdfast(*words)
            check_usage_error(
                ended,
                "2 conversations",
                "'4'",
                "4f0c91 (finished: Ask)",
                "4a17 (finished: I am 4a17)",
            )
            assert "4f0c91.4.0" not in ended.stderr
        assert server.requests == []
    assert ids(path) == {"4f0c91", "4f0c91.4.0", "4a17"}


@pytest.mark.slow
def test_children_do_not_make_the_prefix_of_their_parent_ambiguous(
    path: Path, tmp_path: Path
) -> None:
    assert "4f0c91 and 1 conversation spawned from it" in holdfast("stats", str(path), "4f").stdout
    assert holdfast("show", str(path), "4f").stdout.startswith("4f0c91, finished: Ask\n")
    assert holdfast("replay", str(path), "4f").stdout.startswith("4f0c91: same")
    ended = holdfast("tell", str(path), "4f", "send", "hi")
    assert (ended.returncode, ended.stdout) == (0, "posted: send\n")
    assert (
        holdfast("export", str(path), "4f", "4f0c91.", "-o", str(tmp_path / "two.jsonl")).returncode
        == 0
    )
    exported = (tmp_path / "two.jsonl").read_text()
    assert ('"id":"4f0c91",' in exported, '"id":"4f0c91.4.0"' in exported) == (True, True)
    assert holdfast("replay", str(tmp_path / "two.jsonl"), "4f").stdout.startswith("4f0c91: same")
    assert holdfast("show", str(path), "4f0c91.").stdout.startswith("4f0c91.4.0, finished: go\n"), (
        "a child has a prefix of its own"
    )
    check_usage_error(holdfast("show", str(path), "4g"), "'4g'", "holdfast list")


@pytest.mark.slow
def test_an_id_that_matches_nothing_is_refused_and_new_begins_a_conversation(path: Path) -> None:
    with ModelServer([text("Hi."), text("Hi.")]) as server:
        store_options = [*options(server, path.parent), "--store", str(path)]
        check_usage_error(
            holdfast("run", "x", *store_options, "--id", "other"), "'other'", "--new --id other"
        )
        ended = holdfast("run", "x", *store_options, "--new", "--id", "other")
        assert (ended.returncode, ended.stderr.splitlines()[0]) == (0, "New conversation 'other'.")
        # An id that is a prefix of another id needs --new.
        ended = holdfast("run", "x", *store_options, "--id", "4f0c", "--new")
        assert (ended.returncode, ended.stderr.splitlines()[0]) == (0, "New conversation '4f0c'.")
        assert len(server.requests[1].messages) == 2
        assert holdfast("show", str(path), "4f0c").stdout.startswith("4f0c, finished: x\n"), (
            "a full id is never ambiguous"
        )
        check_usage_error(
            holdfast("run", "x", *store_options, "--id", "4a17", "--new"),
            "--new",
            "'4a17'",
            "exists already",
        )
        check_usage_error(holdfast("run", "x", *store_options, "--id", ""), "--id takes")
        assert len(server.requests) == 2
    assert ids(path) == {"4f0c91", "4f0c91.4.0", "4a17", "other", "4f0c"}


@pytest.mark.slow
def test_a_store_that_is_not_there_yet_takes_any_id(tmp_path: Path) -> None:
    with ModelServer([text("Hi.")]) as server:
        ended = holdfast(
            "run",
            "x",
            *options(server, tmp_path),
            "--store",
            str(tmp_path / "new.db"),
            "--new",
            "--id",
            "one",
        )
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (0, "New conversation 'one'.")


# --- on a server ---


@pytest.mark.parametrize(
    "id", ["a", "-", "_", "-0", "a.b", ".a", ".", "..", "", "a b", "a/b", "é", "x" * 128, "x" * 129]
)
def test_the_command_takes_the_ids_that_a_server_takes(id: str) -> None:
    try:
        checked_id(id, "A test")
    except ConfigurationError:
        assert not is_id(id)
    else:
        assert is_id(id)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[AgentServer]:
    """Run an agent server for the test."""
    with AgentServer(tmp_path) as server:
        yield server


@pytest.mark.slow
def test_a_server_takes_the_same_ids(remote: AgentServer) -> None:
    def with_key(*words: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*words, HOLDFAST_SERVER_KEY=KEY)

    with ModelServer([text(f"Hi {number}.") for number in range(5)]) as model:
        there = ["--server", remote.url]
        new_options = [*there, "--model", "m", "--base-url", model.url]
        first = with_key("run", "x", *new_options, "--new", "--id", "4f0c91")
        assert (first.returncode, first.stderr.splitlines()[0]) == (0, "New conversation '4f0c91'.")
        check_usage_error(
            with_key("run", "x", *new_options, "--id", "4a17"), "'4a17'", "--new --id 4a17"
        )
        assert with_key("run", "x", *new_options, "--new", "--id", "4a17").returncode == 0
        again = with_key("run", "more", *there, "--id", "4f")
        assert (again.returncode, again.stdout) == (0, "\n> more\n\nHi 2.\n")
        assert "continuing 4f0c91 (" in again.stderr
        for words in (
            ["run", "x", *new_options, "--id", "4"],
            ["show", *there, "4"],
            ["tell", *there, "4", "pause"],
        ):
            check_usage_error(
                with_key(*words), "2 conversations", "4f0c91 (finished: x)", "4a17 (finished: x)"
            )
        check_usage_error(
            with_key("run", "x", *new_options, "--id", "4a17", "--new"),
            "--new",
            "'4a17'",
            "exists already",
        )
        assert with_key("run", "x", *new_options, "--id", "4f", "--new").returncode == 0
        assert len(model.requests) == 4
    listed = with_key("list", *there).stdout
    assert {line.split()[0] for line in listed.splitlines()} == {"ID", "4f", "4f0c91", "4a17"}
