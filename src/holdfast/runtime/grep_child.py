"""The program of a text search, which runs in a separate process.

A regular expression cannot be interrupted in Python: a pattern such as `(a+)+$` may take
practically forever, and holds the interpreter's lock meanwhile. A process can be killed. The search
starts this file with a bare Python, so the file imports only the standard library. The program
reads one JSON line and NUL-separated paths, and writes one JSON line per file with a match.
"""

import json
import os
import re
import stat
import sys
from contextlib import suppress
from typing import Any

MAX_FILE_BYTES = 20 * 1024 * 1024  # the part of a larger file that is searched
MAX_LINE_CHARS = 10_000  # the part of a longer line that is searched
SHOWN_CHARS = 400  # the part of a longer line that is returned


_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: str, start: "int | None" = None, make: bool = False) -> int:
    """Return a descriptor of a folder, for the `dir_fd` of other calls. No part of the path may be
    a link: a command could replace a folder by one after its path was checked. Raises `OSError`.

    Args:
        path: An absolute path, or one relative to `start`.
        start: The descriptor of a folder.
        make: True makes missing folders.
    """
    parts = [part for part in path.split("/") if part]
    fd = os.open("/", _FOLDER) if start is None else os.dup(start)
    try:
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=fd)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # made meanwhile
                    os.mkdir(part, dir_fd=fd)
                    if os.geteuid() == 0:  # it belongs to the owner of the folder around it
                        owner = os.fstat(fd)
                        os.chown(part, owner.st_uid, owner.st_gid, dir_fd=fd, follow_symlinks=False)
                below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
    except BaseException:
        os.close(fd)
        raise
    return fd


def excerpt(line: str, at: int) -> str:
    """Return a line for the answer: the part around the match if the line is long."""
    if len(line) <= SHOWN_CHARS:
        return line
    first = max(0, min(at - SHOWN_CHARS // 4, len(line) - SHOWN_CHARS))
    return ("…" if first else "") + line[first : first + SHOWN_CHARS] + "…"


def read(path: str, root: int) -> tuple[str, bool] | None:
    """Return a text file's text, and True if it was cut; None for a file that is not text. The
    path is relative to the folder `root`, or absolute, and no part of it may be a link."""
    try:
        parent, name = os.path.split(path)
        folder = open_folder(parent, None if path.startswith("/") else root)
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=folder)
        finally:
            os.close(folder)
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return None
            start = file.read(8192)
            if start.startswith((b"\xff\xfe", b"\xfe\xff")):
                encoding = "utf-16"
            elif b"\0" in start:
                return None
            else:
                encoding = "utf-8-sig"
            data = start
            while len(data) < MAX_FILE_BYTES and (more := file.read(MAX_FILE_BYTES - len(data))):
                data += more
    except OSError:
        return None
    return data.decode(encoding, errors="replace"), status.st_size > MAX_FILE_BYTES


def search(
    pattern: "re.Pattern[str]", text: "tuple[str, bool] | None", mode: str, context: int, room: int
) -> dict[str, Any] | None:
    """Return the number of matching lines of a file's text, which `read` returned; None if there is
    nothing to report. With mode `content`, at most `room` of the lines are included, with
    context."""
    if text is None:
        return None
    lines = text[0].split("\n")
    if lines and not lines[-1]:
        lines.pop()
    count = long = 0
    hits: list[tuple[int, int]] = []
    find = pattern.search
    for number, line in enumerate(lines):
        if len(line) > MAX_LINE_CHARS:
            long += 1
            line = line[:MAX_LINE_CHARS]
        match = find(line.removesuffix("\r"))
        if match is not None:
            count += 1
            if mode == "files":
                break
            if len(hits) < room:
                hits.append((number, match.start()))
    if not count and not long and not text[1]:
        return None
    result: dict[str, Any] = {"count": count, "long": long, "cut": text[1], "lines": []}
    if mode == "content":
        at = dict(hits)
        last = -1
        for number, _ in hits:
            for n in range(max(last + 1, number - context), min(len(lines), number + context + 1)):
                # line number, True for a match, True if it follows the line before, text
                row_text = excerpt(lines[n].removesuffix("\r"), at.get(n, 0))
                result["lines"].append([n + 1, n in at, n == last + 1, row_text])
                last = n
    return result


def main() -> None:
    """Run the search that stdin describes, until `limit` lines (or files) are found."""
    ask = json.loads(sys.stdin.buffer.readline())
    names = sys.stdin.buffer.read().split(b"\0")[:-1]
    try:
        # Compile in this process, which can be killed: compiling may take minutes too.
        pattern = re.compile(ask["pattern"], re.IGNORECASE if ask["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return
    room, searched = int(ask["limit"]), 0
    try:
        root = open_folder(ask["root"])
    except OSError as error:
        sys.stderr.write(f"the folder cannot be opened: {error.strerror}")
        sys.exit(1)
    for name in names:
        path = os.fsdecode(name)
        text = read(ask["links"].get(path, path), root)
        result = search(pattern, text, ask["mode"], ask["context"], room)
        searched += 1
        if result is not None:
            if result["count"]:
                room -= min(room, result["count"]) if ask["mode"] == "content" else 1
            sys.stdout.write(json.dumps({"path": path, **result}) + "\n")
            sys.stdout.flush()
            if room <= 0:
                break
    sys.stdout.write(json.dumps({"searched": searched, "all": searched == len(names)}) + "\n")


if __name__ == "__main__":
    main()
