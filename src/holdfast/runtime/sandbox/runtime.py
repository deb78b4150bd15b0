"""`SandboxedRuntime`: a working directory whose commands run in boxes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from holdfast.errors import ConfigurationError, RuntimeFault
from holdfast.runtime.confinement import Confinement
from holdfast.runtime.files import TextFiles
from holdfast.runtime.folder import FolderRuntime, ProcessPlace
from holdfast.runtime.pump import Pump
from holdfast.runtime.sandbox.boxed_paths import BoxedPaths, Root
from holdfast.runtime.sandbox.bridge import BoxLauncher, proxy_variables
from holdfast.runtime.sandbox.live import LiveBox
from holdfast.runtime.sandbox.mechanisms import choose
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
        proxy: Proxy | None = None
        if network != "none":
            from holdfast.runtime.sandbox.proxy import Proxy  # asyncio: most boxes have no network

            proxy = Proxy(AllowList(network))
        # Without SHELL, each bash asks the user database, which costs 0.5 ms in a Landlock box.
        variables = {"SHELL": "/bin/bash"}
        if proxy is not None:
            variables |= proxy_variables(proxy.allowed.names_this_machine)
        # Callers are not all typed.
        if limits is not None and not isinstance(limits, SandboxLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits takes SandboxLimits, not {limits!r}.")
        if workdir_inside is not None:
            workdir_inside = _checked_inside(workdir_inside)
        checked = check_mounts(mounts)

        def make_place(work: Path, folder: Path) -> ProcessPlace:
            inside = workdir_inside or str(work)
            if inside in [mount.target for mount in checked]:
                raise ConfigurationError(f"A mount has the target {inside!r} of the work folder.")
            for source in [work, *(Path(one.source) for one in checked if one.writable)]:
                if source == Path("/") or (folder.is_relative_to(source.resolve()) and workdir):
                    raise ConfigurationError(
                        f"{str(source)!r} cannot be writable in a sandbox: it contains the system's"
                        f" temporary folder, {str(folder.parent)!r}. Use a folder below it."
                    )
            outputs = folder / "output"
            outputs.mkdir(mode=0o700)
            private = folder / "box"
            private.mkdir(mode=0o700)
            repository = ProtectedRepository(work)

            homes: list[Path] = []

            def settings(own: Path, *writable: Path, stays: bool = False) -> BoxSettings:
                return BoxSettings(
                    workdir=work,
                    workdir_inside=inside,
                    private=own,
                    limits=limits or SandboxLimits(),
                    mounts=checked,
                    read_only=(outputs,),
                    writable=(*writable, *homes),
                    protected=repository.read_only,
                    stays=stays,
                    proxy=proxy,
                    repository=repository.mounts(inside),
                )

            chosen = choose(mechanism, settings(private))
            self.mechanism = chosen.name
            self._repository = repository
            home = chosen.home(private)
            if Path(home).is_relative_to(private):  # a folder of this machine
                homes.append(Path(home))
                temporary = Path(home, "tmp")
                temporary.mkdir(mode=0o700, parents=True)
                variables["TMPDIR"] = str(temporary)
            launcher = self._one_off = chosen.launcher(settings(private))
            if checked or limits or workdir_inside:
                try:
                    _try_out(launcher, inside)
                except BaseException:
                    launcher.close()
                    raise

            def make_host(number: int, pump: Pump) -> LiveBox:
                own = shell_folder(folder, number)
                own.mkdir(mode=0o700, exist_ok=True)
                state_file(own).touch(mode=0o600)
                launcher = chosen.launcher(settings(own, state_file(own), stays=True))
                return LiveBox(launcher, own, inside, pump)

            roots = [Root(inside, work, True)]
            roots += [
                Root(mount.target, Path(os.path.realpath(mount.source)), mount.writable)
                for mount in checked
            ]
            return ProcessPlace(
                launcher,
                make_host,
                inside,
                home,
                variables,
                lambda readable, home: BoxedPaths(
                    work,
                    [*roots, *(Root(str(one), one, False) for one in readable)],
                    repository.read_only,
                    home,
                ),
            )

        self.network = network if network == "none" else tuple(network)
        """The allowed hosts, or "none"."""
        self._proxy = proxy
        super().__init__(workdir, env, shell, output_limit, command_timeout, make_place, text_files)
        writable = tuple(mount.target for mount in checked if mount.writable)
        hosts = () if network == "none" else tuple(network)
        self.confinement = Confinement(self.workdir_visible, writable, hosts)
        """The bounds of the boxes, for judges of calls."""

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
