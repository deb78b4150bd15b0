"""The files of a folder of models, by name. Loads nothing that reads them."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.errors import ConfigurationError

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIXES = (".yaml", ".yml", ".json")


def model_files(folder: Path) -> dict[str, Path]:
    """Return the YAML and JSON files in a folder by their names without suffix, sorted; none if
    there is no folder. Raises `ConfigurationError` if it cannot be read."""
    paths: dict[str, Path] = {}
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in _SUFFIXES and not path.name.startswith(".") and path.is_file():
                paths.setdefault(path.stem, path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(
            f"The folder of models {str(folder)!r} cannot be read: {error.strerror}."
        ) from None
    return paths
