"""The command line: its options and their help texts."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from holdfast import __version__
from holdfast.cli.exits import MEANINGS, Exit
from holdfast.cli.observe_arguments import add_observing, add_stats
from holdfast.cli.serve_arguments import add_serve
from holdfast.cli.server_arguments import (
    ON_SERVER,
    PLACE,
    add_list,
    add_place_options,
    add_server_options,
    place_first,
)
from holdfast.cli.tools_arguments import add_commands

# Written for 80 columns, because RawDescriptionHelpFormatter does not wrap.
ABOUT = """\
Holdfast runs an LLM agent on a folder. The agent searches, reads and edits
files there and runs commands, step by step, until the task is done. You see
every step as it happens. With --store, each step is on disk before it takes
effect, so that an interrupted conversation continues where it stopped."""

EXAMPLES = """\
examples:
  holdfast demo
      watch an agent fix a bug; needs no key
  holdfast run "Why does test_dates fail? Fix it" --model gpt-5-mini
  git diff | holdfast run - --model gpt-5-mini
      read the task from standard input
  holdfast run "Add a --quiet flag" --workdir ~/src/tool --store ~/agent.db
  holdfast chat --store ~/agent.db --id 4f0c
      continue the conversation whose id begins with 4f0c
  holdfast run "Clean up the build" --confirm terminal --store ~/agent.db
      ask you before each command runs
  holdfast tell ~/agent.db 4f0c approve
      approve the waiting command from another terminal
  holdfast show ~/agent.db
      list the conversations in the store
  holdfast check ~/agent.db
      check that everything in the store is readable and complete
  holdfast run "Port it to Python 3.13" --server https://agents.example:8765
      work on an agent server, which `holdfast serve` starts
  holdfast chat --base-url http://localhost:11434/v1 --model qwen3
      use a local model server; needs no key"""

ENVIRONMENT = """\
environment (an option takes precedence over its variable):
  HOLDFAST_MODEL     the model; same as --model
  HOLDFAST_BASE_URL  the API's address; same as --base-url
  HOLDFAST_API_KEY   the key for that address
  OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, GROQ_API_KEY, ...
                     a provider's key; sent to that provider's address only
  HOLDFAST_SERVER_KEY
                     an agent server's key: `serve` accepts it, and the
                     clients of the server send it
  HOLDFAST_DEBUG     1 shows tracebacks and the library's log
  NO_COLOR           1 turns colour off
  FORCE_COLOR        1 turns colour on, also where the output is no terminal
  TERM               dumb means plain text
  COLUMNS            the width at which long lines are cut"""

MODEL_OPTIONS = """\
The agent has a shell, and tools to read, write, edit and search files in DIR.
Its commands see a part of your environment (PATH, HOME, language, toolchains)
and nothing that looks like a secret; --env NAME adds one more variable.

Ctrl-C pauses the agent. Then Enter continues, a line that you type steers it,
and a second Ctrl-C closes the conversation."""

TALK = """\
Talk with an agent, one line per message. While the agent works, a line that
you type reaches it after its current step. Ctrl-D ends the chat.
Commands: /help /pause /resume /condense /status /exit

If standard input is not a terminal, each line is a message. It is answered
before the next one is read, and the exit code tells how the last one ended."""

DEMO = """\
Watch an agent find and fix a bug in a small project in a temporary folder. The
model is scripted, so no key is needed; the tools are real. Exit code 0 means
that the project's tests failed before the fix and passed after it."""

CONFIRM = """\
With --confirm, the calls of the tools that you name wait for you. With
`--confirm risky`, calls wait unless they are proven to stay within the folder.
Each waiting call is shown in full; then you answer
  y  run it              n  reject it; the model gets the reason that you type
  e  edit it first       a  run it, and all later calls of that tool
  q  leave it waiting (also Ctrl-D); Ctrl-C pauses
Without a terminal, the command ends there with exit code 3. To decide on a
waiting call later, use `holdfast tell`, or open the conversation again with
chat."""

SHOW = """\
Show a conversation of a store or an agent server, in the same form as `run`.
If there are several conversations and you give no ID, list them. A store is
opened for reading only.

examples:
  holdfast show ~/agent.db
  holdfast show ~/agent.db 4f0c --follow
  holdfast show --server http://127.0.0.1:8765 4f0c --follow
      continues across restarts of the server"""

