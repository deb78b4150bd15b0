"""The command line: its options, and the help that teaches them."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from holdfast import __version__
from holdfast.cli.exits import MEANINGS, Exit
from holdfast.cli.observe_arguments import add_observing, add_stats
from holdfast.cli.serve_arguments import add_serve
from holdfast.cli.server_arguments import ON_SERVER, PLACE, add_list, add_place_options, add_server_options, place_first
from holdfast.cli.tools_arguments import add_commands

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
  holdfast chat --store ~/agent.db --id 4f0c
      go on with the conversation whose id begins so
  holdfast run "Clean up the build" --confirm terminal --store ~/agent.db
      you are asked before each command runs
  holdfast tell ~/agent.db 4f0c approve
      the same from another terminal
  holdfast show ~/agent.db
      what is in the store
  holdfast check ~/agent.db
      is everything in it readable and whole?
  holdfast run "Port it to Python 3.13" --server https://agents.example:8765
      on an agent server, which `holdfast serve` is
  holdfast chat --base-url http://localhost:11434/v1 --model qwen3
      a local server, no key"""

ENVIRONMENT = """\
environment (an option comes before its variable):
  HOLDFAST_MODEL     the model, as --model
  HOLDFAST_BASE_URL  the API's address, as --base-url
  HOLDFAST_API_KEY   the key for that address
  OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, GROQ_API_KEY, ...
                     a provider's key; sent to that provider's address only
  HOLDFAST_SERVER_KEY
                     an agent server's key: the one that serve takes, and
                     that its clients bring
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
Commands: /help /pause /resume /condense /status /exit

Where standard input is no terminal, each line is a message, answered before
the next is read; the exit code then tells how the last one ended."""

DEMO = """\
Watch an agent find and fix a bug in a small project, made for it in a temporary
folder. The model's part is scripted, so no key is needed; its tools are real.
Exit code 0 says that the project's tests failed before and passed after."""

CONFIRM = """\
With --confirm the calls of some tools wait for you, or with `--confirm risky`
those that are not proven to stay within the folder. Each is shown whole, then
  y  runs it             n  does not; the model is told why, if you say why
  e  edits it first      a  runs it, and all later calls of that tool
  q  leaves it waiting, as Ctrl-D does; Ctrl-C pauses
Without a terminal the command ends there, with exit code 3. A waiting call can
be decided with `holdfast tell`, or by opening the conversation again with chat."""

SHOW = """\
Show a conversation as `run` shows it, or list the conversations if there are
several and no ID is given. They are those of a store, which is only read, or of
an agent server.

examples:
  holdfast show ~/agent.db
  holdfast show ~/agent.db 4f0c --follow
  holdfast show --server http://127.0.0.1:8765 4f0c --follow
      also while the server is started again"""

TELL = """\
Tell a conversation something from the shell, also while another process drives
it. That one does it within a second; if nobody drives it, it is done when the
conversation is opened next. An agent server does it at once, and goes on with
the conversation, whether anybody watches or not.

  send TEXT                       say something to the agent; - reads stdin
  approve [CALL] [--arguments J]  let a waiting call run, with other arguments
  reject [CALL] [REASON]          do not run it, and tell the model why
  answer [QUESTION] [JSON]        what a running call asks; JSON has the form's values
  decline [QUESTION] [REASON]     do not answer it
  pause                           go no further after what runs now
  resume                          go on after a pause or an error
  interrupt                       pause at once; what runs is cancelled
  condense [TEXT]                 shorten what the model is shown, minding TEXT

Without CALL or QUESTION it is the one that waits. An approval holds for the arguments
that the call has in the store now.

Exit code 0: posted (with --wait: and taken). 1: not taken in time. 2: nothing
to post, as when no call waits.

examples:
  holdfast tell ~/agent.db 4f0c approve
  holdfast tell --server http://127.0.0.1:8765 4f0c send Mind the docs."""

REPLAY = """\
Run conversations once more without model or tools: their answers and results
are those of the journal, and each request to the model is made anew and
compared with what was sent. What today's Holdfast, or the agent given with
--agent, makes otherwise is shown; - is what was, + is today's.

examples:
  holdfast replay ~/agent.db
  holdfast replay ~/agent.db 4f0c --agent my_agents:reviewer
      would that agent have asked the same?
  holdfast replay conversation.jsonl

Exit code 0: all the same. 1: something differs. 2: no such file or agent."""


