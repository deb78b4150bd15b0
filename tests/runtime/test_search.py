"""Searches by name and by content: without ignored files, and always bounded."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.content import ToolResult
from holdfast.errors import ToolError
from holdfast.runtime import LocalRuntime, globs, search
from holdfast.runtime.search import GrepQuery
from holdfast.tools import Cancellation, ToolContext


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name, text in {
        "a.py": "import os\ndef first():\n    return 1\n",
        "b.txt": "First line\nsecond first\n",
        "src/c.py": "def third(): pass\r\n",
        "src/deep/d.py": "x = first()\n",
        "node_modules/m.py": "first\n",
        ".git_not/e.py": "first\n",
        "build/out.py": "first\n",
        "keep/build.log": "first\n",
        ".gitignore": "build/\n*.log\n!keep/*.log\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture(params=["git", "walk"])
def runtime(work: Path, request: pytest.FixtureRequest) -> Iterator[LocalRuntime]:
    if request.param == "git":
        if shutil.which("git") is None:
            pytest.skip("no git")
        subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    with LocalRuntime(work) as runtime:
        yield runtime


def call(runtime: LocalRuntime, name: str, /, **arguments: object) -> ToolResult:
    return next(tool for tool in runtime.tools if tool.name == name).run(
        arguments, ToolContext("c1", "1.0")
    )


def lines(runtime: LocalRuntime, name: str, /, **arguments: object) -> list[str]:
    return [
        line
        for line in call(runtime, name, **arguments).text.splitlines()
        if not line.startswith("[")
    ]


def test_glob_finds_files_and_leaves_out_what_is_ignored(runtime: LocalRuntime) -> None:
    assert sorted(lines(runtime, "glob", pattern="**/*.py")) == [
        ".git_not/e.py",
        "a.py",
        "src/c.py",
        "src/deep/d.py",
    ]
    assert lines(runtime, "glob", pattern="*.py") == ["a.py"]
    assert sorted(lines(runtime, "glob", pattern="*.{py,txt}")) == ["a.py", "b.txt"]
    assert lines(runtime, "glob", pattern="src/*") == ["src/c.py"]
    assert lines(runtime, "glob", pattern="**/deep/**") == ["src/deep/d.py"]
    assert lines(runtime, "glob", pattern="*.py", path="src") == ["src/c.py"]
    assert lines(runtime, "glob", pattern="**/*.log") == ["keep/build.log"]


def test_glob_answers_what_was_changed_last_first_and_at_most_its_limit(
    runtime: LocalRuntime, work: Path
) -> None:
    os.utime(work / "src/c.py", (2_000_000_000, 2_000_000_000))
    assert lines(runtime, "glob", pattern="**/*.py")[0] == "src/c.py"
    result = call(runtime, "glob", pattern="**/*.py", limit=1)
    assert "3 more files" in result.text
    assert result.meta == {"count": 4, "truncated": True}


def test_glob_says_what_to_do_when_nothing_fits(runtime: LocalRuntime, work: Path) -> None:
    assert "use **/d.py" in call(runtime, "glob", pattern="d.py").text
    for arguments in (
        {"pattern": "../*"},
        {"pattern": "*", "path": "none"},
        {"pattern": "*", "path": "a.py"},
        {"pattern": "*", "path": "/"},
    ):
        with pytest.raises(ToolError):
            call(runtime, "glob", **arguments)
    assert lines(runtime, "glob", pattern=str(work / "src/**/*.py"))
    (work / "a.py").unlink()
    assert "No file" in call(runtime, "glob", pattern="a.py").text


def test_an_ignored_folder_that_is_named_is_searched(runtime: LocalRuntime) -> None:
    assert lines(runtime, "glob", pattern="*", path="build") == ["build/out.py"]
    assert lines(runtime, "grep", pattern="first", path="build") == ["build/out.py:1:first"]


def test_grep_answers_file_line_and_text(runtime: LocalRuntime) -> None:
    assert lines(runtime, "grep", pattern=r"\bfirst\b") == [
        ".git_not/e.py:1:first",
        "a.py:2:def first():",
        "b.txt:2:second first",
        "keep/build.log:1:first",
        "src/deep/d.py:1:x = first()",
    ]
    assert lines(runtime, "grep", pattern="FIRST", ignore_case=True, path="b.txt") == [
        "b.txt:1:First line",
        "b.txt:2:second first",
    ]
    assert lines(runtime, "grep", pattern="pass$") == ["src/c.py:1:def third(): pass"]


def test_grep_in_its_other_modes_and_with_a_glob(runtime: LocalRuntime) -> None:
    assert lines(runtime, "grep", pattern="first", glob="*.py", mode="files") == [
        ".git_not/e.py",
        "a.py",
        "src/deep/d.py",
    ]
    assert lines(runtime, "grep", pattern="first", glob="src/**", mode="files") == ["src/deep/d.py"]
    assert lines(runtime, "grep", pattern="(?i)first", glob="*.{txt,py}", mode="count")[:3] == [
        ".git_not/e.py: 1",
        "a.py: 1",
        "b.txt: 2",
    ]


def test_grep_shows_context_and_merges_what_overlaps(runtime: LocalRuntime, work: Path) -> None:
    (work / "n").write_text("".join(f"{n}\n" for n in range(1, 21)))
    matches = lines(runtime, "grep", pattern="^(5|7|15)$", path="n", context_lines=1)
    assert matches == [
        "n-4-4",
        "n:5:5",
        "n-6-6",
        "n:7:7",
        "n-8-8",
        "--",
        "n-14-14",
        "n:15:15",
        "n-16-16",
    ]


@pytest.mark.slow
def test_grep_is_bounded_in_matches_characters_and_line_length(
    runtime: LocalRuntime, work: Path
) -> None:
    (work / "many").write_text("match\n" * 1000)
    result = call(runtime, "grep", pattern="match", path="many", limit=5)
    assert result.text.count("many:") == 5
    assert "stopped at 5" in result.text
    assert result.meta["truncated"] is True
    assert call(runtime, "grep", pattern="match", path="many", mode="count").text == "many: 1000"
    (work / "wide").write_text(("y" * 300 + "\n") * 1000)
    assert len(call(runtime, "grep", pattern="y", path="wide", limit=1000).text) < 31_000
    (work / "long").write_text("z" * 5_000 + "needle" + "z" * 100_000 + "late")
    result = call(runtime, "grep", pattern="needle", path="long")
    assert "needle" in result.text
    assert len(result.text) < 1_000
    assert "longer than 10,000 characters" in result.text
    assert "No line" in call(runtime, "grep", pattern="late", path="long").text


def test_binary_and_special_files_are_passed_over(runtime: LocalRuntime, work: Path) -> None:
    (work / "binary").write_bytes(b"\0first\n")
    (work / "latin").write_bytes(b"caf\xe9 first\n")
    (work / "wide").write_bytes("first\n".encode("utf-16"))
    os.mkfifo(work / "fifo")
    paths = lines(runtime, "grep", pattern="first", mode="files")
    assert "binary" not in paths
    assert "fifo" not in paths
    assert {"latin", "wide"} <= set(paths)


def test_links_lead_neither_in_circles_nor_outside(
    runtime: LocalRuntime, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.py").write_text("first\n")
    (work / "loop").symlink_to(work)
    (work / "up").symlink_to(tmp_path)
    (work / "secret.py").symlink_to(tmp_path / "secret.py")
    (work / "self.py").symlink_to("self.py")
    (work / "inside.py").symlink_to("a.py")
    paths = lines(runtime, "grep", pattern="first", mode="files")
    assert "secret.py" not in " ".join(paths)
    assert "inside.py" in paths
    assert len(paths) == 6
    assert not [
        name
        for name in lines(runtime, "glob", pattern="**/*.py")
        if name.startswith(("loop/", "up/"))
    ]


def test_a_bad_pattern_is_explained(runtime: LocalRuntime) -> None:
    with pytest.raises(ToolError, match="not a regular expression"):
        call(runtime, "grep", pattern="f(")


@pytest.mark.slow
def test_a_pattern_that_would_take_forever_is_stopped(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_TIMEOUT_SECONDS", 0.5)
    (work / "a.txt").write_text("first\n")
    (work / "evil").write_text("a" * 60 + "!\n")
    with LocalRuntime(work) as runtime:
        start = time.monotonic()
        result = call(runtime, "grep", pattern="(a+)+$|first")
        assert time.monotonic() - start < 20
    assert "stopped after" in result.text
    assert "a.txt:1:first" in result.text


def test_a_search_is_cancelled_at_once_and_leaves_nothing(work: Path) -> None:
    (work / "evil").write_text("a" * 60 + "!\n")
    cancelled = Cancellation()
    threads = threading.active_count()
    with LocalRuntime(work) as runtime:
        timer = threading.Timer(0.2, cancelled.cancel)
        timer.start()
        start = time.monotonic()
        with pytest.raises(ToolError, match="cancelled"):
            runtime.search.grep(GrepQuery("(a+)+$"), cancelled)
        assert time.monotonic() - start < 10
        timer.join()
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("pattern", "fits", "others"),
    [
        ("*.py", ["a.py", ".py"], ["a/b.py", "a.pyc"]),
        ("**/*.py", ["a.py", "a/b.py", "a/b/c.py"], ["a.txt"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b"]),
        ("[a-c]?.t", ["ax.t"], ["dx.t", "a/.t"]),
        ("[!a]", ["b"], ["a", "/"]),
        ("{a,b/{c,d}}.x", ["a.x", "b/c.x", "b/d.x"], ["c.x"]),
        ("a+(b).x", ["a+(b).x"], ["ab.x"]),
        ("./a", ["a"], []),
        ("[", ["["], []),
    ],
)
def test_glob_patterns(pattern: str, fits: list[str], others: list[str]) -> None:
    rule = globs.glob(pattern)
    assert all(rule.match(path) for path in fits)
    assert not any(rule.match(path) for path in others)


def test_a_glob_of_many_stars_is_quick() -> None:
    start = time.process_time()
    globs.glob("*a*a*a*a*a").match("a" * 60 + "b")
    globs.glob("**/**/**/x").match("a/" * 100)
    assert time.process_time() - start < 2


def test_a_pattern_of_many_stars_takes_no_longer_for_what_does_not_fit() -> None:
    """Each star once multiplied the time: forty characters took a second, sixty half a minute."""
    from holdfast.runtime.globs import glob as compiled

    assert compiled("*a*a*a*a*a*a*a*b").match("a" * 4000) is None
    assert compiled("**/a*/**/b*/**/c*/**/d").match("/".join(["a", "b", "c"] * 300)) is None


@pytest.mark.parametrize(
    ("pattern", "fits", "not_"),
    [
        ("*a*b*c", ("abc", "xaxbxc", "aabbcc"), ("acb", "ab/c", "abcd")),
        ("**/a/**/b", ("a/b", "x/a/y/b", "a/a/x/b/b"), ("ab", "b/a", "a/x/bb")),
        ("a?*b/**", ("axb/c", "axxb/c/d"), ("ab/c", "axb")),
        ("**/*.test.*", ("a.test.js", "x/y.test.tsx"), ("test.js", "a.tests.js")),
    ],
)
def test_what_stands_between_stars_is_found_wherever_it_fits(
    pattern: str, fits: tuple[str, ...], not_: tuple[str, ...]
) -> None:
    from holdfast.runtime.globs import glob as compiled

    rule = compiled(pattern)
    assert [path for path in (*fits, *not_) if rule.match(path)] == list(fits)
