"""`Microagent`: instructions in a Markdown file, and a function that loads those of a folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.runtime.paths import with_home
from holdfast.tools.skills_files import front_matter, shown_when, skill_files, text_below

_log = logging.getLogger(__name__)


class Microagent(Data, frozen=True):
    """Instructions for an agent, shown always or on a match.

    Attributes:
        name: The name.
        content: The instructions.
        description: Of a skill (a folder with a `SKILL.md`), the text by which a model decides
            to read it.
        triggers: Words of a user that show the instructions.
        path: The path of the file; "" for a text.
        paths: Globs of files; a call that names a matching file shows the instructions.
        always: True shows the instructions always, which is also the case without `triggers` and
            `paths`.
        user_only: True for one that only words of the user show, and no model can read.
    """

    name: str
    content: str
    description: str = ""
    triggers: tuple[str, ...] = ()
    path: str = ""
    paths: tuple[str, ...] = ()
    always: bool = False
    user_only: bool = False


def load_microagents(folder: str | os.PathLike[str], *, loose: bool = True) -> list[Microagent]:
    """Return the microagents of a repository, ordered by folder and name.

    `SKILL.md` in the folders of `.agents/skills/` and `skills/`, and the Markdown files of
    `microagents/`, `.openhands/microagents/` and `.holdfast/microagents/` are read. With `loose`,
    `folder` may also contain `.md` files directly.

    A file that cannot be read is left out with a warning in the log. The same holds for a link out
    of `folder`, because a cloned repository must not show other files to a model. Raises
    `ConfigurationError` (a `ValueError`) if the folder does not exist.
    """
    root = Path(with_home(folder)).resolve()
    if not root.is_dir():
        raise ConfigurationError(f"load_microagents takes a folder; there is none at {root}.")
    by_name: dict[str, Microagent] = {}
    for path in skill_files(root, loose):
        try:
            if root not in path.resolve().parents:
                raise ValueError(f"it is a link to {path.resolve()}, outside of {root}")
            microagent = read_microagent(path)
        except (OSError, ValueError) as error:
            _log.warning("The microagent %s was left out: %s", path, error)
            continue
        first = by_name.setdefault(microagent.name, microagent)
        if first is not microagent:
            text = "The microagent %s was left out: %s has the same name, %r."
            _log.warning(text, path, first.path, first.name)
    return list(by_name.values())


def read_microagent(path: str | os.PathLike[str]) -> Microagent:
    """Read one Markdown file, with or without YAML front matter. The keys are `name`,
    `description`, `triggers`, `paths` and `always`. Raises `ValueError` or `OSError`."""
    path = Path(path)
    head, content = front_matter(text_below(path.parent, path.name, follow=True))
    # A skill is named by its folder, a note by its file.
    default = path.resolve().parent.name if path.name == "SKILL.md" else path.stem
    for key, what in (("triggers", "words"), ("paths", "globs")):
        if (value := head.get(key)) and not isinstance(value, str | list | tuple):
            raise ValueError(f"{key} takes a list of {what}, not {value!r}")
    name = str(head.get("name") or default)
    conditions = shown_when(head, name)
    return Microagent(
        name=name,
        content=content.strip(),
        description=str(head.get("description") or "").strip(),
        triggers=conditions.triggers,
        path=str(path),
        paths=conditions.paths,
        always=conditions.always,
        user_only=conditions.user_only,
    )