CHECK = """\
Verify a store without changing it: that SQLite finds nothing wrong, that every
event is what was written and none is missing, that forks, blobs and waiting
commands are whole. It may be in use meanwhile. What is wrong is named per
conversation, with the events that cannot be read; `export --salvage` saves the
rest.

Exit code 0: sound. 1: damaged. 2: no such file, or it is no store."""

EXPORT = """\
Write conversations as JSON lines: a header, then each event as it is stored,
then the blobs (outputs kept whole) that the events refer to. Without ID all of
them, one after the other. `holdfast import` makes conversations of it again.

examples:
  holdfast export ~/agent.db 4f0c > conversation.jsonl
  holdfast export ~/agent.db -o backup.jsonl
  ssh there holdfast export agent.db | holdfast import - --store ~/agent.db
  holdfast export --salvage damaged.db -o rest.jsonl
      a placeholder stands for every event that cannot be read; exit code 1
      says that there were any, and stderr names them
  holdfast export ~/agent.db 4f0c --to openhands -o conversations/4f0c"""

IMPORT = """\
Write exported conversations into a store, under their ids. Each is checked
first and written whole or not at all. One that is there already, event for
event, is left as it is; another one of the same id is refused (exit code 2),
unless --id gives it a new one.

examples:
  holdfast import conversation.jsonl --store ~/agent.db
  holdfast import one.jsonl --store ~/agent.db --id second-try
  holdfast import rest.jsonl --store repaired.db
      a sound store of what `export --salvage` could read
  holdfast import --from openhands ~/conversations/5d1e --store agent.db
      holdfast chat --store ~/agent.db --id 5d1e... goes on with it"""


def exit_codes() -> str:
    """The table of exit codes for the help."""
    return "\n".join(["exit codes:", *(f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())])


