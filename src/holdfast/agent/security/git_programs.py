"""git: which of its commands read, change the repository, throw work away, or send it out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from holdfast.agent.security.declared import declared
from holdfast.agent.security.network import is_url
from holdfast.agent.security.options import Options, options
from holdfast.agent.security.paths import LOW
from holdfast.agent.security.use import Check, Use, inside, reach
from holdfast.agent.security.words import Word

_GIT_READS = frozenset((
    "status", "log", "diff", "show", "rev-parse", "ls-files", "ls-tree", "blame", "annotate", "describe", "shortlog", "grep", "cat-file", "name-rev", "merge-base", "rev-list",
    "count-objects", "whatchanged", "cherry", "version", "help", "for-each-ref", "show-ref", "check-ignore", "check-attr", "var", "diff-tree", "diff-index", "diff-files", "fsck",
    "range-diff", "show-branch", "verify-commit", "--version", "--help", "get-tar-commit-id", "column", "stripspace",
))  # fmt: skip
_GIT_WORKS = frozenset(
    (
        "add",
        "commit",
        "merge",
        "cherry-pick",
        "revert",
        "init",
        "mv",
        "apply",
        "am",
        "stage",
        "gc",
        "write-tree",
        "commit-tree",
        "hash-object",
        "mktree",
        "rerere",
        "format-patch",
        "notes",
        "sparse-checkout",
        "pack-refs",
        "maintenance",
    )
)
_GIT_HARMLESS = re.compile(
    r"(?:user\.(?:name|email)|color\..*|advice\..*|core\.(?:quotepath|autocrlf|abbrev|safecrlf)|init\.defaultbranch|commit\.gpgsign|tag\.gpgsign|log\.\w+|diff\.(?:renames|noprefix)|pull\.(?:rebase|ff)|core\.pager=(?:cat)?$)(?:=.*)?",
    re.IGNORECASE,
)


def _git(use: Use) -> None:
    args, index = list(use.args), 0
    folder = False
    while index < len(args) and args[index].text.startswith("-") and args[index].text not in ("--version", "--help"):
        text = args[index].text
        index += 1
        if text == "-C" and index < len(args):
            use.reads([args[index]])
            folder = folder or not inside(use, args[index])
            index += 1
        elif text in ("-c", "--config-env") and index < len(args):
            if not args[index].known or not _GIT_HARMLESS.fullmatch(args[index].text):
                use.high(f"is given a setting that may run a program: {args[index].text[:60]}")
            index += 1
        elif text not in (
            "-p",
            "-P",
            "--no-pager",
            "--paginate",
            "--no-replace-objects",
            "--literal-pathspecs",
            "--no-optional-locks",
            "--bare",
        ):
            use.high(f"is told to work elsewhere, or with other programs: {text[:60]}")
    if (index < len(args) and not args[index].known) or any(not word.known and not word.text for word in args[:index]):
        use.high("does what is not known beforehand")
    name = args[index].text if index < len(args) else "help"
    rest = args[index + 1 :]
    found = options(
        rest,
        "mnFCcbBSGLU",
        ("--message", "--author", "--date", "--format", "--pretty", "--output", "--grep", "--since", "--until", "--file"),
    )
    use = use._replace(name=f"git {name}"[:60])
    if found.unsure and name not in ("add", "commit"):
        use.unknown("is given what is not known beforehand")
    _git_command(use, name, rest, found)
    if folder and use.reader.found.rank > LOW:
        use.high("works outside of the working directory")
    use.not_known(rest)


def _git_command(use: Use, name: str, rest: Sequence[Word], found: Options) -> None:
    has, operands = found.has, found.operands
    if has("--ext-diff", "--textconv", "--open-files-in-pager", "-O", "--upload-pack", "--receive-pack", "--exec") and name not in (
        "checkout",
        "diff",
    ):
        use.high("runs another program")
    if name in ("diff", "log", "show") and has("--ext-diff", "-O"):
        use.high("runs another program")
    use.writes(found.values("--output"))
    if name in _GIT_READS:
        _git_reads(use, name, rest)
        return
    match name:
        case "branch":
            if has("-D", "--delete", "-d", "-M", "-f", "--force", "-C"):
                use.high("deletes or overwrites a branch")
            use.low() if not operands or has("-l", "--list", "--contains", "--merged") else use.medium("makes or renames a branch")
        case "tag":
            if has("-d", "--delete", "-f", "--force"):
                use.high("deletes or overwrites a tag")
            use.low() if not operands or has("-l", "--list") else use.medium("makes a tag")
        case "remote":
            use.low() if not operands or operands[0].text in ("show", "get-url") else use.high(
                "changes where the repository sends its work"
            )
        case "config":
            if has("--get", "--get-all", "--list", "-l", "--get-regexp", "--show-origin") and not has("--unset", "--add", "--replace-all"):
                use.low()
            elif len(operands) == 2 and _GIT_HARMLESS.fullmatch(operands[0].text) and not has("--global", "--system", "-f", "--file"):
                use.medium("changes a setting of the repository")
            else:
                use.low() if len(operands) == 1 and not has("--unset", "--unset-all", "-e", "--edit", "--remove-section") else use.high(
                    "changes settings, which may run programs"
                )
        case "stash":
            what = operands[0].text if operands else "push"
            if what in ("drop", "clear"):
                use.high("deletes work that was put aside")
            use.low() if what in ("list", "show") else use.medium("puts work aside or takes it back")
        case "checkout":
            _git_checkout(use, rest)
        case "switch":
            if has("-f", "--force", "--discard-changes", "-C", "--force-create"):
                use.high("throws changes away")
            use.medium("changes the working tree")
        case "restore":
            letters = "".join([word.text[1:] for word in rest if re.match(r"-[^-]", word.text)])
            staged = has("--staged") or "S" in letters
            worktree = has("--worktree", "--ours", "--theirs", "--merge") or "W" in letters or "m" in letters
            use.medium("takes files back out of the index") if staged and not worktree else use.high("throws changes away")
        case "reset":
            use.high("throws changes away") if has("--hard", "--merge", "--keep") else use.medium("changes what is to be committed")
        case "clean":
            use.low() if has("-n", "--dry-run") and not has("-f", "--force", "-i", "--interactive") else use.high(
                "deletes files that git does not know"
            )
        case "rm":
            use.high("deletes folders") if has("-r", "-f", "--force", "--pathspec-from-file") and not has("--cached") else use.medium(
                "deletes files"
            )
        case "push":
            if has("-f", "--force", "--force-with-lease", "--force-if-includes", "--delete", "-d", "--mirror", "--prune") or any(
                word.text.startswith(("+", ":")) for word in operands
            ):
                use.high("overwrites or deletes what others have")
            use.low() if has("-n", "--dry-run") else use.high("sends work to another place")
        case "pull" | "fetch" | "ls-remote" | "clone" | "submodule":
            _git_fetches(use, name, rest, found)
        case "rebase":
            use.high("runs commands on the way") if has("-x", "--exec", "-i", "--interactive") else use.medium(
                "rewrites commits that were not sent"
            )
        case "bisect":
            if operands and operands[0].text == "run":
                use.run(_behind(rest, "run"))
            use.medium("changes the working tree")
        case "reflog":
            use.high("deletes what could be taken back") if operands and operands[0].text in ("expire", "delete") else use.low()
        case "symbolic-ref":
            use.low() if len(operands) < 2 else use.high("changes what the repository is at")
        case "worktree":
            what = operands[0].text if operands else "list"
            use.low() if what == "list" else use.high("deletes a working tree") if what in ("remove", "prune") else use.medium(
                "makes a working tree"
            )
            if what in ("add", "move") or not operands:
                left = options(rest, "bB", ("--reason",)).operands[1:]
                use.writes(left[:1] if what == "add" else left, "makes a working tree in")
            if has("-B", "-f", "--force"):
                use.high("throws changes away")
        case "archive":
            use.high("talks to another machine") if has("--remote") else use.medium("packs files")
            use.writes(options(rest, "o", ("--output",)).values("-o", "--output"))
        case _ if name in _GIT_WORKS:
            if has("--unsafe-paths", "--directory"):
                use.high("reaches outside of the repository")
            if name == "init":
                made = options(rest, "b", ("--template", "--separate-git-dir", "--object-format", "--initial-branch", "--ref-format"))
                if made.has("--template"):
                    use.high("takes hooks, which run, from a template")
                use.writes(made.values("--separate-git-dir"), "makes a repository of")
                use.writes(made.operands[:1], "makes a repository of")
            if name == "format-patch":
                use.writes(options(rest, "o", ("--output-directory",)).values("-o", "--output-directory"))
            if name in ("commit", "notes", "merge", "apply", "am", "hash-object", "add", "stage", "commit-tree"):
                taken = options(rest, "FtmCcK", ("--file", "--template", "--pathspec-from-file", "--build-fake-ancestor", "--message"))
                use.reads(taken.values("-F", "--file", "-t", "--template", "--pathspec-from-file"))
                use.writes(taken.values("--build-fake-ancestor"))
                use.reads([word for word in operands if word.text[:1] in "/~." and name in ("apply", "am", "hash-object")])
            use.medium("changes the repository")
        case _ if re.fullmatch(
            r"filter-(?:branch|repo)|update-ref|prune|replace|difftool|mergetool|send-email|daemon|instaweb|credential.*|svn|p4|http-.*|fast-import|repack|update-index|update-server-info|upload-.*|receive-pack|shell|request-pull|gui|citool|request.*",
            name,
        ):
            use.high("rewrites or sends out history, or runs other programs")
        case _:
            use.unknown("is no command of git that is known here")


# Options of the commands that read, which neither write nor run nor read a file that they name.
_READS_LONG = """--oneline --stat? --numstat --shortstat --dirstat? --summary --name-only --name-status --patch --no-patch --patch-with-stat --raw --graph --decorate? --no-decorate --all --branches? --tags? --remotes? --glob=
    --exclude= --pretty? --format= --abbrev-commit --no-abbrev-commit --abbrev? --no-abbrev --date= --relative-date --author= --committer= --grep= --all-match --invert-grep --regexp-ignore-case --since= --after= --until= --before=
    --max-count= --skip= --merges --no-merges --min-parents= --max-parents= --first-parent --follow --full-history --simplify-merges --ancestry-path? --cherry --cherry-pick --cherry-mark --left-right --left-only
    --right-only --reverse --topo-order --date-order --author-date-order --walk-reflogs --reflog --source --show-signature --no-show-signature --notes? --no-notes --show-notes? --parents --children --boundary
    --color? --no-color --color-words? --word-diff? --word-diff-regex= --color-moved? --no-color-moved --color-moved-ws= --cached --staged --merge-base --no-index --unified= --function-context --ignore-space-change
    --ignore-all-space --ignore-space-at-eol --ignore-cr-at-eol --ignore-blank-lines --ignore-matching-lines= --minimal --patience --histogram --diff-algorithm= --anchored= --find-renames? --find-copies?
    --find-copies-harder --no-renames --rename-empty --diff-filter= --pickaxe-all --pickaxe-regex --relative? --no-relative --text --binary --full-index --exit-code --quiet --check --compact-summary --no-prefix
    --src-prefix= --dst-prefix= --inter-hunk-context= --submodule? --ignore-submodules? --no-ext-diff --no-textconv --ws-error-highlight= --irreversible-delete --combined-all-paths --diff-merges= --no-diff-merges
    --short --branch --show-stash --porcelain? --long --verbose --untracked-files? --ignored? --column? --no-column --ahead-behind --no-ahead-behind --renames --no-renames --show-toplevel --git-dir
    --git-common-dir --absolute-git-dir --show-prefix --show-cdup --show-superproject-working-tree --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --abbrev-ref? --symbolic
    --symbolic-full-name --verify --revs-only --no-revs --flags --no-flags --default= --sq --path-format= --local-env-vars --show-object-format --git-path= --deleted --modified --others --stage --unmerged --killed
    --directory --no-empty-directory --eol --exclude-standard --error-unmatch --full-name --recurse-submodules --deduplicate --sparse --name-only --object-only --full-tree --incremental --line-porcelain --root
    --show-name --show-number --show-email --show-stats --score-debug --minimal --contains= --no-contains= --points-at= --merged? --no-merged? --sort= --count= --shell --perl --python --tcl --ignore-case --omit-empty
    --candidates= --exact-match --debug --long --match= --always --dirty? --broken? --summary --numbered --email --group= --committer --line-number --files-with-matches --name-only --files-without-match --count
    --heading --break --show-function --extended-regexp --basic-regexp --perl-regexp --fixed-strings --word-regexp --invert-match --and --or --not --max-depth= --untracked --no-exclude-standard --no-recursive
    --recursive --threads= --only-matching --null --after-context= --before-context= --context= --batch? --batch-check? --batch-all-objects --allow-unknown-type --path= --use-mailmap --unordered --buffer
    --follow-symlinks --mailmap --no-mailmap --refs= --stdin --undefined --annotate-stdin --is-ancestor --octopus --independent --fork-point --objects --count --bisect --disk-usage? --unpacked --no-walk?
    --simplify-by-decoration --full-diff --use-bitmap-index --human-readable --verify --head --heads --dereference --hash? --exists --exclude-existing? --no-index --non-matching --non-matching --all --source
    --creation-factor= --no-dual-color --connectivity-only --unreachable --dangling --no-dangling --no-reflogs --full --no-full --strict --progress --no-progress --name-objects --tags --cached --mode= --width=
    --indent= --nl= --padding= --strip-comments --comment-lines --raw --list --more= --topics --sha1-name --current --no-name --build-options --no-pager --guides --indent-heuristic --no-indent-heuristic --ita-invisible-in-index
    --remerge-diff --dd --cc --max-age= --min-age= --remove-empty --encoding= --expand-tabs? --no-expand-tabs --missing= --mode= --lost-found! --ext-diff^ --textconv^ --open-files-in-pager?^ --output> --contents<
    --ignore-revs-file< --ignore-rev= --file< --exclude-from< --exclude-per-directory= --orderfile< --pathspec-from-file< --web! --info! --man! --filters^ --no-filters --parseopt --sq-quote --skip-to= --rotate-to="""
_READS_LETTERS = {
    "grep": "# -aiIwvhHEFGPnlLzocqpWr -eABCm= -f< -O^", "blame": "-bcefklnpstwz -lL= -S< -M? -C?", "annotate": "-bcefklnpstw -L= -S< -M? -C?", "ls-files": "-cdmosuktvfz -xX<", "shortlog": "-nsec -w?", "log": "", "help": "-agcuv -wim!",
}  # fmt: skip
_READS_ANY = "# -abcdefghiklpqrsutvwzEFPRWy0 -nLGSU= -M? -B? -C? -X? -D? -O<"


def _git_reads(use: Use, name: str, rest: Sequence[Word]) -> None:
    """A command that reads: low with the options that are declared, and as risky as what it names."""
    found = declared(use, f"{_READS_LETTERS.get(name) or _READS_ANY} {_READS_LONG}", args=rest)
    if name == "help" and not rest:
        use.low()
        return
    use.low()
    for word in found.operands:
        path = word.text.partition(":")[2] or word.text
        use.reads([Word(path, word.known, word.glob)])  # `HEAD:.env` too


_CHECKOUT = """-qtld -b= -B^ -p! -f^ -m^ --quiet --progress --no-progress --force^ --ours^ --theirs^ --merge^ --detach --track? --no-track --guess --no-guess --orphan= --conflict= --patch! --ignore-skip-worktree-bits
    --ignore-other-worktrees --recurse-submodules? --no-recurse-submodules --overlay --no-overlay^ --overwrite-ignore --no-overwrite-ignore --pathspec-from-file^"""


def _git_checkout(use: Use, rest: Sequence[Word]) -> None:
    """A branch is gone to; a path is taken back, which throws away what was not committed."""
    found = declared(use, _CHECKOUT, args=rest)
    new = found.has("-b", "--orphan")
    if any(word.text == "--" for word in rest) or len(found.operands) > (1 if not new else 2) or (len(found.operands) > 1 and not new):
        use.high("throws changes away")
    for word in found.operands:
        if (
            not word.known
            or word.glob
            or word.text in (".", "..")
            or _is_there(use, word.text)
            or re.search(r"\.[A-Za-z]\w{0,4}$|/$|^[./:]", word.text)
        ):
            use.high("throws changes away, if that is a path")
    use.medium("changes the working tree")


def _is_there(use: Use, path: str) -> bool:
    """Whether a folder that the command may be in has such a path."""
    try:
        return any(os.path.lexists(os.path.join(cwd, path)) for cwd in use.scope.cwds)
    except (OSError, ValueError):
        return True


def _behind(words: Sequence[Word], mark: str) -> Sequence[Word]:
    """The words behind the first that is `mark`, as they stood."""
    at = next((index for index, word in enumerate(words) if word.text == mark), len(words))
    return words[at + 1 :]


def _git_fetches(use: Use, name: str, rest: Sequence[Word], found: Options) -> None:
    operands = found.operands
    if found.has("-u", "--upload-pack", "-c", "--config", "--template", "--recurse-submodules") and name == "clone":
        use.high("runs another program, or more than was named")
    if name == "submodule" and operands and operands[0].text == "foreach":
        command = [word for word in _behind(rest, "foreach") if word.text not in ("--recursive", "--quiet")]
        if not all(word.known for word in command):
            use.high("runs what is not known beforehand")
        use.reader.script(" ".join([word.text for word in command]), use.scope.copy())
    if name == "submodule" and (not operands or operands[0].text in ("status", "summary")):
        use.low()
        return
    for word in operands[:1] if name != "submodule" else operands[1:2]:
        if "::" in word.text or word.text.startswith("-"):
            use.high("runs another program to fetch with")
        if re.match(r"[^/]*@[^/]*:", word.text):
            use.medium("talks to another machine")
        elif is_url(word.text) or not word.known:
            reach(use, word)
        elif name == "clone":
            use.reads([word])
    if name == "clone":
        use.writes(operands[1:2], "makes")
    use.medium("fetches from another machine")


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    return {"git": _git}
