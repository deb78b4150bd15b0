"""Patches: V4A and unified diffs, as `patch` and `git apply` would apply them, and the errors of
a patch that does not fit."""

from __future__ import annotations

import difflib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import patches
from holdfast.errors import PathRefused, RuntimeFault
from holdfast.runtime import LocalRuntime, patching
from tests.samples import examples


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    (tmp_path / "work").mkdir()
    with LocalRuntime(tmp_path / "work") as runtime:
        yield runtime


def v4a(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def patch_file(runtime: LocalRuntime, name: str, before: str | bytes, *lines: str) -> bytes:
    path = runtime.workdir / name
    path.write_bytes(before.encode() if isinstance(before, str) else before)
    runtime.files.apply_patch(v4a(f"*** Update File: {name}", *lines))
    return path.read_bytes()


def refusal(runtime: LocalRuntime, patch: str) -> str:
    before = listing(runtime.workdir)
    with pytest.raises(RuntimeFault) as caught:
        runtime.files.apply_patch(patch)
    assert listing(runtime.workdir) == before
    return str(caught.value)


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


PROGRAM = (
    "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n"
)


def test_a_patch_adds_changes_deletes_and_moves(runtime: LocalRuntime) -> None:
    work = runtime.workdir
    (work / "old.py").write_text("a\nb\n")
    (work / "gone").write_text("x")
    os.chmod(work / "old.py", 0o750)
    result = runtime.files.apply_patch(
        v4a(
            "*** Add File: deep/er/new.txt",
            "+one",
            "+",
            "*** Delete File: gone",
            "*** Update File: old.py",
            "*** Move to: pkg/new.py",
            "@@",
            " a",
            "-b",
            "+B",
            "",
        )
    )
    assert listing(work) == {
        "deep": None,
        "deep/er": None,
        "deep/er/new.txt": b"one\n\n",
        "pkg": None,
        "pkg/new.py": b"a\nB\n",
    }
    assert (work / "pkg/new.py").stat().st_mode & 0o777 == 0o750
    assert result.text.splitlines()[1:] == ["A deep/er/new.txt", "D gone", "R old.py -> pkg/new.py"]
    assert "+B\n" in result.meta["diff"]


def test_anchors_lead_to_the_place_among_equal_ones(runtime: LocalRuntime) -> None:
    change = ("@@ class B:", "@@ def f(self):", "-        return 1", "+        return 2")
    content = patch_file(runtime, "p.py", PROGRAM, *change)
    assert content.decode() == PROGRAM[: PROGRAM.rindex("1")] + "2\n"


def test_the_anchor_may_be_repeated_as_context(runtime: LocalRuntime) -> None:
    change = ("@@ class B:", " class B:", "-    def f(self):", "+    def g(self):")
    assert patch_file(runtime, "p.py", PROGRAM, *change).count(b"def g") == 1


def test_lines_without_context_go_behind_their_anchor_or_to_the_end(runtime: LocalRuntime) -> None:
    assert patch_file(runtime, "f", "a\nb\n", "@@ a", "+x") == b"a\nx\nb\n"
    assert patch_file(runtime, "f", "a\nb\n", "+x") == b"a\nb\nx\n"


def test_the_end_of_the_file_can_be_meant(runtime: LocalRuntime) -> None:
    change = ("@@", "-a", "+x", "*** End of File")
    assert patch_file(runtime, "f", "a\nb\na\n", *change) == b"a\nb\nx\n"
    text = refusal(runtime, v4a("*** Update File: f", "@@", "-b", "+c", "*** End of File"))
    assert "not at the end of the file" in text


def test_the_first_of_several_places_is_changed_and_the_result_says_so(
    runtime: LocalRuntime,
) -> None:
    (runtime.workdir / "f").write_text("a\nb\na\n")
    result = runtime.files.apply_patch(v4a("*** Update File: f", "@@", "-a", "+x"))
    assert (runtime.workdir / "f").read_text() == "x\nb\na\n"
    assert "at lines 1 and 3" in result.text


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (b"a\r\nb\r\n", ("-b", "+c", "+d"), b"a\r\nc\r\nd\r\n"),
        (b"a\r\nb\n", ("-b", "+c"), b"a\r\nc\n"),
        (b"a\nb", ("-a", "+x"), b"x\nb"),
        (b"a\nb", ("-b", "+c"), b"a\nc\n"),
        (b"a\nb", (" b", "+c"), b"a\nb\nc\n"),
        ("\ufeffé\n".encode("utf-16"), ("-é", "+ö"), "\ufeffö\n".encode("utf-16")),
        (b"\xef\xbb\xbfa\n", ("-a", "+b"), b"\xef\xbb\xbfb\n"),
        (b"caf\xe9\nx\n", ("-x", "+y"), b"caf\xe9\ny\n"),
        (b"a\x0cb\nx\n", ("-x", "+y"), b"a\x0cb\ny\n"),
    ],
)
def test_line_ends_and_encodings_stay(
    runtime: LocalRuntime, before: bytes, change: tuple[str, ...], after: bytes
) -> None:
    if before.startswith((b"\xff\xfe\xff\xfe", b"\xfe\xff\xfe\xff")):
        before, after = before[2:], after[2:]
    assert patch_file(runtime, "f", before, "@@", *change) == after


