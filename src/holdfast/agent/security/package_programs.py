"""Package managers and builds: what runs the project's own code, and what brings in others'."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.agent.security.options import options
from holdfast.agent.security.use import Check, Use, inside
from holdfast.agent.security.words import Word

_BUILDS = frozenset((
    "make", "gmake", "ninja", "cmake", "ctest", "pytest", "py.test", "ruff", "black", "mypy", "pyright", "flake8", "pylint", "isort", "eslint", "prettier", "tsc", "jest", "vitest", "mocha", "tox", "nox", "coverage",
    "pre-commit", "bazel", "buck", "gradle", "gradlew", "mvn", "mvnw", "ant", "sbt", "just", "rake", "rspec", "mix", "gcc", "g++", "cc", "c++", "clang", "clang++", "rustc", "javac", "java", "kotlinc", "ld", "ar", "strip", "meson", "autoconf", "automake",
    "configure", "swift", "dotnet", "stack", "cabal", "dune", "zig", "nim", "crystal", "elixir", "erl", "vite", "webpack", "rollup", "esbuild", "next", "turbo", "nx", "stylelint", "rubocop", "clang-format", "clang-tidy",
    "gofmt", "goimports", "golangci-lint", "rustfmt", "shellcheck", "shfmt", "hatch", "build", "bandit", "sphinx-build", "mkdocs", "hugo", "protoc", "pip-compile", "pip-audit", "alembic", "django-admin", "flask", "uvicorn", "gunicorn",
    "autopep8", "yapf", "pyflakes", "vulture", "ttx", "ts-node", "tsx", "cypress", "playwright", "composer", "phpunit", "phpstan", "bundle", "pandoc", "ffmpeg", "convert", "dot", "virtualenv", "xmllint", "pdftotext",
))  # fmt: skip
_PUBLISHES = frozenset(
    (
        "publish",
        "deploy",
        "upload",
        "login",
        "logout",
        "release",
        "yank",
        "owner",
        "token",
        "push",
        "adduser",
        "unpublish",
        "deprecate",
        "access",
        "team",
        "hook",
        "profile",
        "whoami-token",
    )
)


# Options of these that take code.
_CODES = {
    **dict.fromkeys(("ts-node", "tsx", "elixir", "rake", "crystal", "nim", "mocha"), re.compile(r"-(?:e|p|pe|ep|E|x)$|--(?:e|p|pr|ev|eval|print|execute.*|execute-.*)$|-r.+")),
    "erl": re.compile(r"-(?:eval|run|s|remsh)$"), "mix": re.compile(r"-e$"), "swift": re.compile(r"-e$"), "zsh": re.compile(r"-c$"), "shellcheck": re.compile(r"(?!)"), "just": re.compile(r"--(?:shell|command|c).*|-c$"),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++", "ld"), re.compile(r"-(?:wrapper|fplugin.*|plugin.*|specs.*|B.*|load)$")), "javac": re.compile(r"-J.*"),
    **dict.fromkeys(("make", "gmake"), re.compile(r"--ev?a?l?(?:=.*)?$|-E$")), "sbt": re.compile(r"eval\b.*"), "pandoc": re.compile(r"(?!)"), "mvn": re.compile(r"(?!)"), "dotnet": re.compile(r"(?!)"),
}  # fmt: skip
_WRITES = re.compile(
    r"-o|-d|-O|--o(?:ut(?:put|file|-file|-dir|dir|put-file|put-dir)?.*)?|--junit-?xml|--log-file|--html|--basetemp|--report.*|--dest.*|--target-dir|--build-dir|--prefix|--install-prefix|--write.*|-B|-s"
)


def _named(use: Use) -> None:
    """Look at the paths among the words of a build: one that leads out of the working directory is not known to be the project's."""
    before = ""
    for word in use.args:
        text = word.text
        option, equals, value = text.partition("=")
        if text.startswith("-"):
            glued = re.match(r"-[A-Za-z](?=[/~.])", text)
            path, writes = (text[2:], bool(_WRITES.fullmatch(text[:2]))) if glued else (value, bool(_WRITES.fullmatch(option)))
            before = text
        else:
            path = value if equals and option.isidentifier() else text
            writes = bool(_WRITES.fullmatch(before))
            before = ""
        if "://" in path:
            use.unknown(f"is given an address: {path[:60]}")
        if not path or not (path[0] in "/~." or "/" in path or writes):
            continue
        found = Word(path, word.known, word.glob)
        if writes and word.known:
            use.writes([found])
        elif path[0] in "/~" or ".." in path.split("/") or path[0] == "." or use.scope.cwds != (use.reader.places.workdir,):
            use.reads([found])
            if not inside(use, found) and not path.startswith(("/usr/", "/opt/", "/lib", "/dev/null")):
                use.unknown(f"reaches outside of the working directory: {path[:60]}")


