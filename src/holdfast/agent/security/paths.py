"""Rules on paths and hosts: the bounds of the working directory, secret files, the present content
of a folder, and allowed or private hosts."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.runtime.confinement import Confinement
from holdfast.tools.names import word_set
from holdfast.tools.patterns import name_fits

LOW, MEDIUM, UNKNOWN, HIGH = range(4)


class RiskFinding(NamedTuple):
    """A risk from 0 for low to 3 for high, and its reason."""

    rank: int
    reason: str = ""


class FileNames(NamedTuple):
    """A set of file names that fit a glob of `patterns` (none: all). Names with a dot at the
    beginning belong to it only if `hidden`."""

    patterns: tuple[str, ...] = ()
    hidden: bool = True

    def keep(self, name: str) -> bool:
        """Return whether a name is in the set."""
        fits = any(name_fits(name.lower(), one.lower()) for one in self.patterns or "*")
        return fits and (self.hidden or not name.startswith("."))


ALL_FILES = FileNames()


class FolderScan(NamedTuple):
    """The content of a folder: files with secrets, and the flags below. `leads_out` is 1 if a link
    leads out or to a folder, 2 for both. `whole` is True if all was seen. `odd` is 1 if a name may
    be several words, 2 if it may be an option."""

    secrets: list[str]
    leads_out: int
    whole: bool
    odd: int


# Files and folders of credentials, by their name or by the end of their path; those with a slash in
# front by their whole path.
_SECRETS = word_set("""
.ssh .gnupg .aws .azure .kube .docker .password-store .mozilla .thunderbird gcloud keyrings .env
.envrc .netrc _netrc .pgpass .my.cnf .npmrc .pypirc .git-credentials .htpasswd .vault-token .boto
.s3cfg id_rsa id_dsa id_ecdsa id_ed25519 shadow shadow- gshadow master.key credentials
credentials.json secrets.json secrets.yml secrets.yaml secrets.toml .bash_history .zsh_history
.python_history .terraformrc login.keychain-db .terraform.d .oci .databrickscfg .snowflake
.dockercfg .yarnrc.yml .mysql_history .psql_history .lesshst .node_repl_history .irb_history
.sqlite_history .rediscli_history .viminfo .fly .railway .vercel .authinfo .authinfo.gpg .msmtprc
.mutt .claude.json
""")
_SECRET_PATHS = word_set("""
/run/secrets /var/run/secrets /run/credentials /etc/sudoers /etc/sudoers.d /etc/ssl/private
/etc/krb5.keytab /etc/wireguard /etc/openvpn /etc/NetworkManager/system-connections /etc/ppp
/etc/security/opasswd /etc/kubernetes /var/lib/sss /var/lib/docker /var/lib/kubelet
/var/spool/cron /root
""")
# All hidden entries of a home folder, because settings of programs hold their credentials. Excepted
# are the folders of toolchains and libraries, which agents read.
_HOME = re.compile(r"/(?:home|Users)/[^/]+/")
_HIDDEN_AT_HOME = re.compile(
    r"(?:\.(?!(?:pyenv|rbenv|nodenv|rustup|nvm|asdf|sdkman|virtualenvs|venvs?|bun/bin|go/pkg"
    r"|cargo/(?:registry|bin|git)|local/(?:bin|lib|pipx|share/(?:virtualenvs|uv|mise))"
    r"|conda/(?:envs|pkgs)|m2/repository|gradle/caches|cache/(?:pip|uv|pypoetry/virtualenvs))"
    r"(?:/|$))|Library/Keychains)"
)
_SECRET_NAMES = re.compile(
    r"\.env\.(?!example$|sample$|template$|dist$|defaults$).+|ssh_host_.+_key"
    r"|.+\.(?:pem|p12|pfx|kdbx|keystore|jks|key)|.*service[-_]?account.*\.json"
)
_RAW = re.compile(
    r"/(?:dev/(?:mem|kmem|port|sd|hd|nvme|vd|xvd|dm-|mapper|loop|disk|md)"
    r"|proc/(?:kcore|kmem|sysrq-trigger)|boot(?:/|$)|sys(?:/|$))"
)
_DEVICES = word_set(
    "/dev/null /dev/stdout /dev/stderr /dev/tty /dev/stdin /dev/zero /dev/urandom /dev/random -"
)
# Places that every program reads. All else in /proc is the environment, memory or open files of
# processes, or a road around the paths looked at here.
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/opt/")
_SYSTEM_FILES = word_set(
    "/etc/os-release /etc/debian_version /proc/cpuinfo /proc/meminfo /proc/version /proc/loadavg"
)
# Names within a working directory that git, a shell or an editor obeys later, unseen.
_OBEYED = word_set(
    ".git .hg HEAD .bashrc .bash_profile .profile .zshrc .zshenv .gitconfig .netrc .inputrc"
)
# Folders and files that tools make again.
_AGAIN = word_set("""
.cache .eggs .gradle .hypothesis .mypy_cache .next .nox .nuxt .parcel-cache .pytest_cache .tox
.ruff_cache .turbo __pycache__ build cmake-build-debug coverage dist htmlcov node_modules out target
*.pyc *.pyo *.o *.class *~ .DS_Store .coverage *.orig *.rej *.egg-info
""")
# Folders of others' packages and of tools: a search through a project is not after their secrets.
_FOREIGN = word_set(
    ".git .mypy_cache .nox .pytest_cache .ruff_cache .tox .venv __pycache__ node_modules"
    " site-packages venv"
)
_GLOB = re.compile(r"[*?\[]")
_MAX_ENTRIES = 20_000  # directory entries that are looked at for one call


class ShellPaths:
    """The paths of a command, resolved from `workdir`, with `..`, `~` and symlinks. Folders of
    `writable` count as inside. `confinement` has the bounds of the sandbox, if any. `hosts` are
    patterns of permitted hosts."""

    __slots__ = ("_confinement", "_entries_left", "_hosts", "_inside", "home", "workdir")

    def __init__(
        self,
        workdir: str,
        home: str,
        writable: Sequence[str] = (),
        confinement: Confinement | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.workdir = os.path.realpath(workdir) if workdir else ""
        self.home, self._confinement, self._hosts = home, confinement, hosts
        folders = [self.workdir]
        for one in writable:
            expanded = home + one[1:] if one.startswith("~") else one
            folders.append(os.path.realpath(expanded) if workdir else one)
        self._inside = tuple(
            (one, one.rstrip("/") + "/") for one in folders if one not in ("", "/")
        )
        self._entries_left = _MAX_ENTRIES

    def real(self, path: str, cwd: str) -> str:
        """Return the real path of one from a folder ("": not known). Raises `ValueError`."""
        if len(path) > 4000:
            raise ValueError("it is longer than paths are")
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        if self._confinement is not None and _below(path, self._confinement.workdir):
            path = self.workdir + path[len(self._confinement.workdir) :]
        return os.path.realpath(os.path.join(cwd or "/", path))

    def inside(self, real: str) -> bool:
        """Return whether a real path is in the working directory or a writable folder."""
        return any(real == folder or real.startswith(prefix) for folder, prefix in self._inside)

    def is_inside(self, path: str, cwd: str) -> bool:
        """Return whether a path leads into the working directory."""
        try:
            return self.inside(self.real(path, cwd))
        except (OSError, ValueError):
            return False

    def judge(self, kind: str, path: str, cwd: str, act: str) -> RiskFinding:
        """Judge the use of a path: to "read", "write", "look" at its name, or "use" it as a program
        of the project may. `act` names the act in the reason."""
        label = path if len(path) <= 80 else f"{path[:77]}..."
        if path in _DEVICES and (path != "-" or kind != "write"):
            return RiskFinding(LOW)
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return RiskFinding(HIGH, f"{act} {label!r}, which is no path")
        inside = self.inside(real)
        outside = f"{act} a path outside of the working directory: {label}"
        if kind == "write" and not inside:
            if self._kept_out(real):
                return RiskFinding(MEDIUM, f"{outside}, from which the sandbox keeps it")
            return RiskFinding(HIGH, outside)
        parts = real.removeprefix(self.workdir).split("/")
        if kind == "write" and any(name_fits(one, part) for one in _OBEYED for part in parts):
            return RiskFinding(HIGH, f"{act} {label}, which is obeyed without being looked at")
        if kind != "look" and self.secret(path, real):
            return RiskFinding(HIGH, f"{act} a secret: {label}")
        if kind == "read" and (
            self._holds(path, cwd) or self._holds(real, "/") or _RAW.match(real)
        ):
            return RiskFinding(
                HIGH, f"{act} {label}: memory, devices, other processes, or where secrets are"
            )
        if kind == "write":
            return RiskFinding(MEDIUM, f"{act} {label}")
        public = real in _SYSTEM_FILES or real in _DEVICES or real.startswith(_SYSTEM)
        if inside or (public and kind != "use"):
            return RiskFinding(LOW)
        return RiskFinding(UNKNOWN if kind == "use" else MEDIUM, outside)

    def _kept_out(self, real: str) -> bool:
        """Return whether a sandbox keeps changes of this real path from the host."""
        if self._confinement is None or not self.workdir:
            return False
        shared = (self.workdir, self._confinement.workdir, *self._confinement.writable)
        return not any(_below(real, one) or _below(one, real) for one in shared)

    def secret(self, path: str, real: str) -> bool:
        """Return True if a path has the name or place of a secret, and is not a certificate."""
        home = len(self.home) + 1 if real.startswith(f"{self.home}/") else 0
        if not home and (match := _HOME.match(real)) is not None:
            home = match.end()
        hidden = home and _HIDDEN_AT_HOME.match(real, home)
        if hidden and (not self.inside(real) or self.workdir == self.home):
            return True
        prefix = f"{self.workdir}/" if self.workdir else ""
        if not any(_is_secret(one.removeprefix(prefix)) for one in {path, real}):
            return False
        if not real.endswith(".pem") or not os.path.isfile(real) or not os.access(real, os.R_OK):
            return True
        with open(real, "rb") as file:
            return b"PRIVATE KEY" in file.read(200_000)

    def read_all(
        self, path: str, cwd: str, names: FileNames, act: str, but_ignored: bool = False
    ) -> RiskFinding:
        """Judge reading all files with these names in a folder, or all files that git tracks
        there."""
        finding = self.judge("read", path, cwd, act)
        if finding.rank == HIGH:
            return finding
        real, everything = self.real(path, cwd), f"{act} everything in {path[:80]}"
        holders = (*_SECRET_PATHS, "/proc/", f"{self.home}/.ssh")
        if finding.rank and any(one.startswith(f"{real.rstrip('/')}/") for one in holders):
            return RiskFinding(HIGH, f"{everything}, where secrets are")
        if not os.path.isdir(real) or (finding.rank == LOW and not self.inside(real)):
            return finding
        scan = self.scan(real, names)
        secrets = [
            one for one in scan.secrets if not (but_ignored and is_ignored_by_git(real, one))
        ]
        if secrets:
            return RiskFinding(HIGH, f"{everything}, and that has secrets: {secrets[0][:80]}")
        if not scan.whole:
            return RiskFinding(UNKNOWN, f"{everything}: more than is looked through for secrets")
        links = RiskFinding((LOW, MEDIUM, UNKNOWN)[scan.leads_out], f"{everything} and its links")
        return max(finding, links)

    def scan(
        self, real: str, names: FileNames = ALL_FILES, deep: bool = True, everywhere: bool = False
    ) -> FolderScan:
        """Look through a folder for these names; if `deep`, also through the folders below it.
        Packages of others are left out unless `everywhere` is True, and git's own folders
        always."""
        secrets, leads_out, odd, todo = list[str](), 0, 0, [real]
        while todo and self._entries_left > 0:
            folder = todo.pop()
            try:
                with os.scandir(folder) as listing:
                    entries = list(itertools.islice(listing, self._entries_left + 1))
            except OSError:  # not readable, or gone
                continue
            self._entries_left -= len(entries)
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                relevant = names.keep(entry.name) or (deep and everywhere and entry.is_symlink())
                if not is_folder and not relevant:
                    continue
                plain = re.fullmatch(r"[\w.@%+,:=-]+", entry.name) is not None
                odd = max(odd, 2 if entry.name[0] == "-" else not plain)
                if is_folder:
                    skipped = (".git",) if everywhere else _FOREIGN
                    todo += [entry.path] if deep and entry.name not in skipped else []
                    continue
                below = entry.path[len(real) :]
                if entry.is_symlink():
                    secret = self.judge("read", entry.path, folder, "").rank == HIGH
                    out = not self.is_inside(entry.path, folder)
                    leads_out = max(leads_out, out + entry.is_dir())
                else:
                    secret = self.secret(below, entry.path)
                secrets += [below.lstrip("/")] if secret else []
        return FolderScan(
            secrets, leads_out, self._entries_left > 0, odd if self._entries_left > 0 else 2
        )

    def judge_glob(self, kind: str, glob: str, cwd: str, act: str) -> RiskFinding:
        """Judge the paths that a glob may become at this moment, beside its own."""
        folder, names, deep = split_glob(glob)
        if not self.is_inside(folder, cwd):
            return RiskFinding(UNKNOWN, f"{act} more paths than are looked at: {glob[:80]}")
        scan = self.scan(self.real(folder, cwd), names, deep, everywhere=True)
        if scan.secrets and kind != "look":
            return RiskFinding(HIGH, f"{act} {glob[:80]}, and that has secrets: {scan.secrets[0]}")
        if not scan.whole or (scan.leads_out and (deep or kind not in ("read", "look"))):
            return RiskFinding(UNKNOWN, f"{act} {glob[:80]}, which may lead anywhere")
        return RiskFinding(MEDIUM if scan.leads_out else LOW, f"{act} {glob[:80]}")

    def fetch(self, url: str, sends: str = "") -> RiskFinding:
        """Judge asking a host; with `sends`, which says what, also giving it something."""
        scheme, label = _URL.match(url), url if len(url) <= 80 else f"{url[:77]}..."
        if scheme is not None and scheme[1].lower() not in ("http", "https", "git", "ftp", "ftps"):
            return RiskFinding(HIGH, f"uses {scheme[1]}://, which is no way to fetch something")
        try:
            host = (urlsplit(url if scheme else f"http://{url}").hostname or "").rstrip(".")
        except ValueError:
            return RiskFinding(HIGH, f"the address {label} cannot be read")
        if not host or not _HOST.fullmatch(host):
            return RiskFinding(HIGH, f"the address {label} has no host, or one in other letters")
        act = f"{sends} to {host}" if sends else f"fetches from {host}"
        if any(name_fits(host, pattern.lower()) for pattern in self._hosts):
            return RiskFinding(MEDIUM if sends else LOW, act)
        if self._confinement is not None and not self._confinement.hosts:
            return RiskFinding(MEDIUM, f"{act}, from which the sandbox keeps it")
        if _LOCAL.fullmatch(host):
            act = f"{sends or 'talks'} to {host}, which is this machine"
        elif _INTERNAL.fullmatch(host):
            return RiskFinding(HIGH, f"reaches {host}, which may be of a private network")
        return RiskFinding(HIGH if sends else MEDIUM, act)

    def _holds(self, path: str, cwd: str) -> bool:
        """Return whether a path is of a process, or where a system keeps secrets."""
        path = "/" + os.path.normpath(os.path.join(cwd or "/", path)).lstrip("/")
        if self.inside(path):
            return False
        if path.startswith("/proc/"):
            return path not in _SYSTEM_FILES
        return any(f"{path}/".startswith(f"{one}/") for one in _SECRET_PATHS if one != self.home)


def _below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_regenerated(name: str) -> bool:
    """Return True if tools generate the files of this name or pattern again."""
    return name in _AGAIN or (
        not _GLOB.search(name) and any(name_fits(name, one) for one in _AGAIN)
    )


def split_glob(glob: str) -> tuple[str, FileNames, bool]:
    """Return a glob's folder, the names of its files, and whether those may be further below."""
    parts, at = glob.split("/"), re.split(_GLOB, glob, maxsplit=1)[0].count("/")
    last = "" if re.search(r"[\[\\]", parts[-1]) else parts[-1]
    names = FileNames((last,) if last else (), hidden=not last or last[0] == ".")
    return "/".join(parts[:at]) or "/."[glob[0] != "/"], names, at + 1 < len(parts)