def test_white_space_at_ends_and_typographic_signs_may_differ_but_not_indentation(
    runtime: LocalRuntime,
) -> None:
    assert patch_file(runtime, "f", "a  \nb\n", "@@", " a", "-b", "+c") == b"a  \nc\n"
    assert patch_file(
        runtime, "f", "x \u2013 \u201cy\u201d\nb\n", "@@", ' x - "y"', "-b", "+c"
    ).endswith(b"c\n")
    (runtime.workdir / "f").write_text("def f():\n\treturn 1\n")
    text = refusal(runtime, v4a("*** Update File: f", "@@", " def f():", "-    return 1", "+  2"))
    assert "     1  def f():" in text
    assert "patch- '    return 1'" in text
    assert "     2+ '\\treturn 1'" in text


def test_a_miss_shows_the_closest_place_and_the_difference(runtime: LocalRuntime) -> None:
    lines = [f"value_{n} = compute(alpha, {n})" for n in range(50)]
    (runtime.workdir / "f.py").write_text("\n".join(lines))
    chunk = [f" {lines[19]}", "-value_20 = compute(beta, 20)", "+x", f" {lines[21]}"]
    text = refusal(runtime, v4a("*** Update File: f.py", "@@", *chunk))
    assert "line 4 of the patch" in text or "line 3 of the patch" in text
    assert "    20  value_19 = compute(alpha, 19)" in text
    assert "patch- 'value_20 = compute(beta, 20)'" in text
    assert "    21+ 'value_20 = compute(alpha, 20)'" in text


def test_a_miss_says_what_is_out_of_order_and_what_was_done_already(runtime: LocalRuntime) -> None:
    (runtime.workdir / "f").write_text("a\nb\nc\n")
    late = refusal(runtime, v4a("*** Update File: f", "@@", "-c", "+C", "@@", "-a", "+A"))
    assert "at line 1, before the end of the chunk above (line 3)" in late
    message = refusal(runtime, v4a("*** Update File: f", "@@", "-x", "+b", " c"))
    assert "Its new lines are at 2-3 already." in message


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "no known format"),
        ("change a to b", "no known format"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-a\n+b", "cut off"),
        (v4a(), "changes no file"),
        (v4a("*** Update File: f"), "no change of it follows"),
        (v4a("*** Update File: f", "@@ x"), "no changed line follows"),
        (v4a("*** Update File: f", "@@", "-a", "b"), "Line 5 of the patch is 'b'"),
        (v4a("*** Frob File: f"), "Line 2 of the patch is '*** Frob File: f'"),
        (v4a("*** Add File: n", "text"), "where + is expected"),
        (v4a("*** Delete File: f", "-a"), "nothing follows a deletion"),
        (v4a("*** Delete File: none"), "no file none"),
        (v4a("*** Delete File: d"), "directory"),
        (v4a("*** Update File: none", "@@", "-a", "+b"), "no file none"),
        (v4a("*** Update File: f", "@@", " a"), "changes nothing"),
        ("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "rename from"),
        ("--- a/f\n+++ b/f\n@@ nothing @@\n-a\n+b\n", "no hunk header"),
        ("diff --git a/f b/f\nGIT binary patch\n", "binary"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+f\n",
            "link",
        ),
    ],
)
def test_a_patch_that_cannot_be_applied_is_refused_with_the_reason(
    runtime: LocalRuntime, patch: str, message: str
) -> None:
    (runtime.workdir / "f").write_text("a\n")
    (runtime.workdir / "d").mkdir()
    assert message in refusal(runtime, patch)


