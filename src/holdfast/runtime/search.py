"""`Search`: search for files by name (`glob`) and by content (`grep`), bounded in time and
output size."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.content import ToolResult, blocks
from holdfast.errors import RuntimeFault, ToolCancelled
from holdfast.runtime import globs, grep_child, textfile, walk
from holdfast.runtime.paths import Paths
from holdfast.tools.context import Cancellation
from holdfast.tools.launch import Launcher

_TIMEOUT_SECONDS = 20.0  # the time of one search
_MAX_FILES = 200_000  # the files of one search
_MAX_EXPRESSION_CHARS = 10_000  # of a regular expression

Mode = Literal["content", "files", "count"]


class GrepQuery(msgspec.Struct, frozen=True):
    """A search for a regular expression (Python's) in the lines of the file, or of the text files
    below the directory, `path`. `context` lines are shown around a match, at most `limit`
    matching lines or files."""

    pattern: str
    path: str = "."
    glob: str | None = None
    ignore_case: bool = False
    context: int = 0
    mode: Mode = "content"
    limit: int = 100


class Search:
    """A search below a runtime's paths. Thread-safe. Methods raise `RuntimeFault`, whose message
    says what to do instead."""

    def __init__(
        self, paths: Paths, env: Mapping[str, str], limit: int, launcher: Launcher
    ) -> None:
        self._paths = paths
        self._env = {**env, "GIT_OPTIONAL_LOCKS": "0"}
        self._git = shutil.which("git", path=env.get("PATH"))
        self._limit = limit
        self._launcher = launcher

    def _files(self, folder: Path, cancelled: Cancellation | None) -> list[str]:
        until = time.monotonic() + _TIMEOUT_SECONDS

        def stop() -> bool:
            return bool(cancelled) or time.monotonic() > until

        def from_git() -> list[str] | None:
            if self._git is None:
                return None
            visible = self._paths.visible(folder)
            return walk.git_files(visible, self._git, self._env, self._launcher)

        files = list(islice(walk.files_below(folder, from_git, stop), _MAX_FILES))
        if cancelled:
            raise ToolCancelled("The search was cancelled.")
        if time.monotonic() > until:
            raise RuntimeFault(
                f"{self._paths.label(folder)} could not be searched completely in"
                f" {_TIMEOUT_SECONDS:.0f} s. Use a narrower path."
            )
        files.sort()
        return files

    def glob(
        self, pattern: str, path: str = ".", limit: int = 100, cancelled: Cancellation | None = None
    ) -> ToolResult:
        """Return the files below `path` that match `pattern`, last changed first."""
        if len(pattern) > 2 * globs.MAX_PATTERN:  # the pattern may contain the path
            raise globs.too_long(pattern)
        if pattern.startswith(("/", "~")):
            # Models often pass one absolute pattern: its fixed part is the path.
            parts = pattern.split("/")
            fixed = next(
                (n for n, part in enumerate(parts) if re.search(r"[*?\[{]", part)), len(parts) - 1
            )
            path, pattern = "/".join(parts[:fixed]) or "/", "/".join(parts[fixed:])
        if ".." in pattern.split("/"):
            raise RuntimeFault(
                f"The pattern {pattern!r} goes up with '..'. Give the folder to start from in path"
                " instead."
            )
        folder = self._folder(path)
        fits = globs.glob(pattern)
        files = self._files(folder, cancelled)
        matches: list[tuple[int, str]] = []
        for name in filter(fits.match, files):
            with suppress(OSError):  # git still lists it, but it was deleted
                matches.append((-os.lstat(folder / name).st_mtime_ns, name))
        matches.sort()
        meta = {
            "count": len(matches),
            "truncated": len(matches) > limit or len(files) >= _MAX_FILES,
        }
        if not matches:
            hint = ""
            if "/" not in pattern:
                deeper = sum(map(bool, map(walk.matcher(pattern), files)))
                if deeper:
                    hint = f" {deeper} files fit it in folders below: use **/{pattern}."
            text = f"No file below {self._paths.label(folder)} fits {pattern!r}.{hint}"
            return ToolResult(blocks(text), meta=meta)
        lines = [self._paths.label(folder / name) for _, name in matches[:limit]]
        if len(matches) > limit:
            lines.append(f"[{len(matches) - limit} more files fit; use a narrower pattern or path]")
        if len(files) >= _MAX_FILES:
            most = f"the first {_MAX_FILES:,} files"
            lines.append(f"[only {most} were looked at; use a narrower path]")
        return ToolResult(blocks("\n".join(lines)), meta=meta)

    def _folder(self, path: str) -> Path:
        folder = self._paths.resolve(path)
        if not os.path.lexists(folder):
            raise textfile.NoSuchFile(f"There is no directory {self._paths.label(folder)}.")
        if not os.path.isdir(folder):
            raise RuntimeFault(
                f"{self._paths.label(folder)} is not a directory. Give the directory to search in."
            )
        return folder

    def grep(self, query: GrepQuery, cancelled: Cancellation | None = None) -> ToolResult:
        """Return the lines of text files that match a regular expression, by file name."""
        pattern = query.pattern
        if len(pattern) > _MAX_EXPRESSION_CHARS:
            raise RuntimeFault(
                f"The regular expression has {len(pattern):,} characters; at most"
                f" {_MAX_EXPRESSION_CHARS:,} are taken. Use a shorter one."
            )
        fits = walk.matcher(query.glob) if query.glob else None
        real_path = self._paths.resolve(query.path)
        if os.path.isdir(real_path) or not os.path.lexists(real_path):
            folder = self._folder(query.path)
            names = [name for name in self._files(folder, cancelled) if fits is None or fits(name)]
        else:
            folder, names = real_path.parent, [real_path.name]
        links = {name: self._target(folder, name) for name in names if _is_link(folder, name)}
        names = [name for name in names if links.get(name, name)]
        ask = {"root": str(folder), "links": links, **msgspec.structs.asdict(query)}
        answers, problem = self._run_child(ask, names, cancelled)
        if cancelled:
            raise ToolCancelled("The search was cancelled.")
        if answers and "error" in answers[0]:
            raise RuntimeFault(
                f"{pattern!r} is not a regular expression: {answers[0]['error']}. To search for"
                " text as it is, put a backslash before ( ) [ ] { } . * + ? | ^ $"
            )
        return self._result(answers, problem, folder, query)

    def _target(self, folder: Path, name: str) -> str:
        """Return the real path of a link's file; "" if it may not be read."""
        with suppress(RuntimeFault):
            return str(self._paths.resolve(self._paths.visible(folder / name)))
        return ""

    def _run_child(
        self, ask: dict[str, Any], names: list[str], cancelled: Cancellation | None
    ) -> tuple[list[dict[str, Any]], str]:
        """Run the search in a process of its own, which can be killed, and return its answers."""
        if not sys.executable:
            raise RuntimeFault(
                "A search needs a Python interpreter to run in, and this program has none. Use a"
                " command, such as `grep -rn`."
            )
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", grep_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        request = json.dumps(ask).encode() + b"\n" + b"".join(os.fsencode(n) + b"\0" for n in names)
        forget = cancelled.add_callback(process.kill) if cancelled is not None else None
        problem = ""
        with process:
            try:
                out, err = process.communicate(request, _TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                problem = (
                    f"the search was stopped after {_TIMEOUT_SECONDS:.0f} s; use a simpler pattern"
                    " or a narrower path"
                )
            except BaseException:
                process.kill()
                raise
            finally:
                if forget is not None:
                    forget()
        if process.returncode and not problem and not cancelled:
            reason = err.decode(errors="replace").strip().rpartition("\n")[2]
            problem = f"the search failed: {reason}"
        return [json.loads(line) for line in out.split(b"\n")[:-1]], problem

    def _result(
        self, answers: list[dict[str, Any]], problem: str, folder: Path, query: GrepQuery
    ) -> ToolResult:
        mode = query.mode
        lines: list[str] = []
        size = matches = long = cut = files = 0
        full = False
        for answer in answers:
            if "searched" in answer:
                continue
            long += answer["long"]
            cut += answer["cut"]
            if not answer["count"]:
                continue
            name = self._paths.label(folder / answer["path"])
            files += 1
            matches += answer["count"]
            for line in _result_lines(name, answer, mode):
                size += len(line) + 1
                full = full or size > self._limit
                if not full:
                    lines.append(line)
        end = answers[-1] if answers and "searched" in answers[-1] else {}
        line_count = sum(1 for answer in answers for line in answer.get("lines", ()) if line[1])
        more = full or not end.get("all", False) or (mode == "content" and line_count < matches)
        meta: dict[str, Any] = {"matches": matches, "files": files, "truncated": more}
        if not lines and not problem:
            lines.append(f"No line below {self._paths.label(folder)} fits {query.pattern!r}.")
        if problem:
            lines.append(f"[{problem}]")
        elif full:
            lines.append(
                f"[cut at {self._limit:,} characters; use a narrower pattern, path or glob, or"
                " mode='files']"
            )
        elif more:
            what = "matching lines" if mode == "content" else "files"
            lines.append(
                f"[stopped at {query.limit} {what}; there may be more: use a narrower pattern,"
                " path or glob, or a higher limit]"
            )
        longest, largest = grep_child.MAX_LINE_CHARS, grep_child.MAX_FILE_BYTES // 1024**2
        at_start = "were searched at their start only"
        if long:
            lines.append(f"[{long} lines longer than {longest:,} characters {at_start}]")
        if cut:
            lines.append(f"[{cut} files larger than {largest} MB {at_start}]")
        failed = bool(problem) and matches == 0
        return ToolResult(blocks("\n".join(lines)), meta=meta, is_error=failed)


def _is_link(folder: Path, name: str) -> bool:
    return os.path.islink(folder / name)


def _result_lines(name: str, answer: dict[str, Any], mode: Mode) -> list[str]:
    """Return the lines for one file with a match."""
    if mode == "files":
        return [name]
    if mode == "count":
        return [f"{name}: {answer['count']}"]
    with_context = any(not line[1] for line in answer["lines"])
    lines: list[str] = []
    for number, hit, follows, text in answer["lines"]:
        if not follows and lines and with_context:
            lines.append("--")
        lines.append(f"{name}:{number}:{text}" if hit else f"{name}-{number}-{text}")
    return lines