TELL = """\
Send a command to a conversation, also while another process drives it. That
process carries it out within a second. If no process drives the conversation,
the command waits until the conversation is opened next. An agent server
carries it out at once and continues the conversation by itself.

  send TEXT                       send a message to the agent; - reads stdin
  approve [CALL] [--arguments J]  run a waiting call, optionally with other
                                  arguments
  reject [CALL] [REASON]          reject a waiting call; the model gets REASON
  answer [QUESTION] [JSON]        answer a running call's question; JSON holds
                                  the values of its form
  decline [QUESTION] [REASON]     decline to answer it
  pause                           pause after the present step
  resume                          continue after a pause or an error
  interrupt                       pause at once and cancel the running calls
  condense [TEXT]                 shorten the model's view; TEXT says what its
                                  summary must keep

CALL and QUESTION may be left out if only one is waiting. An approval applies
to the arguments that the call has in the store now.

Exit code 0: posted (with --wait: and carried out). 1: not carried out in time.
2: nothing to post, for example because no call waits.

examples:
  holdfast tell ~/agent.db 4f0c approve
  holdfast tell --server http://127.0.0.1:8765 4f0c send Mind the docs."""

REPLAY = """\
Run conversations again without calling the model or any tool: the answers and
results come from the journal. Each model request is built again and compared
with the one that was sent. Differences that this version of Holdfast makes, or
the agent given with --agent, are shown: - marks the recorded text, + the new
one.

examples:
  holdfast replay ~/agent.db
  holdfast replay ~/agent.db 4f0c --agent my_agents:reviewer
      check whether that agent would send the same requests
  holdfast replay conversation.jsonl

Exit code 0: no differences. 1: differences. 2: no such file or agent."""


CHECK = """\
Verify a store without changing it: SQLite's own integrity check, the checksum
of every event, gaps between events, forks, blobs and waiting commands. The
store may be in use. Problems are listed per conversation, with the events that
cannot be read. `holdfast export --salvage` saves the readable rest.

Exit code 0: sound. 1: damaged. 2: no such file, or the file is not a store."""

EXPORT = """\
Write conversations as JSON lines: a header, then each event as it is stored,
then the blobs (outputs kept in full) that the events refer to. Without ID,
write all conversations, one after the other. `holdfast import` reads them
back.

examples:
  holdfast export ~/agent.db 4f0c > conversation.jsonl
  holdfast export ~/agent.db -o backup.jsonl
  ssh there holdfast export agent.db | holdfast import - --store ~/agent.db
  holdfast export --salvage damaged.db -o rest.jsonl
      write a placeholder for every event that cannot be read; exit code 1
      means that there were some, and stderr names them
  holdfast export ~/agent.db 4f0c --to openhands -o conversations/4f0c"""

IMPORT = """\
Write exported conversations into a store under their ids. Each conversation is
checked first, and written completely or not at all. A conversation that the
store already has, event for event, is left as it is. A different one with the
same id is refused (exit code 2) unless --id gives it a new id.

examples:
  holdfast import conversation.jsonl --store ~/agent.db
  holdfast import one.jsonl --store ~/agent.db --id second-try
  holdfast import rest.jsonl --store repaired.db
      make a sound store from the output of `export --salvage`
  holdfast import --from openhands ~/conversations/5d1e --store agent.db
      holdfast chat --store agent.db --id 5d1e... continues it"""


