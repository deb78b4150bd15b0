"""`OwnFolder`: a git worktree or a copy of a work folder, whose changes can be taken over."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime.environment import child_environment, find_program
from holdfast.runtime.local import LocalRuntime
from holdfast.runtime.snapshots import FileState, Snapshots, open_files
from holdfast.runtime.textfile import is_binary, temporary_name

_GIT_SECONDS = 300.0
_MAX_FILES, _MAX_FILE_BYTES = 100_000, 10 * 1024 * 1024
_PLACE = (".holdfast", "children")
_PLAIN, _PROGRAM, _LINK = "100644", "100755", "120000"  # git's modes


class _Ready(msgspec.Struct, frozen=True):
    """The record of a folder that is complete. `prefix` is the path of the work folder within the
    worktree, "" for its top."""

    kind: Literal["worktree", "copy"]
    prefix: str = ""


class FolderChanges(NamedTuple):
    """The changes in a folder. `files` has the states of each file before and after, by path, and
    `patch` the unified diff of the text files. `notes` describe all other changes. `stays` are the
    paths that are never taken over."""

    files: dict[str, tuple[FileState, FileState]]
    patch: str
    notes: list[str]
    stays: list[str]


class _FileContent(NamedTuple):
    """The mode of a file, as git writes it, and its content or target."""

    mode: str
    data: bytes


class OwnFolder:
    """The own folder of a child, below `.holdfast/children` of a runtime's work folder.

    Its place follows from the child's id, so that another process finds it again. A folder whose
    making was cut short is removed and made anew.

    Args:
        origin: The runtime of the work folder.
        id: The child's id.
    """

    def __init__(self, origin: LocalRuntime, id: str) -> None:
        self._origin = origin
        self._children = origin.workdir.joinpath(*_PLACE)
        self._home = self._children / hashlib.sha256(id.encode()).hexdigest()[:16]
        self._top = self._home / (origin.workdir.name or "work")
        self._snapshots: Snapshots | None = None

    @property
    def exists(self) -> bool:
        """True if the folder was made, and neither taken over nor dropped."""
        return (self._home / "ready").exists()

    @property
    def workdir(self) -> Path:
        """The work folder of the child."""
        return self._top / self._ready().prefix

    @property
    def patch_file(self) -> str:
        """The path of the whole patch, relative to the parent's work folder."""
        return os.path.relpath(self._home / "changes.patch", self._origin.workdir)

    @property
    def variables(self) -> dict[str, str]:
        """Variables for commands in the folder: git must not find the parent's repository."""
        return {"GIT_CEILING_DIRECTORIES": str(self._home)}

    def _ready(self) -> _Ready:
        return msgspec.json.decode((self._home / "ready").read_bytes(), type=_Ready)

    # --- making and removing ---

    def make(self, kind: Literal["worktree", "copy"]) -> None:
        """Make the folder as its parent's is now, unless it exists. Raises `RuntimeFault`."""
        with self._locked():
            if self.exists:
                return
            self._remove()
            self._home.mkdir()
            try:
                prefix = self._add_worktree() if kind == "worktree" else self._copy()
                self._states().take("base")
                staged = self._home / "ready.new"
                staged.write_bytes(msgspec.json.encode(_Ready(kind, prefix)))
                staged.replace(self._home / "ready")
            except (OSError, ConfigurationError) as error:
                self._remove()
                if isinstance(error, RuntimeFault):
                    raise
                raise RuntimeFault(f"No folder of its own could be made: {error}") from error

    def drop(self) -> None:
        """Remove the folder with its changes. Raises `RuntimeFault`."""
        with self._locked():
            self._remove()

    def _remove(self) -> None:
        if not self._home.exists():
            return
        (self._home / "ready").unlink(missing_ok=True)
        shutil.rmtree(self._home, ignore_errors=True)
        if self._home.exists():
            raise RuntimeFault(f"{self._home} could not be removed.")
        self._snapshots = None

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the folder of all children against other threads and processes."""
        try:
            for path in (self._children.parent, self._children):
                with suppress(FileExistsError):
                    path.mkdir()
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise RuntimeFault(f"{path} is not a folder; folders of children go there.")
            ignore = self._children / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            lock = os.open(self._children / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except RuntimeFault:
            raise
        except OSError as error:
            raise RuntimeFault(f"No folder of its own could be made: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _add_worktree(self) -> str:
        """Add a worktree with the parent's uncommitted changes; return the work folder in it."""
        workdir = self._origin.workdir
        advice = "Use isolation='copy' there."
        try:
            top = Path(os.path.realpath(self._git("rev-parse", "--show-toplevel").strip()))
        except RuntimeFault as error:
            what = f"isolation='worktree' needs a git repository, and {workdir} is in none."
            raise RuntimeFault(f"{what} {advice}") from error
        if not workdir.resolve().is_relative_to(top) or not os.path.lexists(top / ".git"):
            what = f"The files of this git repository are in {top}, another folder (core.worktree)."
            raise RuntimeFault(f"{what} {advice}")
        try:
            head = self._git("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except RuntimeFault as error:
            raise RuntimeFault(f"The repository {top} has no commit yet. {advice}") from error
        self._make_repository(head)
        # The child's index is at HEAD: its status shows the same changes as its parent's. The files
        # are copied here, because git would run filters that the repository's own files name.
        self._git("read-tree", "HEAD", folder=self._top)
        output = self._git("ls-files", "-z", "-c", "-o", "--exclude-standard", folder=top)
        self._copy_listed(top, dict.fromkeys(filter(None, output.split("\0"))))
        prefix = os.path.relpath(workdir, top)
        return "" if prefix == "." else prefix

    def _make_repository(self, head: str) -> None:
        """Make a repository that reads the parent's objects and begins with its branches and
        configuration. All that the child adds, commits or stashes is in it, and ends with it."""
        output = self._git("rev-parse", "--path-format=absolute", "--git-common-dir")
        common, own = Path(output.removesuffix("\n")), self._top / ".git"
        kind = self._git("rev-parse", "--show-object-format").strip()
        options = ["--quiet", "--template=", f"--object-format={kind}"]
        self._git("init", *options, str(self._top), folder=self._home)
        (own / "info").mkdir(exist_ok=True)
        for name in ("config", "shallow", "info/exclude"):
            with suppress(FileNotFoundError):
                shutil.copyfile(common / name, own / name)
        for name in ("core.worktree", "core.bare", "extensions.refStorage"):
            with suppress(RuntimeFault):  # it is not set
                self._git("config", "--file", str(own / "config"), "--unset-all", name)
        (own / "objects" / "info" / "alternates").write_text(f"{common / 'objects'}\n")
        kinds = ("refs/heads", "refs/tags", "refs/remotes")
        refs = self._git("for-each-ref", "--format=%(objectname) %(refname)", *kinds)
        (own / "packed-refs").write_text(refs, errors="surrogateescape")
        (own / "HEAD").write_text(head)

    def _copy_listed(self, top: Path, names: Iterable[str]) -> None:
        """Copy these files of the repository at `top`, but none through a link to a folder."""
        children, opened = Path(os.path.realpath(self._children)), open_files()
        for name in names:
            source = top / name
            folder = source.parent
            if (
                os.path.realpath(folder) == str(folder)
                and source.is_relative_to(top)
                and not source.is_relative_to(children)
                and ".git" not in name.lower().split("/")
            ):
                target = self._top / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # deleted, and not committed yet
                    _copy_file(source, target, opened)

    def _copy(self) -> str:
        """Copy the work folder. Files that this process has open are left out, such as a store:
        closing them would end the locks that SQLite has on them."""
        origin, opened = self._origin.workdir, open_files()
        for folder, names, files in os.walk(origin):
            source = Path(folder)
            target = self._top / source.relative_to(origin)
            target.mkdir(exist_ok=True)
            if source == origin / _PLACE[0]:
                names[:] = [name for name in names if name != _PLACE[1]]
            for name in [*names, *files]:
                if name != ".git" or (source / name).is_dir():
                    # That of a worktree, a file, leads to the parent's own index.
                    _copy_file(source / name, target / name, opened)
        return ""

    def _git(self, *arguments: str, folder: Path | None = None) -> str:
        """Return the output of git, with no hook of the repository, and no program that its
        configuration names for fetching missing objects. Raises `RuntimeFault`."""
        settings = {"LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "none"}
        env = child_environment(self._origin.workdir, settings)
        command = [find_program("git", env), "-c", "core.hooksPath=/dev/null"]
        try:
            ran = subprocess.run(
                [*command, "-c", "core.fsmonitor=false", *arguments],
                cwd=folder or self._origin.workdir,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeFault(f"git {arguments[0]} failed: {error}.") from error
        if ran.returncode:
            message = ran.stderr.decode(errors="replace").strip()
            raise RuntimeFault(f"git {arguments[0]} failed: {message}")
        return os.fsdecode(ran.stdout)

    # --- changes ---

    def _states(self) -> Snapshots:
        if self._snapshots is None:
            place = self._home / "states"
            self._snapshots = Snapshots(place, self._top, _MAX_FILES, _MAX_FILE_BYTES, 1 << 50)
        return self._snapshots

    def changes(self) -> FolderChanges:
        """Return the changes since the folder was made, and write the whole patch to `patch_file`.
        Raises `RuntimeFault`."""
        states, prefix = self._states(), self._ready().prefix
        base, now = states.load("base"), states.take("now")
        if base is None:
            raise RuntimeFault(f"The first state of {self._top} is gone.")
        below = f"{prefix}/" if prefix else ""
        everything = states.changes(base, now)
        files = {
            path.removeprefix(below): pair
            for path, pair in everything.items()
            if path.startswith(below)
        }
        text = [f"{below}{path}" for path, pair in files.items() if self._is_text(pair)]
        patch = states.patch(base, now, text, prefix) if text else ""
        other = [path for path in files if f"{below}{path}" not in set(text)]
        left_out = [path for path in now.left_out if path not in base.left_out]
        outside = [path for path in everything if not path.startswith(below)]
        notes = [
            f"{what}: {', '.join(sorted(paths))}"
            for what, paths in (
                ("Changed, and not text", other),
                ("Changed outside of the work folder, and not taken over", outside),
                ("Too large, or repositories of their own, and not taken over", left_out),
            )
            if paths
        ]
        (self._home / "changes.patch").write_text(patch, errors="surrogateescape")
        return FolderChanges(files, patch, notes, sorted([*outside, *left_out]))

    def _is_text(self, pair: tuple[FileState, FileState]) -> bool:
        """Return True if the change of a file can be a patch."""
        old, new = pair
        if _LINK in (old.mode, new.mode) or old.blob == new.blob:
            return False
        contents = self._states().contents([one.blob for one in pair if one.blob])
        return all(map(_is_utf8, contents.values()))

    def apply(self) -> list[str]:
        """Take the changes over into the work folder, and return the paths. The own folder is then
        removed, unless it has paths that are never taken over. A file that is equal already is
        skipped, so that a repeated call succeeds. Raises `RuntimeFault` with the places that do not
        fit; then nothing was taken over."""
        changes, states = self.changes(), self._states()
        prefix = self._ready().prefix
        base, now = states.load("base"), states.load("now")
        assert base is not None
        assert now is not None
        contents = states.contents(
            [state.blob for pair in changes.files.values() for state in pair if state.blob]
        )
        text_paths: list[str] = []
        removed: list[Path] = []
        writes: dict[str, tuple[Path, _FileContent, int]] = {}
        modes: list[tuple[Path, int]] = []
        conflicts: list[str] = []
        for path, pair in changes.files.items():
            place = self._place(path)
            current = _present(place)
            old, new = (
                _FileContent(one.mode, contents[one.blob]) if one.mode else None for one in pair
            )
            if current == new:
                continue
            if new is None:
                if current == old:
                    removed.append(place)
                else:
                    conflicts.append(path)
                continue
            mode = self._permissions(path, place, new)
            if current == old:
                writes[path] = place, new, mode
            elif old is not None and current is not None and self._is_text(pair):
                text_paths.append(f"{prefix}/{path}" if prefix else path)
                modes += [(place, mode)] if old.mode != new.mode else []
            else:
                conflicts.append(path)
        removed_paths = set(removed)
        conflicts += [
            path for path, (place, _, _) in writes.items() if _barred(place, removed_paths)
        ]
        if conflicts:
            raise RuntimeFault(
                f"Nothing was taken over: {', '.join(conflicts)} changed in your folder too."
            )
        if text_paths:
            self._origin.files.apply_patch(states.patch(base, now, text_paths, prefix))
        try:
            for place in removed:
                place.unlink(missing_ok=True)
            for place, content, mode in writes.values():
                _write(place, content, mode)
            for place, mode in modes:
                place.chmod(mode)
        except OSError as error:
            raise RuntimeFault(
                f"Not all changes could be taken over; the next call continues: {error}."
            ) from error
        if not changes.stays:
            self.drop()
        return sorted(changes.files)

    def _permissions(self, path: str, place: Path, new: _FileContent) -> int:
        """Return the permissions of a file that is taken over: those of the file in its place, else
        the child's."""
        try:
            status = os.lstat(place)
            if not stat.S_ISREG(status.st_mode):
                status = os.lstat(self.workdir / path)
        except OSError:
            status = os.lstat(self.workdir / path)
        mode = status.st_mode & 0o777
        return mode | (mode & 0o444) >> 2 if new.mode == _PROGRAM else mode & 0o666

    def _place(self, path: str) -> Path:
        """Return a path of the work folder. Raises `PathRefused` for one that leads out of it."""
        folder, name = os.path.split(path)
        return self._origin.paths.resolve(folder or ".", write=True) / name


def _copy_file(source: Path, target: Path, opened: Container[tuple[int, int]]) -> None:
    """Copy a file or link, unless it is one of the `opened`. Anything else is not copied."""
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in opened:
        shutil.copy2(source, target)


def _is_utf8(data: bytes) -> bool:
    if is_binary(data[:8192]):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _present(path: Path) -> _FileContent | None:
    """Return the content of a file or link; None if there is neither."""
    try:
        kind = os.lstat(path).st_mode
        if stat.S_ISLNK(kind):
            return _FileContent(_LINK, os.fsencode(os.readlink(path)))
        return _FileContent(_PROGRAM if kind & 0o100 else _PLAIN, path.read_bytes())
    except OSError:
        return None


def _barred(path: Path, removed: Container[Path]) -> bool:
    """Return True if a file cannot be written once `removed` are gone. Then a remaining file is
    below its path, or something other than a folder is above it."""
    if path.is_dir() and not path.is_symlink():
        return any(
            Path(folder, name) not in removed
            for folder, names, files in os.walk(path)
            for name in [*files, *(one for one in names if Path(folder, one).is_symlink())]
        )
    above = next(one for one in path.parents if os.path.lexists(one))
    return not above.is_dir() and above not in removed


def _write(path: Path, content: _FileContent, mode: int) -> None:
    """Give a file or link its content, atomically. Empty folders in its place are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)
    staged = path.with_name(temporary_name(path.name))
    try:
        if content.mode == _LINK:
            os.symlink(os.fsdecode(content.data), staged)
        else:
            with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content.data)
                os.fchmod(file.fileno(), mode)
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
