"""Declarations of commands and their options, and the argument parser made from them."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from holdfast import __version__
from holdfast.cli.exit_codes import Exit


class Option:
    """An option whose value has a type, choices or a default: the settings of `add_argument`."""

    def __init__(self, help: str, **settings: Any) -> None:
        self.settings: dict[str, Any] = {"help": help, **settings}


# The options of a command: usage -> help, or an `Option`, or the options of a group with that
# title. The usage is written as in a synopsis: `--flag`, `--option VALUE`, `--option VALUE ...`
# (repeatable), `name VALUE` (positional), `name [VALUE]` (may be left out), `name [VALUE ...]`. The
# value `N` is a whole number from 1, unless the `Option` has another type.
Options = Mapping[str, "str | Option | Options"]
_USAGE = re.compile(
    r"(?P<names>-\S+(?: -\S+)*|\w+)"
    r"(?: \[(?P<optional>[A-Za-z]+)(?P<many> \.\.\.)?\]| (?P<metavar>\S+)(?P<repeatable> \.\.\.)?)?"
)


class CommandLine(NamedTuple):
    """A subcommand with its help texts. `takes_place`: its first argument is a file, or a server
    given with --server. `defaults` are values of options that the command lacks."""

    name: str
    summary: str
    description: str
    options: Options
    epilog: str = ""
    takes_place: bool = False
    defaults: Mapping[str, Any] = {}


def number(
    what: str, kind: Callable[[str], Any], low: float, high: float = float("inf"), *also: float
) -> Callable[[str], Any]:
    """Return a parser of numbers from `low` to `high` or in `also`, which errors call `what`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not (low <= value <= high or value in also):
            raise argparse.ArgumentTypeError(f"takes {what}, not {text!r}")
        return value

    return parse


_COUNT = number("a whole number from 1", int, 1, 2**40)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line with a reference to the help."""

    takes_place = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]: overloads
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_unknown(words)
        return super().parse_known_args(
            self._server_first(words) if self.takes_place else words, namespace
        )

    def _refuse_unknown(self, words: list[str]) -> None:
        """Refuse an unknown option by its name; argparse would take its value for an argument."""
        known = self._option_string_actions
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                from difflib import get_close_matches  # only here, for the time of a start

                near = get_close_matches(name, known, 1, 0.75)
                hint = f" (did you mean {near[0]}?)" if near else ""
                self.error(f"unknown option {name}{hint}")

    def _server_first(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with `--server URL` in the first place, where a file stands too."""
        words = list(args)
        end = words.index("--") if "--" in words else len(words)
        for at, word in enumerate(words[:end]):
            name, equals, url = word.partition("=")
            if name != "--server" or (not equals and at + 1 == end):
                continue
            url, rest = (url, at + 1) if equals else (words[at + 1], at + 2)
            if not url.startswith(("http://", "https://")):  # it would look like a file
                form = "an agent server's address such as http://127.0.0.1:8765"
                self.error(f"--server takes {form}, not {url!r}")
            return [url, *words[:at], *words[rest:]]
        return words

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"holdfast: {message}. See: {self.prog} --help\n")


def make_parser(description: str, epilog: str, commands: Iterable[CommandLine]) -> Parser:
    """Return the parser for the whole command line."""
    form: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = Parser(prog="holdfast", description=description, epilog=epilog, **form)
    version = f"holdfast {__version__} (Python {sys.version.split()[0]})"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, title="commands"
    )
    for command in commands:
        texts = {"description": command.description, "epilog": command.epilog}
        made = subparsers.add_parser(command.name, help=command.summary, **texts, **form)
        made.takes_place = command.takes_place
        made.set_defaults(**command.defaults)
        _add(made, command.options)
    return parser


def _add(parser: argparse._ActionsContainer, options: Options) -> None:  # pyright: ignore[reportPrivateUsage]: the base of parser and group
    for usage, declared in options.items():
        if isinstance(declared, Mapping):
            _add(parser.add_argument_group(usage), declared)
            continue
        found = _USAGE.fullmatch(usage)
        assert found is not None, usage
        names, optional = found["names"].split(), found["optional"]
        settings = (Option(declared) if isinstance(declared, str) else declared).settings
        form: dict[str, Any] = {"metavar": optional or found["metavar"]}
        if found["metavar"] == "N":
            form["type"] = _COUNT
        if optional:
            form["nargs"] = "*" if found["many"] else "?"
        elif found["repeatable"]:
            settings = {**settings, "help": f"{settings['help']}; repeatable"}
            form |= {"action": "append", "default": []}
        elif names[0].startswith("-") and not found["metavar"] and "choices" not in settings:
            form = {"action": "store_true"}
        parser.add_argument(*names, **dict[str, Any](form | settings))
