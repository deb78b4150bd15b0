"""The folder of named models of the command line. Loads nothing that reads its files."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import path_of
from holdfast.llm import LLM
from holdfast.runtime.paths import home_folder


def models_path(options: Namespace, env: Mapping[str, str]) -> Path:
    """Return the folder of `--models`, HOLDFAST_MODELS or the user's configuration. Raises
    `UsageError` for a named folder that does not exist."""
    setting = options.models or env.get("HOLDFAST_MODELS")
    if not setting:
        home = env.get("HOME") or home_folder() or "/"
        return Path(env.get("XDG_CONFIG_HOME") or f"{home}/.config") / "holdfast" / "models"
    folder = path_of(setting)
    if not folder.is_dir():
        which = "--models" if options.models else "HOLDFAST_MODELS"
        raise UsageError(f"{which} takes a folder; {setting!r} is not one")
    return folder.absolute()


def models_in(model: Any) -> Iterator[LLM]:
    """Yield the `LLM`s of a model: itself, or the members of a composite at any depth."""
    if isinstance(model, LLM):
        yield model
    members: Any = getattr(model, "models", None)
    for member in cast("Iterable[Any]", members.values() if isinstance(members, Mapping) else ()):
        yield from models_in(member)