def _exec(use: Use) -> bool:
    """Whether it runs another program that stands in its words, which was then looked at."""
    words = list(use.args)
    if use.name == "cmake" and words and any(word.text == "-E" for word in words[:2]):
        words = words[[word.text for word in words].index("-E") + 1 :]
        name = words[0].text if words else ""
        same = {
            "rm": "rm",
            "remove": "rm",
            "remove_directory": "rm",
            "cat": "cat",
            "touch": "touch",
            "echo": "echo",
            "env": "env",
            "time": "time",
            "copy": "cp",
            "rename": "mv",
            "make_directory": "mkdir",
            "true": "true",
            "sleep": "sleep",
            "tar": "tar",
        }
        if name in same:
            use.run([Word(same[name]), *([Word("-r")] if name == "remove_directory" else []), *words[1:]])
        else:
            use.unknown(f"-E {name[:40]} is not known here")
        return True
    if (
        use.name in ("bundle", "composer", "dotnet", "stack", "cabal", "dune", "hatch", "coverage", "mix", "pre-commit", "mise")
        and words
        and words[0].text in ("exec", "e", "ex")
    ):
        rest = words[1:]
        while rest and rest[0].text.startswith("-"):
            rest = rest[1:]
        use.run(rest)
        use.medium("runs a program of the project")
        return True
    return False


def _build(use: Use) -> None:
    if _exec(use):
        return
    code = _CODES.get(use.name)
    if code is not None and any(code.match(word.text) for word in use.args):
        use.high("runs code that stands in the command, or another program")
    if use.name in ("gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "ar", "javac", "java") and any(
        word.text.startswith("@") for word in use.args
    ):
        use.unknown("takes its options from a file")
    words = [word for word in use.args if not word.text.startswith("-")]
    if any(word.known and word.text in _PUBLISHES for word in words) or any(
        word.text.startswith(("SHELL=", "MAKEFLAGS=")) for word in words
    ):
        use.high("sends something out, or runs with another shell")
    if use.name in ("make", "gmake") and any(word.text.startswith(("--eval", "-f", "-C", "--file", "--directory")) for word in use.args):
        found = options(use.args, "CfIjlo", ("--directory", "--file", "--eval"))
        if found.has("--eval"):
            use.high("runs rules that stand in the command")
        for word in found.values("-C", "--directory", "-f", "--file"):
            if not inside(use, word):
                use.unknown("runs the code of another folder")
    _named(use)
    use.medium("runs the project's own code")
    if any(not word.known and not word.text for word in use.args):
        use.unknown("is given what is not known beforehand")


def _remote(words: Sequence[Word]) -> bool:
    return any(
        "://" in word.text
        or word.text.startswith(("git+", "git@"))
        or not word.known
        or (re.match(r"(?:github|gitlab|bitbucket|gist):|[\w-]+/[\w.-]+$", word.text) and False)
        for word in words
    )


