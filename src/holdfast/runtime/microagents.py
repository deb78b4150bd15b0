"""`Microagent`: a piece of know-how in a Markdown file, and reading those that a folder has."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, cast

from holdfast.content import Data
from holdfast.errors import ConfigurationError
from holdfast.runtime.paths import with_home
from holdfast.tools.skills_files import LARGEST, front_matter, skill_files

_log = logging.getLogger(__name__)


class Microagent(Data, frozen=True):
    """Instructions for an agent: always of use if there are no `triggers`, else when one of these words comes up.

    A skill (a folder with a `SKILL.md`) has a `description`, by which a model decides to read it. `path` is its file, "" for text.
    """

    name: str
    content: str
    description: str = ""
    triggers: tuple[str, ...] = ()
    path: str = ""


def load_microagents(folder: str | os.PathLike[str], *, loose: bool = True) -> list[Microagent]:
    """The microagents of a repository, or if `loose`, of a folder directly full of `.md` files; ordered by place and name.

    Read are `SKILL.md` in the folders of `.agents/skills/` and `skills/`, and the Markdown files of `microagents/`,
    `.openhands/microagents/` and `.holdfast/microagents/`. A file that cannot be read is left out, with a warning in the log, as is
    one that a link takes from outside of `folder`: a cloned repository must not put other files before a model.
    Raises `ConfigurationError` (a `ValueError`) if there is no such folder.
    """
    root = Path(with_home(folder)).resolve()
    if not root.is_dir():
        raise ConfigurationError(f"load_microagents takes a folder; there is none at {root}.")
    found: dict[str, Microagent] = {}
    for path in skill_files(root, loose):
        try:
            if root not in path.resolve().parents:
                raise ValueError(f"it is a link to {path.resolve()}, outside of {root}")
            microagent = read_microagent(path)
        except (OSError, ValueError) as error:
            _log.warning("The microagent %s was left out: %s", path, error)
            continue
        if microagent.name in found:
            _log.warning("The microagent %s was left out: %s has the same name, %r.", path, found[microagent.name].path, microagent.name)
            continue
        found[microagent.name] = microagent
    return list(found.values())


def read_microagent(path: str | os.PathLike[str]) -> Microagent:
    """One Markdown file, with or without YAML front matter (`name`, `description`, `triggers`). Raises `ValueError` or `OSError`."""
    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it is larger than {LARGEST // 1024} KB")
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    head, content = front_matter(text)
    # A skill is named by its folder, a note by its file.
    default = path.resolve().parent.name if path.name == "SKILL.md" else path.stem
    triggers: Any = head.get("triggers") or ()
    if isinstance(triggers, str):
        triggers = (triggers,)
    if not isinstance(triggers, (list, tuple)):
        raise ValueError(f"triggers takes a list of words, not {triggers!r}")
    return Microagent(
        name=str(head.get("name") or default),
        content=content.strip(),
        description=str(head.get("description") or "").strip(),
        triggers=tuple(str(word) for word in cast("list[Any]", triggers)),
        path=str(path),
    )
