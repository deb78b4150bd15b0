"""Activation of skills and instructions before a model call.

The user's words and the files that calls name are matched before each model call. A match is
added once as long as the model is shown it. Tool results are never matched, because they must
not steer the agent.
"""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.agent import instructions as files
from holdfast.agent.additions import Addition, Knowledge, Situation
from holdfast.agent.instructions import Instructions
from holdfast.content import TextContent, ToolCall
from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime import walk
from holdfast.runtime.microagents import Microagent, load_microagents, read_microagent
from holdfast.tools.arguments import wrong
from holdfast.tools.json_values import as_list
from holdfast.tools.skills import Skills, discover, shorten_skill
from holdfast.tools.skills_files import Skill

Match = Callable[[str], object]

_log = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS = 200_000  # characters of a message that are searched
_MAX_UNMATCHED = 4096
_HEADING_CHARS = 150  # characters of the text around a skill's text
_MAX_NAMED_SKILLS = 50  # matching skills named when there is no room for them
_MAX_WORDS = 200  # words of one step's calls that are checked as paths
_MAX_COMMAND_CHARS = 20_000  # characters of a command that are searched
_PATH_ARGUMENTS = frozenset(
    ("path", "paths", "file", "files", "file_path", "file_paths", "filename", "filenames")
)
# Tools with an argument whose words may be files, and the name of that argument.
_COMMAND_ARGUMENTS = {"terminal": "command"}
_WORD = re.compile(r"[^\s'\"`|&;<>()$={}]+")
# Paths that `normpath` leaves unchanged.
_PLAIN = re.compile(r"\w[\w-]{0,200}(?:[./]\w[\w-]{0,200}){0,50}\Z", re.ASCII).match
_SKILLS = ("skill", "command")  # kinds of messages about skills
_PLACEHOLDER = re.compile(r"\$(?:ARGUMENTS\b|([1-9])(?![0-9]))")
_MAGIC = re.compile(r"[*?\[\]{}\\]")
_TOKEN = re.compile(r"[\w\u0300-\u036f]+")
# Scripts without spaces between words: a keyword in one of these may occur anywhere.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)


def read_knowledge(microagents: Any, skills: Any, instructions: Any) -> tuple[list[str], Knowledge]:
    """Return the texts and the knowledge of `Agent(microagents=, skills=, instructions=)`. Raises
    `ConfigurationError`."""
    notes, more = microagents_of(microagents)
    all_skills = skills_of(skills, more)
    nested = files.instructions_of(instructions)
    texts = {one.name: text for one, text in all_skills.always()}
    # A skill that the prompt does not show as a whole can be read.
    unread = any(texts.get(one.name) != one.text for one in all_skills.list())
    activation = Activation(all_skills, nested)
    return notes, Knowledge(
        (),
        all_skills if all_skills.list() else None,
        nested if nested.texts else None,
        (all_skills.reader,) if unread else (),
        () if activation.idle else (activation,),
    )


def skills_of(value: Any, microagents: Iterable[Skill]) -> Skills:
    """Return the skills of `Agent(skills=)` together with those of microagents. Raises
    `ConfigurationError`."""
    if isinstance(value, Skills):
        skills = value
    else:
        if isinstance(value, str | os.PathLike | Mapping) or not isinstance(value, Iterable | None):
            form = "what discover(folders) found, or a list of folders and Skill objects"
            raise wrong("Agent: skills", form, cast("object", value))
        loaded: list[Skill] = []
        for item in cast("Iterable[Any]", value or ()):
            if isinstance(item, str | os.PathLike):
                loaded += discover([cast("str | os.PathLike[str]", item)]).list()
            elif isinstance(item, Skill):
                loaded.append(item)
            else:
                raise wrong("Agent: skills", "folders and Skill objects", item)
        skills = Skills(_unique(loaded))
    more = list(microagents)
    if not more:
        return skills
    return Skills(_unique([*more, *skills.list()]), skills.unreadable, skills.each, skills.total)


def _unique(skills: Iterable[Skill]) -> list[Skill]:
    """Return the first skill of each name."""
    by_name: dict[str, Skill] = {}
    for skill in skills:
        if skill.name not in by_name:
            by_name[skill.name] = skill
        elif by_name[skill.name] != skill:
            text = "The skill %s is left out, because an earlier one has the same name."
            _log.warning(text, skill.path or skill.name)
    return list(by_name.values())


