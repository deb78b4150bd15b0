"""The files of skills and microagents: finding them in a folder, parsing their front matter, and
reading them safely.

The rules are those of the Agent Skills specification (https://agentskills.io) and its validator,
skills-ref. A file that violates the rules is read if possible.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.tools.document import Map, Seq, SourceLocation, read_yaml

# The folders in a repository that hold skills and microagents, in reading order.
SKILL_PLACES = (".agents/skills", "skills")
NOTE_PLACES = ("microagents", ".openhands/microagents", ".holdfast/microagents")
SKILL_FILES = ("SKILL.md", "skill.md")

MAX_FILE_BYTES = 1024 * 1024  # of a file that is read into a model's context
_KEYS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_BLOCK = re.compile(r"^([a-z][A-Za-z-]*):[ \t]*[|>][-+]?[ \t]*\n((?:[ \t][^\n]*\n)+)", re.MULTILINE)
_MAX_CHARS = {"name": 64, "description": 1024, "compatibility": 500}


class Skill(Data, frozen=True):
    """The metadata of a skill. `path` is its file. `folder` is the folder that `read_skill` may
    read, "" for a microagent, which is a single file. `problems` lists violations of the
    specification.

    The skill is shown when the user says a word in `triggers`, or when a call names a file that
    matches a glob in `paths`. With `always` it is in the system prompt. `text` is the text that
    is shown then. A skill without a `path` consists of its `text` and its other `files`, by
    name. With `user_only` only the user's words show it: no list names it, and a model cannot
    read it on its own.
    """

    name: str
    description: str = ""
    path: str = ""
    folder: str = ""
    triggers: tuple[str, ...] = ()
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    problems: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    always: bool = False
    text: str = ""
    files: dict[str, str] = {}
    user_only: bool = False


def skill_files(root: Path, loose: bool = True) -> Iterator[Path]:
    """Yield the files of skills and microagents in a folder, ordered by place and name. With
    `loose`, files directly in the folder count too, unless the folder is a repository."""
    if loose and (own := _skill_file(root)) is not None:
        yield own
        return
    for place in SKILL_PLACES:
        yield from _skills_in(root / place)
    for place in NOTE_PLACES:
        yield from sorted((root / place).rglob("*.md"))
    if loose and not any(
        (root / place).is_dir() for place in (*SKILL_PLACES, *NOTE_PLACES, ".git")
    ):
        yield from sorted(path for path in root.glob("*.md") if path.stem.lower() != "readme")
        yield from _skills_in(root)


def _skills_in(folder: Path) -> Iterator[Path]:
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return
    for path in inner:
        if (file := _skill_file(path)) is not None:
            yield file


def _skill_file(folder: Path) -> Path | None:
    return next((folder / name for name in SKILL_FILES if (folder / name).is_file()), None)


# --- one file ---


def read_skill(path: Path) -> Skill:
    """Return the metadata of a skill or microagent. Raises `ValueError` or `OSError`."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1024} KB")
    text = text_below(path.parent, path.name, follow=True)
    is_skill = path.name in SKILL_FILES
    problems: list[str] = []
    head, body = lenient_front_matter(text, problems)
    folder = str(path.resolve().parent) if is_skill else ""
    own = path.parent.name if is_skill else path.stem
    if is_skill:
        problems += validate(head, own)
    name = _text_of(head.get("name")) or own
    lines = [line.strip("# ").strip() for line in body.splitlines() if line.strip("# -")]
    description = _text_of(head.get("description")) or next(iter(lines), "")
    metadata = head.get("metadata")
    name = unicodedata.normalize("NFKC", one_line(name))
    conditions = shown_when(head, name)
    return Skill(
        name,
        description[: _MAX_CHARS["description"]],
        str(path),
        folder,
        conditions.triggers,
        _text_of(head.get("license")),
        _text_of(head.get("compatibility")),
        _names(head.get("allowed-tools")),
        {key: _text_of(value) for key, value in metadata.items()}
        if isinstance(metadata, Map)
        else {},
        tuple(problems),
        conditions.paths,
        conditions.always,
        # Other skills are read on request.
        body.strip() if conditions.triggers or conditions.paths or conditions.always else "",
        user_only=conditions.user_only,
    )


class ShowConditions(NamedTuple):
    """The conditions under which a skill is shown without a request."""

    triggers: tuple[str, ...]
    paths: tuple[str, ...]
    always: bool
    user_only: bool


def shown_when(head: Mapping[str, Any], name: str) -> ShowConditions:
    """Return the conditions in front matter: `triggers`, `paths` and `always`. `metadata` may hold
    them too, which is where the specification permits them in a `SKILL.md`. OpenHands' `type: repo`
    means always. With Claude Code's `disable-model-invocation`, the user's words alone count, and
    `/name` is one."""
    more = head.get("metadata")
    inner: Mapping[str, Any] = more if isinstance(more, Map) else {}

    def words(key: str) -> tuple[str, ...]:
        members: list[Any] = []
        for value, apart in ((head.get(key), False), (inner.get(key), True)):
            if isinstance(value, Seq):
                members += value
            else:
                members += _text_of(value).split(",") if apart else [value]
        lines = [one_line(_text_of(member)) for member in members]
        return tuple(dict.fromkeys(filter(None, lines)))

    def flag(key: str) -> bool:
        values = (head.get(key), inner.get(key))
        return any(_text_of(value).lower() in ("true", "yes") for value in values)

    triggers = words("triggers")
    if flag("disable-model-invocation"):
        return ShowConditions(tuple(dict.fromkeys((*triggers, f"/{name}"))), (), False, True)
    is_repo = _text_of(head.get("type")).lower() == "repo"
    return ShowConditions(triggers, words("paths"), flag("always") or is_repo, False)