def exit_codes() -> str:
    """Return the table of exit codes for the help."""
    return "\n".join(
        ["exit codes:", *(f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())]
    )


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like those of the rest of the command: one line, and
    a reference to the help."""

    takes_place = False  # True if the first argument is a file, or a server given with --server

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]: overloads
        """See `argparse.ArgumentParser.parse_known_args`."""
        try:
            args = place_first(args or ()) if self.takes_place else args
        except ValueError as error:
            self.error(str(error))
        return super().parse_known_args(args, namespace)

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


def _planning(text: str) -> str:
    if text not in ("tool", "first"):
        raise argparse.ArgumentTypeError(
            f"takes no value or the word first, not {text!r}; write the task before --plan"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1_000_000:
        raise argparse.ArgumentTypeError(f"takes a number of seconds, not {text!r}")
    return seconds


def _seq(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes an event's number, 0 for none, not {text!r}")
    return int(text)


def _retries(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a whole number from 0, not {text!r}")
    return int(text)


def _add_agent_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model",
        metavar="M",
        help="the model's name as its provider writes it, or provider/name (HOLDFAST_MODEL)",
    )
    model.add_argument(
        "--base-url",
        metavar="URL",
        help="the API's address; not needed for known providers (HOLDFAST_BASE_URL)",
    )
    model.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable that holds the key"
    )
    model.add_argument(
        "--retries", metavar="N", type=_retries, help="how often to repeat a failed model call (5)"
    )
    model.add_argument(
        "--no-stream",
        action="store_true",
        help="request complete answers instead of streaming them",
    )
    work = parser.add_argument_group("the work")
    work.add_argument("--workdir", metavar="DIR", help="the folder to work in (the current one)")
    work.add_argument(
        "--no-instructions",
        action="store_true",
        help="do not tell the model what the AGENTS.md files of DIR's repository say",
    )
    work.add_argument(
        "--allow-outside",
        action="store_true",
        help="let the file tools work outside of DIR too; the shell always can",
    )
    work.add_argument(
        "--env",
        metavar="NAME",
        action="append",
        default=[],
        help="an environment variable that commands may see; repeatable",
    )
    work.add_argument(
        "--confirm",
        metavar="WHAT",
        default="never",
        help=(
            "which calls wait for you: never (default), always, risky (by their risk), or tool"
            " names separated by commas, such as terminal,write_file"
        ),
    )
    work.add_argument(
        "--plan",
        nargs="?",
        const="tool",
        type=_planning,
        metavar="first",
        help=(
            "let the agent keep a plan, and show its changes; first: you approve the plan before"
            " the agent does anything but read"
        ),
    )
    work.add_argument(
        "--ask",
        action="store_true",
        help="let the agent ask you questions and wait for your answers",
    )
    work.add_argument("--max-steps", metavar="N", type=_count, help="model calls per run (500)")
    work.add_argument(
        "--system-prompt-file",
        metavar="F",
        help="use this text instead of the default system prompt",
    )
    work.add_argument(
        "--agents",
        metavar="DIR",
        help=(
            "let the agent delegate work to the agents in this folder or repository, one Markdown"
            " file each"
        ),
    )
    kept = parser.add_argument_group("the record")
    kept.add_argument(
        "--store",
        metavar="FILE",
        help="keep the conversation in this SQLite file, which is created if it does not exist",
    )
    kept.add_argument(
        "--id",
        metavar="ID",
        help=(
            "the id of the conversation to continue, or its beginning; an id that matches none"
            " starts a new conversation"
        ),
    )
    kept.add_argument(
        "--new", action="store_true", help="start a new conversation with exactly the id of --id"
    )
    _add_full(kept)
    add_observing(kept, "keys are masked")
    add_server_options(parser)


def _add_full(
    # The common base class of parser and group.
    parser: argparse._ActionsContainer,  # pyright: ignore[reportPrivateUsage]
) -> None:
    parser.add_argument(
        "--full",
        action="store_true",
        help="show results, diffs and commands in full, not only their first and last lines",
    )


def make_parser() -> Parser:
    """Return the parser for the whole command line."""
    parser = Parser(
        prog="holdfast",
        description=ABOUT,
        epilog="\n\n".join([EXAMPLES, ENVIRONMENT, exit_codes()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"holdfast {__version__} (Python {sys.version.split()[0]})",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=Parser, title="commands"
    )

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
        "run",
        "give an agent one task and watch it work",
        f"Give an agent one task and watch it work.\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
        exit_codes(),
    )
    run.add_argument("task", nargs="+", help="what to do; - reads it from standard input")
    _add_agent_options(run)
    run.add_argument(
        "--output-schema",
        metavar="FILE",
        help=(
            "make the result JSON that matches this JSON Schema, and write only the result to"
            " standard output; the rest goes to standard error"
        ),
    )
    chat = add(
        "chat",
        "talk with an agent",
        f"{TALK}\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
        exit_codes(),
    )
    _add_agent_options(chat)
    chat.set_defaults(output_schema=None)
    demo = add("demo", "watch an agent fix a bug; needs no key", DEMO, "")
    demo.add_argument(
        "--fast",
        action="store_true",
        help="do not pause for reading; without a terminal the demo never pauses",
    )
    show = add("show", "show a conversation of a store or an agent server", SHOW, "")
    show.add_argument("file", metavar="FILE", help=PLACE)
    show.add_argument("id", metavar="ID", nargs="?", help="the conversation's id, or its beginning")
    add_place_options(show)
    show.add_argument(
        "--json",
        action="store_true",
        help="print JSON lines: the events, or the entries of the list",
    )
    show.add_argument(
        "--at",
        metavar="SEQ",
        type=_seq,
        help="show the conversation as it was after event SEQ",
    )
    show.add_argument(
        "--follow",
        action="store_true",
        help=(
            "show new events as they come, until Ctrl-C, whichever process drives the conversation"
        ),
    )
    show.add_argument(
        "--prompt",
        action="store_true",
        help="show the last system prompt that the model received, part by part",
    )
    show.add_argument(
        "--until-rest",
        action="store_true",
        help="follow until the conversation finishes, stops, pauses or waits for you",
    )
    _add_full(show)
    add_list(add, _count)
    tell = add("tell", "send a message, approve a call, pause: from any shell", TELL, "")
    tell.add_argument("file", metavar="FILE", help=PLACE)
    tell.add_argument("id", metavar="ID", help="the conversation's id, or its beginning")
    tell.add_argument(
        "what",
        metavar="WHAT",
        choices=[
            "send",
            "approve",
            "reject",
            "answer",
            "decline",
            "pause",
            "resume",
            "interrupt",
            "condense",
        ],
        help="see above",
    )
    tell.add_argument(
        "words",
        metavar="MORE",
        nargs="*",
        help="the text, the call or question, the values or the reason",
    )
    add_place_options(tell)
    tell.add_argument(
        "--arguments",
        metavar="JSON",
        help='approve: run the call with these arguments instead, such as \'{"command": "ls"}\'',
    )
    tell.add_argument(
        "--key",
        metavar="KEY",
        help="drop the command if another one was posted under this key before",
    )
    tell.add_argument(
        "--wait",
        metavar="SECONDS",
        type=_seconds,
        help="wait at most this long until the command is carried out",
    )
    replay = add("replay", "check whether the same model requests would be made today", REPLAY, "")
    replay.add_argument(
        "file",
        metavar="FILE",
        help="the SQLite file given as --store, or the output of `holdfast export`",
    )
    replay.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="the conversation's id, or its beginning; without it, all conversations",
    )
    replay.add_argument(
        "--agent",
        metavar="MODULE:NAME",
        help=(
            "the Agent to compare with, or a function that returns one; found in this folder or"
            " on the Python path"
        ),
    )
    add_stats(add, _count)
    check = add("check", "verify that a store is complete and undamaged", CHECK, "")
    check.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    export = add("export", "write conversations of a store as JSON lines", EXPORT, "")
    export.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    export.add_argument(
        "ids",
        metavar="ID",
        nargs="*",
        help="a conversation's id, or its beginning; without it, all conversations",
    )
    export.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write to this file, which is replaced only after everything is written",
    )
    export.add_argument(
        "--salvage", action="store_true", help="write the readable part of a damaged store"
    )
    export.add_argument(
        "--to",
        choices=("openhands",),
        help="write the single conversation ID into the new folder OUT, in OpenHands' format",
    )
    taken = add("import", "write exported conversations into a store", IMPORT, "")
    taken.add_argument(
        "file", metavar="FILE", help="the output of `holdfast export`; - reads standard input"
    )
    taken.add_argument(
        "--store",
        metavar="STORE",
        required=True,
        help="the SQLite file to write to, which is created if it does not exist",
    )
    taken.add_argument(
        "--id", metavar="NEW", help="import the only conversation in FILE under this id"
    )
    taken.add_argument(
        "--from",
        dest="origin",
        choices=("openhands",),
        help="FILE is the folder of a conversation in OpenHands' format",
    )
    add_commands(add)
    add_serve(add)
    return parser
