"""Reading a shell command without running it: its syntax tree, walked in the order in which a shell would act."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.agent.security.paths import HIGH, LOW, MEDIUM, UNKNOWN, Finding, Places
from holdfast.agent.security.words import Expander, Scope, Word, behind
from holdfast.errors import ConfigurationError

LONGEST = 100_000  # bytes of a command that are read
NODES = 20_000  # nodes of syntax that are looked at, in all scripts of one command
DEPTH = 40  # how deep one thing may stand in another: substitutions, wrappers, scripts in scripts

# What a person or a parser takes for nothing, or for another letter, and a shell does not.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f"
    "\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_BROKEN = re.compile(r"[^\s\\]\\\n[^\s]")  # a word that goes on in the next line
# Variables by which a program, or the shell itself, is made to do something else.
_GUIDES = re.compile(
    r"(?:PATH|CDPATH|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|BASH_FUNC.*|PROMPT_COMMAND|PS[0-4]|IFS|FIGNORE|GLOBIGNORE|HOME|PWD|OLDPWD|TMPDIR|TMOUT|"
    r"LD_.*|DYLD_.*|PYTHON(?:PATH|STARTUP|HOME|INSPECT|BREAKPOINT|USERBASE)|PERL5?(?:LIB|OPT|DB)|PERL5.*|RUBY(?:LIB|OPT)|NODE_(?:OPTIONS|PATH)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|"
    r"GIT_.*|SSH_.*|PAGER|MANPAGER|LESSOPEN|LESSCLOSE|EDITOR|VISUAL|BROWSER|SHELL|GCONV_PATH|(?:https?|all|ftp)_proxy|"
    r"(?:HTTPS?|ALL|FTP)_PROXY|PIP_.*|UV_.*|NPM_CONFIG_.*|npm_config_.*|CARGO_.*|RUSTC.*|RUSTFLAGS|GO(?:FLAGS|PROXY|PRIVATE|INSECURE|NOSUMDB)|"
    r"CC|CXX|MAKEFLAGS|MAKEFILES|TAR_OPTIONS|RIPGREP_CONFIG_PATH|CURL_HOME|WGETRC|OPENSSL_CONF|REQUESTS_CA_BUNDLE|SSL_CERT_.*)"
)
_HARMLESS_VALUES = re.compile(
    r"(?:PAGER|GIT_PAGER|MANPAGER)=cat|(?:PAGER|GIT_PAGER)=|GIT_TERMINAL_PROMPT=\d|GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)=.*"
)


class Enough(Exception):
    """The risk is as high as it gets: nothing more needs to be read."""


@functools.cache
def grammar() -> tuple[Any, Any]:
    """tree-sitter's parser class, and the language of bash. Raises `ConfigurationError` if they are not installed."""
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise ConfigurationError(
            f"The rules of holdfast.agent.security read commands with tree-sitter, which is not installed ({error}). Install it with: "
            "pip install 'holdfast[security]'"
        ) from error
    return tree_sitter.Parser, tree_sitter.Language(tree_sitter_bash.language())


Judge = Callable[["Reader", Sequence[Word], Scope, Any], None]


