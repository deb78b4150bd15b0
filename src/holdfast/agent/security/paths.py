"""Rules on paths: what is inside the working directory, what is secret, and what a folder holds at this moment."""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

LOW, MEDIUM, UNKNOWN, HIGH = range(4)


class Finding(NamedTuple):
    """A risk from 0 for low to 3 for high, and its reason."""

    rank: int
    reason: str = ""


NOTHING = Finding(LOW)
Keep = Callable[[str], bool]
"""True for the names of files that a search looks at."""


class Walk(NamedTuple):
    """The content of a folder: files with `secrets`; whether a link leads to a place that not every program reads, or out of the working
    directory, or does so to a folder; whether a name could be taken for several words or an option; whether all of it was looked at."""

    secrets: list[str]
    reads_out: bool
    leads_out: bool
    folder_out: bool
    odd: bool
    whole: bool


# Folders whose files are credentials, and files that are.
_SECRET_FOLDERS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".password-store",
    ".mozilla",
    ".thunderbird",
    "gcloud",
    "keyrings",
)
_SECRET_FILES = (
    ".env", ".envrc", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd", ".vault-token", ".boto", ".s3cfg",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "shadow", "shadow-", "gshadow", "master.key", "credentials", "credentials.json", "secrets.json",
    "secrets.yml", "secrets.yaml", "secrets.toml", ".bash_history", ".zsh_history", ".python_history", ".terraformrc", "login.keychain-db",
)  # fmt: skip
_SECRET_NAMES = re.compile(
    r"(?:\.env\.(?!example$|sample$|template$|dist$|defaults$).+|.+\.(?:pem|p12|pfx|kdbx|keystore|jks|key)|ssh_host_.+_key|.*service[-_]?account.*\.json)",
    re.IGNORECASE,
)
# Files and folders that hold credentials by where they are.
_SECRET_PATHS = (
    "/run/secrets", "/var/run/secrets", "/etc/sudoers", "/etc/sudoers.d", "/etc/ssl/private", "/etc/krb5.keytab", "/etc/wireguard", "/etc/openvpn", "/etc/NetworkManager/system-connections", "/var/lib/sss",
    "/var/spool/cron", "/root", "/run/credentials", "/etc/security/opasswd", "/etc/ppp", "/var/lib/docker", "/var/lib/kubelet", "/etc/kubernetes",
)  # fmt: skip
_SECRET_ENDS = (
    ".cargo/credentials.toml", ".config/gh", ".config/glab-cli", ".config/hub", ".codex/auth.json", ".claude/.credentials.json", ".claude.json", ".gemini/oauth_creds.json", ".config/op", ".config/rclone", ".config/gcloud", ".config/doctl", ".config/heroku",
    ".config/github-copilot", ".config/openai", ".config/anthropic", ".config/configstore", ".config/containers/auth.json", ".config/sops", ".config/age", ".config/pip", ".config/pypoetry/auth.toml",
    ".config/git/credentials", ".config/goose", ".config/opencode", ".config/chromium", ".config/google-chrome", ".config/filezilla", ".config/netlify", ".config/stripe", ".config/nuget", ".local/share/keyrings",
    ".local/share/opencode/auth.json", ".local/share/fish/fish_history", ".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".nuget/nuget.config", ".gem/credentials", ".bundle/config",
    ".terraform.d", ".oci", ".databrickscfg", ".snowflake", ".dockercfg", ".cache/huggingface/token", ".huggingface/token", ".kaggle/kaggle.json", ".yarnrc.yml", ".mysql_history", ".psql_history", ".lesshst",
    ".node_repl_history", ".irb_history", ".sqlite_history", ".rediscli_history", ".viminfo", ".fly", ".railway", ".vercel", ".pulumi/credentials.json", ".authinfo", ".authinfo.gpg", ".msmtprc", ".mutt", ".config/fish/fish_variables",
)  # fmt: skip
_SECRETS = frozenset(_SECRET_FOLDERS) | frozenset(_SECRET_FILES)
# What is known of /proc and holds nothing of a process: all else there is its environment, memory, open files, or a road around the paths looked at here.
_PROC_PLAIN = re.compile(
    r"/proc/(?:(?:cpuinfo|meminfo|version|loadavg|uptime|stat|diskstats|partitions|filesystems|mounts|modules|devices|interrupts|vmstat|swaps|cmdline|buddyinfo|slabinfo)"
    r"|(?:sys|net|pressure|bus|driver|fs)(?:/.*)?|(?:self|thread-self|\d+)/(?:status|stat|statm|limits|cgroup|comm|mounts|mountinfo|io|sched|oom_score|oom_score_adj|loginuid|sessionid|wchan|net/.*|cmdline|exe))"
)
_RAW = re.compile(
    r"/(?:dev/(?:mem|kmem|port|sd|hd|nvme|vd|xvd|dm-|mapper|loop|disk|md)|proc/(?:kcore|kmem|sysrq-trigger)|boot(?:/|$)|sys(?:/|$))"
)
_HARMLESS_DEVICES = frozenset(
    ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/stdin", "/dev/zero", "/dev/urandom", "/dev/random")
)
# Places that every program reads.
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/opt/")
_SYSTEM_FILES = frozenset(
    ("/etc/os-release", "/etc/debian_version", "/etc/timezone", "/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/loadavg")
)
# Names within a working directory that git, a shell or an editor obeys later, unseen.
_OBEYED = (".git", ".hg", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".gitconfig", ".netrc", ".inputrc")
# Folders and files that tools make again.
MADE_AGAIN = frozenset((
    "node_modules", "build", "dist", "target", "out", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox", ".cache",
    "coverage", "htmlcov", ".next", ".nuxt", ".turbo", ".parcel-cache", ".eggs", ".hypothesis", "cmake-build-debug", ".gradle",
))  # fmt: skip
_MADE_AGAIN_FILES = ("*.pyc", "*.pyo", "*.o", "*.class", "*~", ".DS_Store", ".coverage", "*.orig", "*.rej", "*.egg-info")
# Folders of others' packages and of tools: a search through a project is not after the secrets of these.
_FOREIGN = frozenset(
    (".git", "node_modules", "site-packages", "__pycache__", ".venv", "venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache")
)
_ODD = re.compile(r"[\s'\"\\]|^-")
_MOST_ENTRIES = 20_000  # directory entries that are looked at for one call
_MOST_MATCHES = 500  # names that a glob may become