def _pip(use: Use) -> None:
    args = list(use.args)
    while args and args[0].text.startswith("-") and args[0].text not in ("--version", "-V", "--help"):
        args.pop(0)
    what = args[0].text if args and args[0].known else ""
    found = options(
        args[1:],
        "recifdt",
        (
            "--requirement",
            "--constraint",
            "--index-url",
            "--extra-index-url",
            "--find-links",
            "--target",
            "--prefix",
            "--root",
            "--trusted-host",
        ),
    )
    if what in ("list", "show", "freeze", "check", "--version", "-V", "help", "--help", "debug", "inspect", "tree"):
        use.low()
        use.not_known(args)
    elif what in ("install", "wheel", "download", "sync", "compile"):
        if (
            found.unsure
            or found.has(
                "-i",
                "--index-url",
                "--extra-index-url",
                "--trusted-host",
                "-f",
                "--find-links",
                "--root",
                "--target",
                "--prefix",
                "--break-system-packages",
                "--index",
                "--default-index",
            )
            or _remote(found.operands)
        ):
            use.high("installs from elsewhere, or to elsewhere")
        use.reads(found.values("-r", "--requirement", "-e", "--editable"))
        use.medium("installs packages, which run code")
    elif what == "uninstall":
        use.medium("removes packages")
    else:
        use.high(f"{what or 'does what is not known beforehand'} changes what is installed, or how")


def _uv(use: Use) -> None:
    found = options(use.args, "p", ("--project", "--directory", "--with", "--python", "--from"), stop=True)
    words = found.operands
    what = words[0].text if words and words[0].known else ""
    if found.unsure or (not words and not found.given):
        use.unknown("does what is not known beforehand")
    match what:
        case "pip":
            _pip(use._replace(name="uv pip", args=words[1:]))
        case "run":
            inner = options(
                words[1:],
                "pm",
                ("--with", "--python", "--project", "--directory", "--from", "--extra", "--group", "--with-requirements", "--env-file"),
                stop=True,
            )
            if inner.has("--with", "--with-requirements", "--from", "--directory", "--project", "-m", "--module") and not inner.has("-m"):
                use.unknown("runs with more than the project has")
            use.medium("installs what the project needs")
            use.run(inner.operands, use.stdin)
        case "sync" | "lock" | "add" | "remove" | "venv" | "init" | "build" | "export":
            if _remote(words[1:]):
                use.high("installs from elsewhere")
            use.medium("changes what the project needs")
        case "tree" | "version" | "" | "help":
            use.low()
        case _:
            use.high(f"{what} runs or changes what is not the project's")


def _npm(use: Use) -> None:
    found = options(use.args, "gC", ("--prefix", "--registry", "--userconfig", "--script-shell", "--cwd", "--filter"))
    words = found.operands
    what = words[0].text if words and words[0].known else ("install" if use.name in ("yarn", "pnpm") and not words else "")
    if found.unsure or found.has("--registry", "--script-shell", "--userconfig", "--global", "-g", "-C", "--prefix", "--cwd"):
        use.high("works elsewhere, from elsewhere, or with another shell")
    if what in (
        "ls",
        "list",
        "view",
        "info",
        "outdated",
        "why",
        "explain",
        "help",
        "root",
        "bin",
        "audit",
        "ping",
        "search",
        "fund",
        "docs",
    ):
        use.high("changes what is installed") if len(words) > 1 and words[1].text == "fix" else use.low()
        use.not_known(words)
    elif what in (
        "install",
        "i",
        "ci",
        "add",
        "update",
        "up",
        "upgrade",
        "dedupe",
        "prune",
        "remove",
        "rm",
        "uninstall",
        "un",
        "rebuild",
        "link",
    ):
        if _remote(words[1:]) or any(re.match(r"(?!@)[\w.-]+/[\w.-]+", word.text) for word in words[1:]):
            use.high("installs from elsewhere")
        use.medium("installs packages, which run code")
    elif what in (
        "run",
        "run-script",
        "test",
        "t",
        "start",
        "build",
        "lint",
        "stop",
        "restart",
        "dev",
        "format",
        "typecheck",
        "check",
        "watch",
        "pack",
        "version",
    ):
        use.medium("runs the project's own code")
    elif (not words and not use.args) or (not words and found.has("-v", "--version")):
        use.low()
    else:
        use.high(f"{what or 'does what is not known beforehand'} runs or changes what is not the project's")