class Parser(argparse.ArgumentParser):
    """argparse, with errors as the rest of the command writes them: one line, and where to look."""

    takes_place = False  # whether its first argument is a file, or a server by --server

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
        raise argparse.ArgumentTypeError(f"takes nothing or the word first, not {text!r}; write the task before it")
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
    model.add_argument("--model", metavar="M", help="its name as the provider writes it, or provider/name (HOLDFAST_MODEL)")
    model.add_argument("--base-url", metavar="URL", help="the API's address; not needed for known providers (HOLDFAST_BASE_URL)")
    model.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the key")
    model.add_argument("--retries", metavar="N", type=_retries, help="how often to repeat a failed model call (5)")
    model.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    work = parser.add_argument_group("the work")
    work.add_argument("--workdir", metavar="DIR", help="the folder to work in (the current one)")
    work.add_argument(
        "--no-instructions", action="store_true", help="do not tell the model what the AGENTS.md files of DIR's repository say"
    )
    work.add_argument("--allow-outside", action="store_true", help="let the file tools work outside of DIR too; the shell always can")
    work.add_argument(
        "--env", metavar="NAME", action="append", default=[], help="an environment variable that commands may see; repeatable"
    )
    work.add_argument(
        "--confirm", metavar="WHAT", default="never",
        help="which calls wait for you: never (default), always, risky (by their risk), or tool names separated by commas, such as terminal,write_file",
    )  # fmt: skip
    work.add_argument(
        "--plan", nargs="?", const="tool", type=_planning, metavar="first",
        help="keep a plan, and show it as it changes; first: you approve it before anything but reading is done",
    )  # fmt: skip
    work.add_argument("--ask", action="store_true", help="let the agent ask you what only you know, and wait for your answer")
    work.add_argument("--max-steps", metavar="N", type=_count, help="model calls per run (500)")
    work.add_argument("--system-prompt-file", metavar="F", help="use this text instead of the default system prompt")
    work.add_argument(
        "--agents", metavar="DIR", help="let the agent give work to the agents of this folder (or repository), each a Markdown file"
    )
    kept = parser.add_argument_group("the record")
    kept.add_argument("--store", metavar="FILE", help="keep the conversation in this SQLite file, made if it is not there")
    kept.add_argument(
        "--id",
        metavar="ID",
        help="the conversation to go on with, or the first letters of its id; an id that matches none begins a new one",
    )
    kept.add_argument("--new", action="store_true", help="begin a new conversation under exactly the id of --id")
    _add_full(kept)
    add_observing(kept, "keys in it are blotted out")
    add_server_options(parser)


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
        "run",
        "give an agent one task and watch it work",
        f"Give an agent one task and watch it work.\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
        exit_codes(),
    )
    run.add_argument("task", nargs="+", help="what to do; - reads it from standard input")
    _add_agent_options(run)
    run.add_argument(
        "--output-schema", metavar="FILE",
        help="the result is JSON of this JSON Schema, and all that standard output gets; the rest is shown on standard error",
    )  # fmt: skip
    chat = add("chat", "talk with an agent", f"{TALK}\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}", exit_codes())
    _add_agent_options(chat)
    chat.set_defaults(output_schema=None)
    demo = add("demo", "watch an agent fix a bug; needs no key", DEMO, "")
    demo.add_argument("--fast", action="store_true", help="do not pause for reading; also off where the output is no terminal")
    show = add("show", "show the conversations in a store, or on a server", SHOW, "")
    show.add_argument("file", metavar="FILE", help=PLACE)
    show.add_argument("id", metavar="ID", nargs="?", help="the conversation, or the first letters of its id")
    add_place_options(show)
    show.add_argument("--json", action="store_true", help="JSON lines: the events, or the list's entries")
    show.add_argument("--at", metavar="SEQ", type=_seq, help="the conversation as it was when event SEQ was its last")
    show.add_argument("--follow", action="store_true", help="go on showing what comes, whoever drives it, until Ctrl-C")
    show.add_argument("--prompt", action="store_true", help="the system prompt that the model had last, in its parts")
    show.add_argument("--until-rest", action="store_true", help="follow until it finishes, stops, pauses or waits for you")
    _add_full(show)
    add_list(add, _count)
    tell = add("tell", "send, approve, pause: whoever drives the conversation", TELL, "")
    tell.add_argument("file", metavar="FILE", help=PLACE)
    tell.add_argument("id", metavar="ID", help="the conversation, or the first letters of its id")
    tell.add_argument(
        "what",
        metavar="WHAT",
        choices=["send", "approve", "reject", "answer", "decline", "pause", "resume", "interrupt", "condense"],
        help="see above",
    )
    tell.add_argument("words", metavar="MORE", nargs="*", help="the text, the call or question, the values or the reason")
    add_place_options(tell)
    tell.add_argument("--arguments", metavar="JSON", help='approve: run the call with these instead, such as \'{"command": "ls"}\'')
    tell.add_argument("--key", metavar="KEY", help="drop it if something was posted under this key before")
    tell.add_argument("--wait", metavar="SECONDS", type=_seconds, help="wait until it was taken, at most so long")
    replay = add("replay", "would the model be asked the same today?", REPLAY, "")
    replay.add_argument("file", metavar="FILE", help="the SQLite file given as --store, or what `holdfast export` wrote")
    replay.add_argument("id", metavar="ID", nargs="?", help="the conversation, or the first letters of its id; none: all")
    replay.add_argument(
        "--agent", metavar="MODULE:NAME", help="an Agent, or a function that returns one, from this folder or the Python path"
    )
    add_stats(add, _count)
    check = add("check", "verify a store: is every event there and sound?", CHECK, "")
    check.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    check.add_argument("--json", action="store_true", help="the report as JSON")
    export = add("export", "write conversations of a store as JSON lines", EXPORT, "")
    export.add_argument("file", metavar="FILE", help="the SQLite file given as --store")
    export.add_argument("ids", metavar="ID", nargs="*", help="a conversation, or the first letters of its id; none: all")
    export.add_argument("-o", "--output", metavar="OUT", help="write to this file, which is replaced when all is written")
    export.add_argument("--salvage", action="store_true", help="write what is readable of a damaged store")
    export.add_argument("--to", choices=("openhands",), help="write the one conversation ID into the new folder OUT, as OpenHands keeps it")
    taken = add("import", "write exported conversations into a store", IMPORT, "")
    taken.add_argument("file", metavar="FILE", help="what `holdfast export` wrote; - reads standard input")
    taken.add_argument("--store", metavar="STORE", required=True, help="the SQLite file to write to, made if it is not there")
    taken.add_argument("--id", metavar="NEW", help="import the only conversation in FILE under this id")
    taken.add_argument("--from", dest="origin", choices=("openhands",), help="FILE is a folder in which OpenHands keeps a conversation")
    add_commands(add)
    add_serve(add)
    return parser
