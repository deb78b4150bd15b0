"""git's own commands, and the settings of a repository.

git obeys the settings of its repository, which may name programs to run. They are under `.git`,
where no proven command writes, and are looked at all the same: settings that are not plain make the
risk of a command medium, and a folder that only looks like a repository unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from holdfast.agent.security.grammar import ShellWord
from holdfast.agent.security.network import fetch, is_url
from holdfast.agent.security.paths import HIGH, MEDIUM, UNKNOWN, word_set
from holdfast.agent.security.use import Options, ProgramUse, text_of

# Settings that run no program.
_SETTING = re.compile(
    r"(?:user\.(?:name|email)|color\.[\w.]+|advice\.\w+|core\.(?:quotepath|autocrlf|abbrev|"
    r"safecrlf|filemode|ignorecase)|init\.defaultbranch|(?:commit|tag)\.gpgsign|log\.\w+|"
    r"diff\.(?:renames|noprefix)|pull\.(?:rebase|ff)|core\.pager=(?:cat)?$)(?:=.*)?",
    re.IGNORECASE | re.DOTALL,
)
# Lines of a repository's configuration after which git runs nothing of the repository's choice.
_PLAIN_LINE = re.compile(
    r"""\s*(?:[#;].*|\[(?:core|user|init|pull|push|color|fetch|gc|commit|log|advice|status|merge
    |diff|index|lfs|extensions|http|branch|rebase|submodule)\]
    |\[(?:remote|branch|submodule|lfs)\s+"[^"\\]*"\]|\[filter\s+"lfs"\]|(?:clean|smudge|
    process)\s*=\s*git-lfs\ (?:clean|smudge|filter-process)(?:\ --skip)?(?:\ --)?(?:\ %f)?
    |(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|
    symlinks|autocrlf|eol|safecrlf|quotepath|abbrev|untrackedcache|preloadindex|longpaths|url|
    fetch|pushurl|tagopt|prune|mirror|remote|merge|rebase|ff|pushremote|description|
    vscode-merge-base|gk-\S+|github-pr-\S+|name|email|gpgsign|active|required|access|locksverify|
    defaultbranch|default|autosetupremote|ui|objectformat|partialclonefilter|promisor|
    worktreeconfig|renames|conflictstyle|auto|sparsecheckout|sparsecheckoutcone|postbuffer|version|
    enabled|update\s*=\s*(?:checkout|none|rebase|merge))(?:\s*=.*|\s*))?""",
    re.IGNORECASE | re.VERBOSE,
)
_READERS = word_set(
    "log diff show rev-list status blame ls-files ls-tree shortlog describe cat-file merge-base"
    " show-ref check-ignore reflog.show stash.show"
)


def _root(folder: str) -> str:
    """Return the nearest folder, upwards, that has a repository or looks like one; "" if there is
    none."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        if os.path.isdir(os.path.join(folder, "objects")):
            break
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return ""
    return folder


def _is_plain(cwd: str) -> bool | None:
    """Return whether the repository of a folder has plain settings; None if it may be none, or have
    its settings elsewhere."""
    root = _root(cwd)
    git = os.path.join(root, ".git")
    if not root or os.path.islink(git) or not os.path.isdir(git):
        return None if root else True
    files = [text_of(os.path.join(git, name)) for name in ("config", "config.worktree")]
    return all(_PLAIN_LINE.fullmatch(line) for file in files for line in file.splitlines())


def searched(folder: str, path: str) -> bool:
    """Return whether git tracks a path below a folder, or no plain line of a `.gitignore` has git
    ignore it."""
    at, name = os.path.split(os.path.join(folder, path))
    root, ignored = _root(at), False
    while root and at.startswith(root) and not ignored:
        lines = [line.strip() for line in text_of(os.path.join(at, ".gitignore")).splitlines()]
        patterns = [line.lstrip("/") for line in lines if line and line[0] not in "!#"]
        ignored = any(fnmatchcase(name, pattern) for pattern in patterns)
        if any(line.startswith("!") for line in lines):
            return True
        at = os.path.dirname(at)
    return not ignored or _tracked(folder, path)


def _tracked(folder: str, path: str) -> bool:
    """Return whether git tracks a path below a folder, as far as its index can be read."""
    root = _root(folder)
    try:
        with open(os.path.join(root, ".git", "index"), "rb") as file:
            index = file.read(30_000_000)
    except OSError:
        return False
    relative = os.path.relpath(os.path.join(folder, path), root)
    return index[7:8] not in (b"\2", b"\3") or os.fsencode(relative) + b"\0" in index


