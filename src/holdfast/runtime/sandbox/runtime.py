"""`SandboxedRuntime`: a working directory whose commands run in boxes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.confinement import Confinement
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime, ProcessPlace
from holdfast.runtime.pump import Pump
from holdfast.runtime.sandbox.boxed_paths import BoxedPaths, Root
from holdfast.runtime.sandbox.bridge import BoxLauncher, proxy_variables
from holdfast.runtime.sandbox.live import LiveBox
from holdfast.runtime.sandbox.mechanisms import Mechanism, choose
from holdfast.runtime.sandbox.network import AllowList
from holdfast.runtime.sandbox.repository import ProtectedRepository
from holdfast.runtime.sandbox.settings import BoxSettings, Mount, SandboxLimits, check_mounts
from holdfast.runtime.shell import shell_folder, state_file
from holdfast.tools.launch import start

_TRIAL_SECONDS = 20.0


class SandboxedRuntime(FolderRuntime):
    """A working directory on this machine whose commands run in boxes: they see the work folder,
    the system's programs read-only, and no network.

    Each conversation has a box of its own while its shell lives; clones, hook commands and the git
    of a search get new ones. The file tools change the same work folder from outside, and follow no
    link out of it. Everything else is as with `LocalRuntime`: thread-safe, a context manager,
    closed at the latest when the interpreter exits.

    Raises `ConfigurationError` (a `ValueError`) that names the invalid argument, and
    `SandboxUnavailable`, a kind of it, if no box can be made here. Commands never run without one.

    Args:
        workdir: An existing folder. None makes a temporary folder that `close` removes.
        network: "none", or the hosts that commands may connect to, such as `["pypi.org"]`; see
            `AllowList`. Connections are in `meta["connections"]` of a command's result.
        mechanism: "auto" for the first mechanism that works here, or the name of one.
        mounts: Further files and folders of the host that commands and file tools can use.
        limits: The resources of each box.
        workdir_inside: The path of the work folder in the box; None for the same path.
        env: Environment variables of commands; others of this process are not passed on.
        shell: The name or path of bash in the box.
        output_limit: The maximum number of characters of an answer; longer outputs go to a file.
        command_timeout: Seconds after which a command is ended, unless its call sets a timeout.
        text_files: Reads and writes text files for the file tools, such as the buffers of an
            editor; None for the disk.
    """

    mechanism: str
    """The name of the mechanism that makes the boxes."""
    _repository: ProtectedRepository
    _one_off: BoxLauncher

    def __init__(
        self,
        workdir: str | os.PathLike[str] | None = None,
        network: Literal["none"] | Sequence[str] = "none",
        mechanism: str = "auto",
        mounts: Iterable[Mount] = (),
        limits: SandboxLimits | None = None,
        *,
        workdir_inside: str | None = None,
        env: Mapping[str, str] | None = None,
        shell: str = "bash",
        output_limit: int = 30_000,
        command_timeout: float = 120.0,
        text_files: TextFiles | None = None,
    ) -> None:
        # Callers are not all typed.
        if limits is not None and not isinstance(limits, SandboxLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits takes SandboxLimits, not {limits!r}.")
        self._proxy = None
        if network != "none":
            from holdfast.runtime.sandbox.proxy import Proxy  # asyncio: most boxes have no network

            self._proxy = Proxy(AllowList(network))
        hosts = () if network == "none" else tuple(network)
        self.network = network if network == "none" else hosts
        """The allowed hosts, or "none"."""
        self._workdir_inside = None if workdir_inside is None else _checked_inside(workdir_inside)
        self._mounts = check_mounts(mounts)
        self._limits = limits
        self._is_temporary = workdir is None
        self.mechanism = mechanism
        super().__init__(
            workdir, env, shell, output_limit, command_timeout, self._make_place, text_files
        )
        writable = tuple(mount.target for mount in self._mounts if mount.writable)
        self.confinement = Confinement(self.workdir_visible, writable, hosts)
        """The bounds of the boxes, for judges of calls."""

    def _make_place(self, work: Path, folder: Path) -> ProcessPlace:
        inside = self._workdir_inside or str(work)
        if inside in [mount.target for mount in self._mounts]:
            raise ConfigurationError(f"A mount has the target {inside!r} of the work folder.")
        for source in [work, *(Path(one.source) for one in self._mounts if one.writable)]:
            contains = folder.is_relative_to(source.resolve()) and not self._is_temporary
            if source == Path("/") or contains:
                raise ConfigurationError(
                    f"{str(source)!r} cannot be writable in a sandbox: it contains the system's"
                    f" temporary folder, {str(folder.parent)!r}. Use a folder below it."
                )
        outputs, private = folder / "output", folder / "box"
        outputs.mkdir(mode=0o700)
        private.mkdir(mode=0o700)
        self._repository = repository = ProtectedRepository(work)
        settings = BoxSettings(
            workdir=work,
            workdir_inside=inside,
            private=private,
            limits=self._limits or SandboxLimits(),
            mounts=self._mounts,
            read_only=(outputs,),
            protected=repository.read_only,
            proxy=self._proxy,
            repository=repository.mounts(inside),
        )
        chosen = choose(self.mechanism, settings)
        self.mechanism = chosen.name
        # Without SHELL, each bash asks the user database, which costs 0.5 ms in a Landlock box.
        variables = {"SHELL": "/bin/bash"}
        if self._proxy is not None:
            variables |= proxy_variables(self._proxy.allowed.names_this_machine)
        home = chosen.home(private)
        if Path(home).is_relative_to(private):  # a folder of this machine
            settings = replace(settings, writable=(Path(home),))
            temporary = Path(home, "tmp")
            temporary.mkdir(mode=0o700, parents=True)
            variables["TMPDIR"] = str(temporary)
        boxes = _Boxes(folder, chosen, settings, repository)
        launcher = self._one_off = boxes.launcher(private)
        if self._mounts or self._limits or self._workdir_inside:
            try:
                _try_out(launcher, inside)
            except BaseException:
                launcher.close()
                raise
        return ProcessPlace(launcher, boxes.make_host, inside, home, variables, boxes.paths)

    def clone_repo(
        self,
        repo: str,
        *,
        branch: str | None = None,
        target: str | os.PathLike[str] | None = None,
        timeout: float = 600.0,
    ) -> Path:
        """Clone a git repository; see `LocalRuntime.clone_repo`. The error names refused hosts."""
        try:
            return super().clone_repo(repo, branch=branch, target=target, timeout=timeout)
        except RuntimeFault as error:
            log = self._one_off.take_connections().connections
            reasons = dict.fromkeys(str(one["reason"]) for one in log if not one["allowed"])
            if not reasons:
                raise
            raise RuntimeFault(" ".join((str(error), *reasons))) from error

    def close(self) -> None:
        """End all boxes and remove temporary files. Idempotent; not in a forked child."""
        super().close()
        if self._process.here:
            self._one_off.close()
            if self._proxy is not None:
                self._proxy.close()
            self._repository.clean()


class _Boxes(ObjectStruct):
    """The boxes of one runtime, whose private folder is `folder`."""

    folder: Path
    mechanism: Mechanism
    settings: BoxSettings
    repository: ProtectedRepository

    def launcher(self, own: Path, *writable: Path, stays: bool = False) -> BoxLauncher:
        """Return the launcher of a box with a private folder of its own."""
        settings = self.settings
        return self.mechanism.launcher(
            replace(
                settings,
                private=own,
                writable=(*writable, *settings.writable),
                stays=stays,
                repository=self.repository.mounts(settings.workdir_inside),
            )
        )

    def make_host(self, number: int, pump: Pump) -> LiveBox:
        """Return the box of the shell with this number."""
        own = shell_folder(self.folder, number)
        own.mkdir(mode=0o700, exist_ok=True)
        state_file(own).touch(mode=0o600)
        launcher = self.launcher(own, state_file(own), stays=True)
        return LiveBox(launcher, own, self.settings.workdir_inside, pump)

    def paths(self, readable: Sequence[Path], home: str) -> BoxedPaths:
        """Return the paths of the file tools; see `ProcessPlace.make_paths`."""
        settings = self.settings
        roots = [
            Root(settings.workdir_inside, settings.workdir, True),
            *(
                Root(mount.target, Path(os.path.realpath(mount.source)), mount.writable)
                for mount in settings.mounts
            ),
            *(Root(str(one), one, False) for one in readable),
        ]
        return BoxedPaths(settings.workdir, roots, self.repository.read_only, home)


def _try_out(launcher: BoxLauncher, inside: str) -> None:
    """Raise `ConfigurationError` if no box can be made with these settings."""
    try:
        process = start(launcher, ["true"], cwd=inside, env={"PATH": "/usr/bin:/bin"})
        try:
            _, errors = process.communicate(timeout=_TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            errors = process.communicate()[1] or b"it did not end"
    except OSError as error:
        raise ConfigurationError(f"No box can be made with these settings: {error}.") from error
    if process.returncode:
        reason = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
        raise ConfigurationError(f"No box can be made with these settings: {reason}.")


def _checked_inside(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise ConfigurationError(f"workdir_inside takes an absolute path, not {path!r}.")
    normal_path = os.path.normpath(path)
    # normpath keeps two leading slashes
    normal_path = "/" + normal_path.lstrip("/")
    if re.fullmatch(r"usr|etc|proc|dev|sys|bin|sbin|lib\d*|", normal_path.split("/")[1]) or (
        normal_path in ("/tmp", "/home", "/home/user")
    ):
        raise ConfigurationError(
            f"workdir_inside takes a path beside the system's folders, such as /work, not {path!r}."
        )
    return normal_path
