"""Declarations of commands and their options, and the argument parser made from them."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, cast

from holdfast import __version__
from holdfast.cli.exit_codes import Exit

# Options that name a place instead of the argument FILE, with the name of their value.
_PLACE_OPTIONS = {("--server", "URL"), ("--store", "FILE")}


class Option:
    """An option with settings of `add_argument` that its usage does not say."""

    def __init__(self, help: str, **settings: Any) -> None:
        self.settings: dict[str, Any] = {"help": help, **settings}


# The options of a command: usage -> help, or an `Option`, or the options of a group with the usage
# as its title. The usage is written as in a synopsis:
#
# | usage | option |
# |---|---|
# | `--flag`, `--option VALUE`, `--option VALUE ...` | a flag, an option, a repeatable one |
# | `name VALUE`, `name [VALUE]`, `name [VALUE ...]` | a positional, an optional, a repeatable one |
#
# `{one,two}` after it are the choices, and ` = one` is the default. The value `N` is a whole number
# from 1, unless the `Option` has another type.
Options = Mapping[str, "str | Option | Options"]
_USAGE = re.compile(
    r"(?P<names>-\S+(?: -\S+)*|\w+)"
    r"(?: \[(?P<optional>[A-Za-z]+)(?P<many> \.\.\.)?\]"
    r"| (?P<metavar>[^\s={]\S*)(?P<repeatable> \.\.\.)?)?"
    r"(?: \{(?P<choices>\S+)\})?(?: =(?: (?P<default>\S+)|(?P<empty>)))?"
)


class CommandLine(NamedTuple):
    """A subcommand with its help texts. `defaults` are values of options that the command lacks.
    `function` is its function with its module below `holdfast.cli`, by default `name.name`."""

    name: str
    summary: str
    description: str
    options: Options
    epilog: str = ""
    defaults: Mapping[str, Any] = {}
    function: str = ""


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


class CommandOption(NamedTuple):
    """An option of a command, for the scripts that complete it."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


def _described(action: argparse.Action) -> CommandOption:
    help = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    choices = tuple(str(choice) for choice in cast("Any", action).choices or ())
    return CommandOption(tuple(action.option_strings), help, action.nargs != 0, choices)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line with a reference to the help."""

    summary = ""  # in the list of commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]: overloads
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_unknown(words)
        elif words and not words[0].startswith("-"):
            self._refuse_unknown_command(words[0])
        if self._actions[1:] and self._actions[1].dest == "file":
            words = self._place_first(words)
        return super().parse_known_args(words, namespace)

    def _refuse_unknown(self, words: list[str]) -> None:
        """Refuse an unknown option by its name; argparse would take its value for an argument."""
        option_actions = self._option_string_actions
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in option_actions:
                near = _near(name, option_actions, 0.75)
                hint = f" (did you mean {near}?)" if near else ""
                self.error(f"unknown option {name}{hint}")

    def described(self) -> Iterator[tuple[str, str, list[CommandOption]]]:
        """Yield each command with its summary and its options."""
        for name, parser in self._commands().items():
            actions = [action for action in parser._actions if action.option_strings]
            yield name, parser.summary, [_described(action) for action in actions]

    def _commands(self) -> Mapping[str, Parser]:
        for action in self._actions:
            if action.dest == "command" and action.choices is not None:
                return cast("Mapping[str, Parser]", action.choices)
        return {}

    def _refuse_unknown_command(self, word: str) -> None:
        if word not in (commands := self._commands()):
            near = _near(word, commands, 0.6)
            hint = f"did you mean {near}?" if near else f"the commands are {', '.join(commands)}"
            self.error(f"unknown command {word!r} ({hint})")

    def _place_first(self, words: list[str]) -> list[str]:
        """Return the arguments with the place of `--server URL` or `--store FILE` moved to the
        front, the position of FILE."""
        end = words.index("--") if "--" in words else len(words)
        place: list[str] = []
        rest = list(words)
        for at, word in reversed([*enumerate(words[:end])]):
            name, equals, value = word.partition("=")
            action = self._option_string_actions.get(name)
            if action is None or (name, action.metavar) not in _PLACE_OPTIONS:
                continue
            if not equals and at + 1 == end:
                return words  # argparse says that the value is missing
            value = value if equals else words[at + 1]
            if name == "--server" and not value.startswith(("http://", "https://")):
                form = "an agent server's address such as http://127.0.0.1:8765"
                self.error(f"--server takes {form}, not {value!r}")
            if place:
                self.error("--store and --server each name the conversations' place: give one")
            place = [value]
            del rest[at : at + (1 if equals else 2)]
        return [*place, *rest]

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"holdfast: {message}. See: {self.prog} --help\n")


def _near(word: str, choices: Iterable[str], cutoff: float) -> str:
    from difflib import get_close_matches  # only for an error, for the time of a start

    return next(iter(get_close_matches(word, list(choices), 1, cutoff)), "")


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
        subparser = subparsers.add_parser(command.name, help=command.summary, **texts, **form)
        subparser.summary = command.summary
        function = command.function or f"{command.name}.{command.name}"
        subparser.set_defaults(function=function, **command.defaults)
        _add(subparser, command.options)
    return parser


def _add(parser: argparse._ActionsContainer, options: Options) -> None:  # pyright: ignore[reportPrivateUsage]: the base of parser and group
    for usage, declared in options.items():
        if isinstance(declared, Mapping):
            _add(parser.add_argument_group(usage), declared)
            continue
        match = _USAGE.fullmatch(usage)
        assert match is not None, usage
        names, optional = match["names"].split(), match["optional"]
        settings = (Option(declared) if isinstance(declared, str) else declared).settings
        form: dict[str, Any] = {"metavar": optional or match["metavar"]}
        if match["metavar"] == "N":
            form["type"] = _COUNT
        if match["choices"]:
            form["choices"] = match["choices"].split(",")
        if (default := match["default"] or match["empty"]) is not None:
            form["default"] = default
        if optional:
            form["nargs"] = "*" if match["many"] else "?"
        elif match["repeatable"]:
            settings = {**settings, "help": f"{settings['help']}; repeatable"}
            form |= {"action": "append", "default": []}
        elif names[0].startswith("-") and not match["metavar"] and not match["choices"]:
            form = {"action": "store_true"}
        parser.add_argument(*names, **dict[str, Any](form | settings))