def git(command: Callable[[ProgramUse, Sequence[ShellWord]], None], use: ProgramUse) -> None:
    """Judge the options before git's command, and the repository; `command` judges the rest."""
    args, paths = list(use.args), use.reader.paths
    while args and args[0].text.startswith("-"):
        option = args.pop(0).text
        value = args.pop(0).text if option in ("-C", "-c") and args else ""
        if option == "-C":  # what follows is relative to that folder
            if not paths.is_inside(value, use.cwd) or use.reader.rearranged or not value:
                use.note(UNKNOWN, "works outside of the working directory")
            use = use._replace(cwd=paths.real(value, use.cwd) if use.cwd else "")
        elif option == "-c" and not _SETTING.fullmatch(value):
            use.note(HIGH, f"is given a setting that may run a program: {value[:60]}")
        elif option not in ("-c", "-P", "--no-pager", "--no-optional-locks"):
            use.note(UNKNOWN, f"works elsewhere, or with other programs: {option[:60]}")
    plain = _is_plain(use.cwd) if use.cwd else True
    if plain is None:
        use.note(UNKNOWN, "works with what looks like a repository, and may run its settings")
    elif not plain:
        use.note(MEDIUM, "runs what the settings of the repository name")
    command(use, args)


def _reads(use: ProgramUse, found: Options, words: Sequence[ShellWord]) -> None:
    """Judge revisions and paths: `HEAD:.env` is read, too."""
    paths = use.reader.paths
    for path in [word.text.partition(":")[2] or word.text for word in words]:
        if use.cwd and path[:1] not in ("-", "^", "@"):
            matches = paths.matches(path, use.cwd) if re.search(r"[*?]", path) else None
            for one in matches or [path]:
                use.reader.note(*paths.judge("read", one, use.cwd, f"{use.name} reads"))
    if found.has("--no-index"):
        use.paths("R", words)


def _takes(use: ProgramUse, names: Sequence[str]) -> None:
    """Judge taking files into the repository, where everything that shows changes shows them."""
    paths = use.reader.paths
    for match in [one for name in names for one in paths.matches(name, use.cwd) or ()]:
        real = paths.real(match, use.cwd)
        if any(searched(real, secret) for secret in paths.scan(real).secrets):
            use.note(HIGH, "takes what is secret")


def special(use: ProgramUse, found: Options) -> Sequence[ShellWord]:
    """Judge a command of git beyond its entry in the table; return the operands that are left for
    that."""
    name, words, has = use.name.partition(".")[2], found.operands, found.has
    what, texts = words[0].text if words else "", [word.text for word in words]
    match name:
        case "grep":
            for secret in use.reader.paths.scan(use.cwd or "/").secrets:
                if _tracked(use.cwd, secret):
                    use.note(HIGH, f"reads what is secret: {secret[:80]}")
            _reads(use, found, words[0 if has("-e") else 1 :])
        case "clone" | "fetch" | "pull":
            if is_url(what):
                use.reader.note(*fetch(what, use.reader.hosts, "", use.reader.confinement))
            plain = r"(?:https?|git)://.*|git@[\w.-]+:[\w./-]+"
            if "::" in what:
                use.note(HIGH, "runs another program to fetch with")
            elif not re.fullmatch(plain if name == "clone" else rf"{plain}|[\w.-]*", what):
                use.note(UNKNOWN, "fetches in a way that is not judged")
            if name == "clone":
                folder = re.sub(r"\.git$", "", what.rstrip("/")).rpartition("/")[2]
                use.paths("w", [words[1] if len(words) > 1 else ShellWord(folder)])
            return ()
        case "branch" | "tag" if words and not found.flags & {"*"}:
            use.note(MEDIUM, "makes, renames or deletes a branch or tag")
        case "config" if (not has("--get", "--get-all", "--list", "-l") and len(words) != 1) or (
            has("--unset")
        ):
            changes = len(words) == 2 and _SETTING.fullmatch(what) and not has("--unset")
            plain = changes and not has("--global", "--system")
            use.note(MEDIUM if plain else HIGH, "changes settings, which may run programs")
        case "stash" | "stash.push" if has("-u", "--include-untracked"):
            _takes(use, ["."])
        case "checkout" | "restore":
            _checks_out(use, found)
        case "add":
            _takes(use, texts if words and not has("-A", "--all") else ["."])
        case "rm" if not has("--cached", "-n", "--dry-run"):
            if has("-r") or any(word.glob for word in words):
                use.note(HIGH, "deletes files")
        case "clean" if has("-f", "--force") or not has("-n", "--dry-run"):
            use.note(HIGH, "deletes files that git does not know")
        case _ if name in _READERS:
            _reads(use, found, words)
            return ()
        case _:
            pass
    return words


def _checks_out(use: ProgramUse, found: Options) -> None:
    """Judge replacing files by those of a revision: that of single files is taken back easily."""
    if found.has("-b", "--orphan", "-S", "--staged"):
        return
    for word in found.operands:
        path = use.at(word.text)
        named = use.name == "git.restore" or os.path.lexists(path)
        if os.path.isdir(path) or (word.glob and named):
            use.note(HIGH, "throws changes away")
