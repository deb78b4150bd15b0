"""`ModelFolder`: a folder of small files, each a model or an agent under the name of its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.config import read_agent
from holdfast.agent.config_parts import AgentLoader
from holdfast.agent.load import HasTools
from holdfast.agent.model_files import NAME_PATTERN, model_files
from holdfast.errors import ConfigurationError
from holdfast.llm import Model
from holdfast.tools.config import known_builtins
from holdfast.tools.config.variables import missing_variables, used_variables
from holdfast.tools.document import Map, SourceLocation, did_you_mean, load

_STAND_IN = "missing"  # the value of a variable that is not given, for listings


class FolderEntry(msgspec.Struct, frozen=True):
    """One file of a `ModelFolder`.

    Attributes:
        name: The file's name without its suffix.
        path: The file.
        kind: An `agent` if the file is a mapping with the key `model`, else a `model`.
        model: The model, also that of an agent; None if the file is wrong.
        variables: The variables that the file refers to.
        missing: Those of them that are not given and have no default.
        problem: The reason why the file cannot be used, or "".
    """

    name: str
    path: Path
    kind: Literal["model", "agent"]
    model: Model | None = None
    variables: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problem: str = ""

    def __repr__(self) -> str:
        return f"FolderEntry({self.name!r}, {self.kind!r})"


class ModelFolder:
    """Models and agents by name, from the YAML or JSON files in a folder.

    A file holds a model in the form of `model` of `load_agent`, or a whole agent, which has the key
    `model`. Files are read when they are asked for; a wrong one affects no other. A folder that
    does not exist is empty.

    Args:
        folder: The folder. Its subfolders and other files are ignored.
        variables: Values for `${NAME}`; the environment is never read.
    """

    def __init__(
        self, folder: str | os.PathLike[str], variables: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = Path(folder)
        self._variables: Mapping[str, Any] = {} if variables is None else variables

    def names(self) -> list[str]:
        """Return the names in the folder, sorted. Raises `ConfigurationError` if it cannot be
        read."""
        return sorted(model_files(self.folder))

    def entries(self) -> list[FolderEntry]:
        """Return all files, sorted by name, with their problems. Raises `ConfigurationError` if the
        folder cannot be read."""
        return [self._entry(name, path) for name, path in sorted(model_files(self.folder).items())]

    def entry(self, name: str) -> FolderEntry:
        """Return one file. Raises `ConfigurationError`, which says the known names."""
        return self._entry(name, self._path(name))

    def model(self, name: str) -> Model:
        """Return the model with that name. Raises `ConfigurationError` for an unknown name, an
        agent, a wrong file or a missing variable."""
        path = self._path(name)
        document = _read(path)
        if _is_agent(document):
            raise ConfigurationError(f"{str(path)!r} is an agent, not a model.")
        return self._load(document, path, self._variables).llm

    def agent(
        self,
        name: str,
        *,
        builtins: Mapping[str, Any] | None = None,
        runtime: HasTools | None = None,
    ) -> Agent:
        """Return the agent with that name, as `load_agent` does. Raises `ConfigurationError`."""
        path = self._path(name)
        document = _read(path)
        if not _is_agent(document):
            raise ConfigurationError(f"{str(path)!r} is a model, not an agent.")
        tools = {} if runtime is None else {tool.name: tool for tool in runtime.tools}
        return self._load(document, path, self._variables, {**tools, **(builtins or {})})

    def _path(self, name: str) -> Path:
        files = model_files(self.folder)
        if name not in files:
            names = ", ".join(sorted(files)) or "none"
            raise ConfigurationError(
                f"The folder {str(self.folder)!r} has no model {name!r}."
                f"{did_you_mean(name, files)} It has: {names}."
            )
        return files[name]

    def _entry(self, name: str, path: Path) -> FolderEntry:
        kind: Literal["model", "agent"] = "model"
        used: tuple[str, ...] = ()
        try:
            if not NAME_PATTERN.fullmatch(name):
                raise ConfigurationError(
                    f"{str(path)!r}: a name has 1 to 100 letters, digits and any of ._-"
                )
            document = _read(path)
            kind = "agent" if _is_agent(document) else "model"
            used = tuple(used_variables(document))
            missing = tuple(missing_variables(document, self._variables))
            if kind == "agent":
                # Tools and prompts are not needed here, and may need a runtime.
                model_key = {key.lower(): key for key in document}["model"]
                document = Map(
                    document.place, [(model_key, document[model_key], document.places[model_key])]
                )
            stand_ins = {**self._variables, **dict.fromkeys(missing, _STAND_IN)}
            model = self._load(document, path, stand_ins).llm
        except ConfigurationError as error:
            return FolderEntry(name, path, kind, variables=used, problem=str(error))
        return FolderEntry(name, path, kind, model, used, missing)

    def _load(
        self, document: Any, path: Path, variables: Mapping[str, Any], builtins: Any = None
    ) -> Agent:
        if not _is_agent(document):
            place = getattr(document, "place", SourceLocation(str(path)))
            document = Map(place, [("model", document, place)])
        folder = path.resolve().parent
        objects = known_builtins(builtins)
        return read_agent(document, AgentLoader(folder, folder, objects, variables, Agent))

    def __repr__(self) -> str:
        return f"ModelFolder({str(self.folder)!r})"  # the variables are secrets


def _read(path: Path) -> Any:
    return load(path, "the folder of models")[0]


def _is_agent(document: Any) -> bool:
    """Return True if a file holds an agent. Section names of agents may be in capitals."""
    return isinstance(document, Map) and any(key.lower() == "model" for key in document)
