"""git's own commands, and the settings of a repository.

git obeys the settings of its repository, which may name programs to run. They are under `.git`, where no proven command writes, and are looked
at all the same: settings that are not plain make the risk of a command medium, and a folder that only looks like a repository unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from holdfast.agent.security.network import fetch, is_url
from holdfast.agent.security.options import Options
from holdfast.agent.security.use import Use
from holdfast.agent.security.words import Names, Word

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


def _plain_repository(cwd: str) -> bool | None:
    """Whether the repository of a folder has plain settings; None if there is what only looks like a repository."""
    folder = cwd
    while True:
        git = os.path.join(folder, ".git")
        if os.path.lexists(git):
            break
        if os.path.isfile(os.path.join(folder, "HEAD")) and os.path.isdir(os.path.join(folder, "objects")):
            return None  # a bare repository, which anybody may have made of files
        above = os.path.dirname(folder)
        if above == folder:
            return True
        folder = above
    if os.path.islink(git):
        return None
    if not os.path.isdir(git):
        try:  # a worktree or a submodule: its settings are with the main repository
            with open(git, encoding="utf-8", errors="replace") as file:
                git = os.path.join(folder, file.read(4096).removeprefix("gitdir:").strip())
        except OSError:
            return None
        if "/.git/" not in git:
            return None
        git = (
            git.partition("/.git/")[0]
            + "/.git"
            + (os.sep + "modules" + git.partition("/.git/modules")[2] if "/.git/modules/" in git else "")
        )
    plain = True
    for name in ("config", "config.worktree"):
        try:
            with open(os.path.join(git, name), encoding="utf-8", errors="replace") as file:
                plain = plain and all(_PLAIN_LINE.fullmatch(line) for line in file.read(100_000).splitlines())
        except OSError:
            continue
    return plain


def tracked(folder: str, path: str) -> bool:
    """Whether git tracks a path below a folder, as far as its index can be read."""
    while not os.path.isdir(os.path.join(folder, ".git")):
        above, name = os.path.split(folder)
        if above == folder:
            return False
        folder, path = above, f"{name}/{path}"
    try:
        with open(os.path.join(folder, ".git", "index"), "rb") as file:
            index = file.read(30_000_000)
    except OSError:
        return False
    return index[7:8] not in (b"\2", b"\3") or path.encode(errors="surrogateescape") + b"\0" in index


def ignored(folder: str, path: str) -> bool:
    """Whether a plain line of `.gitignore`, in the folders from a path up to its repository's, has git ignore the path."""
    at, name = os.path.split(os.path.join(folder, path))
    while True:
        try:
            with open(os.path.join(at, ".gitignore"), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file.read(100_000).splitlines()]
        except OSError:
            lines = []
        if any(line.startswith("!") for line in lines):
            return False
        if any(line and line[0] != "#" and "/" not in line.lstrip("/") and fnmatchcase(name, line.lstrip("/")) for line in lines):
            return True
        if os.path.lexists(os.path.join(at, ".git")) or at == os.path.dirname(at):
            return False
        at = os.path.dirname(at)


def git(command: Callable[[Use, Sequence[Word]], None], use: Use) -> None:
    """Judge the options before git's command, and the repository; `command` judges the rest."""
    args, folders, index = use.args, list[str](), 0
    while index < len(args) and args[index].text.startswith("-"):
        text = args[index].text
        index += 2 if text in ("-C", "-c") else 1
        value = args[index - 1].text if index <= len(args) else ""
        if text == "-C":
            folders.append(value)
            if not use.inside(Word("/".join(folders))):
                use.unknown("works outside of the working directory")
        elif text == "-c" and not _SETTING.fullmatch(value):
            use.high(f"is given a setting that may run a program: {value[:60]}")
        elif text not in ("-c", "-P", "--no-pager", "--no-replace-objects", "--literal-pathspecs", "--no-optional-locks"):
            use.unknown(f"is told to work elsewhere, or with other programs: {text[:60]}")
    if folders:  # what follows is relative to that folder
        scope = use.scope.copy()
        scope.cwds = tuple([use.reader.places.real("/".join(folders), cwd) for cwd in use.scope.cwds])
        use = use._replace(scope=scope)
    for cwd in use.scope.cwds:
        plain = _plain_repository(cwd)
        if plain is None:
            use.unknown("reads what looks like a repository, whose settings may run programs")
        elif not plain:
            use.medium("runs what the settings of the repository name")
    command(use, args[index:])


def _reads(use: Use, found: Options) -> Sequence[Word]:
    places, paths = use.reader.places, found.operands
    if use.name == "git.grep":
        paths = paths[0 if found.has("-e") else 1 :]
        for cwd in use.scope.cwds:
            secrets = [one for one in places.walk(cwd, Names().keep).secrets if found.has("--untracked") or tracked(cwd, one)]
            if secrets:
                use.high(f"reads what is secret: {secrets[0][:80]}")
    for word in paths:
        path = word.text.partition(":")[2] or word.text  # `HEAD:.env` is read, too
        for cwd in use.scope.cwds if path[:1] not in ("-", "^", "@") else ():
            for one in (places.matches(path, cwd) or (path,)) if re.search(r"[*?]", path) else (path,):
                use.reader.note(*places.read(one, cwd))
    if found.has("--no-index"):
        use.reads(paths)
    if use.name == "git.ls-files" and not found.given and not paths:
        use.reader.yields = (Word(".", tree=Names()),)
    return ()