def _is_secret(path: str) -> bool:
    return any(
        part in _SECRETS or (_SECRET_NAMES.fullmatch(part) and not part.endswith(".pub"))
        for part in path.lower().split("/")
    )


def bytes_of(path: str) -> bytes:
    """Return the beginning of a file; nothing if it cannot be read."""
    try:
        with open(path, "rb") as file:
            most = 20_000_000 if path.endswith("index") else 100_000
            return file.read(min(most, os.fstat(file.fileno()).st_size))  # else it takes `most`
    except OSError:
        return b""


def repository(folder: str) -> str:
    """Return the nearest folder, upwards, that has a repository or looks like one, or ""."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        if any(os.path.lexists(os.path.join(folder, name)) for name in ("HEAD", "objects")):
            break
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return ""
    return folder


def is_ignored_by_git(folder: str, path: str) -> bool:
    """Return whether git does not track a path and a plain line of a `.gitignore` excludes it."""
    at, name = os.path.split(os.path.join(folder, path))
    root = repository(at)
    index = bytes_of(os.path.join(root, ".git", "index"))
    if os.fsencode(os.path.relpath(os.path.join(at, name), root or "/")) + b"\0" in index:
        return False
    while root and at.startswith(root):
        text = bytes_of(os.path.join(at, ".gitignore")).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        if any(line.startswith("!") for line in lines):
            return False
        if any(line and line[0] != "#" and name_fits(name, line.lstrip("/")) for line in lines):
            return True
        at = os.path.dirname(at)
    return False


# --- hosts ---

_LOCAL = re.compile(r"(?:.*\.)?localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|::1?")
# Names of private networks, and addresses in any notation: 127.1, 0x7f000001, 2130706433, ::1.
_INTERNAL = re.compile(
    r"[^.]*|.*(?::.*|\.(?:internal|local|lan|intranet|corp|home\.arpa|localdomain|(?!xn--)[^.]*\d[^.]*))"
)
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", re.ASCII)
# Other letters may be taken for these by a shell, a resolver or a person.
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+", re.ASCII)


def is_url(text: str) -> bool:
    """Return whether a text begins as an address with a scheme."""
    return _URL.match(text) is not None
