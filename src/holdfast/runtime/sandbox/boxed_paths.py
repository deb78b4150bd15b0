"""`BoxedPaths`: the file tools' paths, as the processes in a box see them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import PathRefused, RuntimeFault
from holdfast.runtime.paths import Paths, check_usable, path_text, with_home

_MAX_LINKS = 40  # as in Linux


@dataclass(frozen=True)
class Root:
    """A folder or file of the host that is visible in a box."""

    inside: str
    """Its path in the box."""
    host: Path
    """Its real path on the host."""
    writable: bool


class BoxedPaths(Paths):
    """The files of a box that the file tools may use: the work folder, mounts, and long outputs.

    Links are resolved as in the box, so that a link to a file of the host leads nowhere.
    """

    def __init__(
        self, workdir: Path, roots: Sequence[Root], read_only: Sequence[Path], home: str
    ) -> None:
        super().__init__(workdir, (), (), home)
        # The deepest first: a mount may be within the work folder.
        self._roots = sorted(roots, key=lambda root: -len(root.inside))
        self._inside = next(root.inside for root in roots if root.host == workdir)
        self._read_only = read_only

    def resolve(self, path: str | os.PathLike[str], *, write: bool = False) -> Path:
        """Return the host's path of a path in the box; see `Paths.resolve`."""
        text = path_text(path)
        inside = self._real(os.path.join(self._inside, with_home(text, self._home)), text)
        root = self._root(inside)
        via = "" if inside == text else f" (which is {inside})"
        if root is None:
            raise PathRefused(
                f"The path {text!r}{via} is outside of the working directory {self._inside}. Use a"
                " path inside it. (The program can allow more with"
                " SandboxedRuntime(mounts=[Mount(folder)]).)",
                text,
            )
        host_path = _on_host(root, inside)
        protected = any(host_path.is_relative_to(one) for one in self._read_only)
        if write and (protected or not root.writable):
            raise PathRefused(
                f"The path {text!r}{via} is read-only in the sandbox. Nothing was written."
            )
        check_usable(host_path, text)
        return host_path

    def _root(self, inside: str) -> Root | None:
        for root in self._roots:
            if inside == root.inside or inside.startswith(f"{root.inside}/"):
                return root
        return None

    def _real(self, path: str, text: str) -> str:
        """Return an absolute path of the box without links."""
        todo = path.split("/")[::-1]
        current: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                current = current[:-1]
                continue
            inside = "/" + "/".join([*current, part])
            root = self._root(inside)
            target = None if root is None else _link_target(_on_host(root, inside))
            if target is None:
                current.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise RuntimeFault(f"The path {text[:200]!r} cannot be used: too many links.")
            if target.startswith("/"):
                current = []
            todo += target.split("/")[::-1]
        return "/" + "/".join(current)

    def visible(self, path: Path) -> str:
        """Return the path in the box of a resolved path."""
        for root in self._roots:
            if path.is_relative_to(root.host):
                rest = path.relative_to(root.host)
                return str(root.inside / rest)
        return str(path)

    def label(self, path: Path) -> str:
        """Return the path that the model sees: relative to the workdir if it is inside."""
        inside = Path(self.visible(path))
        if inside.is_relative_to(self._inside):
            return str(inside.relative_to(self._inside))
        return str(inside)


def _on_host(root: Root, inside: str) -> Path:
    return root.host / inside[len(root.inside) :].lstrip("/")


def _link_target(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:  # not a link, or not there
        return None