def microagents_of(microagents: Any) -> tuple[list[str], list[Skill]]:
    """Return the texts of `Agent(microagents=)`, and the other microagents as skills. A microagent
    without triggers and paths becomes a skill that is always shown. Raises `ConfigurationError`."""
    if isinstance(microagents, str | Path):
        raise wrong(
            "Agent: microagents", "a list of texts, paths or Microagent objects", microagents
        )
    notes: list[str] = []
    loaded: list[Microagent] = []
    for item in microagents or ():
        if isinstance(item, str):
            if _is_path(item):
                raise ConfigurationError(
                    f"Agent: microagents has the str {item!r}, which is also an existing path."
                    f" Which is meant? Path({item!r}) reads it; Microagent('name', {item!r}) is the"
                    " text."
                )
            notes.append(item)
        elif isinstance(item, Path):
            if not item.exists():
                raise ConfigurationError(
                    f"Agent: microagents has the path {str(item)!r}, which does not exist."
                )
            loaded += load_microagents(item) if item.is_dir() else [read_microagent(item)]
        elif isinstance(item, Microagent):
            loaded.append(item)
        else:
            raise wrong("Agent: microagents", "texts, paths or Microagent objects", item)
    skills = [
        Skill(
            one.name,
            one.description,
            one.path,
            triggers=one.triggers,
            paths=one.paths,
            always=one.always or not (one.triggers or one.paths),
            text=one.content,
            user_only=one.user_only,
        )
        for one in loaded
    ]
    return notes, _unique(skills)


def _is_path(text: str) -> bool:
    """Return True if a one-line text is the path of an existing file or folder."""
    if not text.strip() or "\n" in text:
        return False
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long for a name, a NUL, an unknown home
        return False


