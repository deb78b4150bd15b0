"""git's own commands, and the settings of a repository.

git obeys the settings of its repository, which may name programs to run. They are under `.git`, where no proven command writes, and are looked
at all the same: settings that are not plain make the risk of a command medium, and a folder that only looks like a repository unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from holdfast.agent.security.network import fetch, is_url
from holdfast.agent.security.use import Options, Use
from holdfast.agent.security.words import Names, Word, listed

_SETTING = re.compile(
    r"(?:user\.(?:name|email)|color\.[\w.]+|advice\.\w+|core\.(?:quotepath|autocrlf|abbrev|safecrlf|filemode|ignorecase)|init\.defaultbranch|(?:commit|tag)\.gpgsign|log\.\w+|diff\.(?:renames|noprefix)|pull\.(?:rebase|ff)|core\.pager=(?:cat)?$)(?:=.*)?",
    re.IGNORECASE | re.DOTALL,
)
# Lines of a repository's configuration after which git runs nothing of the repository's choice.
_PLAIN_LINE = re.compile(
    r"""\s*(?:[#;].*|\[(?:core|user|init|pull|push|color|fetch|gc|commit|log|advice|status|rerere|merge|diff|blame|index|feature|receive|lfs|extensions|pack|http|branch|rebase|submodule)\]
    |\[(?:remote|branch|submodule|lfs)\s+"[^"\\]*"\]|\[filter\s+"lfs"\]|(?:clean|smudge|process)\s*=\s*git-lfs\ (?:clean|smudge|filter-process)(?:\ --skip)?(?:\ --)?(?:\ %f)?
    |(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|safecrlf|quotepath|abbrev|untrackedcache|preloadindex|longpaths|url|fetch|pushurl|tagopt|prune|mirror
    |remote|merge|rebase|ff|pushremote|description|vscode-merge-base|gk-\S+|github-pr-\S+|name|email|gpgsign|active|required|access|locksverify|defaultbranch|default|autosetupremote|ui|objectformat|partialclonefilter
    |promisor|worktreeconfig|renames|conflictstyle|auto|sparsecheckout|sparsecheckoutcone|compression|postbuffer|version|enabled|update\s*=\s*(?:checkout|none|rebase|merge))(?:\s*=.*|\s*))?""",
    re.IGNORECASE | re.VERBOSE,
)


def _root(folder: str) -> str:
    """The nearest folder, upwards, that has a repository or looks like one; "" if there is none."""
    while not os.path.lexists(os.path.join(folder, ".git")) and not os.path.isdir(os.path.join(folder, "objects")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return ""
    return folder


def _is_plain(cwd: str) -> bool | None:
    """Whether the repository of a folder has plain settings; None if it may be none, or have its settings elsewhere."""
    root = _root(cwd)
    git = os.path.join(root, ".git")
    if not root or os.path.islink(git) or not os.path.isdir(git):
        return None if root else True
    lines = [line for name in ("config", "config.worktree") for line in text_of(os.path.join(git, name)).splitlines()]
    return all(_PLAIN_LINE.fullmatch(line) for line in lines)


def text_of(path: str) -> str:
    """The beginning of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(100_000)
    except OSError:
        return ""


def searched(folder: str, path: str) -> bool:
    """Whether git tracks a path below a folder, or no plain line of a `.gitignore` has git ignore it."""
    at, name = os.path.split(os.path.join(folder, path))
    root, ignored = _root(at), False
    while root and at.startswith(root) and not ignored:
        lines = [line.strip() for line in text_of(os.path.join(at, ".gitignore")).splitlines()]
        ignored = any(line and line[0] not in "!#" and fnmatchcase(name, line.lstrip("/")) for line in lines)
        if any(line.startswith("!") for line in lines):
            return True
        at = os.path.dirname(at)
    return not ignored or tracked(folder, path)


def tracked(folder: str, path: str) -> bool:
    """Whether git tracks a path below a folder, as far as its index can be read."""
    root = _root(folder)
    try:
        with open(os.path.join(root, ".git", "index"), "rb") as file:
            index = file.read(30_000_000)
    except OSError:
        return False
    relative = os.path.relpath(os.path.join(folder, path), root)
    return index[7:8] not in (b"\2", b"\3") or os.fsencode(relative) + b"\0" in index


def git(command: Callable[[Use, Sequence[Word]], None], use: Use) -> None:
    """Judge the options before git's command, and the repository; `command` judges the rest."""
    args, folders, index = use.args, list[str](), 0
    while index < len(args) and args[index].text.startswith("-"):
        text = args[index].text
        index += 2 if text in ("-C", "-c") else 1
        value = args[index - 1].text if index <= len(args) else ""
        if text == "-C":
            folders.append(value)
        elif text == "-c" and not _SETTING.fullmatch(value):
            use.high(f"is given a setting that may run a program: {value[:60]}")
        elif text not in ("-c", "-P", "--no-pager", "--no-optional-locks", "--literal-pathspecs"):
            use.unknown(f"is told to work elsewhere, or with other programs: {text[:60]}")
    if folders:  # what follows is relative to that folder
        scope, path = use.scope.copy(), "/".join(folders)
        if not use.inside(Word(path)) or use.reader.rearranged:
            use.unknown("works outside of the working directory")
        scope.cwds = tuple([use.reader.places.real(path, cwd) for cwd in use.scope.cwds])
        use = use._replace(scope=scope)
    for plain in [_is_plain(cwd) for cwd in use.scope.cwds]:
        if plain is None:
            use.unknown("works with what looks like a repository, whose settings may run programs")
        elif not plain:
            use.medium("runs what the settings of the repository name")
    command(use, args[index:])


def _reads(use: Use, found: Options, paths: Sequence[Word]) -> None:
    """Judge revisions and paths: `HEAD:.env` is read, too."""
    places = use.reader.places
    for path in [word.text.partition(":")[2] or word.text for word in paths]:
        for cwd in use.scope.cwds if path[:1] not in ("-", "^", "@") else ():
            for one in (places.matches(path, cwd) or (path,)) if re.search(r"[*?]", path) else (path,):
                use.reader.note(*places.read(one, cwd))
    if found.has("--no-index"):
        use.reads(paths, Names())


def _takes(use: Use, paths: Sequence[str]) -> None:
    """git takes files into the repository, where everything that shows changes shows them."""
    places = use.reader.places
    for cwd in use.scope.cwds:
        for real in [places.real(one, cwd) for path in paths for one in places.matches(path, cwd) or ()]:
            if any(searched(real, one) for one in places.walk(real, Names().keep).secrets):
                use.high("takes what is secret")


def special(use: Use, found: Options) -> Sequence[Word]:
    """Judge a command of git beyond its entry in the table; the operands that are left for that."""
    name, words = use.name.partition(".")[2], found.operands
    what, has = words[0].text if words else "", found.has
    match name:
        case "grep":
            for cwd in use.scope.cwds:
                secrets = [one for one in use.reader.places.walk(cwd, Names().keep).secrets if has("--untracked") or tracked(cwd, one)]
                if secrets:
                    use.high(f"reads what is secret: {secrets[0][:80]}")
            _reads(use, found, words[0 if has("-e") else 1 :])
        case "clone" | "fetch" | "pull" | "ls-remote":
            if is_url(what):
                use.reader.note(*fetch(what, use.reader.hosts))
            plain = r"https?://.*|git://.*|git@[\w.-]+:[\w./-]+" + ("" if name == "clone" else r"|[\w.-]*")
            if not re.fullmatch(plain, what):
                use.high("runs another program to fetch with") if "::" in what else use.unknown("fetches in a way that is not judged")
            if name == "clone" and what:
                use.writes([words[1] if len(words) > 1 else Word(re.sub(r"\.git$", "", what.rstrip("/")).rpartition("/")[2])])
            return ()
        case "branch" | "tag":
            if has("-D", "-M", "-f", "-C", "--force") or (name == "tag" and has("-d", "--delete")):
                use.high("deletes or overwrites a branch or tag")
            lists = has("-l", "--list", "--contains", "--merged", "--no-merged", "-a", "-r", "--show-current", "--points-at", "-n")
            changes = words or has("-u", "-m", "--move", "--unset-upstream", "--set-upstream-to")
            if changes and (not lists or (has("-m", "--move") and name == "branch")):
                use.medium("makes, renames or deletes a branch or tag")
        case "remote" if what not in ("", "show", "get-url"):
            use.high("changes where the repository sends its work")
        case "remote" if what == "show":
            use.medium("asks another machine")
        case "config":
            plain = len(words) == 2 and _SETTING.fullmatch(what) and not has("--global", "--system", "--unset")
            if has("--unset", "--add", "--replace-all") or not (
                has("--get", "--get-all", "--list", "-l", "--get-regexp") or len(words) == 1
            ):
                use.medium("changes a setting of the repository") if plain else use.high("changes settings, which may run programs")
        case "stash" if what not in ("list", "show"):
            _takes(use, ["."] if has("-u", "--include-untracked") else [])
            use.reader.rearranged = True
            use.high("deletes all that was put aside") if what == "clear" else use.medium("puts work aside, or takes it back")
            if what not in listed("push pop apply save branch drop clear") and what:
                use.unknown("has no such command in its table")
        case "reflog" | "bisect" if what not in ("", "show", "log", "HEAD"):
            use.high("deletes what could be taken back") if name == "reflog" else use.medium("changes the working tree") if what in (
                "start",
                "good",
                "bad",
                "skip",
                "reset",
            ) else use.unknown("has no such command in its table")
        case "checkout" | "restore":
            new, whole = has("-b", "--orphan"), has("-f", "-B", "--force", "-W", "--worktree")
            paths = [
                word for word in words if name == "restore" or any(os.path.lexists(os.path.join(cwd, word.text)) for cwd in use.scope.cwds)
            ]
            if whole or (
                not new
                and not has("-S", "--staged")
                and any(word.glob or any(os.path.isdir(os.path.join(cwd, word.text)) for cwd in use.scope.cwds) for word in paths)
            ):
                use.high("throws changes away")
            use.reader.rearranged = True
        case "add" | "stage":
            _takes(use, [word.text for word in words] if words and not has("-A", "--all") else ["."])
        case "rm" if (has("-r") or any(word.glob for word in words)) and not has("--cached", "-n", "--dry-run"):
            use.high("deletes files")
        case "lfs" if what not in ("", "ls-files", "status", "env", "version"):
            use.medium("fetches") if what in ("pull", "fetch", "track", "checkout") else use.unknown("has no such command in its table")
        case "reset" if has("--hard", "--merge", "--keep"):
            use.high("throws changes away")
        case "clean" if has("-f", "--force", "-i") or not has("-n", "--dry-run"):
            use.high("deletes files that git does not know")
        case "worktree" | "submodule" | "symbolic-ref" if what not in ("list", "status", "summary", "") and not (
            name == "symbolic-ref" and len(words) < 2
        ):
            use.high("makes, moves or deletes a working tree, or does what submodules name")
        case _ if name in listed(
            "log diff show rev-list diff-tree diff-index diff-files whatchanged status blame ls-files ls-tree shortlog describe cat-file merge-base name-rev show-ref check-ignore cherry range-diff"
        ):
            _reads(use, found, words)
            if name == "ls-files" and not set(found.given) - {("-z", "")}:
                use.reader.yields = (Word(".", tree=Names()),)
            return ()
        case _:
            pass
    return words