def test_one_chunk_that_does_not_fit_leaves_all_files_as_they_are(runtime: LocalRuntime) -> None:
    (runtime.workdir / "f").write_text("a\n")
    lines = ("*** Add File: new", "+x", "*** Update File: f", "@@", "-b", "+c")
    assert "Nothing was changed" in refusal(runtime, v4a(*lines))


def test_later_parts_of_a_patch_see_what_earlier_ones_made(runtime: LocalRuntime) -> None:
    lines = ("*** Add File: f", "+a", "*** Update File: f", "@@", "-a", "+b")
    runtime.files.apply_patch(v4a(*lines, "*** Update File: f", "*** Move to: g"))
    assert listing(runtime.workdir) == {"g": b"b\n"}


def test_paths_are_confined_and_links_are_not_replaced(
    runtime: LocalRuntime, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("a\n")
    os.symlink(tmp_path / "outside", runtime.workdir / "link")
    (runtime.workdir / "f").write_text("a\n")
    os.symlink("f", runtime.workdir / "inner")
    for path in ("../outside", str(tmp_path / "outside"), "link"):
        with pytest.raises(PathRefused):
            runtime.files.apply_patch(v4a(f"*** Delete File: {path}"))
    assert "inner is a link to f" in refusal(runtime, v4a("*** Delete File: inner"))
    assert (tmp_path / "outside").read_text() == "a\n"


@pytest.mark.parametrize(
    "wrapper", ["apply_patch <<'EOF'\n{}\nEOF", "```diff\n{}\n```", "\n{}\n\n"]
)
def test_a_patch_may_be_wrapped(runtime: LocalRuntime, wrapper: str) -> None:
    runtime.files.apply_patch(wrapper.format(v4a("*** Add File: f", "+a")))
    diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b"
    runtime.files.apply_patch(wrapper.format(diff))
    assert (runtime.workdir / "f").read_text() == "b\n"


# --- unified diffs ---


def test_a_unified_diff_with_wrong_counts_and_lines_is_applied_where_it_fits(
    runtime: LocalRuntime,
) -> None:
    (runtime.workdir / "f").write_text("".join(f"{n}\n" for n in range(20)))
    diff = "--- f\n+++ f\n@@ -1,1 +1,9 @@\n 9\n-10\n+ten\n@@ -1 +1 @@\n-15\n+fifteen\n"
    runtime.files.apply_patch(diff)
    assert (runtime.workdir / "f").read_text().split()[9:16] == [
        *("9", "ten", "11", "12", "13", "14", "fifteen")
    ]


@pytest.mark.parametrize("name", ["plain.txt", 'a "b" \\ c', "süß ü", "tab\there", "a b c"])
def test_a_diff_of_git_renames_adds_and_deletes_files_of_any_name(
    runtime: LocalRuntime, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def git(*words: str) -> bytes:
        config = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.quotePath=true")
        return subprocess.run(
            ["git", *config, *words], cwd=source, capture_output=True, check=True
        ).stdout

    git("init", "-q")
    for path, text in (("move", "1\n2\n3\n4\n5\n"), ("delete", "x\n"), ("change", "a\nb")):
        (source / f"{path} {name}").write_text(text)
    git("add", "-A")
    git("commit", "-qm", "1")
    for path in source.glob("[mdc]*"):
        (runtime.workdir / path.name).write_bytes(path.read_bytes())
    (source / "sub").mkdir()
    (source / f"move {name}").rename(source / "sub" / f"moved {name}")
    (source / "sub" / f"moved {name}").write_text("1\n2\n3\n4\nfive\n")
    (source / f"delete {name}").unlink()
    (source / f"change {name}").write_text("a\nB")
    (source / f"empty {name}").write_text("")
    (source / f"new {name}").write_text("n\r\n")
    git("add", "-A")
    runtime.files.apply_patch(git("diff", "--cached", "-M").decode())
    expected = listing(source)
    assert listing(runtime.workdir) == {
        path: data for path, data in expected.items() if not path.startswith(".git")
    }


_TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=14)


@st.composite
def changed_texts(draw: st.DrawFn) -> tuple[str, str, str]:
    """Draw a text, a change of it, and the text to which the change is applied."""
    old, new = draw(_TEXTS), draw(_TEXTS)
    keep = draw(st.integers(0, 10))
    new = old[:keep] + new[: draw(st.integers(0, 3))] + old[keep + draw(st.integers(0, 3)) :]
    ends = [draw(st.sampled_from(["\n", ""])) for _ in range(2)]
    before, after = (
        "\n".join(one) + end * bool(one) for one, end in zip((old, new), ends, strict=True)
    )
    prefix = draw(_TEXTS.filter(len)) if draw(st.booleans()) else []
    return before, after, "".join(f"{line}\n" for line in prefix) + before


def diff_of(before: str, after: str) -> str:
    def lines(text: str) -> list[str]:
        return [f"{line}\n" for line in text.split("\n")[:-1]] + [text.split("\n")[-1]] * (
            text.split("\n")[-1] != ""
        )

    diff = ""
    for line in difflib.unified_diff(lines(before), lines(after), "a/f", "b/f"):
        diff += line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
    return diff


@pytest.mark.slow
def test_unified_diffs_are_applied_as_git_and_patch_do(tmp_path: Path) -> None:
    """`patch` finds moved text by rules of its own where lines repeat, so it is compared only
    where no text has moved."""
    agreed = {"git": 0, "patch": 0}

    @settings(
        max_examples=examples(500),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(changed_texts())
    def compare(texts: tuple[str, str, str]) -> None:
        before, after, base = texts
        diff = diff_of(before, after)
        if not diff:
            return
        [file] = patches.parse(diff)
        assert patching.apply(before, file.chunks, "f").text == after
        if base != before and "\\ No newline" in diff:
            return  # both tools may join two lines then
        (tmp_path / "p.diff").write_text(diff)
        for name, command in {
            "git": ["git", "apply", "p.diff"],
            "patch": ["patch", "-s", "-F0", "-N", "-r-", "f", "p.diff"],
        }.items():
            (tmp_path / "f").write_text(base)
            ran = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
            if ran.returncode == 0 and (name == "git" or base == before):
                agreed[name] += 1
                there = (tmp_path / "f").read_text()
                assert patching.apply(base, file.chunks, "f").text == there, name

    compare()
    assert min(agreed.values()) > examples(500) // 8


@pytest.mark.slow
@settings(max_examples=examples(500), deadline=None)
@given(st.text(max_size=200), _TEXTS, _TEXTS)
def test_any_text_is_parsed_or_refused(text: str, before: list[str], after: list[str]) -> None:
    for patch in (text, v4a(*before), v4a("*** Update File: f", *after), f"--- a\n+++ a\n{text}"):
        try:
            for file in patches.parse(patch):
                patching.apply("\n".join(before), file.chunks, "f")
        except RuntimeFault:
            pass