def validate(head: Mapping[str, Any], folder: str) -> list[str]:
    """Return the violations of the specification in front matter, as skills-ref does."""
    problems: list[str] = []
    if unknown := sorted(set(head) - _KEYS):
        problems.append(
            f"it has the unknown keys {', '.join(unknown)}; known are {', '.join(sorted(_KEYS))}"
        )
    for key, most in _MAX_CHARS.items():
        value = head.get(key)
        if value is None and key == "compatibility":
            continue
        if not isinstance(value, str) or (not value.strip() and key != "compatibility"):
            problems.append(
                f"{key} is missing" if value is None else f"{key} takes a text that is not empty"
            )
        elif len(value.strip() if key == "name" else value) > most:
            problems.append(f"{key} has more than {most} characters")
    name = head.get("name")
    if isinstance(name, str) and name.strip():
        name = unicodedata.normalize("NFKC", name.strip())
        plain = all(c.isalnum() or c == "-" for c in name) and name == name.lower()
        if not plain or name.startswith("-") or name.endswith("-") or "--" in name:
            problems.append(
                f"the name {name!r} takes small letters and digits, with single hyphens between"
                " them"
            )
        if name != unicodedata.normalize("NFKC", folder):
            problems.append(f"the name {name!r} is not that of its folder, {folder!r}")
    return problems


def front_matter(text: str) -> tuple[Map, str]:
    """Return the YAML between the first two `---` lines, with all scalars as strings, and the
    text after it. Raises `ValueError`."""
    head, body = _split(text)
    if head is None:
        return Map(SourceLocation("front matter")), text
    try:
        values = read_yaml(head, SourceLocation("its front matter"), texts=True)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if values is None or values == "":
        values = Map(SourceLocation("front matter"))
    if not isinstance(values, Map):
        raise ValueError("its front matter is not a mapping of names to values")
    return values, body


def _split(text: str) -> tuple[str | None, str]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.startswith("---"):
        return None, text
    match = re.match(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)", text, re.DOTALL | re.MULTILINE)
    if match is not None:
        return "\n" + match[1], match[2]
    parts = text.split("---", 2)  # as skills-ref does: dashes anywhere in a line
    if len(parts) < 3:
        if text.partition("\n")[0].strip() != "---":
            return None, text  # an ordinary text that begins with dashes
        raise ValueError("its front matter, which begins with '---', has no end: a line '---'")
    return parts[1], parts[2]


def lenient_front_matter(text: str, problems: list[str]) -> tuple[Map, str]:
    """Return the front matter, read line by line if YAML cannot parse it."""
    try:
        return front_matter(text)
    except ValueError as error:
        head, body = _split(text)
        values = Map(SourceLocation("front matter"))
        for line in (head or "").splitlines():
            # Descriptions of agents often have dialogues.
            match = re.fullmatch(r"(?!user:|assistant:)([a-z][A-Za-z-]*):[ \t]+(\S.*)", line)
            if match is not None and match[2][0] not in "[{|>&*!%":
                values.put(match[1], match[2].strip().strip("\"'"), values.place.at(match[1]))
        for key, lines in _BLOCK.findall(head or ""):
            values.put(key, one_line(lines), values.place.at(key))
        if "description" not in values:
            raise
        problems.append(f"{error} It was read line by line; put values with a colon into quotes")
        return values, body


def _names(value: Any) -> tuple[str, ...]:
    """Return the names in a text with spaces or commas between them, or in a list."""
    if isinstance(value, Seq):
        return tuple(filter(None, map(_text_of, value)))
    return tuple(_text_of(value).replace(",", " ").split())


def _text_of(value: Any) -> str:
    return "" if value is None or isinstance(value, Map | Seq) else str(value).strip()


def one_line(text: str) -> str:
    return " ".join(text.split())


def text_below(root: Path, *parts: str, follow: bool = False) -> str:
    """Return a text file below a folder. Each part of the path is opened relative to the one
    before. Unless `follow`, no link is followed, because a path that was resolved earlier may be
    replaced in the meantime."""
    if not parts:
        raise ValueError("it is a folder")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    at = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        fd = os.open(parts[-1], flags, dir_fd=at)
    finally:
        os.close(at)
    status = os.fstat(fd)
    # Checked before open(), which raises for a folder and leaves the descriptor open.
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ValueError(
            "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
        )
    with open(fd, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES // 1024} KB")
    if b"\0" in data[:8192]:
        raise ValueError(f"it is a binary file of {len(data):,} bytes")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def with_home(path: str | os.PathLike[str]) -> str:
    """Return the path with `~/` replaced by the home in the user database."""
    text = os.fspath(path)
    if text != "~" and not text.startswith("~/"):
        return text
    try:
        return pwd.getpwuid(os.getuid()).pw_dir + text[1:]
    except KeyError:  # in some containers the user id has no entry
        return text
