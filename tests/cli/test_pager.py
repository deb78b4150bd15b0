"""The pager of `holdfast show`, the picker of `chat --resume`, and lines that fit the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Agent, Conversation, ScriptedLLM, SQLiteStore
from holdfast.cli.text import clip, columns, padded
from tests.cli.test_commands import holdfast, options, terminal
from tests.cli.test_live_chat import Screen
from tests.model_server import ModelServer, text

pyte = pytest.importorskip("pyte")

WIDE = "日本語のとても長い名前の会話" * 6
LONG = "\n".join(f"line {number}\x1b[31m" for number in range(200))


def make_store(path: Path, *names: str, answer: str = "ok") -> Path:
    """Make a store with a finished conversation for each id in `names`."""
    with SQLiteStore(path / "s.db", "process") as store:
        for name in names:
            agent = Agent(ScriptedLLM([answer]))
            with Conversation(agent, store, name) as conversation:
                conversation.send_message(f"About {name}")
                conversation.run()
    return path / "s.db"


@pytest.mark.parametrize(
    ("text", "wide"),
    [("abc", 3), ("日本", 4), ("e\u0301", 1), ("a\u200db", 2), ("\uff46", 2), ("", 0)],
)
def test_a_wide_character_takes_two_columns_and_a_combining_one_none(text: str, wide: int) -> None:
    assert columns(text) == wide


@pytest.mark.parametrize("width", [1, 2, 7, 20, 39])
@pytest.mark.parametrize("given", [WIDE, "x" * 99, "a\tb" * 20, "e\u0301" * 60, "短い"])
def test_a_cut_text_fits(given: str, width: int) -> None:
    cut = clip(given, width)
    assert columns(cut) <= max(width, 3)
    assert cut == given or cut.endswith("…")
    assert columns(padded(cut, 50)) == 50
    assert padded("ab", 4, right=True) == "  ab"


@pytest.mark.slow
def test_what_is_longer_than_the_screen_goes_to_the_pager(tmp_path: Path) -> None:
    store = make_store(tmp_path, "one", answer=LONG)
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "[pager LESS=$LESS $1]"\ncat\necho "[end]"\n')
    pager.chmod(0o755)
    with terminal("show", str(store), "--full", PAGER=f"{pager} -x") as typist:
        assert typist.leaves() == 0
    assert "[pager LESS=FRX -x]" in typist.output
    assert "line 199" in typist.output
    # Model text cannot control the terminal through the pager either.
    assert "line 7^[[31m" in typist.output
    assert "\x1b[31m" not in typist.output
    # Notices come after the pager has ended, because the pager uses the screen.
    assert typist.output.index("[end]") > typist.output.index("line 199")


@pytest.mark.slow
def test_a_pager_that_is_left_early_is_no_error(tmp_path: Path) -> None:
    store = make_store(tmp_path, "one", answer="\n".join(f"{LONG}" for _ in range(400)))
    with terminal("show", str(store), "--full", PAGER="head -n 1") as typist:
        assert typist.leaves() == 0
    assert "one, finished" in typist.output
    assert "line 199" not in typist.output


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--no-pager",), ("--json",), ()])
def test_nothing_is_paged_that_fits_or_is_not_to_be(tmp_path: Path, more: tuple[str, ...]) -> None:
    store = make_store(tmp_path, "one", answer=LONG if more == ("--no-pager",) else "short")
    with terminal("show", str(store), "--full", *more, PAGER="sed s/^/paged:/") as typist:
        assert typist.leaves() == 0
    assert "paged:" not in typist.output
    assert "paged:" not in holdfast("show", str(store), PAGER="sed s/^/paged:/").stdout


@pytest.mark.slow
@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager", "'"])
def test_without_a_pager_all_is_written(tmp_path: Path, pager: str) -> None:
    store = make_store(tmp_path, "one", answer=LONG)
    with terminal("show", str(store), "--full", PAGER=pager) as typist:
        assert typist.leaves() == 0
    assert "line 199" in typist.output


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_of_a_table_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    store = make_store(tmp_path, "a" * 60, "b")
    with SQLiteStore(store) as opened, Conversation(Agent(ScriptedLLM([])), opened, "b") as one:
        one.rename(WIDE)
    skill = tmp_path / "skills" / "long"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(f"---\nname: long\ndescription: {WIDE}\n---\nx\n")
    models = tmp_path / "models"
    models.mkdir()
    (models / f"{'m' * 50}.yaml").write_text("name: gpt-5-mini\napi_key: k\n")
    for arguments in (
        ("list", str(store)),
        ("show", str(store), "b"),
        ("stats", str(store)),
        ("tools", "--workdir", str(tmp_path)),
        ("skills", "list", str(tmp_path / "skills")),
        ("models", "--models", str(models)),
    ):
        with terminal(*arguments, COLUMNS=str(width)) as typist:
            assert typist.leaves() == 0, typist.output
        lines = [clean(line) for line in typist.output.splitlines()]
        output_lines = [
            line for line in lines if not line.startswith(("show one with", "1 file in"))
        ]
        assert max(columns(line) for line in output_lines) <= width, (arguments, output_lines)
        assert output_lines


def clean(line: str) -> str:
    """Remove escape sequences and overwritten text from a line."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.rpartition("\r")[2] or line.strip("\r"))


