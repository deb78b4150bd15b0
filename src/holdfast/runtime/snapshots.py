"""`Snapshots`: the states of a work folder, as git objects in a separate folder.

git lists the changes and writes trees. The files are read and written here, without following a
link, so that a command in a box cannot redirect them. The repository of the work folder, if
there is one, is neither read nor changed, but for its `.gitignore` files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import struct
import subprocess
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime import textfile
from holdfast.runtime.environment import find_program
from holdfast.runtime.grep_child import open_folder

_CONFIG = """\
[core]
    repositoryformatversion = 0
    bare = false
    filemode = true
    symlinks = true
    autocrlf = false
    fsmonitor = false
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
[gc]
    auto = 0
"""
_GIT_SECONDS = 60.0  # for one command of git
_LINK, _FILE, _PROGRAM = "120000", "100644", "100755"
_PACKED_FROM = 200  # changed files, from which on a snapshot is one pack
_BLOB = 3  # the type of a blob in a pack
_PATHS_PER_DIFF = 200
_TRIM_EVERY = 50  # snapshots: the size on disk is measured once in a while alone


class FileState(NamedTuple):
    """A file in a snapshot: git's mode, and the id of its content; both "" for a missing file."""

    mode: str = ""
    blob: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a work folder."""

    tree: str
    folders: tuple[str, ...] = ()
    """The empty folders."""
    left_out: tuple[str, ...] = ()
    """Files that are too large, and folders that are repositories of their own."""
    modes: Mapping[str, int] = {}
    """Permissions other than 0644 and 0755, by path."""


def repository_of(folder: Path, workdir: Path) -> Path:
    """Return the folder in which the snapshots of a work folder are."""
    return folder / f"{hashlib.sha256(os.fsencode(workdir)).hexdigest()[:24]}.git"


class Snapshots:
    """Snapshots of one work folder. Thread-safe, and safe among processes.

    Left out are ignored files of git, files above `max_file_bytes`, files that this process has
    open, such as a store, and nested repositories.

    Args:
        folder: The folder of all snapshots, outside of the work folder.
        workdir: The work folder.
        max_files: A folder with more files gets no snapshots.
        max_file_bytes: The size of the largest file in a snapshot.
        max_bytes: The size on disk, beyond which the oldest snapshots are dropped.

    Raises `ConfigurationError` without git, or for a `folder` within the work folder.
    """

    def __init__(
        self,
        folder: Path,
        workdir: Path,
        max_files: int,
        max_file_bytes: int,
        max_bytes: int,
    ) -> None:
        try:
            self._git = find_program("git", {})
        except RuntimeFault as error:
            raise ConfigurationError(f"Undo needs git. {error}") from error
        if folder.is_relative_to(workdir):
            raise ConfigurationError(
                f"Undo: the folder of snapshots, {str(folder)!r}, is within the work folder, whose"
                " files they keep. Give one outside of it."
            )
        self._repository = repository_of(folder, workdir)
        self._workdir = workdir
        self._max_files = max_files
        self._max_file_bytes = max_file_bytes
        self._max_bytes = max_bytes

    # --- taking ---

    def take(self, name: str = "") -> Snapshot:
        """Return the present state, and keep it under `name`, such as `call/before`, if given.
        Raises `RuntimeFault` if there are too many files, or git fails."""
        with self._locked():
            snapshot = self._take()
            if name:
                data = msgspec.json.encode(snapshot)
                for kind, object_id in (("tree", snapshot.tree), ("meta", self._write(data))):
                    path = self._repository / "refs" / "undo" / name / kind
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(f"{object_id}\n")
                self._trim(keep=name.partition("/")[0])
            return snapshot

    def load(self, name: str) -> Snapshot | None:
        """Return the snapshot of a name; None if it was never taken, or was dropped."""
        path = self._repository / "refs" / "undo" / name / "meta"
        try:
            return msgspec.json.decode(self._content(path.read_text().strip()), type=Snapshot)
        except (OSError, msgspec.DecodeError):
            return None

    def _take(self) -> Snapshot:
        list_files = ("ls-files", "-z", "--exclude-standard", "-o")
        paths = list(dict.fromkeys(self._names(self._run(*list_files, "-m", "-d"))))
        last = self._meta()
        left_out = set(last.left_out)
        modes = dict(last.modes)
        removed: list[bytes] = []
        added: list[bytes] = []
        if len(paths) > self._max_files:
            raise RuntimeFault(
                f"{self._workdir} has more than {self._max_files:,} files that git does not ignore."
            )
        opened = open_files()
        packs = len(paths) > _PACKED_FROM
        pack = _Pack(self._repository / "objects" / "pack") if packs else None
        write = self._write if pack is None else pack.add
        for path in paths:
            name = os.fsencode(path)
            if path.endswith("/"):  # a repository of its own
                left_out.add(path)
                continue
            content = self._size_of_open(path, opened)
            content = self._read(path) if content is None else content
            left_out.discard(path)
            if isinstance(content, int):
                left_out.add(path)
            if not isinstance(content, tuple):
                modes.pop(path, None)
                removed.append(b"0 %s\t%s" % (b"0" * 40, name))
                continue
            permissions, mode, data = content
            modes.pop(path, None)
            if mode != _LINK and permissions not in (0o644, 0o755):
                modes[path] = permissions
            added.append(f"{mode} {write(data)}\t".encode() + name)
        if pack is not None:
            self._run("index-pack", str(pack.close()))
        if removed or added:
            self._run(
                "update-index", "-z", "--index-info", stdin=b"\0".join([*removed, *added, b""])
            )
            # The index then knows the times of the files, so that they need not be read again.
            self._run("update-index", "-q", "--refresh", check=False)
        tree = last.tree
        if removed or added or not tree:
            tree = self._run("write-tree").decode().strip()
        folders = sorted(self._empty_folders(self._names(self._run(*list_files, "--directory"))))
        present = [path for path in left_out if os.path.lexists(self._workdir / path)]
        snapshot = Snapshot(tree, tuple(folders), tuple(sorted(present)), modes)
        if snapshot != last:
            (self._repository / "last").write_bytes(msgspec.json.encode(snapshot))
        return snapshot

    def _meta(self) -> Snapshot:
        try:
            return msgspec.json.decode((self._repository / "last").read_bytes(), type=Snapshot)
        except (OSError, msgspec.DecodeError):
            return Snapshot("")

    def _names(self, data: bytes) -> list[str]:
        return [os.fsdecode(name) for name in data.split(b"\0") if name]

    def _size_of_open(self, path: str, opened: frozenset[tuple[int, int]]) -> int | None:
        """Return the size of a file that this process has open; None for any other."""
        try:
            status = os.lstat(self._workdir / path)
        except OSError:
            return None
        return status.st_size if (status.st_dev, status.st_ino) in opened else None

    def _read(self, path: str) -> tuple[int, str, bytes] | int | None:
        """Return the permissions, git's mode and the content of a file or link. Return the size of
        a file that is too large, and None for other entries."""
        parent, name = os.path.split(path)
        try:
            folder = open_folder(str(self._workdir / parent))
            try:
                kind = os.lstat(name, dir_fd=folder).st_mode
                if not stat.S_ISLNK(kind) and not stat.S_ISREG(kind):
                    return None
                if stat.S_ISLNK(kind):
                    return 0, _LINK, os.fsencode(os.readlink(name, dir_fd=folder))
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError:
            return None
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return None
            data = b""
            while len(data) <= self._max_file_bytes and (more := file.read(1 << 20)):
                data += more
        if len(data) > self._max_file_bytes:
            return status.st_size
        mode = _PROGRAM if status.st_mode & 0o100 else _FILE
        return stat.S_IMODE(status.st_mode), mode, data

    def _empty_folders(self, names: Iterable[str]) -> Generator[str]:
        """Yield the empty folders among and below the folders that git does not track."""
        for name in names:
            path = self._workdir / name
            if not name.endswith("/") or os.path.lexists(path / ".git"):
                continue
            for folder, folders, files in os.walk(path):
                if not folders and not files:
                    yield os.path.relpath(folder, self._workdir)

    # --- comparing and putting back ---

    def changes(self, old: Snapshot, new: Snapshot) -> dict[str, tuple[FileState, FileState]]:
        """Return the files that differ between two snapshots: the state in each."""
        if old.tree == new.tree:
            return {}
        raw = self._run("diff-tree", "-r", "-z", "--no-renames", old.tree, new.tree).split(b"\0")
        changes: dict[str, tuple[FileState, FileState]] = {}
        for header, path in zip(raw[::2], raw[1::2], strict=False):
            modes_and_blobs = header.decode().lstrip(":").split()
            old_mode, new_mode, old_blob, new_blob = modes_and_blobs[:4]
            changes[os.fsdecode(path)] = _state(old_mode, old_blob), _state(new_mode, new_blob)
        return changes

    def patch(self, old: Snapshot, new: Snapshot, paths: Sequence[str], prefix: str = "") -> str:
        """Return the unified diff of these text files, with paths relative to `prefix`."""
        diff = b""
        relative = [f"--relative={prefix}/"] if prefix else []
        for start in range(0, len(paths), _PATHS_PER_DIFF):
            diff += self._run(
                "--literal-pathspecs",
                "diff-tree",
                "-r",
                "-p",
                "-a",
                "--no-renames",
                "--no-color",
                *relative,
                old.tree,
                new.tree,
                "--",
                *paths[start : start + _PATHS_PER_DIFF],
            )
        return diff.decode(errors="surrogateescape")

    def files(self, snapshot: Snapshot) -> dict[str, FileState]:
        """Return the files of a snapshot."""
        files: dict[str, FileState] = {}
        for entry in self._run("ls-tree", "-r", "-z", "--full-tree", snapshot.tree).split(b"\0"):
            header, _, path = entry.partition(b"\t")
            if path:
                mode, _, blob = header.decode().split()
                files[os.fsdecode(path)] = FileState(mode, blob)
        return files

    def put_back(
        self,
        files: Mapping[str, FileState],
        modes: Mapping[str, int],
        added: Iterable[str],
        removed: Iterable[str],
        empty: Iterable[str],
    ) -> list[str]:
        """Give files the state of a snapshot, and return those for which this failed.

        Args:
            files: The wanted states.
            modes: Permissions of files that have to be made again.
            made: Folders to remove if they are empty.
            removed: Empty folders to make.
            empty: Folders that were empty, which are not removed.
        """
        opened = open_files()
        failed = [path for path in files if self._size_of_open(path, opened) is not None]
        files = {path: state for path, state in files.items() if path not in failed}
        contents = self.contents([state.blob for state in files.values() if state.blob])
        deleted = [path for path, state in files.items() if not state.mode]
        parents = {os.path.dirname(path) for path in deleted} | set(added)
        for path in deleted:
            try:
                self._unlink(path)
            except OSError:
                failed.append(path)
        self._remove_empty(parents, set(empty))
        for path, state in files.items():
            try:
                if state.mode:
                    self._restore(path, state, contents[state.blob], modes.get(path))
            except (OSError, KeyError):  # such as a folder of ignored files in its place
                failed.append(path)
        for path in sorted(removed):
            with suppress(OSError):
                os.close(open_folder(str(self._workdir / path), make=True))
        return failed

    def _unlink(self, path: str) -> None:
        parent, name = os.path.split(path)
        folder = open_folder(str(self._workdir / parent))
        try:
            os.unlink(name, dir_fd=folder)
        finally:
            os.close(folder)

    def _remove_empty(self, folders: Iterable[str], exempt: set[str]) -> None:
        for path in sorted(folders, key=len, reverse=True):
            while path and path not in exempt:
                parent, name = os.path.split(path)
                try:
                    folder = open_folder(str(self._workdir / parent))
                    try:
                        os.rmdir(name, dir_fd=folder)
                    finally:
                        os.close(folder)
                except OSError:  # not empty, or gone
                    break
                path = parent

    def _restore(self, path: str, state: FileState, data: bytes, mode: int | None) -> None:
        parent, name = os.path.split(path)
        folder = open_folder(str(self._workdir / parent), make=True)
        staged = textfile.temporary_name(name)
        try:
            try:
                old = os.lstat(name, dir_fd=folder)
            except FileNotFoundError:
                old = None
            if state.mode == _LINK:
                os.symlink(os.fsdecode(data), staged, dir_fd=folder)
            else:
                like = old if old is not None and stat.S_ISREG(old.st_mode) else None
                textfile.write_new(folder, staged, data, old or os.fstat(folder), like)
                now = stat.S_IMODE(os.lstat(staged, dir_fd=folder).st_mode)
                permissions = (
                    now & ~0o111 | (now & 0o444) >> 2 if state.mode == _PROGRAM else now & ~0o111
                )
                if mode is not None:
                    permissions = mode
                os.chmod(staged, permissions, dir_fd=folder)
            try:
                os.replace(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(staged, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    # --- the repository ---

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the repository, which is made at the first use."""
        self._repository.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._repository / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self._repository / "HEAD").exists():
                self._run("init", "-q", "--object-format=sha1", "--template=")
                (self._repository / "config").write_text(_CONFIG)
                (self._repository / "info").mkdir(exist_ok=True)
                # Attributes of the work folder may neither convert contents nor name programs.
                attributes = "* -text -filter -ident -working-tree-encoding -diff -merge\n"
                (self._repository / "info" / "attributes").write_text(attributes)
            (self._repository / "index.lock").unlink(missing_ok=True)  # of a killed process
            yield
        except OSError as error:
            if isinstance(error, RuntimeFault):
                raise
            raise RuntimeFault(f"The snapshot failed: {error}.") from error
        finally:
            os.close(lock)

    def _run(self, *arguments: str, stdin: bytes = b"", check: bool = True) -> bytes:
        """Return the output of git. Raises `RuntimeFault`."""
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._repository),
            "GIT_DIR": str(self._repository),
            "GIT_WORK_TREE": str(self._workdir),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        try:
            ran = subprocess.run(
                [self._git, *arguments],
                cwd=self._workdir,
                env=env,
                input=stdin,
                capture_output=True,
                timeout=_GIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RuntimeFault(f"git {arguments[0]} failed: {error}.") from error
        if check and ran.returncode:
            message = ran.stderr.decode(errors="replace").strip()
            raise RuntimeFault(f"git {arguments[0]} failed: {message}")
        return ran.stdout

    def _write(self, data: bytes) -> str:
        """Store a blob as a loose object, and return its id."""
        whole = b"blob %d\0" % len(data) + data
        object_id = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        path = self._repository / "objects" / object_id[:2] / object_id[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            staged = path.with_name(f"tmp_{os.urandom(8).hex()}")
            staged.write_bytes(zlib.compress(whole, 1))
            staged.replace(path)
        return object_id

    def _content(self, blob: str) -> bytes:
        """Return the content of a blob. Raises `OSError` for one that was dropped."""
        path = self._repository / "objects" / blob[:2] / blob[2:]
        try:
            return zlib.decompress(path.read_bytes()).partition(b"\0")[2]
        except FileNotFoundError:  # in the pack of the first snapshot
            return self._run("cat-file", "blob", blob)

    def contents(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of blobs; one that was dropped is missing."""
        contents: dict[str, bytes] = {}
        for blob in set(blobs):
            with suppress(OSError):
                contents[blob] = self._content(blob)
        return contents

    def _trim(self, keep: str) -> None:
        """Drop the oldest snapshots if all of them take more than the bound."""
        marker = self._repository / "measured"
        count = int(marker.read_text() or 0) + 1 if marker.exists() else 0
        marker.write_text(str(count))
        if not count or count % _TRIM_EVERY:
            return
        refs = self._repository / "refs" / "undo"
        calls = sorted(refs.iterdir(), key=lambda path: path.stat().st_mtime)
        calls = [call for call in calls if call.name != keep]
        while calls and self._size() > self._max_bytes:
            half = (len(calls) + 1) // 2
            for call in calls[:half]:
                shutil.rmtree(call)
            calls = calls[half:]
            self._run("prune", "--expire=now")

    def _size(self) -> int:
        objects = (self._repository / "objects").rglob("*")
        return sum(one.stat().st_size for one in objects if one.is_file())


class _Pack:
    """A new pack of blobs (gitformat-pack): thousands of loose ones would take seconds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"tmp_{os.urandom(8).hex()}"
        self._file = open(self._path, "w+b")  # noqa: SIM115
        self._file.write(b"PACK" + struct.pack(">II", 2, 0))
        self._ids: set[str] = set()

    def add(self, data: bytes) -> str:
        """Add a blob, and return its id."""
        whole = b"blob %d\0" % len(data) + data
        object_id = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        if object_id not in self._ids:
            self._ids.add(object_id)
            size = len(data)
            header = [_BLOB << 4 | size & 15]
            size >>= 4
            while size:
                header[-1] |= 0x80
                header.append(size & 0x7F)
                size >>= 7
            self._file.write(bytes(header) + zlib.compress(data, 1))
        return object_id

    def close(self) -> Path:
        """Complete the pack, and return its path."""
        with self._file as file:
            file.seek(8)
            file.write(struct.pack(">I", len(self._ids)))
            file.seek(0)
            digest = hashlib.sha1(usedforsecurity=False)
            while part := file.read(1 << 20):
                digest.update(part)
            file.write(digest.digest())
        path = self._path.with_name(f"pack-{digest.hexdigest()}.pack")
        self._path.replace(path)
        return path


def open_files() -> frozenset[tuple[int, int]]:
    """Return device and inode of the files that this process has open, such as a store.

    Such files are neither read nor replaced. Closing a file here would end the locks that SQLite
    has on it in this process (https://sqlite.org/howtocorrupt.html, 2.2).
    """
    identities: set[tuple[int, int]] = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError, ValueError):  # such as the folder that was just listed
            status = os.fstat(int(name))
            identities.add((status.st_dev, status.st_ino))
    return frozenset(identities)


def _state(mode: str, blob: str) -> FileState:
    return FileState() if set(mode) == {"0"} else FileState(mode, blob)
