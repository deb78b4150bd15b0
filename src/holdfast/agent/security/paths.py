"""Rules on paths: what is inside of the working directory, what is a secret, what nobody should write to."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

LOW, MEDIUM, UNKNOWN, HIGH = range(4)


class Finding(NamedTuple):
    """What a rule found: 0 for low to 3 for high, and why."""

    rank: int
    reason: str = ""


NOTHING = Finding(LOW)

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
# What every program reads anyway.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
_SYSTEM_FILES = frozenset(
    ("/etc/os-release", "/etc/debian_version", "/etc/timezone", "/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/loadavg")
)
# Where within a working directory a file is run or obeyed later, by somebody who does not look.
_OBEYED = (".git", ".hg", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".gitconfig", ".netrc", ".inputrc")
# Folders that tools make again.
MADE_AGAIN = frozenset((
    "node_modules", "build", "dist", "target", "out", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".nox", ".cache",
    "coverage", "htmlcov", ".next", ".nuxt", ".turbo", ".parcel-cache", ".eggs", ".hypothesis", "cmake-build-debug", ".gradle",
))  # fmt: skip
_GLOB = re.compile(r"[*?\[]")


class Places:
    """Paths as a command means them: resolved from `workdir`, with `..`, `~` and symlinks. `writable` are further folders that count as inside."""

    __slots__ = ("_inside", "home", "workdir")

    def __init__(self, workdir: str, home: str, writable: Sequence[str] = ()) -> None:
        self.workdir = workdir = _real_folder(workdir) if workdir else ""
        self.home = home
        folders = [workdir, *[os.path.realpath(_with_home(one, home)) for one in writable]] if workdir else list(writable)
        self._inside = tuple([(one, one.rstrip("/") + "/") for one in folders if one and one != "/"])

    def real(self, path: str, cwd: str) -> str:
        """The real absolute path. Raises `ValueError` for what is none."""
        if len(path) > 4000:
            raise ValueError("it is longer than paths are")
        if path.startswith(f"{self.workdir}/") and self.workdir:
            path, cwd = path[len(self.workdir) + 1 :], self.workdir
        parts = path.split("/")
        if path[:1] == "/" or ".." in parts or not cwd:
            return os.path.realpath(os.path.join(cwd, path))
        # Most paths stay below a folder that is real already: then its own parts need not be looked at again, which takes most of the time.
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

    def _holds(self, path: str, cwd: str) -> bool:
        """Whether a path, or what fits its glob, is of a process or where secrets are kept."""
        if path[:1] != "/":
            if cwd[:5] != "/proc" and not cwd.startswith(("/run", "/var", "/etc", self.home or "/root")):
                return False
            path = f"{cwd.rstrip('/')}/{path}"
        if "//" in path or "/./" in path or "/../" in path:
            path = os.path.normpath(path) if ".." not in path else os.path.realpath(path)
        path = path.rstrip("/")
        if path == "/proc" or path.startswith("/proc/"):
            return path != "/proc" and not _PROC_PLAIN.fullmatch(path)
        if path.startswith("/") and _GLOB.search(path):
            first = path.split("/")[1]
            if _GLOB.search(first) and fnmatchcase("proc", first) and path.count("/") > 1:
                return True
        if not path.startswith(("/run/", "/var/", "/etc/", "/root")) and not _GLOB.search(path):
            return False
        if self.workdir and (path == self.workdir or path.startswith(f"{self.workdir}/")):
            return False
        return any(_covers(path, one) for one in _SECRET_PATHS if one != self.home)

    def inside(self, real: str) -> bool:
        """Whether a real path is in the working directory, or in a folder that counts as such."""
        return any(real == folder or real.startswith(prefix) for folder, prefix in self._inside)

    def read(self, path: str, cwd: str) -> Finding:
        """Reading a path, or all that fits a glob."""
        if path in _HARMLESS_DEVICES or path == "-" or re.fullmatch(r"/dev/fd/\d+", path):
            return NOTHING
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return Finding(HIGH, f"{_shown(path)} is no path")
        if _is_secret(path) or _is_secret(real):
            return Finding(HIGH, f"reads what is secret: {_shown(path)}")
        if self._holds(path, cwd) or self._holds(real, "/") or _RAW.match(real):
            return Finding(HIGH, f"reads {_shown(path)}: memory, devices, other processes, or where secrets are")
        if self.inside(real) or real in _SYSTEM_FILES or real in _HARMLESS_DEVICES:
            return NOTHING
        if any(real == folder or real.startswith(f"{folder}/") for folder in _SYSTEM):
            return NOTHING
        return Finding(MEDIUM, f"reads outside of the working directory: {_shown(path)}")

    def read_all(self, path: str, cwd: str) -> Finding:
        """Reading a folder with all that is in it."""
        found = self.read(path, cwd)
        if found.rank != MEDIUM:
            return found
        real = self.real(path, cwd).rstrip("/") + "/"
        if any(one.startswith(real) for one in (*_SECRET_PATHS, "/proc/", f"{self.home}/.ssh")):
            return Finding(HIGH, f"reads all that is in {_shown(path)}, where secrets are")
        return found

    def write(self, path: str, cwd: str, what: str = "writes to") -> Finding:
        """Making, changing or deleting a path, or all that fits a glob."""
        if path in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "-") or re.fullmatch(r"/dev/fd/\d+", path):
            return NOTHING
        head, _, last = path.rpartition("/")
        if _GLOB.search(head):
            return Finding(UNKNOWN, f"{what} places that are not known beforehand: {_shown(path)}")
        if last in (".*", ".?*", "..*") or (_GLOB.search(last) and last.startswith(".")):
            return Finding(HIGH, f"{what} {_shown(path)}, which may be the folder above")
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
        if found.rank > MEDIUM:
            return found
        name = path.rstrip("/").rpartition("/")[2]
        if name in MADE_AGAIN and self.real(path, cwd) != self.workdir:
            return Finding(MEDIUM, f"deletes {_shown(path)}, which is made again")
        return Finding(HIGH, f"deletes a folder and all that is in it: {_shown(path)}")


@functools.lru_cache(maxsize=64)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def _covers(path: str, secret: str) -> bool:
    """Whether a path, or one that fits its glob, is this one or within it."""
    if not _GLOB.search(path):
        return path == secret or path.startswith(f"{secret}/")
    parts, wanted = path.split("/"), secret.split("/")
    return len(parts) >= len(wanted) and all(fnmatchcase(name, part) for part, name in zip(parts, wanted, strict=False))


def _is_secret(path: str) -> bool:
    if "/." in path or path[:1] == ".":
        slashed = f"/{path.lower()}/"
        if any(f"/{one}/" in slashed for one in _SECRET_ENDS):
            return True
        if _GLOB.search(path):
            parts = path.lower().split("/")
            if len(parts) > 64:
                return True  # more than is compared
            for one in _SECRET_ENDS:
                wanted = one.split("/")
                for at in range(len(parts) - len(wanted) + 1):
                    if all(fnmatchcase(name, part) and part.strip("*?") for part, name in zip(parts[at:], wanted, strict=False)):
                        return True
    for part in path.split("/"):
        if not part:
            continue
        lower = part.lower()
        if lower in _SECRETS or (_SECRET_NAMES.fullmatch(lower) and not lower.endswith(".pub")):
            return True
        if (
            _GLOB.search(part)
            and any(fnmatchcase(name, lower) for name in _SECRETS if part[0] == name[0] or not name.startswith("."))
            and (lower.strip("*?") != "")
        ):
            return True
    return False


def _with_home(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def _shown(path: str) -> str:
    return path if len(path) <= 80 else f"{path[:77]}..."
