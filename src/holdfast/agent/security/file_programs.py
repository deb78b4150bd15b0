"""Programs that make, change, pack and delete files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.agent.security.declared import declared
from holdfast.agent.security.use import Check, Use
from holdfast.agent.security.words import Word

_MODE = re.compile(r"[ugoa]*(?:[-+=](?:[ugo]|[rwxXst]*))+")


def mode_is(use: Use, word: Word) -> None:
    """Note what a mode, as chmod takes it, lets others do."""
    mode = word.text
    if not word.known:
        use.high("is given a mode that is not known beforehand")
    number = re.fullmatch(r"[ugoa]*[-+=]?([0-7]+)", mode)
    if number is not None:
        bits = int(number[1], 8)
        if bits & 0o7000:
            use.high(f"lets a file be run as its owner: {mode}")
        if bits & 0o002 and "-" not in mode:
            use.high(f"lets everybody write: {mode}")
        return
    for clause in mode.split(","):
        if not _MODE.fullmatch(clause):
            use.unknown(f"is given a mode that is not understood here: {mode[:40]}")
        who = re.match(r"[ugoa]*", clause)
        for sign, what in re.findall(r"([-+=])([ugo]|[rwxXst]*)", clause):
            if sign == "-":
                continue
            if "s" in what or "t" in what:
                use.high(f"lets a file be run as its owner: {mode}")
            if ("w" in what or what in ("u", "g", "o")) and who is not None and ("o" in who[0] or "a" in who[0]):
                use.high(f"lets everybody write: {mode}")


def _makes(what: str, text: str) -> Check:
    def check(use: Use) -> None:
        found = declared(use, text)
        if found.unsure:
            use.unknown("is given what is not known beforehand")
        for mode in found.values("-m", "--mode"):
            mode_is(use, mode)
        use.writes(found.operands, what)
        use.medium("changes files")

    return check


def _rm(use: Use) -> None:
    found = declared(
        use,
        "-dfiIrRv --force --interactive? --one-file-system --no-preserve-root^ --preserve-root? --recursive --dir --verbose",
    )
    if found.unsure:
        use.high("deletes what is not known beforehand")
    if found.has("-r", "-R", "--recursive"):
        for word in found.operands:
            use.reader.deletes_all(word, use.scope)
    for word in found.operands:
        if word.glob and word.text.strip("*./") == "":
            use.high(f"deletes all that is in a folder: {word.text}")
    use.writes(found.operands, "deletes")
    use.medium("deletes files")


_CP = """-abdfiHlLnPpRrsTuvxZ -t= -S= --archive --attributes-only --backup? --copy-contents --debug --force --interactive --link --dereference --no-clobber --no-dereference --preserve? --no-preserve= --parents
    --recursive --reflink? --remove-destination --sparse= --strip-trailing-slashes --symbolic-link --suffix= --target-directory= --no-target-directory --update? --verbose --one-file-system
    --keep-directory-symlink --physical --logical --no-copy --exchange --relative --symbolic --directory"""
_INSTALL = """-bcCdDpsTvZ -m= -t= -S= -o^ -g^ --owner^ --group^ --strip-program! --mode= --backup? --compare --directory --preserve-timestamps --strip --suffix= --target-directory= --no-target-directory
    --verbose"""


def _cp(use: Use, text: str = _CP) -> None:
    found = declared(use, text)
    if found.unsure:
        use.unknown("is given what is not known beforehand")
    if any("/" in word.text for word in found.values("-S", "--suffix")):
        use.unknown("keeps what it replaces elsewhere")
    for mode in found.values("-m", "--mode"):
        mode_is(use, mode)
    target = found.values("-t", "--target-directory")
    sources = found.operands
    if use.name == "install" and found.has("-d", "--directory"):
        sources, target = [], sources
    elif not target:
        sources, target = sources[:-1], sources[-1:]
    if use.name == "mv":
        use.writes(sources, "moves away")
    elif use.name == "ln":
        for word in sources:
            use.reader.writes(word, use.scope, "ln makes a way to")
    else:
        use.reads_all(sources) if found.has("-r", "-R", "-a", "--recursive", "--archive") else use.reads(sources)
    use.writes(target, "writes to")
    use.medium("changes files")


def _ln(use: Use) -> None:
    found = declared(use, _CP)
    if len(found.operands) == 1:
        use.writes(found.operands, "makes a way to")
        use.medium("makes a link")
    _cp(use)


def _install(use: Use) -> None:
    _cp(use, _INSTALL)


def _chmod(use: Use) -> None:
    taken = [word for word in use.args if re.fullmatch(r"-[rwxXst]+|-[0-7]+", word.text)]  # `chmod -x f`: a mode, and no option
    found = declared(
        use,
        "-cfvR --changes --silent --quiet --verbose --recursive --reference< --no-preserve-root --preserve-root",
        args=[word for word in use.args if word not in taken],
    )
    if found.has("-R", "--recursive"):
        use.high("changes the permissions of all that is in a folder")
    if found.unsure:
        use.high("is given what is not known beforehand")
    modes, files = taken, found.operands
    if not modes and not found.has("--reference"):
        modes, files = files[:1], files[1:]
    for mode in modes:
        if not mode.text.startswith("-") or not mode.known:
            mode_is(use, mode)
    use.writes(files, "changes the permissions of")
    use.medium("changes permissions")


def _always(what: str) -> Check:
    return lambda use: use.high(what)


def _dd(use: Use) -> None:
    out = False
    for word in use.args:
        name, equals, value = word.text.partition("=")
        if not word.known and (not equals or not value):
            use.high("is given what is not known beforehand")
        if name == "if":
            use.reads([Word(value, word.known, word.glob)])
        elif name == "of":
            out = True
            use.writes([Word(value, word.known, word.glob)])
    use.medium("writes a file") if out else use.medium("copies bytes")


_TAR = """-cxtruAdzjJZavwWpsOkUmoShlBinGMP -f= -C= -T@ -X< -b= -g> -H= -K= -L= -N= -V= -I^ -F^ --create --extract --get --list --append --update --concatenate --diff --compare --file= --directory=
    --files-from@ --exclude-from< --exclude= --exclude-vcs --exclude-vcs-ignores --exclude-caches --exclude-backups --exclude-ignore= --listed-incremental> --incremental --index-file> --one-top-level?>
    --volno-file> --use-compress-program^ --to-command^ --checkpoint-action^ --checkpoint? --rsh-command^ --rmt-command^ --info-script^ --new-volume-script^ --absolute-names^ --remove-files^ --recursive-unlink^
    --unlink-first^ --strip-components= --gzip --gunzip --ungzip --bzip2 --xz --lzma --lzip --lzop --zstd --compress --uncompress --auto-compress --no-auto-compress --verbose --verify --to-stdout
    --keep-old-files --keep-newer-files --skip-old-files --overwrite --overwrite-dir --no-overwrite-dir --preserve-permissions --same-permissions --no-same-permissions --same-owner --no-same-owner
    --same-order --touch --atime-preserve? --sparse --dereference --hard-dereference --one-file-system --owner= --group= --numeric-owner --mode= --mtime= --sort= --format= --posix --totals?
    --utc --full-time --wildcards --no-wildcards --anchored --no-anchored --ignore-case --no-recursion --recursion --force-local --blocking-factor= --record-size= --label= --newer= --newer-mtime=
    --after-date= --starting-file= --null --no-null --quoting-style= --ignore-failed-read --ignore-zeros --block-number --show-defaults --show-omitted-dirs --show-transformed-names --warning= --delay-directory-restore
    --occurrence? --pax-option= --acls --no-acls --xattrs --no-xattrs --selinux --no-selinux --delete! --transform! --xform! --suffix! --backup?!"""


def _tar(use: Use) -> None:
    args = list(use.args)
    if args and args[0].known and re.fullmatch(r"[A-Za-z]+", args[0].text):
        # `tar cfC a b`: each letter takes the next of the words behind them
        letters, rest = args[0].text, args[1:]
        args = list[Word]()
        for letter in letters:
            args.append(Word(f"-{letter}"))
            if letter in "fCTXbgHKLNVIF" and rest:
                args.append(rest.pop(0))
        args += rest
    found = declared(use, _TAR, args=args)
    if found.unsure:
        use.high("is given what is not known beforehand")
    if found.has("-P"):
        use.high("reaches outside of the folder that it works in")
    archive, folder = found.values("-f", "--file"), found.values("-C", "--directory")
    if any(":" in word.text for word in archive) and not found.has("--force-local"):
        use.high("has its archive on another machine")
    for mode in found.values("--mode"):
        mode_is(use, mode)
    if found.has("-t", "--list", "-d", "--diff", "--compare"):
        use.low()
        use.reads(archive)
        return
    if found.has("-x", "--extract", "--get"):
        use.reads(archive)
        use.writes(folder, "unpacks into")
        use.medium("unpacks files")
        return
    use.writes(archive, "writes to")
    use.reads(folder)
    use.reads_all(found.operands)
    use.medium("packs files")


_ZIP = """-rqjv0123456789yXDufFglkoeSAcz -xint= -P= -b> -O> --out> -T! -m! --test! --move! --unzip-command^ --recurse-paths --quiet --junk-paths --verbose --symlinks --no-extra --update --freshen --exclude= --include=
    --encrypt --password= --display-usize"""
_UNZIP = "-abcCfjLMnoptquUvVXzlZ1 -d> -x= -P="


def _zip(use: Use) -> None:
    if use.name == "zip":
        found = declared(use, _ZIP)
        use.writes(found.operands[:1])
        use.reads_all(found.operands[1:])
        use.medium("packs files")
        return
    found = declared(use, _UNZIP)
    if found.has("-l", "-v", "-t", "-Z", "-p", "-z"):
        use.low()
    else:
        use.medium("unpacks files")
    use.reads(found.operands[:1])
    use.not_known(use.args)


_XZ = """# -zdtlkfcqQvehHV -S= -F= -C= -T= -M= --compress --decompress --uncompress --test --list --keep --force --stdout --to-stdout --single-stream --no-sparse --suffix= --format= --check= --threads= --memlimit=
    --quiet --verbose --extreme --fast --best --robot --files@ --files0@"""
_ZSTD = """# -dzltcfkqvrmC -o> -D< -T? -M? -b? -e? -i? -B? --decompress --compress --list --test --stdout --force --keep --quiet --verbose --rm --ultra --long? --fast? --adapt? --threads? --no-progress --check --no-check
    --format= --rsyncable --sparse --no-sparse --output-dir-flat> --output-dir-mirror> --filelist@ --patch-from<"""
_PACKERS = {
    **dict.fromkeys(("gzip", "gunzip"), "# -cdfhklLnNqrtvV -S= -b= --stdout --to-stdout --decompress --uncompress --force --keep --list --no-name --name --quiet --recursive --suffix= --test --verbose --fast --best --rsyncable --synchronous"),
    **dict.fromkeys(("bzip2", "bunzip2"), "# -dzkftcqvsLV --decompress --compress --keep --force --test --stdout --quiet --verbose --small --fast --best"),
    **dict.fromkeys(("xz", "unxz"), _XZ), "zstd": _ZSTD, "lz4": "# -dzcftklqvrm -B? -D< --decompress --compress --stdout --force --test --list --keep --quiet --verbose --rm --best --fast?",
}  # fmt: skip


def _compress(use: Use) -> None:
    found = declared(use, _PACKERS[use.name])
    if found.unsure:
        use.unknown("is given what is not known beforehand")
    if any("/" in word.text for word in found.values("-S", "--suffix")):
        use.unknown("writes elsewhere")
    if found.has("-c", "--stdout", "--to-stdout", "-l", "--list", "-t", "--test"):
        use.low()
        use.reads(found.operands)
    elif found.operands:
        use.writes(found.operands, "replaces")
        use.medium("packs or unpacks files in their place")
    else:
        use.low()


_PATCH = """-bcEflNnRstTuvZ -pDFV= -i< -o> -r> -B> -Y> -z= -g! -e! -d! --ed! --directory! --get! --input< --output> --reject-file> --prefix> --basename-prefix> --suffix= --strip= --fuzz= --ifdef= --dry-run --forward --reverse
    --backup --batch --force --silent --quiet --unified --context --normal --verbose --ignore-whitespace --remove-empty-files --set-time --set-utc --posix --binary --merge? --reject-format= --version-control="""


def _patch(use: Use) -> None:
    found = declared(use, _PATCH)
    if found.unsure or any("/" in word.text for word in found.values("-z", "--suffix")):
        use.unknown("may change what is outside of the folder that it works in")
    use.writes(found.operands[:1], "changes")
    use.reads(found.operands[1:])
    use.medium("changes files")


def _split(use: Use) -> None:
    found = declared(
        use,
        """-eu -d? -x? -abClnt= --filter! --additional-suffix= --bytes= --line-bytes= --lines= --number= --numeric-suffixes? --hex-suffixes? --suffix-length= --elide-empty-files
        --separator= --unbuffered --verbose""",
    )
    use.reads(found.operands[:1])
    use.writes(found.operands[1:])
    use.medium("writes files")


def _csplit(use: Use) -> None:
    found = declared(
        use, "-ksqz -bn= -f> --prefix> --suffix-format= --digits= --keep-files --suppress-matched --quiet --silent --elide-empty-files"
    )
    if any("/" in word.text for word in found.values("-b", "--suffix-format")):
        use.unknown("writes elsewhere")
    use.reads(found.operands[:1])
    use.not_known(found.operands)
    use.medium("writes files")


def _mktemp(use: Use) -> None:
    found = declared(use, "-duqVt -p= --directory --dry-run --quiet --suffix= --tmpdir?")
    for word in (*found.operands, *found.values("-p", "--tmpdir")):
        if not (word.known and re.match(r"/tmp(?:/[\w.-]+)*/?$|/var/tmp(?:/[\w.-]+)*/?$", word.text)) or ".." in word.text:
            use.writes([word], "makes")
    use.medium("makes a file or folder")


_RSYNC = """-avzrlptgoDHAXSxnPcuhqWRdLkKCIiOJUNNFmy0468b -e^ -M^ -f= -B= -T> --rsh^ --rsync-path^ --remote-option^ --daemon^ --config^ --delete^ --del^ --delete-before^ --delete-during^ --delete-delay^ --delete-after^
    --delete-excluded^ --delete-missing-args^ --force^ --remove-source-files^ --remove-sent-files^ --early-input^ --log-file> --backup-dir> --write-batch> --only-write-batch> --read-batch! --temp-dir> --partial-dir> --files-from@
    --exclude-from< --include-from< --password-file< --link-dest< --compare-dest< --copy-dest< --exclude= --include= --filter= --archive --verbose --quiet --compress --recursive --relative --backup
    --suffix= --update --inplace --append --links --copy-links --safe-links --copy-unsafe-links --munge-links --keep-dirlinks --hard-links --perms --executability --acls --xattrs --owner --group --times
    --omit-dir-times --dry-run --whole-file --checksum --one-file-system --block-size= --existing --ignore-existing --max-size= --min-size= --partial --progress --stats --human-readable --itemize-changes
    --out-format= --log-file-format= --list-only --bwlimit= --timeout= --contimeout= --info= --debug= --no-perms --no-owner --no-group --no-times --no-links --chmod= --prune-empty-dirs --size-only --sparse --dirs
    --cvs-exclude --numeric-ids --protect-args --mkpath --from0 --ignore-times --modify-window= --fuzzy --compress-level= --skip-compress= --outbuf= --8-bit-output --usermap^ --groupmap^ --chown^ --super^"""


def _rsync(use: Use) -> None:
    found = declared(use, _RSYNC)
    if found.unsure:
        use.high("is given what is not known beforehand")
    if any(":" in word.text or not word.known for word in found.operands):
        use.high("copies from or to another machine")
    for mode in found.values("--chmod"):
        mode_is(use, Word(mode.text.replace("D", "").replace("F", ""), mode.known))
    use.reads_all(found.operands[:-1])
    use.writes(found.operands[-1:])
    use.medium("changes files")


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    found: dict[str, Check] = dict.fromkeys(_PACKERS, _compress)
    found.update(dict.fromkeys(("zip", "unzip"), _zip))
    found.update(dict.fromkeys(("cp", "mv"), _cp))
    modes = "-pvZ -m= --mode= --parents --verbose --context?"
    found.update({
        "rm": _rm, "ln": _ln, "install": _install, "chmod": _chmod, "dd": _dd, "tar": _tar, "patch": _patch, "split": _split, "csplit": _csplit, "mktemp": _mktemp, "rsync": _rsync,
        "touch": _makes("makes", "-acmhf -dt= -r< --date= --reference< --time= --no-create --no-dereference"), "tee": _makes("writes to", "-aip --append --ignore-interrupts --output-error?"),
        "mkdir": _makes("makes", modes), "mkfifo": _makes("makes", modes), "rmdir": _makes("deletes", "-pv --ignore-fail-on-non-empty --parents --verbose"), "unlink": _makes("deletes", ""),
        "truncate": _makes("changes", "-co -s= -r< --size= --reference< --no-create --io-blocks"), "sponge": _makes("writes to", "-a"),
        "chown": _always("changes who owns files"), "chgrp": _always("changes who owns files"), "chattr": _always("changes what may be done to files"),
        "setfacl": _always("changes who may use files"), "shred": _always("destroys files"), "wipe": _always("destroys files"), "srm": _always("destroys files"),
    })  # fmt: skip
    return found
