"""Make the files of `src/holdfast/server/page/vendor`: libraries of the npm registry that the agent
server's page loads, with their licences.

Run `python -m tests.vendor` after a change of `PACKAGES`. It needs npm and its registry.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "src" / "holdfast" / "server" / "page" / "vendor"
LICENCES = "LICENSES.txt"

LANGUAGES = [
    *("bash", "c", "cpp", "csharp", "css", "dockerfile", "go", "ini", "java", "javascript"),
    *("json", "kotlin", "lua", "makefile", "markdown", "php", "python", "ruby", "rust", "sql"),
    *("swift", "typescript", "xml", "yaml"),
]

# A map of the sources is not served.
_SOURCE_MAP = re.compile(rb"\n//# sourceMappingURL=[^\n]*\n?$")


class Package(NamedTuple):
    """A pinned package of the registry. `files` has paths in the package by names in `FOLDER`; a
    package without files is bundled in one of another package."""

    name: str
    version: str
    licence: str
    integrity: str
    files: Mapping[str, str] = MappingProxyType({})
    licence_file: str = "LICENSE"


PACKAGES = (
    Package(
        "markdown-it",
        "15.0.3",
        "MIT",
        "sha512-+Az7Ojz3iRGu8KYMvJ6xVhvrxP3eE+vEtJX75Ow88XBpcQNV/0lGX5ZynIIBftREo4DC2jsveAMDaeltmm8QvQ==",
        {"markdown-it.js": "dist/browser/markdown-it.esm.min.mjs"},
    ),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        "sha512-KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw==",
        {
            "highlight.js": "es/core.min.js",
            **{f"highlight-{name}.js": f"es/languages/{name}.min.js" for name in LANGUAGES},
        },
    ),
    # in markdown-it.js
    Package(
        "entities",
        "8.1.0",
        "BSD-2-Clause",
        "sha512-kxL7msIffSuh9aaFAMD7rxAIuTRMAHMeBtgHW2yUdWw732ZNh4MehkF2gdjvtdmikkaIP9bFDDJOPlsvm7avrA==",
    ),
    Package(
        "linkify-it",
        "6.1.0",
        "MIT",
        "sha512-wJ/TwpSDTLepCrQoYWYIExIKg5Zchex2Nn5yk2mFnB+6PtdkHtyLx742md9csRjjOnGkKIS/RrbY7l8D6gT9Vw==",
    ),
    Package(
        "mdurl",
        "2.1.0",
        "MIT",
        "sha512-1+HBaOx0zi/dQWht8rNv9MYf9qqpqL/kxI0hXImU6Y547zM6Sni8BQibt7ifgMcYtQg41ao3Ivd6cnSM86inpg==",
    ),
    Package(
        "punycode.js",
        "2.3.1",
        "MIT",
        "sha512-uxFIHU0YlHYhDQtV4R9J6a52SLx28BCjT+4ieh7IGbgwVJWO+km431c4yRlREUAsAmt/uMjQUyQHNEPf0M39CA==",
        licence_file="LICENSE-MIT.txt",
    ),
    Package(
        "uc.micro",
        "3.0.0",
        "MIT",
        "sha512-U3PppEkleoTnIfi8BozMx3yju3qc/L6SwqWo2Sw+54PX+PX0q9I+r1Um5HCmqD7n9VDX5/v3vQH/AjA6deDdtw==",
        licence_file="LICENSE.txt",
    ),
)


def make() -> dict[str, bytes]:
    """Return the contents of the files by name. Raises `OSError` where the registry cannot be
    reached, and `ValueError` if a package is not the pinned one."""
    contents: dict[str, bytes] = {}
    licences: list[str] = []
    for package in PACKAGES:
        with TemporaryDirectory() as folder:
            archive = _fetch(package, Path(folder))
            with tarfile.open(archive) as tar:
                for name, path in package.files.items():
                    contents[name] = _SOURCE_MAP.sub(b"\n", _read(tar, path))
                text = _read(tar, package.licence_file).decode().strip()
        licences.append(f"{package.name} {package.version} ({package.licence})\n\n{text}\n")
    contents[LICENCES] = ("\n" + "-" * 80 + "\n\n").join(licences).encode()
    return contents


def _fetch(package: Package, folder: Path) -> Path:
    """Download the package into a folder, and return its checked archive."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    process = subprocess.run(
        [npm, "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    archives = [*folder.glob("*.tgz")]
    if process.returncode or not archives:
        raise OSError(f"npm could not get {package.name}: {process.stderr.strip()[-500:]}")
    digest = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package.integrity:
        raise ValueError(f"{package.name} {package.version} is not the pinned package: {digest}")
    return archives[0]


def _read(tar: tarfile.TarFile, path: str) -> bytes:
    file = tar.extractfile(f"package/{path}")
    assert file is not None, path
    return file.read()


def main() -> None:
    """Write the files, and remove all others from the folder."""
    contents = make()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        if path.name not in contents:
            path.unlink()
    for name, data in contents.items():
        (FOLDER / name).write_bytes(data)
    print(f"{len(contents)} files, {sum(map(len, contents.values())) // 1024} KB")


if __name__ == "__main__":
    main()