def _remote(use: Use, found: Options) -> Sequence[Word]:
    """The first operand is where another repository is, or a name for that."""
    for word in found.operands[:1]:
        if is_url(word.text):
            use.reader.note(*fetch(word.text, use.reader.hosts))
        if "::" in word.text or word.text.startswith("-"):
            use.high("runs another program to fetch with")
        elif not re.fullmatch(r"https?://.*|git://.*|git@[\w.-]+:[\w./-]+|[\w.-]+", word.text) or (
            use.name == "git.clone" and re.fullmatch(r"[\w.-]+", word.text)
        ):
            use.unknown("fetches in a way that is not judged")
    if use.name == "git.clone" and found.operands:
        use.writes(
            [
                found.operands[1]
                if len(found.operands) > 1
                else Word(re.sub(r"\.git$", "", found.operands[0].text.rstrip("/")).rpartition("/")[2])
            ]
        )
    return ()


def _branch(use: Use, found: Options) -> Sequence[Word]:
    if found.has("-D", "-d", "-M", "-f", "-C", "--delete", "--force"):
        use.high("deletes or overwrites a branch or tag")
    lists = found.has("-l", "--list", "--contains", "--merged", "--no-merged", "-a", "-r", "--show-current", "--points-at", "-n")
    changes = found.operands or found.has("-u", "-m", "--move", "--unset-upstream", "--set-upstream-to")
    if changes and (not lists or found.has("-m") and use.name == "git.branch"):
        use.medium("makes or renames a branch or tag")
    return found.operands


def _remotes(use: Use, found: Options) -> Sequence[Word]:
    what = found.operands[0].text if found.operands else ""
    if what not in ("", "show", "get-url"):
        use.high("changes where the repository sends its work")
    if what == "show":
        use.medium("asks another machine")
    return found.operands


def _config(use: Use, found: Options) -> Sequence[Word]:
    reads = found.has("--get", "--get-all", "--list", "-l", "--get-regexp") or len(found.operands) == 1
    if not reads or found.has("--unset", "--add", "--replace-all"):
        if len(found.operands) == 2 and _SETTING.fullmatch(found.operands[0].text) and not found.has("--global", "--system", "--unset"):
            use.medium("changes a setting of the repository")
        else:
            use.high("changes settings, which may run programs")
    return found.operands


def _stash(use: Use, found: Options) -> Sequence[Word]:
    what = found.operands[0].text if found.operands else "push"
    if what in ("drop", "clear"):
        use.high("deletes work that was put aside")
    elif what not in ("list", "show"):
        use.reader.rearranged = True
        use.medium("puts work aside or takes it back") if what in ("push", "pop", "apply", "save", "branch") else use.unknown(
            "has no such command in its table"
        )
    return found.operands


def _checkout(use: Use, found: Options) -> Sequence[Word]:
    """A branch is gone to. A path is taken back, which throws away what was not committed."""
    new = found.has("-b", "--orphan")
    if found.has("-f", "-B", "--force") or any(word.text == "--" for word in use.args) or len(found.operands) > 1:
        use.high("throws changes away")
    for word in found.operands if not new else ():
        there = any(os.path.lexists(os.path.join(cwd, word.text)) for cwd in use.scope.cwds)
        if word.glob or there or re.search(r"\.[A-Za-z]\w{0,4}$|/$|^[./:]", word.text):
            use.high("throws changes away, if that is a path")
    return found.operands


def _restore(use: Use, found: Options) -> Sequence[Word]:
    if not found.has("-S", "--staged"):
        use.high("throws changes away")
    return found.operands


def _reset(use: Use) -> None:
    """`git reset`, `git clean`, `git worktree` and `git submodule`."""
    words = [word.text for word in use.args]
    if use.name == "git clean":
        letters = "".join([word[1:] for word in words if re.match(r"-[^-]", word)])
        dry = "n" in letters or "--dry-run" in words
        use.low() if dry and not (set(letters) & set("fi") or "--force" in words) else use.high("deletes files that git does not know")
    elif use.name == "git reset":
        if any(word.startswith("-") and word not in ("--soft", "--mixed", "-q", "--quiet", "--", "-N") for word in words):
            use.high("throws changes away")
        use.medium("changes what is to be committed")
    elif use.name == "git worktree" and words == ["list"]:
        use.low()
    elif use.name == "git submodule" and words in ([], ["status"], ["summary"]):
        use.low()
    else:
        use.high("makes, moves or deletes a working tree, or fetches or runs what submodules name")


def _rm(use: Use, found: Options) -> Sequence[Word]:
    if (found.has("-r") or any(word.glob for word in found.operands)) and not found.has("--cached", "-n", "--dry-run"):
        use.high("deletes files")
    return found.operands


def _lfs(use: Use, found: Options) -> Sequence[Word]:
    what = found.operands[0].text if found.operands else ""
    if what in ("pull", "fetch", "track", "checkout"):
        use.medium("changes or fetches something")
    elif what not in ("", "ls-files", "status", "env", "version"):
        use.unknown("has no such command in its table")
    return found.operands


WHOLE: Mapping[str, Callable[[Use], None]] = dict.fromkeys(("reset", "clean", "worktree", "submodule"), _reset)
SPECIAL: Mapping[str, Callable[[Use, Options], Sequence[Word]]] = {
    **dict.fromkeys("log diff show rev-list diff-tree diff-index diff-files status blame ls-files ls-tree shortlog grep describe cat-file merge-base name-rev count-objects show-ref check-ignore".split(), _reads),  # noqa: SIM905
    **dict.fromkeys(("clone", "fetch", "pull", "ls-remote"), _remote), "branch": _branch, "tag": _branch, "remote": _remotes, "config": _config, "stash": _stash, "checkout": _checkout, "restore": _restore, "rm": _rm, "lfs": _lfs,
}  # fmt: skip
