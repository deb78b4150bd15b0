"""The command line: its options, and the help that teaches them."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from holdfast import __version__
from holdfast.cli.exits import MEANINGS, Exit

# Written for 80 columns: argparse does not wrap what it is told to leave as it is.
ABOUT = """\
Holdfast runs an LLM agent on a folder: it searches, reads and edits files there
and runs commands, step by step, until the task is done. You see every step as
it happens. With --store each step is on disk before it acts, so that a
conversation that was cut off goes on where it stopped."""

EXAMPLES = """\
examples:
  holdfast demo
      watch an agent fix a bug; needs no key
  holdfast run "Why does test_dates fail? Fix it" --model gpt-5-mini
  git diff | holdfast run - --model gpt-5-mini
      the task comes from standard input
  holdfast run "Add a --quiet flag" --workdir ~/src/tool --store ~/agent.db
  holdfast chat --store ~/agent.db --id 4f0c91d2a6be
      go on with that conversation
  holdfast show ~/agent.db
      what is in the store
  holdfast chat --base-url http://localhost:11434/v1 --model qwen3
      a local server, no key"""

ENVIRONMENT = """\
environment (an option comes before its variable):
  HOLDFAST_MODEL     the model, as --model
  HOLDFAST_BASE_URL  the API's address, as --base-url
  HOLDFAST_API_KEY   the key for that address
  OPENAI_API_KEY     the key for OpenAI's own address; sent nowhere else
  HOLDFAST_DEBUG     1 shows tracebacks and the library's log
  NO_COLOR           no colour
  FORCE_COLOR        colour also where the output is no terminal
  TERM, COLUMNS      dumb: plain text; the width at which long lines are cut"""

MODEL_OPTIONS = """\
The agent has a shell, and tools to read, write, edit and search files in DIR.
Its commands see a part of your environment (PATH, HOME, language, toolchains)
and nothing that looks like a secret; --env NAME adds one more variable.

Ctrl-C pauses: Enter goes on, a line that you type steers, Ctrl-C again closes."""

TALK = """\
Talk with an agent, one line per message. While it works, a line that you type
reaches it after its current step. Ctrl-D ends.
Commands: /help /pause /resume /status /exit

Where standard input is no terminal, each line is a message, answered before
the next is read; the exit code then tells how the last one ended."""

DEMO = """\
Watch an agent find and fix a bug in a small project, made for it in a temporary
folder. The model's part is scripted, so no key is needed; its tools are real.
Exit code 0 says that the project's tests failed before and passed after."""

SHOW = """\
Show a conversation of a store as `run` shows it, or list the conversations if
there are several and no ID is given."""


def exit_codes() -> str:
    """The table of exit codes for the help."""
    return "\n".join(["exit codes:", *(f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())])


class Parser(argparse.ArgumentParser):
    """argparse, with errors as the rest of the command writes them: one line, and where to look."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        self.exit(Exit.USAGE, f"holdfast: {message}. See: {self.prog} --help\n")


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"takes a whole number from 1, not {text!r}")
    return number


def _retries(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a whole number from 0, not {text!r}")
    return int(text)


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model")
    model.add_argument("--model", metavar="M", help="its name as the provider writes it (HOLDFAST_MODEL)")
    model.add_argument("--base-url", metavar="URL", help="the API's address; not needed for OpenAI's models (HOLDFAST_BASE_URL)")
    model.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the key")
    model.add_argument("--retries", metavar="N", type=_retries, default=5, help="how often to repeat a failed model call (5)")
    model.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    work = parser.add_argument_group("the work")
    work.add_argument("--workdir", metavar="DIR", default=".", help="the folder to work in (the current one)")
    work.add_argument("--allow-outside", action="store_true", help="let the file tools work outside of DIR too; the shell always can")
    work.add_argument(
        "--env", metavar="NAME", action="append", default=[], help="an environment variable that commands may see; repeatable"
    )
    work.add_argument("--max-steps", metavar="N", type=_count, default=500, help="model calls per run (500)")
    work.add_argument("--system-prompt-file", metavar="F", help="use this text instead of the default system prompt")
    kept = parser.add_argument_group("the record")
    kept.add_argument("--store", metavar="FILE", help="keep the conversation in this SQLite file, made if it is not there")
    kept.add_argument("--id", metavar="ID", help="the conversation in the store to go on with, or the name of a new one")
    _add_full(kept)


def _add_full(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]: the base of parser and group
    parser.add_argument("--full", action="store_true", help="show results, diffs and commands whole instead of their first and last lines")


def make_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="holdfast", description=ABOUT, epilog="\n\n".join([EXAMPLES, ENVIRONMENT, exit_codes()]),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"holdfast {__version__} (Python {sys.version.split()[0]})")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, title="commands")

    def add(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    run = add(
        "run", "give an agent one task and watch it work", f"Give an agent one task and watch it work.\n\n{MODEL_OPTIONS}", exit_codes()
    )
    run.add_argument("task", nargs="+", help="what to do; - reads it from standard input")
    _add_agent_options(run)
    chat = add("chat", "talk with an agent", f"{TALK}\n\n{MODEL_OPTIONS}", exit_codes())
    _add_agent_options(chat)
    demo = add("demo", "watch an agent fix a bug; needs no key", DEMO, "")
    demo.add_argument("--fast", action="store_true", help="do not pause for reading; also off where the output is no terminal")
    show = add("show", "show the conversations in a store", SHOW, "")
    show.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    show.add_argument("id", metavar="ID", nargs="?", help="the conversation, or the first letters of its id")
    show.add_argument("--json", action="store_true", help="JSON lines: the events, or the list's entries")
    _add_full(show)
    return parser
