"""Skills: instructions in folders with a `SKILL.md`, and microagents in Markdown files.

A prompt lists each skill in one line; a tool reads the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import msgspec

from holdfast.errors import ToolError, ToolNotFound, ToolValidationError
from holdfast.tools.arguments import is_whole, wrong
from holdfast.tools.document import did_you_mean
from holdfast.tools.policy import LOCAL_READ
from holdfast.tools.skills_files import (
    SKILL_FILES,
    Skill,
    lenient_front_matter,
    one_line,
    read_skill,
    skill_files,
    text_below,
    with_home,
)
from holdfast.tools.tool import Tool

_log = logging.getLogger(__name__)
_MAX_LISTED_FILES = 100  # names of a skill's other files shown to the model
_MAX_LISTED_SKILLS = 100  # in the tool's own description
_MAX_LINE_CHARS = 200  # of a skill in the tool's own description
_MAX_DESCRIPTION_CHARS = 1024  # of a tool: OpenAI's API refuses longer ones
_MAX_SENT_CHARS = 256 * 1024  # of a skill's other files that are transferred with it
_EACH_CHARS, _TOTAL_CHARS = 20_000, 60_000  # some 5,000 and 15,000 tokens


class Skills:
    """The skills of an agent by name, in the order of discovery. `unreadable` holds the reasons for
    files and folders that were left out. At most `each` characters of one skill are shown without a
    request. `total` limits all skills in the prompt, and separately all that are added to a
    conversation. Immutable; the files are read again at each request of the model."""

    def __init__(
        self,
        skills: Iterable[Skill],
        unreadable: Mapping[str, str] = {},
        each: int = _EACH_CHARS,
        total: int = _TOTAL_CHARS,
    ) -> None:
        for name, value in (("each", each), ("total", total)):
            if not is_whole(value, 0):
                raise wrong(f"Skills: {name}", "a number of characters from 0", value)
        self._skills = {skill.name: skill for skill in skills}
        self.unreadable = dict(unreadable)
        self.each = each
        self.total = total
        self._reader: Tool | None = None

    def list(self) -> list[Skill]:
        """Return all skills."""
        return [*self._skills.values()]

    def get(self, name: str) -> Skill | None:
        """Return the skill with this name, None if there is none."""
        return self._skills.get(name)

    def always(self) -> Iterator[tuple[Skill, str]]:
        """Yield the skills in the system prompt, each with the part of its text that fits."""
        remaining = self.total
        for skill in self._skills.values():
            if skill.always and remaining > 0:
                text = shorten_skill(skill, min(self.each, remaining))
                remaining -= len(text) + len(skill.name)
                yield skill, text

    def prompt(self) -> str:
        """Return the system prompt's section on the other skills: their names and descriptions, and
        how to read one. "" if there are none. Skills whose description does not fit are listed by
        name."""
        texts = {skill.name: text for skill, text in self.always()}
        listed = [skill for skill in self._readable() if skill.name not in texts]
        if not listed:
            return ""
        lines = [f"- {_describe(skill)}" for skill in listed]
        remaining = self.total - sum(map(len, texts.values()))
        fitting = sum(used <= remaining for used in accumulate(len(line) + 1 for line in lines))
        if rest := [skill.name for skill in listed[fitting:]]:
            count = len(rest) - _MAX_LISTED_SKILLS
            names = ", ".join(rest[:_MAX_LISTED_SKILLS]) + (
                f", and {count} more" if count > 0 else ""
            )
            note = f"- Without a description here, to save room: {names}"
            lines = [*lines[:fitting], note]
        head = (
            "# Skills\n\nEach of these is know-how for one kind of task. Before a task that one of"
            " them fits, read it with the tool read_skill and do as it says; a file that it names"
            " is read with the same tool."
        )
        return "\n".join([head, "", *lines])

    @property
    def reader(self) -> Tool:
        """The reading tool where the system prompt lists the skills; always the same object."""
        if self._reader is None:
            self._reader = self.tool(listed=False)
        return self._reader

    def tool(self, listed: bool = True) -> Tool:
        """Return the tool by which a model reads skills. If `listed`, the tool's description lists
        the skills, at most 100 with 200 characters each. If that is too long for model APIs, the
        list is in the parameter's description. An agent whose system prompt contains `prompt()`
        needs no second list."""
        description, name = _tool_description(self._readable() if listed else ())

        def read_skill(name: str, file: str | None = None, offset: int = 0) -> str:
            return self.read(name, file, offset)

        read_skill.__doc__ = (
            f"Args:\n    name: {name}\n    file: A file of the skill that its instructions name,"
            " relative to its folder. Leave it out for the instructions.\n    offset: The first"
            " character to read, where the beginning is known."
        )
        return Tool.from_function(
            read_skill, description=description, annotations=LOCAL_READ, category="skills"
        )

    def read(self, name: str, file: str | None = None, offset: int = 0) -> str:
        """Return the tool's answer from a character offset on. Raises `ToolNotFound`, or
        `ToolError` for a path outside of the skill's folder. Of a skill for the user alone, the
        part that is shown when the user asks for it cannot be read."""
        skill = self._skills.get(name)
        if skill is None:
            names = [one.name for one in self._readable()]
            raise ToolNotFound(
                f"There is no skill {name!r}.{did_you_mean(name, names)} There are:"
                f" {', '.join(names) or 'none'}."
            )
        if skill.user_only and (offset < self.each if file is None else _is_own(skill, file)):
            raise ToolError(
                f"The skill {name!r} is shown only when the user asks for it:"
                f" {' or '.join(skill.triggers)}.",
                "authentication",
                retryable=False,
            )
        text = _file(skill, file) if file is not None else _instructions(skill)
        return text[max(0, offset) :]

    def _readable(self) -> list[Skill]:
        """Return the skills that a model may read on its own."""
        return [skill for skill in self._skills.values() if not skill.user_only]

    def __repr__(self) -> str:
        return f"Skills({', '.join(self._skills)})"


def _is_own(skill: Skill, file: str) -> bool:
    """Return True if a file of a skill holds its instructions."""
    if not skill.folder or "\0" in file:
        return os.path.normpath(file) in SKILL_FILES
    return os.path.realpath(Path(skill.folder) / file) == os.path.realpath(skill.path)


def _instructions(skill: Skill) -> str:
    if not skill.folder and (skill.text or not skill.path):
        return skill.text + _other_files_note(skill)
    path = Path(skill.path)
    try:
        _, body = lenient_front_matter(text_below(path.parent, path.name), [])
    except FileNotFoundError:
        raise ToolNotFound(
            f"The skill {skill.name!r} is gone: the file {skill.path} no longer exists."
        ) from None
    except (OSError, ValueError) as error:
        raise ToolValidationError(f"The skill {skill.name!r} cannot be read: {error}.") from error
    return body.strip() + _other_files_note(skill)


def shorten_skill(skill: Skill, most: int) -> str:
    """Return the first `most` characters of a skill's text, and how to read the others."""
    text = skill.text
    if len(text) <= most:
        return text
    note = (
        f"[{len(text) - most:,} of {len(text):,} characters are left out here to save room;"
        f' read_skill(name="{skill.name}", offset={most}) shows them.]'
    )
    return f"{text[:most]}\n\n{note}" if most else note


