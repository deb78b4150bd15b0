"""Rules on paths: what is inside the working directory, what is secret, and what a folder holds
at this moment."""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

LOW, MEDIUM, UNKNOWN, HIGH = range(4)


class Finding(NamedTuple):
    """A risk from 0 for low to 3 for high, and its reason."""

    rank: int
    reason: str = ""


class Names(NamedTuple):
    """Names of files: those that fit one of `patterns` (none: all) and none of `without`; with
    `hidden` also those that begin with a dot."""

    patterns: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    hidden: bool = True

    def keep(self, name: str) -> bool:
        """Whether a name is among them."""
        if (not self.hidden and name.startswith(".")) or any(
            fnmatchcase(name, one) for one in self.without
        ):
            return False
        return not self.patterns or any(
            fnmatchcase(name.lower(), one.lower()) for one in self.patterns
        )


class Walk(NamedTuple):
    """The content of a folder: files with `secrets`; whether a link leads to a place that not every
    program reads, or out of the working directory, or does so to a folder; whether a name could be
    taken for several words or an option; whether all of it was looked at."""

    secrets: list[str]
    reads_out: bool
    leads_out: bool
    folder_out: bool
    odd: bool
    whole: bool


def listed(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Folders whose files are credentials, and files that are; the same by where they are, and below a
# home.
_SECRETS = listed("""
.ssh .gnupg .aws .azure .kube .docker .password-store .mozilla .thunderbird gcloud keyrings .env
.envrc .netrc _netrc .pgpass .my.cnf .npmrc .pypirc .git-credentials .htpasswd .vault-token .boto
.s3cfg id_rsa id_dsa id_ecdsa
id_ed25519 shadow shadow- gshadow master.key credentials credentials.json secrets.json secrets.yml
secrets.yaml secrets.toml .bash_history .zsh_history .python_history .terraformrc login.keychain-db
""")
_SECRET_NAMES = re.compile(
    r"(?:\.env\.(?!example$|sample$|template$|dist$|defaults$).+|.+\.(?:pem|p12|pfx|kdbx|keystore|jks|key)|ssh_host_.+_key|.*service[-_]?account.*\.json)"
)
_SECRET_PATHS = listed("""
/run/secrets /var/run/secrets /etc/sudoers /etc/sudoers.d /etc/ssl/private /etc/krb5.keytab
/etc/wireguard /etc/openvpn /etc/NetworkManager/system-connections /var/lib/sss /var/spool/cron
/root /run/credentials
/etc/security/opasswd /etc/ppp /var/lib/docker /var/lib/kubelet /etc/kubernetes
""")
_SECRET_ENDS = listed("""
.cargo/credentials.toml .config/gh .config/glab-cli .config/hub .codex/auth.json
.claude/.credentials.json .claude.json .gemini/oauth_creds.json .config/op .config/rclone
.config/gcloud .config/doctl .config/heroku .config/github-copilot .config/openai .config/anthropic
.config/configstore .config/containers/auth.json
.config/sops .config/age .config/pip .config/pypoetry/auth.toml .config/git/credentials
.config/goose .config/opencode .config/chromium .config/google-chrome .config/filezilla
.config/netlify .config/stripe .config/nuget .local/share/keyrings .local/share/opencode/auth.json
.local/share/fish/fish_history .m2/settings.xml
.m2/settings-security.xml .gradle/gradle.properties .nuget/nuget.config .gem/credentials
.bundle/config .terraform.d .oci .databrickscfg .snowflake .dockercfg .cache/huggingface/token
.huggingface/token .kaggle/kaggle.json .yarnrc.yml .mysql_history .psql_history .lesshst
.node_repl_history .irb_history .sqlite_history
.rediscli_history .viminfo .fly .railway .vercel .pulumi/credentials.json .authinfo .authinfo.gpg
.msmtprc .mutt .config/fish/fish_variables
""")
# What is known of /proc and holds nothing of a process: all else there is its environment, memory,
# open files, or a road around the paths looked at here.
_PROC_PLAIN = re.compile(
    r"/proc/(?:(?:cpuinfo|meminfo|version|loadavg|uptime|stat|diskstats|partitions|filesystems|mounts|modules|devices|interrupts|vmstat|swaps|cmdline|buddyinfo|slabinfo)"
    r"|(?:sys|net|pressure|bus|driver|fs)(?:/.*)?|(?:self|thread-self|\d+)/(?:status|stat|statm|limits|cgroup|comm|mounts|mountinfo|io|sched|oom_score|oom_score_adj|loginuid|sessionid|wchan|net/.*|cmdline|exe))"
)
_RAW = re.compile(
    r"/(?:dev/(?:mem|kmem|port|sd|hd|nvme|vd|xvd|dm-|mapper|loop|disk|md)|proc/(?:kcore|kmem|sysrq-trigger)|boot(?:/|$)|sys(?:/|$))"
)
_DEVICES = listed(
    "/dev/null /dev/stdout /dev/stderr /dev/tty /dev/stdin /dev/zero /dev/urandom /dev/random -"
)
# Places that every program reads.
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/opt/")
_SYSTEM_FILES = listed(
    "/etc/os-release /etc/debian_version /etc/timezone /proc/cpuinfo /proc/meminfo /proc/version"
    " /proc/loadavg"
)
# Names within a working directory that git, a shell or an editor obeys later, unseen.
_OBEYED = listed(
    ".git .hg .bashrc .bash_profile .profile .zshrc .zshenv .gitconfig .netrc .inputrc"
)
# Folders and files that tools make again.
_AGAIN = listed("""
.cache .eggs .gradle .hypothesis .mypy_cache .next .nox .nuxt .parcel-cache .pytest_cache
.ruff_cache .tox .turbo __pycache__ build cmake-build-debug coverage dist htmlcov node_modules out
target *.pyc *.pyo *.o *.class *~
.DS_Store .coverage *.orig *.rej *.egg-info
""")
# Folders of others' packages and of tools: a search through a project is not after the secrets of
# these.
_FOREIGN = listed(
    ".git .mypy_cache .nox .pytest_cache .ruff_cache .tox .venv __pycache__ node_modules"
    " site-packages venv"
)
_ODD, _GLOB = re.compile(r"[\s'\"\\]|^-"), re.compile(r"[*?\[]")
_MOST_ENTRIES, _MOST_MATCHES = (
    20_000,
    500,
)  # directory entries that are looked at for one call, and names that a glob may become


class Places:
    """Paths as a command means them: resolved from `workdir`, with `..`, `~` and symlinks.
    `writable` are further folders that count as inside."""

    __slots__ = ("_inside", "_left", "home", "workdir")

    def __init__(self, workdir: str, home: str, writable: Sequence[str] = ()) -> None:
        self.workdir = workdir = _real_folder(workdir) if workdir else ""
        self.home = home
        folders = (
            [
                workdir,
                *[
                    os.path.realpath(home + one[1:] if one.startswith("~") else one)
                    for one in writable
                ],
            ]
            if workdir
            else list(writable)
        )
        self._inside = tuple(
            [(one, one.rstrip("/") + "/") for one in folders if one and one != "/"]
        )
        self._left = _MOST_ENTRIES

    def real(self, path: str, cwd: str) -> str:
        """The real absolute path. Raises `ValueError` for what is no path."""
        if len(path) > 4000:
            raise ValueError("it is longer than paths are")
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        if path.startswith(f"{self.workdir}/") and self.workdir:
            path, cwd = path[len(self.workdir) + 1 :], self.workdir
        parts = path.split("/")
        if path[:1] == "/" or ".." in parts or not cwd:
            return os.path.realpath(os.path.join(cwd, path))
        # Most paths stay below a folder that is real already. Its own parts need no second look,
        # which saves most of the time.
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

    def judge(self, kind: str, path: str, cwd: str, what: str) -> Finding:
        """Judge the use of a path: "read" or "write" a file, "look" at its name and size, or "use"
        it as a program of the project may.

        `what` names the act.
        """
        shown = path if len(path) <= 80 else f"{path[:77]}..."
        if path in _DEVICES:
            return Finding(LOW)
        try:
            real = self.real(path, cwd)
        except (OSError, ValueError):
            return Finding(HIGH, f"{what} {shown!r}, which is no path")
        inside, public = (
            self.inside(real),
            real in _SYSTEM_FILES or real in _DEVICES or real.startswith(_SYSTEM),
        )
        if kind == "write" and not inside:
            return Finding(HIGH, f"{what} what is outside of the working directory: {shown}")
        if kind == "write" and _OBEYED & set(real.removeprefix(self.workdir).split("/")):
            return Finding(HIGH, f"{what} {shown}, which is obeyed without being looked at")
        if kind != "look" and self.secret(path, real):
            return Finding(HIGH, f"{what} what is secret: {shown}")
        if kind == "read" and (
            self._holds(path, cwd) or self._holds(real, "/") or _RAW.match(real)
        ):
            return Finding(
                HIGH, f"{what} {shown}: memory, devices, other processes, or where secrets are"
            )
        if kind == "write":
            return Finding(MEDIUM, f"{what} {shown}")
        if inside or (public and kind != "use"):
            return Finding(LOW)
        return Finding(
            UNKNOWN if kind == "use" else MEDIUM,
            f"{what} what is outside of the working directory: {shown}",
        )

    def secret(self, path: str, real: str) -> bool:
        """Whether a path has the name or the place of a secret. A certificate is none: only a
        private key is."""
        if not any(
            _is_secret(one.removeprefix(f"{self.workdir}/") if self.workdir else one)
            for one in {path, real}
        ):
            return False
        if not real.endswith(".pem") or not os.path.isfile(real) or not os.access(real, os.R_OK):
            return True
        with open(real, "rb") as file:
            return b"PRIVATE KEY" in file.read(200_000)

    def read_all(self, path: str, cwd: str, names: Names, what: str) -> Finding:
        """Judge reading a folder with all files in it that have one of these names."""
        found = self.judge("read", path, cwd, what)
        real = self.real(path, cwd) if found.rank < HIGH else ""
        if found.rank and any(
            one.startswith(f"{real.rstrip('/')}/")
            for one in (*_SECRET_PATHS, "/proc/", f"{self.home}/.ssh")
        ):
            return max(
                found, Finding(HIGH, f"{what} all that is in {path[:80]}, where secrets are")
            )
        if not os.path.isdir(real) or (found.rank == LOW and not self.inside(real)):
            return found
        walk = self.walk(real, names)
        if walk.secrets:
            return Finding(
                HIGH,
                f"{what} all that is in {path[:80]}, and that has secrets: {walk.secrets[0][:80]}",
            )
        if not walk.whole:
            return Finding(
                UNKNOWN,
                f"{what} all that is in {path[:80]}, which is more than is looked through for"
                " secrets",
            )
        return (
            max(found, Finding(MEDIUM, f"follows links out of {path[:80]}"))
            if walk.reads_out
            else found
        )

    def walk(self, real: str, names: Names = Names(), foreign: bool = False) -> Walk:
        """Look through a folder for these names; with `foreign` also through others' packages in
        it."""
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
                deeper = entry.is_dir(follow_symlinks=False)
                odd = odd or (
                    (deeper or names.keep(entry.name)) and _ODD.search(entry.name) is not None
                )
                if deeper:
                    todo += [entry.path] if foreign or entry.name not in _FOREIGN else []
                elif names.keep(entry.name):
                    link = entry.is_symlink()
                    finding = self.judge("read", entry.path, folder, "") if link else Finding(LOW)
                    links += (
                        [(finding, not self.is_inside(entry.path, folder), entry.is_dir())]
                        if link
                        else []
                    )
                    if finding.rank == HIGH or (
                        not link and self.secret(entry.path[len(real) :], entry.path)
                    ):
                        secrets.append(entry.path[len(real) :].lstrip("/"))
        reads_out, leads_out = (
            any(found.rank for found, _, _ in links),
            any(out for _, out, _ in links),
        )
        return Walk(
            secrets,
            reads_out,
            leads_out,
            any(out and folder for _, out, folder in links),
            odd,
            self._left > 0,
        )

    def matches(self, pattern: str, cwd: str) -> list[str] | None:
        """The paths that a glob may become at this moment, and the glob itself; None if they are
        too many."""
        if re.search(r"\[[^\]]*[\[\\]|\[[!^]?\]", pattern):
            return None  # a class of characters, or a bracket in brackets
        found = ["/" if pattern.startswith("/") else ""]
        parts = [
            part for part in re.sub(r"\[[^\]/]+\]", "?", pattern).split("/") if part
        ]  # a set is taken for any letter
        for index, part in enumerate(parts):
            slash, deeper = (
                "/" if index + 1 < len(parts) or pattern.endswith("/") else "",
                list[str](),
            )
            for one in found:
                try:
                    names = (
                        [part]
                        if not _GLOB.search(part)
                        else os.listdir(os.path.join(cwd, one) or ".")
                    )
                except OSError:
                    continue
                self._left -= len(names)
                if self._left < 0 or len(deeper) > _MOST_MATCHES:
                    return None
                fits = [
                    name
                    for name in names
                    if name == part
                    or (fnmatchcase(name, part) and (name[0] != "." or part[0] == "."))
                ]
                deeper += [f"{one}{name}{slash}" for name in fits]
            found = deeper
        return [pattern, *found]

    def _holds(self, path: str, cwd: str) -> bool:
        """Whether a path is of a process, or where a system keeps secrets."""
        path = "/" + os.path.normpath(os.path.join(cwd, path)).lstrip("/")
        if path.startswith("/proc/") or self.inside(path):
            return not self.inside(path) and not _PROC_PLAIN.fullmatch(path)
        return any(
            path == one or path.startswith(f"{one}/") for one in _SECRET_PATHS if one != self.home
        )


def made_again(name: str) -> bool:
    """Whether tools make again what has this name, or fits this pattern."""
    return name in _AGAIN or (
        not _GLOB.search(name) and any(fnmatchcase(name, one) for one in _AGAIN)
    )


def _is_secret(path: str) -> bool:
    slashed = f"/{path.lower()}/"
    if "/." in slashed and any(f"/{one}/" in slashed for one in _SECRET_ENDS):
        return True
    return any(
        part in _SECRETS or (_SECRET_NAMES.fullmatch(part) and not part.endswith(".pub"))
        for part in slashed.split("/")
    )


@functools.lru_cache(maxsize=64)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)
