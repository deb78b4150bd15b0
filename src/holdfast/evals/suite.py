"""`Suite`: cases with their scorers, from Python or from files."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec

from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError
from holdfast.evals.cases import Case
from holdfast.evals.scorers import Scorer, scorers_of
from holdfast.tools.arguments import refuse_async, wrong

__all__ = ["Case", "Suite", "load_suite"]

CASES, PROGRAM = "cases.jsonl", "suite.py"


class Suite:
    """Cases and the scorers that judge the work on them.

    Args:
        cases: The cases; their ids are unique.
        scorers: Judges by name, as `Goal` takes them; a case passes if all of them say so. A case
            with a `score` of its own is scored by that instead.
        name: The name in reports.
        folder: The folder at which the paths of files start.

    Raises `ConfigurationError` for a suite without cases, ids that occur twice, and a case that
    nothing can score.
    """

    def __init__(
        self,
        cases: Iterable[Case],
        scorers: Mapping[str, Scorer] | None = None,
        *,
        name: str = "suite",
        folder: str | os.PathLike[str] = ".",
    ) -> None:
        self.name, self.folder = name, Path(folder).absolute()
        self.cases = tuple(cases)
        self.scorers = dict(scorers or {})
        if not self.cases:
            raise ConfigurationError(f"Suite {name!r} has no cases.")
        for one in self.cases:
            if not isinstance(one, Case):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
                raise wrong(f"Suite {name!r}: cases", "Case objects", one)
        twice = [id for id, count in Counter(one.id for one in self.cases).items() if count > 1]
        if twice:
            ids = ", ".join(map(repr, twice[:5]))
            raise ConfigurationError(
                f"Suite {name!r}: each case needs an id of its own; several have {ids}."
            )
        for key, scorer in self.scorers.items():
            if not key.isidentifier() or not callable(scorer):
                raise wrong(f"Suite {name!r}: scorers", "functions by names", self.scorers)
            refuse_async(f"Suite {name!r}: scorers[{key!r}]", scorer)
        self.scorers_by_case = {one.id: scorers_of(one, self.scorers) for one in self.cases}
        for one in self.cases:
            self.files_of(one)

    def files_of(self, case: Case) -> dict[str, bytes]:
        """Return the content of a case's files by path. Raises `ConfigurationError`."""
        contents: dict[str, bytes] = {}
        for path, source in case.files.items():
            where = f"case {case.id!r}: files[{path!r}]"
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path:
                raise wrong(where, "paths below the agent's folder", path)
            if isinstance(source, str):
                contents[path] = source.encode()
                continue
            if list(source) != ["file"]:
                raise wrong(where, 'a text, or {"file": path}', source)
            try:
                contents[path] = (self.folder / source["file"]).read_bytes()
            except OSError as error:
                raise ConfigurationError(f"{where}: {error.strerror}: {error.filename}") from error
        return contents


def load_suite(path: str | os.PathLike[str]) -> Suite:
    """Return the suite in a file or a folder.

    | path | form |
    |---|---|
    | `*.jsonl` | one `Case` as a JSON object in each line |
    | `*.py` | a module with `suite`, or with `scorers` for the `cases.jsonl` beside it |
    | a folder | its `suite.py`, else its `cases.jsonl` |

    Raises `ConfigurationError`, which names the file and the line.
    """
    place = Path(path).absolute()
    if place.is_dir():
        suite_file = next(
            (place / one for one in (PROGRAM, CASES) if (place / one).is_file()), None
        )
        if suite_file is None:
            raise ConfigurationError(f"{place}: the folder has no {PROGRAM} and no {CASES}.")
        return load_suite(suite_file)
    if not place.is_file():
        raise ConfigurationError(f"{place}: there is no such suite, a file or a folder.")
    name = place.parent.name if place.name in (PROGRAM, CASES) else place.stem
    if place.suffix == ".jsonl":
        return Suite(_cases(place), name=name, folder=place.parent)
    if place.suffix != ".py":
        raise ConfigurationError(f"{place}: a suite is a folder, or a file *.jsonl or *.py.")
    module = _module(place)
    suite: Any = getattr(module, "suite", None)
    if suite is not None:
        if not isinstance(suite, Suite):
            raise wrong(f"{place}: suite", "a Suite", suite)
        return suite
    scorers: Any = getattr(module, "scorers", None)
    if not isinstance(scorers, Mapping):
        raise ConfigurationError(f"{place}: it has neither `suite` nor `scorers`.")
    cases = _cases(place.with_name(CASES))
    return Suite(cases, cast("Mapping[str, Scorer]", scorers), name=name, folder=place.parent)


def _cases(path: Path) -> list[Case]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}.") from error
    cases: list[Case] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cases.append(msgspec.json.decode(line, type=Case))
        except (ValueError, RecursionError) as error:  # a ConfigurationError is a ValueError
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
    return cases


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"holdfast_suite_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # the module may raise anything
        raise ConfigurationError(f"{path}: {describe_error(error)}") from error
    return module