class Places:
    """Paths as a command means them: resolved from `workdir`, with `..`, `~` and symlinks. `writable` are further folders that count as inside."""

    __slots__ = ("_inside", "_left", "home", "workdir")

    def __init__(self, workdir: str, home: str, writable: Sequence[str] = ()) -> None:
        self.workdir = workdir = _real_folder(workdir) if workdir else ""
        self.home = home
        folders = [workdir, *[os.path.realpath(_with_home(one, home)) for one in writable]] if workdir else list(writable)
        self._inside = tuple([(one, one.rstrip("/") + "/") for one in folders if one and one != "/"])
        self._left = _MOST_ENTRIES

    def real(self, path: str, cwd: str) -> str:
        """The real absolute path. Raises `ValueError` for what is no path."""
        if len(path) > 4000:
            raise ValueError("it is longer than paths are")
        if path.startswith("//"):
            path = "/" + path.lstrip("/")
        if path.startswith(f"{self.workdir}/") and self.workdir:
            path, cwd = path[len(self.workdir) + 1 :], self.workdir
        parts = path.split("/")
        if path[:1] == "/" or ".." in parts or not cwd:
            return os.path.realpath(os.path.join(cwd, path))
        # Most paths stay below a folder that is real already. Its own parts need no second look, which saves most of the time.
        at, there = cwd.rstrip("/"), True
        for part in parts:
            if part and part != ".":
                at = f"{at}/{part}"
                if there:
                    try:
                        if stat.S_ISLNK(os.lstat(at).st_mode):
                            return os.path.realpath(os.path.join(cwd, path))
                    except OSError:
                        there = False
        return at or "/"

    def inside(self, real: str) -> bool:
        """Whether a real path is in the working directory, or in a folder that counts as such."""
        return any(real == folder or real.startswith(prefix) for folder, prefix in self._inside)

    def is_inside(self, path: str, cwd: str) -> bool:
        """Whether a path leads into the working directory."""
        try:
            return self.inside(self.real(path, cwd))
        except (OSError, ValueError):
            return False

    def look(self, path: str, cwd: str) -> Finding:
        """Seeing whether a path is there, and its name, size and time."""
        if self.is_inside(path, cwd) or _is_public(path):
            return NOTHING
        return Finding(MEDIUM, f"looks outside of the working directory: {_shown(path)}")

    def read(self, path: str, cwd: str) -> Finding:
        """Reading a file."""
        if path in _HARMLESS_DEVICES or path == "-":
            return NOTHING
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return Finding(HIGH, f"{_shown(path)} is no path")
        if self.secret(path, real):
            return Finding(HIGH, f"reads what is secret: {_shown(path)}")
        if self._holds(path, cwd) or self._holds(real, "/") or _RAW.match(real):
            return Finding(HIGH, f"reads {_shown(path)}: memory, devices, other processes, or where secrets are")
        if self.inside(real) or _is_public(real):
            return NOTHING
        return Finding(MEDIUM, f"reads outside of the working directory: {_shown(path)}")

    def use(self, path: str, cwd: str, name: str) -> Finding:
        """Giving a path, or what may be one, to a program of the project."""
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return Finding(UNKNOWN, f"{name} is given what is no path")
        if self.secret(path, real):
            return Finding(HIGH, f"{name} is given what is secret: {_shown(path)}")
        if self.inside(real) or real == "/dev/null":
            return NOTHING
        return Finding(UNKNOWN, f"{name} reaches outside of the working directory: {_shown(path)}")

    def secret(self, path: str, real: str) -> bool:
        """Whether a path has the name or the place of a secret. A certificate is none: only a private key is."""
        below = real[len(self.workdir) :] if self.workdir and real.startswith(f"{self.workdir}/") else real
        if not (_is_secret(path if below is real else path.removeprefix(self.workdir)) or _is_secret(below)):
            return False
        if real.endswith(".pem"):
            try:
                with open(real, "rb") as file:
                    return b"PRIVATE KEY" in file.read(200_000)
            except OSError:
                return True
        return True

    def read_all(self, path: str, cwd: str, keep: Keep) -> Finding:
        """Reading a folder with all files in it that `keep` does not leave out."""
        found = self.read(path, cwd)
        if found.rank == HIGH:
            return found
        real = self.real(path, cwd)
        below = real.rstrip("/") + "/"
        if found.rank and any(one.startswith(below) for one in (*_SECRET_PATHS, "/proc/", f"{self.home}/.ssh")):
            return Finding(HIGH, f"reads all that is in {_shown(path)}, where secrets are")
        if not os.path.isdir(real) or (_is_public(real) and not self.inside(real)):
            return found
        walk = self.walk(real, keep)
        if walk.secrets:
            return Finding(HIGH, f"reads all that is in {_shown(path)}, and that has secrets: {_shown(walk.secrets[0])}")
        if not walk.whole:
            return Finding(UNKNOWN, f"reads all that is in {_shown(path)}, which is more than is looked through for secrets")
        return max(found, Finding(MEDIUM, f"follows links out of {_shown(path)}")) if walk.reads_out else found

    def walk(self, real: str, keep: Keep, foreign: bool = False) -> Walk:
        """Look through a folder for names that `keep` keeps; with `foreign` also through others' packages in it."""
        secrets, links, odd, todo = list[str](), list[tuple[Finding, bool, bool]](), False, [real]
        while todo and self._left > 0:
            folder = todo.pop()
            try:
                with os.scandir(folder) as found:
                    entries = list(itertools.islice(found, self._left + 1))
            except OSError:  # not readable, or gone
                continue
            self._left -= len(entries)
            for entry in entries:
                name = entry.name
                folder_too = entry.is_dir(follow_symlinks=False)
                odd = odd or ((folder_too or keep(name)) and _ODD.search(name) is not None)
                if folder_too:
                    todo += [entry.path] if foreign or name not in _FOREIGN else []
                elif keep(name):
                    link = entry.is_symlink()
                    finding = self.read(entry.path, folder) if link else NOTHING
                    links += [(finding, not self.is_inside(entry.path, folder), entry.is_dir())] if link else []
                    if finding.rank == HIGH or (not link and self.secret(entry.path[len(real) :], entry.path)):
                        secrets.append(entry.path[len(real) :].lstrip("/"))
        reads_out, leads_out = any(found.rank for found, _, _ in links), any(out for _, out, _ in links)
        return Walk(secrets, reads_out, leads_out, any(out and folder for _, out, folder in links), odd, self._left > 0)

    def matches(self, pattern: str, cwd: str) -> list[str] | None:
        """The paths that a glob may become at this moment, and the glob itself; None if they are too many."""
        if re.search(r"\[[^\]]*[\[\\]|\[[!^]?\]", pattern):
            return None  # a class of characters, or a bracket in brackets
        found = ["/" if pattern.startswith("/") else ""]
        parts = [part for part in re.sub(r"\[[^\]/]+\]", "?", pattern).split("/") if part]  # a set is taken for any letter
        for index, part in enumerate(parts):
            slash, deeper = "/" if index + 1 < len(parts) or pattern.endswith("/") else "", list[str]()
            for one in found:
                try:
                    names = [part] if not _GLOB.search(part) else os.listdir(os.path.join(cwd, one) or ".")
                except OSError:
                    continue
                self._left -= len(names)
                if self._left < 0 or len(deeper) > _MOST_MATCHES:
                    return None
                deeper += [
                    f"{one}{name}{slash}"
                    for name in names
                    if name == part or (fnmatchcase(name, part) and (name[0] != "." or part[0] == "."))
                ]
            found = deeper
        return [pattern, *found]

    def write(self, path: str, cwd: str, what: str = "writes to") -> Finding:
        """Making, changing or deleting a path."""
        if path in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "-"):
            return NOTHING
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return Finding(HIGH, f"{_shown(path)} is no path")
        if not self.inside(real):
            return Finding(HIGH, f"{what} what is outside of the working directory: {_shown(path)}")
        parts = real[len(self.workdir) :].split("/") if real.startswith(self.workdir) else real.split("/")
        if any(part in _OBEYED for part in parts):
            return Finding(HIGH, f"{what} {_shown(path)}, which is obeyed without being looked at")
        if _is_secret(path) or _is_secret(real):
            return Finding(HIGH, f"{what} what is secret: {_shown(path)}")
        return Finding(MEDIUM, f"{what} {_shown(path)}")

    def delete_all(self, path: str, cwd: str) -> Finding:
        """Deleting a folder with all that is in it."""
        found = self.write(path, cwd, "deletes")
        if found.rank > MEDIUM or (made_again(path.rstrip("/").rpartition("/")[2]) and self.real(path, cwd) != self.workdir):
            return found
        return Finding(HIGH, f"deletes a folder and all that is in it: {_shown(path)}")

    def _holds(self, path: str, cwd: str) -> bool:
        """Whether a path is of a process, or where a system keeps secrets."""
        path = "/" + os.path.normpath(os.path.join(cwd, path)).lstrip("/")
        if path.startswith("/proc/"):
            return not _PROC_PLAIN.fullmatch(path)
        if self.workdir and (path == self.workdir or path.startswith(f"{self.workdir}/")):
            return False
        return any(path == one or path.startswith(f"{one}/") for one in _SECRET_PATHS if one != self.home)


_GLOB = re.compile(r"[*?\[]")


def made_again(pattern: str) -> bool:
    """Whether tools make again what has this name, or fits this pattern."""
    return pattern in MADE_AGAIN or any(
        pattern == one or (not _GLOB.search(pattern) and fnmatchcase(pattern, one)) for one in _MADE_AGAIN_FILES
    )


def _is_public(real: str) -> bool:
    """Whether a path is one that every program reads anyway."""
    return real in _SYSTEM_FILES or real in _HARMLESS_DEVICES or real.startswith(_SYSTEM)


def _is_secret(path: str) -> bool:
    slashed = f"/{path.lower()}/"
    if "/." in slashed and any(f"/{one}/" in slashed for one in _SECRET_ENDS):
        return True
    return any(part in _SECRETS or (_SECRET_NAMES.fullmatch(part) and not part.endswith(".pub")) for part in slashed.split("/"))


def _with_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


@functools.lru_cache(maxsize=64)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def _shown(path: str) -> str:
    return path if len(path) <= 80 else f"{path[:77]}..."