# --- the picker ---


@contextmanager
def choosing(server: ModelServer, folder: Path, store: Path, *more: str) -> Iterator[Screen]:
    """Start a chat at the picker of conversations."""
    arguments = [*options(server, folder), "--store", str(store), "--resume", "--no-undo", *more]
    env = {"HOLDFAST_PLAIN": "", "HOME": str(folder / "home"), "XDG_STATE_HOME": ""}
    with terminal("chat", *arguments, **env) as typist:
        yield Screen(typist)


@pytest.mark.slow
def test_a_conversation_is_chosen_with_the_arrow_keys(tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    store = make_store(tmp_path, "first", "second", "third")
    with (
        ModelServer([text("Welcome back.")]) as server,
        choosing(server, tmp_path, store) as screen,
    ):
        lines = screen.shows(r"1 of 3; arrow keys")
        rows = [line for line in lines if "About" in line]
        assert [row.rpartition(" ")[2] for row in rows] == ["third", "second", "first"]
        screen.types("\x1b[B\x1b[B")
        screen.shows(r"> .*About first\n")
        screen.shows("3 of 3")
        screen.types("\r")
        screen.shows(r"continuing first")
        screen.shows(r"(?m)^>$")
        screen.types("hello\r")
        screen.shows(r"Welcome back\.")
        screen.types("\x04")
        assert screen.typist.leaves() == 0


@pytest.mark.slow
def test_a_chat_goes_on_with_another_conversation(tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    store = make_store(tmp_path, "first", "second", "third")
    arguments = [*options(server := ModelServer([text("Welcome back.")]), tmp_path), "--no-undo"]
    env = {"HOLDFAST_PLAIN": "", "HOME": str(tmp_path / "home"), "XDG_STATE_HOME": ""}
    place = ["--store", str(store), "--id", "third"]
    with server, terminal("chat", *arguments, *place, **env) as typist:
        screen = Screen(typist)
        screen.shows(r"continuing third")
        screen.types("/resume\r")
        lines = screen.shows(r"1 of 2; arrow keys")
        rows = [line.rpartition(" ")[2] for line in lines[-3:-1]]
        assert rows == ["second", "first"]  # without the open conversation
        screen.types("\x1b")
        screen.shows(r"(?m)^>$")
        screen.types("/resume\r")
        screen.shows(r"1 of 2; arrow keys")
        screen.types("\x1b[B\r")
        screen.shows(r"continuing first")
        screen.types("hello\r")
        screen.shows(r"Welcome back\.")
        screen.types("/resume sec\r")
        screen.shows(r"continuing second")
        screen.types("/resume x\r")
        screen.shows(r"Nothing was resumed: there is no other conversation 'x'")
        screen.types("\x04")
        assert typist.leaves() == 0
        assert "--id second" in "\n".join(screen.lines)
    with SQLiteStore(store, read_only=True) as opened:
        ids = [one.id for one in opened.list() if "Welcome back." in str(opened.read(one.id))]
    assert ids == ["first"]


@pytest.mark.slow
def test_escape_chooses_none(tmp_path: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    store = make_store(tmp_path, "first")
    with ModelServer([]) as server, choosing(server, tmp_path, store) as screen:
        screen.shows(r"1 of 1; arrow keys")
        screen.types("\x1b")
        screen.shows(r"No conversation was chosen")
        assert screen.typist.leaves() == 0


@pytest.mark.slow
def test_a_plain_chat_numbers_the_conversations(tmp_path: Path) -> None:
    store = make_store(tmp_path, "first", "second")
    with (
        ModelServer([]) as server,
        choosing(server, tmp_path, store, "--plain") as screen,
    ):
        screen.shows(r"1 .*second\n +2 .*first\n")
        screen.types("7\r")
        screen.shows("'7' is not one of the numbers")
        screen.types("2\r")
        screen.shows(r"continuing first")
        screen.shows(r"(?m)^>")
        screen.types("\x04")
        assert screen.typist.leaves() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--id", "x"), "leave out --id"),
        (("--continue",), "leave out --id"),
        ((), "--resume needs a terminal"),
    ],
)
def test_a_choice_that_cannot_be_offered_is_refused(
    tmp_path: Path, more: tuple[str, ...], problem: str
) -> None:
    store = make_store(tmp_path, "first")
    ended = holdfast("chat", "--model", "m", "--store", str(store), "--resume", *more)
    assert ended.returncode == 2
    assert problem in ended.stderr
    nowhere = holdfast("chat", "--model", "m", "--resume")
    assert "--resume chooses a conversation of a store" in nowhere.stderr