def _npx(use: Use) -> None:
    if use.args and use.args[0].text in ("--no-install", "--no"):
        use.run(use.args[1:])
        use.medium("runs a program of the project")
        return
    use.high("fetches a program and runs it")


_CARGO = frozenset(
    (
        "build",
        "b",
        "test",
        "t",
        "check",
        "c",
        "run",
        "r",
        "clippy",
        "fmt",
        "doc",
        "bench",
        "clean",
        "add",
        "remove",
        "update",
        "fetch",
        "vendor",
        "new",
        "init",
        "fix",
        "nextest",
    )
)
_GO = frozenset(("build", "test", "vet", "fmt", "mod", "generate", "tool", "clean", "work"))


def _cargo(use: Use) -> None:
    found = options(use.args, "CZp", ("--config", "--manifest-path", "--target-dir"))
    words = [word for word in found.operands if not word.text.startswith("+")]
    what = words[0].text if words and words[0].known else ""
    if (
        found.unsure
        or found.has("--config", "-C", "--manifest-path", "--git", "--registry", "--index")
        or not all(word.known for word in words[:1])
    ):
        use.high("works elsewhere, or from elsewhere")
    if use.name == "cargo":
        works, reads = (
            _CARGO,
            ("tree", "metadata", "search", "version", "--version", "help", "", "locate-project", "info", "verify-project", "pkgid"),
        )
    else:
        works, reads = _GO, ("list", "version", "doc", "env", "help", "")
        if (
            (what == "env" and found.has("-w", "-u"))
            or (what == "vet" and found.has("--vettool"))
            or any(word.text.startswith(("-exec", "-toolexec", "-vettool")) for word in use.args)
        ):
            use.high("changes settings, or runs another program")
    if what in works:
        use.medium("builds or runs the project's own code")
    elif what in reads:
        use.low()
        use.not_known(use.args)
    elif what in ("run", "get") and use.name == "go":
        use.high("fetches code and runs it") if any("@" in word.text for word in words[1:]) and what == "run" else use.medium(
            f"{what}s code of the project or its needs"
        )
    else:
        use.high(f"{what} installs, sends out, or is not known")


def _poetry(use: Use) -> None:
    words = [word for word in use.args if not word.text.startswith("-")]
    what = words[0].text if words and words[0].known else ""
    if what == "run":
        use.medium("runs the project's own code")
        at = next(index for index, word in enumerate(use.args) if word.text == "run")
        use.run(use.args[at + 1 :])
    elif what in ("show", "check", "env", "about", "version", "list", ""):
        use.low()
    elif what in ("install", "add", "remove", "update", "lock", "build", "sync", "init", "new", "export") and not _remote(words[1:]):
        use.medium("installs packages, which run code")
    else:
        use.high(f"{what} sends out, or changes what is not the project's")


def table() -> Mapping[str, Check]:
    """What is known of these programs, by name."""
    found: dict[str, Check] = dict.fromkeys(_BUILDS, _build)
    found.update(dict.fromkeys(("pip", "pip3"), _pip))
    found.update(dict.fromkeys(("npm", "yarn", "pnpm"), _npm))
    found.update(dict.fromkeys(("poetry", "pdm", "pipenv"), _poetry))
    found.update(dict.fromkeys(("cargo", "go"), _cargo))
    found.update({"uv": _uv, "npx": _npx})
    return found