class Globs:
    """An index of the globs of many skills. Most paths match no glob, so globs are grouped by the
    part that a path must have to match any."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        self._by_name: dict[str, list[str]] = {}  # `Makefile`, `*.py`
        self._by_folder: dict[str, list[tuple[Match, str]]] = {}  # `docs/**`; "" for any folder
        for skill in skills:
            for pattern in skill.paths:
                try:
                    match = walk.matcher(pattern)
                except RuntimeFault as error:
                    text = "The skill %s has an invalid path, which is ignored: %s"
                    _log.warning(text, skill.path or skill.name, error)
                    continue
                first = pattern.lstrip("/").partition("/")[0]
                fixed = pattern[1:] if pattern.startswith("*.") else pattern
                if "/" not in pattern and not _MAGIC.search(fixed):
                    self._by_name.setdefault(pattern, []).append(skill.name)
                else:
                    folder = "" if _MAGIC.search(first) else first
                    self._by_folder.setdefault(folder, []).append((match, skill.name))

    def __bool__(self) -> bool:
        return bool(self._by_name or self._by_folder)

    def fitting(self, path: str) -> list[str]:
        """Return the names of the skills whose globs match a path."""
        names: list[str] = []
        if self._by_name:
            name = path[path.rfind("/") + 1 :]
            dot = name.find(".")
            while dot >= 0:
                names += self._by_name.get(f"*{name[dot:]}", ())
                dot = name.find(".", dot + 1)
            names += self._by_name.get(name, ())
        for folder in (path.partition("/")[0], "") if self._by_folder else ():
            names += [name for match, name in self._by_folder.get(folder, ()) if match(path)]
        return names


class Activation:
    """The contributor that adds skills and instructions. Frozen and shared by conversations: the
    journals record which ones were shown."""

    def __init__(self, skills: Skills, instructions: Instructions) -> None:
        self._skills = skills
        self._instructions = instructions
        self._words: dict[str, list[str]] = {}  # skills by the words of one ASCII token
        # The other triggers: keyword, a token that a text must contain ("" for any text), skill.
        self._phrases: list[tuple[str, str, str]] = []
        self._instruction_folders = instructions.below()
        self._unmatched: set[str] = set()  # a cache of words that match nothing: steps repeat them
        on_demand = [skill for skill in skills.list() if not skill.always]
        self._commands = {one.name for one in on_demand if _PLACEHOLDER.search(one.text)}
        self._globs = Globs(on_demand)
        for skill in on_demand:
            for trigger in skill.triggers:
                word = _fold_case(trigger)
                match = _TOKEN.search(word) if word.isascii() else None
                token = "" if match is None else match[0]
                if token and token == word:
                    self._words.setdefault(word, []).append(skill.name)
                elif word:
                    self._phrases.append((word, token, skill.name))
        self.idle = not (self._words or self._phrases or self._globs or self._instruction_folders)

    def __call__(self, situation: Situation) -> list[Addition]:
        """Return the skills and instructions that match the news and are not shown yet."""
        fits: dict[str, str] = {}  # the reason of each match, by `MessageAdded.about`
        arguments: dict[str, str] = {}  # of commands, by `MessageAdded.about`
        calls: list[ToolCall] = []
        for event in situation.news:
            if event.seq <= situation.seen:
                continue
            if type(event) is ev.MessageAdded:
                if event.sender == "user" and (self._words or self._phrases):
                    for name, why in self._match_words(event.text):
                        about = f"skill:{name}"
                        if why[0] == "/" and name in self._commands:
                            about = f"command:{name} {event.seq}"
                            arguments[about] = _arguments(event.text, why)
                        fits.setdefault(about, f"the user's message has {why!r}")
            elif type(event) is ev.AssistantReplied:
                calls = [*event.calls]
            elif type(event) is ev.DecisionMade and not event.question_id:
                for n, call in enumerate(calls):
                    if call.id == event.call_id and event.arguments is not None:
                        calls[n] = ToolCall(call.id, call.name, event.arguments)
        if calls and (self._globs or self._instruction_folders):
            self._match_files(calls, situation.runtime, fits)
        return list(self._additions(fits, situation.abouts, arguments)) if fits else []

    # --- a user's words ---

    def _match_words(self, text: str) -> Iterator[tuple[str, str]]:
        folded = _fold_case(text[:_MAX_MESSAGE_CHARS])
        tokens = dict.fromkeys(_TOKEN.findall(folded))
        for word in tokens:
            for name in self._words.get(word, ()):
                yield name, word
        for phrase, token, name in self._phrases:
            if (not token or token in tokens) and _has_phrase(folded, phrase):
                yield name, phrase

    # --- files that calls name ---

    def _match_files(
        self, calls: Iterable[ToolCall], runtime: object | None, fits: dict[str, str]
    ) -> None:
        root = folder_of(runtime)
        fitting, idle = self._globs.fitting, self._unmatched
        for number, (word, is_file) in enumerate(_file_words(calls).items()):
            if number >= _MAX_WORDS:
                return
            if word in idle:
                continue
            path = _relative(word, root)
            if not path or not (
                fitting(path) or (self._instruction_folders and self._instructions_above(path))
            ):
                # A match of any other path depends on the working directory.
                if word and word[0] != "/" and len(word) < 200:
                    if len(idle) >= _MAX_UNMATCHED:
                        idle.clear()
                    idle.add(word)
                continue
            if not is_file and (not root or not os.path.lexists(os.path.join(root, path))):
                continue
            if root:  # resolve links, which may lead elsewhere
                path = _relative(os.path.realpath(os.path.join(root, path)), root)
            for name in fitting(path) if path else ():
                fits.setdefault(f"skill:{name}", f"a call names the file {path!r}")
            for inner in self._instructions_above(path):
                fits.setdefault(f"instructions:{inner}", path)

    def _instructions_above(self, path: str) -> list[str]:
        """Return the instruction files of the folders above a file, outermost first."""
        folders = self._instruction_folders
        if not folders:
            return []
        ends = [at for at, char in enumerate(path) if char == "/"]
        above = [path[:end] for end in (*ends, len(path))]  # the path may be a folder itself
        return [folders[folder] for folder in above if folder in folders]

    # --- messages about skills ---

    def _size(self, skill: Skill) -> int:
        """Return the approximate number of characters of a shown skill, with its heading."""
        return min(len(skill.text), self._skills.each) + len(skill.name) + _HEADING_CHARS

    def _additions(
        self, fits: Mapping[str, str], abouts: Mapping[str, int], arguments: Mapping[str, str]
    ) -> Iterator[Addition]:
        room = self._skills.total
        space = files.MAX_TOTAL_CHARS
        for about in abouts:
            kind, _, name = about.partition(":")
            name = name.partition(" ")[0] if kind == "command" else name
            if kind in _SKILLS and (skill := self._skills.get(name)) is not None:
                room -= self._size(skill)
            elif kind == "instructions":
                space -= min(len(self._instructions.texts.get(name, "")), files.MAX_FILE_CHARS)
        without: list[str] = []  # skills without room
        for about, why in fits.items():
            if about in abouts:
                continue
            kind, _, name = about.partition(":")
            name = name.partition(" ")[0] if kind == "command" else name
            if kind == "instructions":
                text = self._instructions.text_for_model(name, max(0, space))
                space -= max(len(text), 1)
            else:
                skill = self._skills.get(name)
                assert skill is not None
                # A model cannot read a skill for the user alone, so that one is not left out.
                if room <= 0 and not skill.user_only:
                    without.append(name)
                    continue
                most = self._skills.each if skill.user_only else min(self._skills.each, room)
                if about in arguments:
                    skill = _with_arguments(skill, arguments[about])
                text = _skill_text(skill, why, most)
                room -= self._size(skill)
            yield Addition(about, (TextContent(text),))
        if without:
            names = ", ".join(without[:_MAX_NAMED_SKILLS])
            if len(without) > _MAX_NAMED_SKILLS:
                names += f" and {len(without) - _MAX_NAMED_SKILLS} more"
            text = "(These skills match too, but are left out to save space; read_skill shows them:"
            yield Addition("skill:", (TextContent(f"{text} {names}.)"),))


def _skill_text(skill: Skill, why: str, most: int) -> str:
    more = ""
    if skill.folder or skill.files:
        more = f' Its other files are read with read_skill(name="{skill.name}", file=...).'
    head = f"# Skill {skill.name}\n\n(It is shown because {why[:300]}.{more})"
    return f"{head}\n\n{shorten_skill(skill, most)}"


def _arguments(text: str, command: str) -> str:
    """Return the rest of the line after a command in a message; "" without it."""
    at = text.lower().find(command)
    return "" if at < 0 else text[at + len(command) :].partition("\n")[0].strip()


def _with_arguments(skill: Skill, arguments: str) -> Skill:
    """Return a command with its arguments in the places of `$ARGUMENTS` and `$1` to `$9`."""
    words = dict(enumerate(arguments.split(), 1))

    def value(match: re.Match[str]) -> str:
        return arguments if match[1] is None else words.get(int(match[1]), "")

    return msgspec.structs.replace(skill, text=_PLACEHOLDER.sub(value, skill.text))


def _fold_case(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _has_phrase(text: str, phrase: str) -> bool:
    """Return True if a text has a phrase that is not part of longer words. A phrase in a script
    without spaces may occur anywhere."""
    at = text.find(phrase)
    if at >= 0 and _UNSPACED.search(phrase) is not None:
        return True
    while at >= 0:
        end = at + len(phrase)
        if not (at and _continues_word(phrase[0], text[at - 1])) and not (
            end < len(text) and _continues_word(phrase[-1], text[end])
        ):
            return True
        at = text.find(phrase, at + 1)
    return False


def _continues_word(edge: str, beside: str) -> bool:
    """Return True if a character continues the word at whose edge it stands. Vowel signs and
    accents are marks, not letters, and continue a word."""
    if unicodedata.category(beside)[0] == "M":
        return True
    return (beside.isalnum() or beside == "_") and (
        edge.isalnum() or edge == "_" or unicodedata.category(edge)[0] == "M"
    )


def folder_of(runtime: object | None) -> str:
    """Return a runtime's working directory on this machine, or ""."""
    workdir: Any = getattr(runtime, "workdir", None)
    return str(workdir) if isinstance(workdir, str | Path) else ""


def _file_words(calls: Iterable[ToolCall]) -> dict[str, bool]:
    """Return the words of calls that may name files; the value is True if a word certainly does."""
    words: dict[str, bool] = {}
    for call in calls:
        for key, value in call.arguments.items():
            if key in _PATH_ARGUMENTS:
                words |= {word: True for word in as_list(value) if isinstance(word, str)}
        command: Any = call.arguments.get(_COMMAND_ARGUMENTS.get(call.name, ""))
        if isinstance(command, str):
            for word in _WORD.findall(command[:_MAX_COMMAND_CHARS]):
                if word[0] != "-":
                    words.setdefault(word, False)
    return words


def _relative(path: str, root: str) -> str:
    """Return a path relative to the working directory; "" for a path outside of it and for no
    path."""
    if _PLAIN(path):
        return path
    if not path or len(path) > 4096 or "\0" in path:
        return ""
    if path[0] != "/":
        path = os.path.normpath(path)
        return "" if path in (".", "..") or path.startswith("../") else path
    if not root:
        return ""
    path = os.path.normpath(path)
    if not path.startswith(f"{root}/"):
        path = os.path.realpath(path)  # the working directory by another name
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else ""
