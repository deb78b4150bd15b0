"""Programs that only read what they are given, or only say something: with the options of which that is so. See `declared` for how they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.agent.security.declared import declared
from holdfast.agent.security.use import Check, Use
from holdfast.agent.security.words import Word

_SUMS = "-bctwz --binary --check --tag --text --zero --ignore-missing --quiet --status --strict --warn -l= --length= -a= --algorithm= --untagged --raw --base64"
_BASE = "-diD -w= --decode --ignore-garbage --wrap= --base64 --base64url --base32 --base32hex --base16 --base2msbf --base2lsbf --z85"
_LESS = "# -aAcCdeEfFgGiIJKLmMnNqQrRsSuUwWX -bhjxyz= --chop-long-lines --LINE-NUMBERS --line-numbers --quit-if-one-screen --no-init --raw-control-chars --RAW-CONTROL-CHARS --squeeze-blank-lines"
_DIFF = """# -abBcdeEHilnNpPqrstTuvwyZ -CUIxWFSDL= -X< --brief --report-identical-files --context? --unified? --ed --normal --rcs --side-by-side --width= --left-column --text --label=
    --suppress-common-lines --show-c-function --show-function-line= --expand-tabs --initial-tab --tabsize= --suppress-blank-empty --recursive --no-dereference --new-file --minimal
    --unidirectional-new-file --ignore-file-name-case --no-ignore-file-name-case --exclude= --exclude-from< --starting-file= --from-file< --to-file< --ignore-case --ignore-tab-expansion --ifdef=
    --ignore-trailing-space --ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-matching-lines= --strip-trailing-cr --color? --speed-large-files --horizon-lines= --paginate
    --line-numbers --no-headers --whole-file --cols= --highlight --numlines= --no-deleted --no-inserted --no-common --statistics"""
_LS = """-aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ1 -ITw= --all --almost-all --author --block-size= --color? --classify? --directory --dired --file-type --format= --full-time --group-directories-first
    --hide= --hyperlink? --human-readable --inode --ignore= --kibibytes --dereference --numeric-uid-gid --literal --quote-name --reverse --recursive --size --sort= --time= --time-style= --tabsize=
    --width= --context --zero --escape --indicator-style= --show-control-chars --hide-control-chars --quoting-style= --no-group --dereference-command-line --ignore-backups --si"""
_TAIL = "# -fFqvz -ncs= --bytes= --lines= --follow? --max-unchanged-stats= --pid= --quiet --silent --retry --sleep-interval= --verbose --zero-terminated"
_GZ = "# -cdfhklLnNqrtvs -S= --force --quiet --verbose --stdout"
_READERS = {
    "cat": "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting", "tac": "-br -s= --before --regex --separator=",
    "head": "# -qvz -nc= --bytes= --lines= --quiet --silent --verbose --zero-terminated", "tail": _TAIL,
    "nl": "-p -bdfhilnsvw= --body-numbering= --section-delimiter= --header-numbering= --footer-numbering= --line-increment= --number-format= --no-renumber --number-separator= --starting-line-number= --number-width=",
    "wc": "-clmLw --bytes --chars --lines --max-line-length --words --total= --files0-from@", "od": "-abcdfhiloswvx -AjNSt= --address-radix= --endian= --skip-bytes= --read-bytes= --strings? --format= --output-duplicates --width?",
    "hexdump": "-bcCdovx -ens= -f< --canonical --length= --skip= --no-squeezing", "cmp": "-bls -in= --print-bytes --ignore-initial= --verbose --bytes= --quiet --silent",
    "comm": "-123z --check-order --nocheck-order --output-delimiter= --total --zero-terminated", "join": "-iz -12aejotv= --ignore-case --header --check-order --nocheck-order --zero-terminated",
    "paste": "-sz -d= --delimiters= --serial --zero-terminated", "cut": "-nsz -bcdf= --bytes= --characters= --delimiter= --fields= --complement --only-delimited --output-delimiter= --zero-terminated",
    "rev": "-0 --zero", "fold": "# -bsc -w= --bytes --spaces --width= --characters", "fmt": "# -cstu -wgp= --crown-margin --split-only --tagged-paragraph --uniform-spacing --width= --goal= --prefix=",
    "expand": "-i -t= --initial --tabs=", "unexpand": "-a -t= --all --first-only --tabs=", "zcat": _GZ, "bzcat": _GZ, "xzcat": _GZ,
    "column": "-tdexJL -scoNHRTEOWnripC= --table --separator= --output-separator= --table-columns= --json --table-right= --table-noheadings --output-width= --fillrows --keep-empty-lines",
    "stat": "-Lft -c= --dereference --file-system --format= --printf= --terse --cached=", "ls": _LS, "dir": _LS, "vdir": _LS,
    "du": "-0aAbcDHhkLlmPSsxi -dtB= -X< --apparent-size --all --block-size= --bytes --total --dereference-args --max-depth= --human-readable --inodes --count-links --dereference --no-dereference --separate-dirs --si --summarize --threshold= --time? --time-style= --exclude= --exclude-from< --one-file-system --null --files0-from@",
    "df": "-aHhiklPTv -tBx= --all --block-size= --total --human-readable --si --inodes --local --output? --portability --sync --no-sync --type= --print-type --exclude-type=",
    "readlink": "-femnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent --verbose --zero",
    "realpath": "-emLPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet --relative-to= --relative-base= --strip --no-symlinks --zero", "namei": "-xmolnv --modes --owners --long",
    "pr": "# -acdfFJmrtTv -hlowDNW= --across --columns= --double-space --header= --length= --merge --omit-header --width=", "tsort": "", "sum": "-rs --sysv", "lsattr": "-RVadlpv", "getfacl": "-acdeEsRLPtpn --recursive --no-effective",
    "more": "# -dlfpcsue", "less": _LESS, "zless": _LESS, "zmore": "# -dlfpcsue", "file": "-bcdEhiklLNnprsSv0 -eFP= -m< -f@ --brief --mime --mime-type --mime-encoding --dereference --no-dereference --no-buffer --no-pad --raw --separator= --magic-file< --files-from@ --extension --print0 --keep-going --special-files",
    "strings": "-afwd -nteUsT= --all --data --print-file-name --bytes= --radix= --include-all-whitespace --encoding= --output-separator= --unicode= --target=",
    "nm": "-aABCDglnoprsSuv -Xjtf= --debug-syms --print-file-name --demangle? --dynamic --format= --extern-only --line-numbers --no-sort --numeric-sort --reverse-sort --print-size --size-sort --print-armap --undefined-only --defined-only --radix= --target= --no-demangle --special-syms --synthetic --with-symbol-versions --portability",
    "objdump": "-afhxpdDsSgtTrRwCzlFi -bmMjEO= --all-headers --disassemble? --disassemble-all --disassemble-zeroes --source --syms --dynamic-syms --section= --demangle? --reloc --dynamic-reloc --start-address= --stop-address= --no-show-raw-insn --no-addresses --line-numbers --architecture= --disassembler-options= --file-headers --section-headers --headers --full-contents --private-headers --wide",
    "readelf": "-ahlSgtenrudVADIcWvCz -xpR= -w? --all --file-header --program-headers --segments --section-headers --sections --section-details --headers --symbols --syms --dyn-syms --notes --relocs --unwind --dynamic --version-info --arch-specific --archive-index --histogram --wide --hex-dump= --string-dump= --debug-dump? --demangle? --lto-syms",
    "size": "-ABdoxGt --format= --totals --radix= --common", "diff": _DIFF, "colordiff": _DIFF, "icdiff": _DIFF, "wdiff": "-123cinps --avoid-wraps --less-mode --ignore-case --no-common --no-deleted --no-inserted --statistics",
    "look": "-adf -t= --alternative --alphanum --ignore-case --terminate=", "csvlook": "-HIlyz -dqe= --delimiter= --max-rows= --max-columns= --no-header-row", "jsonlint": "-cqs --quiet --compact --sort-keys",
    "tokei": "-fsCVe -t= --files --hidden --no-ignore --sort= --type= --exclude= --languages --compact", "cloc": "--by-file --by-file-by-lang --json --csv --yaml --md --xml --quiet --hide-rate --exclude-dir= --exclude-ext= --include-ext= --include-lang= --exclude-lang= --vcs= --git --match-f= --not-match-f= --match-d= --not-match-d=",
    "bc": "-lqswihv --mathlib --quiet --standard --warn --interactive", "last": "-aFidRwx -npst= -f< --limit=", "who": "-abdHlmpqrstTuw --all --heading --boot --users --count", "users": "",
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum", "cksum"), _SUMS),
    **dict.fromkeys(("base32", "base64", "basenc"), _BASE),
}  # fmt: skip
# Say something, whatever words they are given: none of it is a path, and none an option that does more.
_SAYERS = frozenset((
    "echo", "true", "false", ":", "pwd", "whoami", "expr", "sleep", "tty", "groups", "arch", "nproc", "yes", "factor", "return", "exit", "break", "continue", "shift", "help", "times", "dirs",
    "basename", "dirname", "logname", "hostid", "ulimit", "umask", "type", "clear",
))  # fmt: skip
# These too, with the options that they are known to have.
_SPEAKERS = {
    "id": "-agGnruzZ --group --groups --name --real --user --zero", "uname": "-asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor --hardware-platform --operating-system",
    "uptime": "-psV --pretty --since", "which": "-as --all", "whereis": "-bmsulgBMSf", "locale": "-ack --all-locales --charmaps --category-name --keyword-name --verbose", "seq": "# -w -fs= --format= --separator= --equal-width",
    "free": "-bkmghltwv -sc= --bytes --kibi --mebi --gibi --human --lohi --total --wide --seconds= --count= --si", "lscpu": "-abcJyx -ep? --all --json --extended? --parse?",
    "lsblk": "-abdfiIJlmnpPrstTSvz -oexIM= --all --bytes --fs --json --output= --noheadings --paths --list --nodeps", "tput": "-T= -Vx", "pidof": "-sqxwS -o= --single-shot", "cal": "-13jmsyYwnV -ABn= --one --three --monday --sunday --julian --year --week",
    "w": "-hufsiopV --no-header --no-current --short --from --ip-addr", "tr": "-cCdst --complement --delete --squeeze-repeats --truncate-set1", "numfmt": "-z -d= --debug --delimiter= --field= --format= --from= --from-unit= --grouping --header? --invalid= --padding= --round= --suffix= --to= --to-unit= --zero-terminated",
    "uuidgen": "-rtmsxC -nN= --random --time --md5 --sha1 --namespace= --name= --hex", "cowsay": "-bdgpstywn -eTW=", "figlet": "-cklnoprstvxDEILNRSWX -wm=", "lsof": "-aCbhlnNoPRtUvVwX -cdgipsu=",
    "vmstat": "-afmnstwdDyV -pS= --active --forks --slabs --stats --disk --wide --timestamp --unit=", "iostat": "-cdhkmNpsStxyzV -jgf= --human --pretty --dec=", "mpstat": "-AuTV -IPNo= --dec=", "pstree": "-aAcCghGlnpsStTuUvZ -HN= --arguments --compact-not --highlight-all --long --numeric-sort --show-pids --show-parents --uid-changes --unicode",
    "lsmod": "", "lspci": "-vnDkmtqQbxPPs -sd=", "lsusb": "-vt -sd= --verbose --tree", "apropos": "-dvewalr -smL= --exact --wildcard --and --long --sections= --section=", "whatis": "-dvrwl -smL= --regex --wildcard --long --sections=", "getconf": "-a -v=",
}  # fmt: skip
_PS = """-AaCdeFfHjLlMNTwyV -CGgopqstuUknO= --columns= --cols= --cumulative --deselect --forest --format= --Group= --group= --headers --no-headers --lines= --rows= --pid= --ppid= --quick-pid= --sid= --sort= --tty= --User=
    --user= --width= --info"""
_BINUTILS = frozenset(("nm", "objdump", "readelf", "size", "strings"))
# What a shell evaluates once more: the commands within a subscript run.
AGAIN = re.compile(r"\$[({\[]|`|\$\(\(")


def _reader(text: str) -> Check:
    def check(use: Use) -> None:
        found = declared(use, text)
        use.low()
        use.not_known(use.args)
        use.reads_all(found.operands) if use.name.endswith("diff") and found.has("-r", "--recursive") else use.reads(found.operands)
        if use.name in _BINUTILS and any(word.text.startswith("@") for word in use.args):
            use.unknown("takes its options from a file")
        if use.name in ("less", "zless", "more", "zmore") and any(word.text.startswith("+") for word in use.args):
            use.high("is given a command to begin with")

    return check


def _speaker(text: str) -> Check:
    def check(use: Use) -> None:
        declared(use, text)
        use.low()
        use.not_known(use.args)

    return check


def _sayer(use: Use) -> None:
    use.low()
    use.not_known(use.args)


def _printf(use: Use) -> None:
    _sayer(use)
    if use.args and use.args[0].text.startswith("-v"):
        sets(
            use,
            use.args[0]._replace(text=use.args[0].text[2:])
            if len(use.args[0].text) > 2
            else use.args[1]
            if len(use.args) > 1
            else Word(""),
        )
        for word in use.args:
            use.reader.holds(word.text)
    elif use.args and not use.args[0].known and (not use.args[0].text or use.args[0].text.startswith("-")) and not use.args[0].quoted:
        use.unknown("is given what is not known beforehand, which may be -v")


def sets(use: Use, word: Word) -> None:
    """A builtin sets, unsets or tests the variable of that name; its subscript is evaluated."""
    evaluated(use, word)
    if not word.known:
        use.unknown("sets a variable that is not known beforehand")
    use.reader.assign(word.text.partition("[")[0], Word("", False), use.scope)


def evaluated(use: Use, word: Word) -> None:
    """The shell evaluates this once more, with the commands that stand in it."""
    if AGAIN.search(word.text):
        use.high("evaluates a text that has commands in it")
    if "[" in word.text and not re.fullmatch(r"\w+\[(?:\w+|[@*])\]", word.text):
        use.unknown("evaluates a subscript")


def _test(use: Use) -> None:
    _sayer(use)
    for index, word in enumerate(use.args[:-1]):
        if not word.known and not word.text and not word.quoted:
            use.medium("tests what is not known beforehand")
        if word.text in ("-v", "-R"):
            evaluated(use, use.args[index + 1])
            if not use.args[index + 1].known:
                use.unknown("tests a variable that is not known beforehand")


def _jobs(use: Use) -> None:
    if any(not word.known or (word.text.startswith("-") and "x" in word.text) for word in use.args):
        use.run([word for word in use.args if not re.fullmatch(r"-[lnprsx]+", word.text)])
        use.unknown("runs another program")
    _sayer(use)


def _ps(use: Use) -> None:
    found = declared(use, _PS)
    before = ""
    for word in found.operands:  # `ps axo user`: the word behind an o is what is shown
        if re.fullmatch(r"[a-zA-Z]*e[a-zA-Z]*", word.text) and not re.fullmatch(r"[a-zA-Z]*[oOUptkG]", before):
            use.high("shows the environment of other processes")
        before = word.text
    use.low()
    use.not_known(use.args)


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    found: dict[str, Check] = {name: _reader(text) for name, text in _READERS.items()}
    found.update({name: _speaker(text) for name, text in _SPEAKERS.items()})
    found.update(dict.fromkeys(_SAYERS, _sayer))
    found.update({"printf": _printf, "test": _test, "[": _test, "jobs": _jobs, "ps": _ps})
    return found