def discover(
    folders: Iterable[str | os.PathLike[str]], *, each: int = _EACH_CHARS, total: int = _TOTAL_CHARS
) -> Skills:
    """Return the skills and microagents of some folders. If two have the same name, the earlier
    folder wins, so list the project's before the user's.

    A folder is a skill (with a `SKILL.md`), a folder of skill folders and of microagents in `.md`
    files, or a repository. The folders `.agents/skills/`, `skills/`, `microagents/`,
    `.openhands/microagents/` and `.holdfast/microagents/` of a repository are read. `~` is the
    user's home.

    A file that cannot be read is left out, and listed in `unreadable` and in a warning in the
    log. Reasons are a missing folder, a file that is too large or not UTF-8, and a link that
    leads out of the folder. `each` and `total` are those of `Skills`. Raises
    `ConfigurationError` (a `ValueError`) for an invalid path.
    """
    if isinstance(folders, str | os.PathLike):
        raise wrong("discover", "a list of folders", folders)
    skills: dict[str, Skill] = {}
    unreadable: dict[str, str] = {}
    for folder in folders:
        root = Path(os.path.realpath(with_home(folder)))
        if not root.is_dir():
            unreadable[str(folder)] = "there is no such folder"
            continue
        here: dict[str, Skill] = {}
        for path in skill_files(root):
            try:
                if root not in path.resolve().parents:
                    raise ValueError(
                        f"it is a link to {path.resolve()}, outside of {root}; to read it, name"
                        " that folder in the config"
                    )
                skill = read_skill(path)
            except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
                unreadable[str(path)] = str(error)
                continue
            same_name = here.setdefault(skill.name, skill)
            if same_name is not skill:
                unreadable[str(path)] = f"{same_name.path} has the same name, {skill.name!r}"
                continue
            other = skills.setdefault(skill.name, skill)
            if other is not skill:
                _log.info(
                    "The skill %s is hidden by %s, which has the same name.", path, other.path
                )
                continue
            for problem in skill.problems:
                _log.warning(
                    "The skill %s is loaded, but violates the specification: %s.", path, problem
                )
    for path, reason in unreadable.items():
        _log.warning("The skill %s was left out: %s", path, reason)
    return Skills(skills.values(), unreadable, each, total)