class Stdin:
    """What a command is fed: `text` None if that is not known beforehand."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text


class Reader:
    """Reads one command and keeps the highest risk that it finds. `judge` is asked about each program that would run, with its words."""

    __slots__ = ("_again", "_depth", "_expander", "_judge", "_left", "_quoted", "found", "hosts", "places")

    def __init__(self, places: Places, hosts: Sequence[str], judge: Judge) -> None:
        self.places = places
        self.hosts = hosts
        self.found = Finding(LOW)
        self._judge = judge
        self._left = NODES
        self._depth = 0
        self._again = False
        self._quoted: list[str] = []
        self._expander = Expander(places.home, self._substituted, self._evaluates)

    def read(self, command: str) -> Finding:
        """The risk of a whole command."""
        try:
            self.script(command, Scope({}, (self.places.workdir,) if self.places.workdir else ()), outer=True)
        except Enough:
            pass
        except RecursionError:
            self.found = Finding(HIGH, "it is nested deeper than is read")
        return self.found

    # --- what is found ---

    def note(self, rank: int, reason: str) -> None:
        """Keep this if it is higher than what was found. Raises `Enough` if it is the highest there is."""
        if rank > self.found.rank or not self.found.reason:
            self.found = Finding(rank, reason)
        if rank >= HIGH:
            raise Enough

    def take(self, finding: Finding) -> None:
        """Keep what a rule found."""
        if finding.rank > self.found.rank or (finding.reason and not self.found.reason):
            self.note(finding.rank, finding.reason)

    def reads(self, word: Word, scope: Scope) -> None:
        """A program reads this path."""
        self._path(word, scope, self.places.read, MEDIUM, "reads")

    def reads_all(self, word: Word, scope: Scope) -> None:
        """A program reads this folder with what is in it."""
        self._path(word, scope, self.places.read_all, MEDIUM, "reads")

    def writes(self, word: Word, scope: Scope, what: str = "writes to") -> None:
        """A program makes, changes or deletes this path."""
        self._path(word, scope, lambda path, cwd: self.places.write(path, cwd, what), UNKNOWN, what)

    def deletes_all(self, word: Word, scope: Scope) -> None:
        """A program deletes this folder with what is in it."""
        self._path(word, scope, self.places.delete_all, HIGH, "deletes")

    def _path(self, word: Word, scope: Scope, rule: Callable[[str, str], Finding], unknown: int, what: str) -> None:
        path = word.text
        if not word.known:
            if path:
                self.take(rule(path, scope.cwds[0] if scope.cwds else "/"))
            self.note(unknown, f"{what} a path that is not known beforehand")
        elif path.startswith("/"):
            self.take(rule(path, "/"))
        elif not scope.cwds:
            self.take(rule(path, "/"))
            self.note(unknown, f"{what} {path[:80]!r} in a folder that is not known beforehand")
        else:
            for cwd in scope.cwds:
                self.take(rule(path, cwd))

    # --- scripts ---

    def script(self, text: str, scope: Scope, outer: bool = False) -> None:
        """Read a script, as the shell's command or as what another shell is given."""
        if (not text.isascii() and _HIDDEN.search(text)) or "\r" in text or "\0" in text or _HIDDEN.search(text):
            self.note(HIGH, "it has characters that cannot be seen, or that look like others")
        if _BROKEN.search(text):
            self.note(HIGH, "it breaks a word across lines")
        source = text.encode("utf-8", "replace")
        if len(source) > LONGEST:
            self.note(HIGH, f"it has more than {LONGEST:,} bytes, which is more than is read")
        if source.count(b"$(") + source.count(b"`") + source.count(b"<(") + source.count(b"${") > 500:
            self.note(HIGH, "it has more substitutions than are read")
        parser, language = grammar()
        root = parser(language).parse(source).root_node
        if root.has_error:
            self.note(HIGH, "the shell's grammar does not fit it, so that what it does is not known")
        self._deeper()
        self.walk(root, scope)
        self._depth -= 1
        if outer and self.places.workdir:
            if any(not self.places.inside(cwd) for cwd in scope.cwds):
                self.note(HIGH, "it leaves the shell outside of the working directory, for all that comes after")
            if not scope.cwds:
                self.note(UNKNOWN, "it leaves the shell in a folder that is not known beforehand")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH:
            self.note(HIGH, "it is nested deeper than is read")

    def walk(self, node: Any, scope: Scope, stdin: Any = None) -> None:
        """Act out one node of syntax."""
        self._left -= 1
        if self._left < 0:
            self.note(HIGH, "it has more parts than are read")
        kind = node.type
        match kind:
            case "command":
                self._command(node, scope, stdin)
            case "compound_statement" if node.children and node.children[0].type == "((":
                self._expander.within(node, scope)
                self._evaluates(node)
                self._forget(node, scope)
            case "program" | "do_group" | "else_clause" | "compound_statement":
                self._sequence(node, scope, stdin)
            case "negated_command":
                self._sequence(node, scope, stdin)
            case "list":
                self._list(node, scope, stdin)
            case "pipeline":
                self._pipeline(node, scope, stdin)
            case "subshell":
                self._sequence(node, scope.copy(), stdin)
            case "redirected_statement":
                self._redirected(node, scope, stdin)
            case "variable_assignment":
                self._assign(node, scope, lasting=True)
            case "variable_assignments":
                for child in node.children:
                    self._assign(child, scope, lasting=True)
            case "declaration_command":
                self._declare(node, scope)
            case "unset_command":
                words = [word for child in node.children if child.is_named for word in self._expander.words(child, scope)]
                for name in _names(node):
                    scope.variables[name] = None
                names = [Word(_text(child)) for child in node.children if child.type == "variable_name"]
                self.run([Word("unset"), *[word for word in words if word.known or word.text], *names], scope)
            case "if_statement" | "elif_clause" | "case_statement" | "case_item":
                self._branches(node, scope, stdin)
            case "while_statement" | "c_style_for_statement":
                if kind != "while_statement":
                    self._again = True
                self._forget(node, scope)
                before = scope.cwds
                self._branches(node, scope, stdin)
                if scope.cwds != before:
                    scope.cwds = ()  # it may have gone further each time
            case "for_statement":
                self._for(node, scope, stdin)
            case "function_definition":
                self._function(node, scope)
            case "test_command":
                self._words_of(node, scope)
            case "comment" | "heredoc_body" | "heredoc_start" | "heredoc_end" | "file_descriptor":
                pass
            case "file_redirect" | "herestring_redirect" | "heredoc_redirect":
                self._redirect(node, scope)
            case _ if not node.is_named:
                pass
            case (
                "word"
                | "string"
                | "concatenation"
                | "raw_string"
                | "simple_expansion"
                | "expansion"
                | "command_substitution"
                | "number"
                | "extglob_pattern"
            ):
                self._expander.words(node, scope)  # what a case compares with
            case "binary_expression" | "unary_expression" | "postfix_expression" | "parenthesized_expression" | "ternary_expression":
                self._expander.within(node, scope)
                self._evaluates(node)
            case "regex" | "variable_name" | "special_variable_name" | "ansi_c_string" | "arithmetic_expansion" | "test_operator":
                self._expander.within(node, scope)
            case _:
                self.note(UNKNOWN, f"it has a {kind}, which is not understood here")

    def _sequence(self, node: Any, scope: Scope, stdin: Any = None) -> None:
        self._deeper()
        for child in node.children:
            if child.is_named:
                before = scope.cwds
                self.walk(child, scope, stdin)
                # What changes the folder may fail, and what comes after it is done all the same.
                if scope.cwds is not before:
                    scope.cwds = _either(before, scope.cwds)
                if child.type == "list" and _SETS.search(child.text):
                    self._forget(child, scope)  # its right sides may not have been done
        self._depth -= 1

    def _list(self, node: Any, scope: Scope, stdin: Any) -> None:
        """`a && b || c`: what stands on the right may not be done."""
        children = node.children
        parts = [child for child in children if child.is_named]
        only_and = all(child.type != "||" for child in children)
        before, before_defined = scope.cwds, scope.defined
        for index, child in enumerate(parts):
            if index:
                after = scope.copy()
                self.walk(child, after if not only_and else scope, stdin)
                if not only_and:
                    self._forget(child, scope)
                    scope.cwds = _either(scope.cwds, after.cwds)
                    scope.defined = _perhaps(scope.defined, after.defined)
                elif scope.defined != before_defined:
                    scope.defined = _perhaps(before_defined, scope.defined)
            else:
                self.walk(child, scope, stdin)
                if not only_and:
                    self._forget(child, scope)
                    scope.cwds = _either(before, scope.cwds)

    def _pipeline(self, node: Any, scope: Scope, stdin: Any) -> None:
        self._deeper()
        for child in node.children:
            if child.is_named:
                self.walk(child, scope.copy(), stdin)
                stdin = Stdin(None)
        self._depth -= 1

    def _branches(self, node: Any, scope: Scope, stdin: Any) -> None:
        """What may be done or not: of what it sets nothing is known afterwards."""
        self._deeper()
        before = scope.cwds
        inner = scope.copy()
        for child in node.children:
            if child.is_named:
                self.walk(child, inner, stdin)
        self._forget(node, scope)
        scope.cwds = _either(before, inner.cwds)
        scope.defined = _perhaps(scope.defined, inner.defined)
        self._depth -= 1

    def _for(self, node: Any, scope: Scope, stdin: Any) -> None:
        name, words, body = "", list[Word](), None
        for child in node.children:
            if child.type == "variable_name" and not name:
                name = _text(child)
            elif child.type == "do_group" or child.type == "compound_statement":
                body = child
            elif child.is_named:
                words += self._expander.words(child, scope)
        self._guided(name, None)
        self._forget(node, scope)
        if body is None:
            return
        for word in words:
            if "[" in word.text:
                self.holds(word.text)
        values: list[str | None] = [word.text if word.known and not word.glob else None for word in words]
        if not values or len(values) > 8 or None in values:
            values = [None]
        before = scope.cwds
        for value in values:
            scope.variables[name] = value
            inner = scope.copy()
            self.walk(body, inner, stdin)
            scope.defined = _perhaps(scope.defined, inner.defined)
            if inner.cwds != before:
                scope.cwds = ()  # from where the next round begins
        scope.variables[name] = None

    def _function(self, node: Any, scope: Scope) -> None:
        """What a function would do is looked at where it is made: with arguments that are not known, and from anywhere it may be called."""
        name = next((_text(child) for child in node.children if child.type == "word"), "")
        body = node.children[-1]
        self._forget(body, scope)
        inner = scope.copy()
        inner.variables, inner.cwds = dict.fromkeys(inner.variables), ()
        self.defines(name, scope)
        inner.defined |= scope.defined
        self.walk(body, inner)
        if b"cd" in body.text or b"pushd" in body.text or b"popd" in body.text:
            scope.cwds = ()

    def defines(self, name: str, scope: Scope) -> None:
        """The script gives a name to something of its own, a function or an alias."""
        from holdfast.agent.security.programs import is_known

        if is_known(name):
            self.note(HIGH, f"it gives the name of {name!r} to something else")
        scope.defined |= {name}

    # --- variables ---

    def _guided(self, name: str, value: str | None) -> None:
        if name == "PYTHONPATH" and value and all(part and self._inside(part) for part in value.split(":")):
            return
        if _GUIDES.fullmatch(name) and not _HARMLESS_VALUES.fullmatch(f"{name}={value}"):
            self.note(HIGH, f"it sets {name}, by which programs are made to do something else")

    def _inside(self, path: str) -> bool:
        try:
            return bool(self.places.workdir) and self.places.inside(self.places.real(path, self.places.workdir))
        except (OSError, ValueError):
            return False

    def assign(self, name: str, value: Word, scope: Scope) -> None:
        """A variable is set, by whatever means."""
        self._guided(name, value.text if value.known else None)
        if "[" in value.text:
            self.holds(value.text)
        scope.variables[name] = value.text if value.known and len(value.text) < 10_000 else None

    def _assign(self, node: Any, scope: Scope, lasting: bool) -> None:
        children = node.children
        target, operator = children[0], next((child.type for child in children if child.type in ("=", "+=")), "=")
        name = _text(target) if target.type == "variable_name" else next(iter(_names(target)), "")
        value = Word("")
        if children[-1].type not in ("=", "+="):
            value = self._expander.one(children[-1], scope)
        if target.type != "variable_name" or children[-1].type == "array":
            self._expander.within(node, scope)
            self._evaluates(target)
            if "[" in value.text:
                self.holds(value.text)
            value = Word("", False)
        elif operator == "+=":
            old = scope.value(name)
            value = Word(old + value.text) if old is not None and value.known else Word("", False)
        if name == "IFS" and not lasting:
            return  # for one program: `while IFS= read -r line`
        self.assign(name, value, scope)

    def _declare(self, node: Any, scope: Scope) -> None:
        odd = False
        if not any(child.type in ("variable_assignment", "variable_name", "concatenation") for child in node.children):
            self.note(MEDIUM, "it shows variables, which may hold secrets")
        for child in node.children:
            if child.type == "variable_assignment":
                self._assign(child, scope, lasting=True)
                if odd:
                    for name in _names(child):
                        scope.variables[name] = None
            elif child.is_named and child.type != "variable_name":
                for word in self._expander.words(child, scope):
                    if not word.known or (word.text.startswith(("-", "+")) and re.search(r"[niulf]", word.text)):
                        odd = True
                        self._evaluates(node)
                        if not word.known:
                            self.note(UNKNOWN, "it declares what is not known beforehand")
                    elif not word.text.startswith("-"):
                        if behind(_COMMANDS, word.text):
                            self.note(HIGH, "it evaluates a subscript that has commands in it")
                        self._guided(word.text.partition("=")[0], None)
                        scope.variables[word.text.partition("=")[0].rstrip("+")] = None
            elif child.type == "variable_name" and odd:
                scope.variables[_text(child)] = None

    def _forget(self, node: Any, scope: Scope) -> None:
        """Of what is set anywhere within `node` nothing is known any more."""
        stack, seen = [node], 0
        while stack:
            one = stack.pop()
            seen += 1
            if seen > NODES:
                self.note(HIGH, "it has more parts than are read")
            kind = one.type
            if kind == "variable_assignment":
                for name in _names(one):
                    scope.variables[name] = None
            elif kind == "command":
                # read, printf -v, mapfile, let, eval and others set what they name
                first = one.children[0] if one.children else None
                if first is not None and _text(first) in (
                    "read",
                    "printf",
                    "mapfile",
                    "readarray",
                    "let",
                    "eval",
                    "getopts",
                    ".",
                    "source",
                    "wait",
                ):
                    for child in one.children[1:]:
                        name = _text(child).split("=")[0].strip("'\"")
                        if name.isidentifier():
                            scope.variables[name] = None
            elif kind in ("postfix_expression", "binary_expression", "unary_expression", "for_statement"):
                for name in _names(one):
                    scope.variables[name] = None
            stack += one.children
        self._left -= seen // 8

    # --- redirections ---

    def _redirected(self, node: Any, scope: Scope, stdin: Any) -> None:
        body = next((child for child in node.children if child.type not in _REDIRECTS and child.is_named), None)
        more: list[Word] = []
        for child in node.children:
            if child.type in _REDIRECTS:
                fed, words = self._redirect(child, scope)
                stdin = fed or stdin
                more += words
        if body is None:
            return
        if body.type == "command":
            self._command(body, scope, stdin, more)
        else:
            if more:
                self.note(HIGH, "it has words behind a redirection that belong to no command")
            self.walk(body, scope, stdin)
        for child in node.children:  # `cat <<EOF && rm x`: the rest of the line stands within the here-document
            if child.type == "heredoc_redirect":
                self._rest(child, scope)

    def _rest(self, node: Any, scope: Scope) -> None:
        for child in node.children:
            if child.is_named and child.type not in (
                "heredoc_start",
                "heredoc_body",
                "heredoc_end",
                "file_redirect",
                "herestring_redirect",
                "file_descriptor",
            ):
                self.walk(child, scope.copy() if child.type == "pipeline" else scope, Stdin(None))

    def _redirect(self, node: Any, scope: Scope) -> tuple[Stdin | None, list[Word]]:
        """Look at a redirection: what it feeds, and the words behind it, which are the command's."""
        kind = node.type
        if kind == "herestring_redirect":
            word = self._expander.one(node.children[-1], scope)
            if "[" in word.text:
                self.holds(word.text)
            return Stdin(word.text if word.known else None), []
        if kind == "heredoc_redirect":
            return self._heredoc(node, scope)
        operator, targets = "", list[Any]()
        for child in node.children:
            if child.type == "file_descriptor":
                continue
            if not child.is_named and not targets:
                operator = child.type
            else:
                targets.append(child)
        if not targets:
            if operator not in (">&-", "<&-"):
                self.note(UNKNOWN, f"a redirection {operator} to nothing")
            return None, []
        more = [word for target in targets[1:] for word in self._expander.words(target, scope)]
        words = self._expander.words(targets[0], scope)
        word = words[0] if len(words) == 1 else Word("", False)
        if operator in (">&", "<&") and word.known and re.fullmatch(r"\d+-?|-", word.text):
            return None, more
        path = word.text
        if path.startswith(("/dev/tcp", "/dev/udp")) or re.match(r"/+dev/+(?:tcp|udp)", path):
            self.note(HIGH, f"it opens a connection: {path[:80]}")
        if targets[0].type == "process_substitution":
            return (Stdin(None) if operator.startswith("<") else None), more
        if operator in ("<",):
            self.reads(word, scope)
            return Stdin(None), more
        self.writes(word, scope)
        return None, more

    def _heredoc(self, node: Any, scope: Scope) -> tuple[Stdin | None, list[Word]]:
        start, body, more = "", None, list[Word]()
        for child in node.children:
            if child.type == "heredoc_start":
                start = _text(child)
            elif child.type == "heredoc_body":
                body = child
            elif child.type in ("file_redirect", "herestring_redirect"):
                more += self._redirect(child, scope)[1]
            elif child.type in ("word", "string", "raw_string", "concatenation", "simple_expansion", "expansion", "number"):
                more += self._expander.words(child, scope)
        if body is None:
            return Stdin(""), more
        if re.search(r"['\"\\]", start):
            return Stdin(_text(body)), more
        raw = _text(body)
        if "`" in raw or "$(" in raw:
            # The parser misses some of them here. To a shell it is all as in double quotes; where that does not fit, it is no longer a script.
            self.script('echo "' + raw.replace('"', '\\"') + '"', scope.copy())
            return Stdin(None), more
        text, known = self._expander.quoted(body, scope) if body.child_count else (raw, "\\" not in raw)
        return Stdin(text if known else None), more

    # --- commands ---

    def _command(self, node: Any, scope: Scope, stdin: Any, more: Sequence[Word] = ()) -> None:
        words: list[Word] = []
        before: list[Any] = []
        end, heredocs = -1, list[Any]()
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                before.append(child)
            elif kind == "command_name":
                words += self._expander.words(child.children[0], scope)
                end = child.end_byte
            elif kind in _REDIRECTS:
                fed, behind = self._redirect(child, scope)
                stdin = fed or stdin
                words += behind
                if kind == "heredoc_redirect":
                    heredocs.append(child)
            elif kind == "comment":
                continue
            elif child.start_byte == end and words:
                # Two pieces without white space between them are one word to a shell, whatever the parser makes of them.
                self._expander.words(child, scope)
                words[-1] = Word(words[-1].text, False)
                end = child.end_byte
            elif kind == "$" or kind == "ERROR":
                words.append(Word("", False))
                end = child.end_byte
            else:
                words += self._expander.words(child, scope) if child.is_named else [Word(_text(child))]
                end = child.end_byte
        words += more
        inner = scope.copy() if before and words else scope
        for child in before:
            self._assign(child, inner, lasting=not words)
        if words:
            self.run(words, inner, stdin)
            if inner is not scope:
                scope.cwds = inner.cwds
                scope.defined |= inner.defined
        for heredoc in heredocs:
            self._rest(heredoc, scope)

    def run(self, words: Sequence[Word], scope: Scope, stdin: Any = None) -> None:
        """A program, or a builtin, is run with these words; the first is its name."""
        self._left -= len(words)
        if self._left < 0:
            self.note(HIGH, "it has more parts than are read")
        self._deeper()
        self._judge(self, words, scope, stdin)
        self._depth -= 1

    def _words_of(self, node: Any, scope: Scope) -> None:
        self._expander.within(node, scope)  # a test itself changes nothing, whatever it compares
        self._evaluates(node)
        self.note(LOW, "it only tests")

    def _evaluates(self, node: Any) -> None:
        """The shell evaluates here what stands in quotes or in variables once more: subscripts, `${x@P}`, arithmetic; with the commands in them."""
        text = _text(node)
        if re.search(r"@[PAK]\b|\$\{!", text):
            self.note(HIGH if "@P" in text else UNKNOWN, "it evaluates what a variable holds once more")
        stack = [node]
        while stack:
            for child in stack.pop().children:
                if child.type in ("raw_string", "ansi_c_string", "word") and behind(_HIDES, _text(child)):
                    self.note(HIGH, "it evaluates a text that has commands in it")
                if child.type == "string" and behind(_HIDES, _text(child)) and re.search(r"\\[$`]", _text(child)):
                    self.note(HIGH, "it evaluates a text that has commands in it")
                if child.child_count:
                    stack.append(child)
        self._again = True
        if self._quoted:
            self.note(HIGH, "it evaluates a text that has commands in it")

    def holds(self, text: str) -> None:
        """A variable is set to this: it may be evaluated once more, now or in a loop's next round."""
        if behind(_COMMANDS, text):
            self._quoted.append(text[:80])
            self.note(HIGH if self._again else MEDIUM, "it keeps a text that has commands in it, which may be evaluated once more")

    def _substituted(self, node: Any, scope: Scope) -> str | None:
        """Look at the commands of a substitution. What they print is known of `pwd` and of plain `echo` and `printf`."""
        self._deeper()
        inner = scope.copy()
        commands = [child for child in node.children if child.is_named]
        for child in commands:
            self.walk(child, inner)
        self._depth -= 1
        if len(commands) != 1 or commands[0].type != "command" or node.type != "command_substitution":
            return None
        words: list[Word] = []
        for child in commands[0].children:
            if child.type == "command_name":
                words += self._expander.words(child.children[0], scope)
            elif child.is_named and child.type not in _REDIRECTS and child.type != "variable_assignment":
                words += self._expander.words(child, scope)
            else:
                return None
        if not words or not all(word.known and not word.glob for word in words) or words[0].text in scope.defined:
            return None
        texts = [word.text for word in words]
        if texts[0] == "pwd" and len(texts) == 1 and len(scope.cwds) == 1:
            return scope.cwds[0]
        if texts[0] == "echo" and not any(text.startswith("-") or "\\" in text for text in texts[1:]):
            return " ".join(texts[1:])
        if texts[0] == "printf" and len(texts) == 2 and not re.search(r"[%\\]", texts[1]) and not texts[1].startswith("-"):
            return texts[1].rstrip("\n")
        return None


_HIDES = re.compile(r"\\?\$\\?[({]|`|\\x|\\[0-7]")
_COMMANDS = re.compile(r"\$[({]|`")
_SETS = re.compile(rb"=|read|printf|mapfile|eval|let|getopts|unset|\+\+|--")
_REDIRECTS = frozenset(("file_redirect", "herestring_redirect", "heredoc_redirect"))


def _either(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that a script is in if it is in one of these or of those; none if that is too many to follow."""
    if first == second:
        return first
    if not first or not second:
        return ()
    found = tuple(dict.fromkeys((*first, *second)))
    return found if len(found) <= 4 else ()


def _perhaps(before: frozenset[str], after: frozenset[str]) -> frozenset[str]:
    """The names that a script has given where some of them may not have been given."""
    return before if before == after else after | {f"maybe {name}" for name in after - before if " " not in name}


def _names(node: Any) -> list[str]:
    """The variables that a node names, at its first two levels."""
    found = [_text(child) for child in node.children if child.type == "variable_name"]
    return found + [
        _text(inner) for child in node.children if child.type == "subscript" for inner in child.children if inner.type == "variable_name"
    ]


def _text(node: Any) -> str:
    found: bytes = node.text
    return found.decode("utf-8", "replace")
