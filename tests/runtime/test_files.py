"""The file tools: reads are bounded, writes are whole, and an edit leaves the rest of the file
unchanged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.content import ImageContent, ToolResult
from holdfast.errors import PathRefused, RuntimeFault, ToolError
from holdfast.runtime import LocalRuntime
from holdfast.runtime.edit import unified_diff
from holdfast.store import SQLiteStore
from holdfast.tools import ToolContext


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def runtime(work: Path) -> Iterator[LocalRuntime]:
    with LocalRuntime(work) as runtime:
        yield runtime


def call(runtime: LocalRuntime, name: str, /, **arguments: object) -> ToolResult:
    match = next(tool for tool in runtime.tools if tool.name == name)
    return match.run(arguments, ToolContext("c1", "1.0"))


def refusal(runtime: LocalRuntime, name: str, /, **arguments: object) -> str:
    """Return the error text of a failed call. The error must not be retryable."""
    with pytest.raises(ToolError) as caught:
        call(runtime, name, **arguments)
    assert caught.value.retryable is False
    return str(caught.value)


# --- reading ---


def test_a_file_is_read_with_line_numbers_from_an_offset(runtime: LocalRuntime, work: Path) -> None:
    (work / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    assert (
        call(runtime, "read_file", path="a.txt").text
        == "     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour"
    )
    part = call(runtime, "read_file", path="a.txt", offset=2, limit=2)
    assert part.text == "     2\ttwo\n     3\tthree\n[... more follows: read on with offset=4]"
    assert "has 4 lines" in refusal(runtime, "read_file", path="a.txt", offset=9)
    (work / "empty").touch()
    assert "empty" in call(runtime, "read_file", path="empty").text


@pytest.mark.slow
def test_a_long_file_and_a_long_line_are_bounded(runtime: LocalRuntime, work: Path) -> None:
    (work / "lines").write_text("".join(f"{n} {'x' * 90}\n" for n in range(100_000)))
    result = call(runtime, "read_file", path="lines")
    assert len(result.text) < 31_000
    assert "read on with offset=" in result.text
    assert "99999 x" in call(runtime, "read_file", path="lines", offset=100_000).text
    (work / "line").write_text("y" * 20_000_000 + "\nlast")
    result = call(runtime, "read_file", path="line")
    assert len(result.text) < 5_000
    assert "     2\tlast" in result.text


def test_images_are_shown_and_other_binaries_refused(runtime: LocalRuntime, work: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(100)
    (work / "misnamed.txt").write_bytes(png)
    assert call(runtime, "read_file", path="misnamed.txt").content[1] == ImageContent(
        png, "image/png"
    )
    (work / "program").write_bytes(b"\x7fELF\0\0\0")
    assert "binary" in refusal(runtime, "read_file", path="program")
    assert "binary" in refusal(runtime, "edit_file", path="program", old="ELF", new="x")
    with pytest.raises(RuntimeFault, match="binary"):
        runtime.read_file("program")


def test_a_missing_file_names_its_neighbours_and_a_directory_lists_its_entries(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "src").mkdir()
    (work / "src" / "settings.py").touch()
    assert "Did you mean settings.py" in refusal(runtime, "read_file", path="src/setting.py")
    assert call(runtime, "read_file", path=".").text == ". is a directory:\nsrc/"
    with pytest.raises(FileNotFoundError):
        runtime.read_file("nothing")


def test_what_is_no_regular_file_is_refused_at_once(runtime: LocalRuntime, work: Path) -> None:
    os.mkfifo(work / "fifo")
    assert "not a regular file" in refusal(runtime, "read_file", path="fifo")
    assert "not a regular file" in refusal(runtime, "write_file", path="fifo", content="x")
    assert "directory" in refusal(runtime, "write_file", path=".", content="x")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_are_told_apart_and_kept_by_an_edit(
    runtime: LocalRuntime, work: Path, encoding: str
) -> None:
    file = work / "a.txt"
    file.write_bytes("première\r\nligne\r\n".encode(encoding))
    assert runtime.read_file("a.txt") == "première\r\nligne\r\n"
    assert "première" in call(runtime, "read_file", path="a.txt").text
    call(runtime, "edit_file", path="a.txt", old="première\nl", new="dernière\nL")
    assert file.read_bytes() == "dernière\r\nLigne\r\n".encode(encoding)


def test_a_character_that_the_files_encoding_cannot_hold_is_refused_and_nothing_written(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "a").write_bytes(b"caf\xe9")
    assert "latin-1" in refusal(runtime, "edit_file", path="a", old="caf", new="→")
    assert (work / "a").read_bytes() == b"caf\xe9"


# --- writing ---


def test_a_written_file_gets_its_parents_and_an_overwritten_one_keeps_its_mode(
    runtime: LocalRuntime, work: Path
) -> None:
    created = call(runtime, "write_file", path="a/b/c.txt", content="x\ny\n")
    assert created.text == "Created a/b/c.txt: 2 lines, 4 bytes."
    file = work / "a/b/c.txt"
    file.chmod(0o754)
    overwritten = call(runtime, "write_file", path=str(file), content="z")
    assert file.read_text() == "z"
    assert file.stat().st_mode & 0o777 == 0o754
    assert overwritten.meta["diff"].splitlines()[3:] == [
        "-x",
        "-y",
        "+z",
        "\\ No newline at end of file",
    ]
    assert os.listdir(work / "a/b") == ["c.txt"]


def test_a_link_is_written_through_to_its_target(runtime: LocalRuntime, work: Path) -> None:
    (work / "target").write_text("old")
    (work / "link").symlink_to("target")
    runtime.write_file("link", "new")
    assert (work / "link").is_symlink()
    assert (work / "target").read_text() == "new"


def test_a_read_only_file_is_not_replaced_by_the_back_door(
    work: Path, runtime: LocalRuntime
) -> None:
    (work / "a").write_text("x")
    (work / "a").chmod(0o444)
    if os.access(work / "a", os.W_OK):
        pytest.skip("root may write anything")
    assert "read-only" in refusal(runtime, "write_file", path="a", content="y")


def test_a_reader_never_sees_half_a_file(runtime: LocalRuntime, work: Path) -> None:
    texts = ["a" * 300_000, "b" * 300_000]
    runtime.write_file("f", texts[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in texts:
                runtime.write_file("f", text)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(100):
            assert (work / "f").read_text() in texts
    finally:
        stop.set()
        thread.join()


# --- editing ---


def test_an_edit_replaces_the_unique_place_and_shows_it(runtime: LocalRuntime, work: Path) -> None:
    (work / "a.py").write_text("".join(f"line {n}\n" for n in range(1, 31)))
    result = call(runtime, "edit_file", path="a.py", old="line 15\n", new="LINE 15\nmore\n")
    assert (work / "a.py").read_text().splitlines()[13:17] == [
        "line 14",
        "LINE 15",
        "more",
        "line 16",
    ]
    assert "    15\tLINE 15\n    16\tmore" in result.text
    assert "line 1\n" not in result.text
    assert (
        result.meta["diff"]
        == "--- a.py\n+++ a.py\n@@ -12,7 +12,8 @@\n line 12\n line 13\n line 14\n-line 15\n+LINE"
        " 15\n+more\n line 16\n line 17\n line 18\n"
    )


def test_several_places_are_named_and_replace_all_changes_them(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "a").write_text("x = 1\ny\nx = 1\n")
    message = refusal(runtime, "edit_file", path="a", old="x = 1", new="x = 2")
    assert "2 times" in message
    assert "lines 1, 3" in message
    assert (
        call(runtime, "edit_file", path="a", old="x = 1", new="x = 2", replace_all=True).meta[
            "replaced"
        ]
        == 2
    )
    assert (work / "a").read_text() == "x = 2\ny\nx = 2\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "after"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\nc\r\nd\n", "b\nc", "B\nC", "a\r\nB\nC\r\nd\n"),
        ("a\nb\r\nc\r\n", "a\nb", "a\nx\nb", "a\nx\nb\r\nc\r\n"),
        ("a\r\nb\r\n", "b", "b\nc", "a\r\nb\r\nc\r\n"),
        ("a\r\nb", "b", "c", "a\r\nc"),
        ("a\r\nb\r\n", "a\r\nb", "c\r\nd", "c\r\nd\r\n"),
        ("a\rb\rc", "b", "x", "a\rx\rc"),
        ("no end", "end", "END", "no END"),
        ("q\r\nq\r\nq\r\n", "q\n", "", ""),
    ],
)
def test_line_ends_are_matched_as_one_and_written_as_the_file_has_them(
    runtime: LocalRuntime, work: Path, text: str, old: str, new: str, after: str
) -> None:
    (work / "a").write_bytes(text.encode())
    call(runtime, "edit_file", path="a", old=old, new=new, replace_all=True)
    # In mixed files a line end inside of the edited region takes the region's own form; the rest
    # must be byte for byte the same.
    content = (work / "a").read_bytes().decode()
    assert content.replace("\r\n", "\n") == after.replace("\r\n", "\n")
    if not ("\r\n" in text and "\n" in text.replace("\r\n", "")):
        assert content == after


def test_an_edit_in_a_mixed_file_leaves_every_other_line_end_alone(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "a").write_bytes(b"1\r\n2\n3\r\n4\n5\r\n")
    call(runtime, "edit_file", path="a", old="4", new="four")
    assert (work / "a").read_bytes() == b"1\r\n2\n3\r\nfour\n5\r\n"
    call(runtime, "edit_file", path="a", old="2\n3", new="two\nthree")
    content = (work / "a").read_bytes()
    assert content.startswith(b"1\r\n")
    assert content.endswith(b"\r\nfour\n5\r\n")


def test_a_difference_in_white_space_only_is_said_and_the_lines_are_shown(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "a.py").write_text("def f():\n\tif x:\n\t\treturn 1\n")
    message = refusal(
        runtime, "edit_file", path="a.py", old="    if x:\n        return 1", new="pass"
    )
    assert "Lines 2-3 differ from it only in white space (tabs against spaces)" in message
    assert "     2\t\tif x:" in message
    (work / "b.py").write_text("def f():\n    return 1  \n")
    assert "only in white space (indentation" in refusal(
        runtime, "edit_file", path="b.py", old="def f():\n  return 1\n", new="pass"
    )


def test_the_nearest_miss_is_shown_with_its_line_numbers(runtime: LocalRuntime, work: Path) -> None:
    lines = [f"value_{n} = compute({n})" for n in range(100)]
    (work / "a.py").write_text(
        "\n".join([*lines, "def total(items):", "    result = sum(items)", "    return result"])
    )
    message = refusal(
        runtime,
        "edit_file",
        path="a.py",
        old="def total(items):\n    result = add(items)\n    return result",
        new="x",
    )
    assert "The nearest is at lines 101-103" in message
    assert "   102\t    result = sum(items)" in message
    assert "nearest is at lines 102" in refusal(
        runtime, "edit_file", path="a.py", old="result = sum(item)", new="x"
    ).replace("line 102", "lines 102")
    assert "Nothing in the file is similar" in refusal(
        runtime, "edit_file", path="a.py", old="§§§ ???", new="x"
    )


@pytest.mark.slow
def test_the_search_for_a_near_miss_is_quick_in_a_file_of_50000_lines(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "a").write_text(
        "".join(f"    some_value = some_function(argument_{n % 7}, {n})\n" for n in range(50_000))
    )
    for old in (
        "    some_value = some_function(argument_1, x)\n" * 40,
        "another_thing = some_function\n",
        "}\n}\n",
    ):
        start = time.process_time()
        refusal(runtime, "edit_file", path="a", old=old, new="x")
        assert time.process_time() - start < 3.0
    start = time.process_time()
    call(runtime, "edit_file", path="a", old="some_function", new="f", replace_all=True)
    assert time.process_time() - start < 3.0


def test_edits_that_change_nothing_are_refused(runtime: LocalRuntime, work: Path) -> None:
    (work / "a").write_text("x")
    assert "the same" in refusal(runtime, "edit_file", path="a", old="x", new="x")
    assert "write_file" in refusal(runtime, "edit_file", path="a", old="", new="x")
    assert "no file" in refusal(runtime, "edit_file", path="b", old="x", new="y")


def test_parallel_edits_of_one_file_lose_none(runtime: LocalRuntime, work: Path) -> None:
    (work / "a").write_text("".join(f"<{n}>\n" for n in range(24)))
    (work / "link").symlink_to("a")

    def edit(n: int) -> None:
        call(runtime, "edit_file", path="a" if n % 2 else "link", old=f"<{n}>", new=f"done {n}")

    threads = [threading.Thread(target=edit, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (work / "a").read_text() == "".join(f"done {n}\n" for n in range(24))


def test_a_diff_is_what_patch_expects() -> None:
    before = "".join(f"{n}\n" for n in range(50)) + "end"
    after = before.replace("10\n", "ten\n").replace("30\n", "").replace("end", "END\n")
    diff = unified_diff(before, after, "f")
    assert "@@ -8,7 +8,7 @@" in diff
    assert "@@ -28,7 +28,6 @@" in diff
    assert "-end\n\\ No newline at end of file\n+END\n" in diff


# --- paths ---


def test_paths_outside_of_the_workdir_are_refused_for_reading_and_writing(
    runtime: LocalRuntime, work: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    (work / "link").symlink_to(secret)
    (work / "folder").symlink_to(tmp_path)
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to(tmp_path / "new")
    for path in (
        str(secret),
        "../secret",
        "link",
        "folder/secret",
        "folder/new/deep",
        "a/../../secret",
        "~/x",
        "/etc/passwd",
        "dangling",
    ):
        message = refusal(runtime, "read_file", path=path)
        assert "outside" in message
        assert str(work) in message
        assert "allow_outside" in message
        assert "outside" in refusal(runtime, "write_file", path=path, content="x")
        assert "outside" in refusal(runtime, "edit_file", path=path, old="s", new="x")
    assert secret.read_text() == "s"
    with pytest.raises(PathRefused):
        runtime.read_file(secret)
    for path in ("loop", "", "a\0b", "x" * 5000):
        refusal(runtime, "read_file", path=path)
        refusal(runtime, "write_file", path=path, content="x")


def test_a_sibling_whose_name_begins_alike_is_outside(runtime: LocalRuntime, work: Path) -> None:
    work.with_name("work2").mkdir()
    assert "outside" in refusal(runtime, "write_file", path="../work2/a", content="x")


def test_paths_inside_work_in_every_spelling(runtime: LocalRuntime, work: Path) -> None:
    for path in ("a", "./a", str(work / "a"), "new/../a", f"{work}/x/../a"):
        runtime.write_file(path, path)
        assert (work / "a").read_text() == path


def test_allow_outside_allows_the_named_folders_or_all(work: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    with LocalRuntime(work, allow_outside=[more]) as runtime:
        runtime.write_file(more / "a", "x")
        assert call(runtime, "read_file", path=str(more / "a")).text == "     1\tx"
        with pytest.raises(PathRefused):
            runtime.write_file(tmp_path / "b", "x")
    with LocalRuntime(work, allow_outside=True) as runtime:
        runtime.write_file(tmp_path / "b", "x")
        assert runtime.read_file("../b") == "x"


def test_a_store_that_this_process_has_open_is_not_read_here(tmp_path: Path) -> None:
    """Closing the file would release SQLite's locks, so that another process could remove its
    log."""
    if not Path("/proc/locks").exists():
        pytest.skip("this system does not list its locks")
    path = tmp_path / "store.db"
    with LocalRuntime(tmp_path) as runtime, SQLiteStore(path) as store:
        store.acquire("a")
        for name in ("store.db", "store.db-shm"):
            with pytest.raises(RuntimeFault, match="database that this process has open"):
                runtime.read_file(name)
        (tmp_path / "log.txt").write_text("a line")
        with open(tmp_path / "log.txt"):
            assert "a line" in str(runtime.read_file("log.txt"))
    assert not (tmp_path / "store.db-wal").exists()
