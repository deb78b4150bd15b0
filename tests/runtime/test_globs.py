"""Patterns from outside: git and bash judge their meaning, and no pattern can block the process."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.errors import RuntimeFault, ToolError
from holdfast.runtime import LocalRuntime, globs, walk
from holdfast.runtime.search import GrepQuery
from holdfast.tools import ToolContext

FILES = [
    "a",
    "b",
    "ab",
    "ba",
    "a.b",
    ".a",
    "aa",
    "-",
    "]",
    "!a",
    "#a",
    "a b",
    "a ",
    "é",
    "a\\b",
    "d/a",
    "d/b",
    "d/.a",
    "d/ab",
    "d/d/a",
    "d/d/ab",
    "d/e/a",
    "d/e/d/b",
    "e/a",
    "e/d/a",
    "e/d/e/b",
    "bb/a",
    "bb/b/a",
    "x/y/z/a",
    "x/y/b",
]
PIECES = [
    "a",
    "b",
    "d",
    "e",
    "ab",
    "*",
    "?",
    "**",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-z]",
    "[[:alpha:]]",
    ".",
    "-",
    "[]-]",
    "x",
    "y",
    "z",
]
ODD = [
    "\\",
    "\\*",
    "\\a",
    "[",
    "[a",
    "[!]a]",
    "[b-a]",
    "[[:nope:]]",
    "#",
    "!",
    " ",
    "{a,b}",
    "]",
    "[\\]]",
    "[a/b]",
    "é",
    "[!-a]",
]


def pattern(source: random.Random, odd: float, braces: bool = False) -> str:
    pieces = [*PIECES, "{a,b}", "{a,d/{a,b}}", "{ab}", "{,a}"] if braces else PIECES
    parts = [
        "".join(
            source.choice(ODD if source.random() < odd else pieces)
            for _ in range(source.choice((1, 1, 1, 2, 2, 3)))
        )
        for _ in range(source.choice((1, 1, 1, 2, 2, 3)))
    ]
    return "/".join(parts)


def rule(source: random.Random) -> str:
    start = source.choice(("", "", "", "", "!", "/", "!/", "**/", "\\!", "\\#"))
    end = source.choice(("", "", "", "", "/", "/**", "/*", " ", "\\ ", "  ", "\r"))
    return start + pattern(source, 0.15) + end


def rules_of(source: random.Random, count: int) -> list[str]:
    """Return rules without `x**/`, for which git does not follow its documentation."""
    rules: list[str] = []
    while len(rules) < count:
        one = rule(source)
        if not re.search(r"[^/*!][*][*]|[*][*][^/*]", one):
            rules.append(one)
    return rules


def plant(folder: Path) -> None:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_git_is_the_judge_of_ignore_rules(tmp_path: Path) -> None:
    source = random.Random(20)
    rules: dict[str, str] = {}
    for number in range(250):
        case = tmp_path / f"case{number}"
        plant(case)
        lines = rules_of(source, source.choice((1, 1, 2, 3, 5)))
        (case / ".gitignore").write_text(
            "\ufeff" * (number % 10 == 0) + "\n".join(lines), newline=""
        )
        rules[case.name] = repr(lines)
        if number % 3 == 0:
            lines = rules_of(source, 2)
            (case / "d" / ".gitignore").write_text("\n".join(lines), newline="")
            rules[case.name] += f" and in d {lines!r}"
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(tmp_path),
            "-c",
            "core.excludesFile=",
            "ls-files",
            "-coz",
            "--exclude-standard",
        ],
        capture_output=True,
        check=True,
    )
    expected = set(os.fsdecode(listed.stdout).split("\0")[:-1])
    actual = set(walk.files_below(tmp_path, lambda: None, lambda: False))
    wrong = sorted(expected ^ actual)
    assert not wrong, "\n".join(
        f"{name} {'missing' if name in expected else 'not ignored'}: {rules[name.split('/')[0]]}"
        for name in wrong[:20]
    )
    assert len(expected) < 250 * len(FILES)


def test_bash_is_the_judge_of_globs(tmp_path: Path) -> None:
    plant(tmp_path)
    source = random.Random(7)
    patterns = [pattern(source, 0.0, braces=True) for _ in range(400)]
    patterns = [
        one for one in patterns if "***" not in one and not {"{,a}", "."} & set(one.split("/"))
    ]  # not the root, and no folders
    script = "shopt -s globstar dotglob nullglob\n" + "".join(
        f"printf '%s\\0' {one} x; printf '\\n'\n" for one in patterns
    )
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    names = [name for name in FILES if "\\" not in name]
    for one, line in zip(patterns, process.stdout.split(b"\n"), strict=False):
        expected = {os.path.normpath(name) for name in os.fsdecode(line).split("\0")} & set(names)
        actual = {name for name in names if globs.glob(one).match(name)}
        if "[:" in one:  # named classes are those of ASCII here
            expected, actual = expected - {"é"}, actual - {"é"}
        assert actual == expected, (one, actual ^ expected)


@pytest.mark.parametrize(
    "line",
    [
        "{" + "," * 1_000_000,
        "{" * 500_000,
        "{a," * 300_000,
        "*a" * 500_000,
        "[" * 1_000_000,
        "**/" * 300_000,
        "\\" * 1_000_000,
        " " * 1_000_000 + "x",
    ],
    ids=lambda line: line[:4],
)
def test_a_hostile_line_of_gitignore_costs_nothing(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gitignore").write_text(line + "\nignored\n")
    for name in ("kept", "ignored", "a" * 200):
        (tmp_path / name).write_text("x")
    start = time.process_time()
    files = set(walk.files_below(tmp_path, lambda: None, lambda: False))
    assert time.process_time() - start < 0.5
    assert "kept" in files


def test_a_gitignore_of_many_rules_or_that_is_no_file_is_bounded(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("".join(f"*{n}*a*b*\n" for n in range(200_000)))
    (tmp_path / "kept").write_text("x")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "sub" / ".gitignore")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / ".gitignore").symlink_to("/dev/zero")
    start = time.process_time()
    assert {"kept"} <= set(walk.files_below(tmp_path, lambda: None, lambda: False))
    assert time.process_time() - start < 4


@pytest.mark.parametrize(
    ("pattern", "stands_for"),
    [
        ("*.{js,ts}", ["*.js", "*.ts"]),
        ("{a,b{c,d}}e", ["ae", "bce", "bde"]),
        ("{a,b}{c,d}", ["ac", "ad", "bc", "bd"]),
        ("{a}", ["{a}"]),
        ("{a,b", ["{a,b"]),
        ("a,b}", ["a,b}"]),
        ("{,a}", ["", "a"]),
        ("\\{a,b}", ["\\{a,b}"]),
        ("{{a,b}", ["{a", "{b"]),
        ("{a,{b}}", ["a", "{b}"]),
    ],
)
def test_braces_are_those_of_bash(pattern: str, stands_for: list[str]) -> None:
    assert globs.braces(pattern) == stands_for


@pytest.mark.parametrize("name", ["glob", "grep", "grep's glob"])
@pytest.mark.parametrize(
    "text",
    [
        "{" + "," * 2_000_000,
        "{a," * 1_000 + "}" * 1_000,
        "{a,b}" * 500,
        "{" + "," * 4_000 + "}",
        "x" * 2_000_000,
    ],
)
def test_a_hostile_pattern_of_a_call_is_refused_at_once(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "a").write_text("x")
    arguments = {
        "glob": {"pattern": text},
        "grep": {"pattern": text + "(" * 20_000},
        "grep's glob": {"pattern": "x", "glob": text},
    }[name]
    with LocalRuntime(tmp_path) as runtime:
        tool = next(tool for tool in runtime.tools if tool.name == name.partition("'")[0])
        start = time.process_time()
        with pytest.raises(ToolError) as error:
            tool.run(arguments, ToolContext("c1", "1.0"))
        assert time.process_time() - start < 0.5
        assert len(str(error.value)) < 1_000


@pytest.mark.slow
def test_a_regular_expression_that_takes_long_to_compile_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.search._TIMEOUT_SECONDS", 0.5)
    (tmp_path / "a").write_text("x")
    with LocalRuntime(tmp_path) as runtime:
        start = time.process_time()
        result = runtime.search.grep(GrepQuery("(?i)" + "[\\x00-\\U0010ffff]" * 500))
        assert time.process_time() - start < 0.5
    assert "stopped after" in result.text


def test_a_pattern_that_is_none_is_refused() -> None:
    for wrong in ("[[:nope:]]", "{a,b}" * 10, "[z-a]"):
        with pytest.raises(RuntimeFault):
            globs.glob(wrong)