# --- the tool's description ---


def _tool_description(skills: Iterable[Skill]) -> tuple[str, str]:
    """Return the descriptions of the tool and of its parameter `name`."""
    about, name = (
        "Read a skill: its instructions, or another file of its folder.",
        "The skill's name, as in the list of skills.",
    )
    lines = [
        line if len(line) <= _MAX_LINE_CHARS else f"{line[: _MAX_LINE_CHARS - 3]}..."
        for line in map(_describe, skills)
    ]
    if not lines:
        return about, name
    if len(lines) > _MAX_LISTED_SKILLS:
        lines = [*lines[:_MAX_LISTED_SKILLS], f"... and {len(lines) - _MAX_LISTED_SKILLS} more"]
    about += (
        " Each is know-how for one kind of task: before a task that one of them fits, read it and"
        " do as it says."
    )
    whole = "\n".join([about, "", "The skills:", *[f"- {line}" for line in lines]])
    if len(whole) <= _MAX_DESCRIPTION_CHARS:
        return whole, name
    return (
        f"{about} The parameter `name` lists them.",
        f"The skill's name, one of these. {' | '.join(lines)}",
    )


def _describe(skill: Skill) -> str:
    return f"{skill.name}: {one_line(skill.description) or '(no description)'}"


# --- the files of a skill ---


def _file(skill: Skill, file: str) -> str:
    if skill.files:  # transferred as text
        name = os.path.normpath(file)
        if name not in skill.files:
            raise _no_such_file(skill, file, skill.files)
        return skill.files[name]
    if not skill.folder:
        raise ToolValidationError(f"{skill.name!r} is a single file; read it without `file`.")
    root = Path(skill.folder)
    if not file.strip() or "\0" in file:
        raise ToolValidationError(
            f"{file!r} is not a path. Give one relative to the folder of the skill {skill.name!r}."
        )
    try:
        path = Path(os.path.realpath(root / file))
        relative = path.relative_to(os.path.realpath(root))
    except ValueError:
        raise ToolValidationError(
            f"{file!r} leads out of the folder of the skill {skill.name!r}. Give a path inside"
            " of it."
        ) from None
    if any(part.startswith(".") for part in relative.parts):
        raise ToolValidationError(
            f"{file!r} of the skill {skill.name!r} is hidden (a part of its path begins with a"
            " dot), and hidden files are not read: they hold secrets more often than know-how."
            " Give another file."
        )
    try:
        return text_below(root, *relative.parts)
    except FileNotFoundError:
        raise _no_such_file(skill, file, _files(root)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ToolValidationError(
            f"{file!r} of the skill {skill.name!r} cannot be read: {reason}."
        ) from error


def _no_such_file(skill: Skill, file: str, names: Iterable[str]) -> ToolNotFound:
    file_names = list(names)
    return ToolNotFound(
        f"The skill {skill.name!r} has no file {file!r}.{did_you_mean(file, file_names)} It has:"
        f" {', '.join(file_names) or 'none'}."
    )


def as_text(skill: Skill) -> Skill:
    """Return the skill without its folder, for another machine: its text, and its other text files
    up to 256 KB. Raises `ToolError` or `ToolNotFound` if the skill cannot be read."""
    if not skill.path:
        return skill
    text = skill.text or _instructions(msgspec.structs.replace(skill, folder=""))
    files: dict[str, str] = {}
    remaining = _MAX_SENT_CHARS
    for name in _files(Path(skill.folder)) if skill.folder else ():
        try:
            content = _file(skill, name)
        except (ToolError, ToolNotFound):  # a binary file, or the "..." after too many files
            continue
        if (remaining := remaining - len(content)) < 0:
            break
        files[name] = content
    field_names = ("name", "description", "triggers", "paths", "always", "user_only")
    return Skill(text=text, files=files, **{name: getattr(skill, name) for name in field_names})


def _files(root: Path) -> Iterator[str]:
    """Yield the names of a skill's files except its own, at most `_MAX_LISTED_FILES`."""
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name != "__pycache__"
        )
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if path in SKILL_FILES or name.startswith("."):
                continue
            count += 1
            if count > _MAX_LISTED_FILES:
                yield "..."
                return
            yield path


def _other_files_note(skill: Skill) -> str:
    if skill.files:
        names = ", ".join(skill.files)
        return f"\n\n(The other files of this skill, for read_skill alone: {names}.)"
    if not skill.folder:
        return ""
    names = ", ".join(_files(Path(skill.folder)))
    others = f" Its other files: {names}." if names else ""
    return f"\n\n(The folder of this skill is {skill.folder}.{others})"
