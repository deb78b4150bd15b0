"""`holdfast skills list`: the skills of folders and plugins, and the omitted parts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.agent.plugins import MANIFESTS, load_plugin
from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit
from holdfast.cli.text import clip, json_shown, one_line
from holdfast.tools.skills import discover
from holdfast.tools.skills_files import Skill, with_home

PROJECT_FOLDER = "."


def skills(options: Namespace, env: Mapping[str, str]) -> Exit:
    """List the skills of the folders. Raises `ConfigurationError`."""
    console = Console(env)
    listed = unreadable = 0
    for folder in options.folders or [PROJECT_FOLDER]:
        readable, problems = _of(folder)
        for skill in readable:
            listed += 1
            if options.json:
                console.line(json_shown(skill.to_json().decode()))
            else:
                description = one_line(skill.description)
                line = f"{one_line(skill.name)}  ({', '.join(_activations(skill))})  {description}"
                console.line(clip(line, console.width) if console.is_terminal else line)
        for path, problem in problems.items():
            unreadable += 1
            console.error(one_line(f"left out: {path}: {problem}"))
    if not listed and not unreadable:
        console.notice("There are no skills.", "dim")
    return Exit.FAILED if unreadable else Exit.FINISHED


def _of(folder: str) -> tuple[list[Skill], dict[str, str]]:
    root = Path(with_home(folder))
    if any((root / place).is_file() for place in MANIFESTS):
        plugin = load_plugin(root)
        return list(plugin.skills), plugin.problems
    discovery = discover([root])
    return discovery.list(), discovery.unreadable


def _activations(skill: Skill) -> Iterator[str]:
    """Yield the ways in which a model is shown a skill."""
    if skill.user_only:
        yield "only the user's words"
    if skill.always:
        yield "always"
    yield from (f"words: {one_line(one)}" for one in skill.triggers)
    yield from (f"files: {one_line(one)}" for one in skill.paths)
    if not (skill.always or skill.triggers or skill.paths):
        yield "on demand"
