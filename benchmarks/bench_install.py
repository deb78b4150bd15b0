"""Size of the base install: distributions, and MB of site-packages with compiled files, in a fresh
virtual environment.

`pip install <this repository>` (not editable) into a venv in a temporary folder. What the venv
brings itself (pip, setuptools) is not counted. MB are millions of bytes, as the files say, not
blocks of a disk. Skipped where the package index cannot be reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

import harness
from harness import Failed, Goal, Row

VENV_PACKAGES = (
    "pip",
    "setuptools",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "_virtualenv",
)
UNREACHABLE = (
    "No matching distribution",
    "Could not find a version",
    "Max retries",
    "Connection",
    "Temporary failure",
    "timed out",
)


def size(folder: Path) -> int:
    """Return the bytes of all files under a folder."""
    return sum(
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def rows(quick: bool) -> list[Row]:
    with harness.scratch() as folder:
        harness.run([sys.executable, "-m", "venv", folder])
        try:
            pip = [
                f"{folder}/bin/python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--retries",
                "1",
            ]
            harness.run([*pip, str(harness.REPOSITORY)], timeout=180)
        except Failed as error:
            if not any(sign in str(error) for sign in UNREACHABLE):
                raise
            return [Row("base install", "", skipped="the package index cannot be reached")]
        packages = next(Path(folder).glob("lib/python*/site-packages"))
        ours = [entry for entry in packages.iterdir() if not entry.name.startswith(VENV_PACKAGES)]
        distributions = [entry for entry in ours if entry.suffix == ".dist-info"]
        total = sum(size(entry) if entry.is_dir() else entry.stat().st_size for entry in ours)
        largest = sorted((entry for entry in ours if entry.is_dir()), key=size, reverse=True)[:5]
        own = size(packages / "holdfast")
        return [
            Row("distributions", "", [len(distributions)], goal=Goal(36)),
            Row("site-packages", "MB", [total / 1e6], goal=Goal(55)),
            Row("  of this, holdfast itself", "MB", [own / 1e6]),
            *[Row(f"  of this, {entry.name}", "MB", [size(entry) / 1e6]) for entry in largest],
        ]
