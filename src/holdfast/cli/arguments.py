"""The whole command line: the texts of the help, and every command with its options."""

from __future__ import annotations

from argparse import ArgumentTypeError

from holdfast.cli.eval_arguments import EVAL
from holdfast.cli.exit_codes import EXIT_CODES
from holdfast.cli.parser import CommandLine, Option, Options, Parser, make_parser, number

# Written for 80 columns, because RawDescriptionHelpFormatter wraps only the texts of options.
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
  holdfast run "What does it cost?" --attach offer.pdf
      the model reads the file itself
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
  HOLDFAST_MODELS    the folder of named models; same as --models
  OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, GROQ_API_KEY, ...
                     a provider's key; sent to that provider's address only
  HOLDFAST_SERVER_KEY
                     an agent server's key: `serve` accepts it, and the
                     clients of the server send it
  HOLDFAST_SANDBOX   auto, off or require; same as --sandbox
  HOLDFAST_DEBUG     1 shows tracebacks and the library's log
  NO_COLOR           1 turns colour off
  FORCE_COLOR        1 turns colour on, also where the output is no terminal
  TERM               dumb means plain text
  COLUMNS            the width at which long lines are cut"""

MODEL_OPTIONS = """\
The agent has a shell, and tools to read, write, edit and search files in DIR.
Its commands see a part of your environment (PATH, HOME, language, toolchains)
and nothing that looks like a secret; --env NAME adds one more variable.

Commands run in a sandbox, where one can be made: they can change DIR alone,
see DIR, the system's programs and your toolchains, and have no network.
--network HOST and --mount DIR allow more. Where no sandbox can be made,
commands that may do more than read ask you first. --sandbox off runs commands
with all rights of yours.

Ctrl-C pauses the agent. Then Enter continues, a line that you type steers it,
and a second Ctrl-C closes the conversation."""

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

ON_SERVER = """\
With --server, the agent works on an agent server (`holdfast serve`), in a
folder of its own there; the output here is the same. Your model key is sent
along, sealed; with --model-key-name the server uses a key of its own. If the
connection is lost, the agent works on. Ctrl-C pauses it, and leaving stops it.
--id with the id of an existing conversation continues that one with its own
model, tools and folder, so that no other option is needed."""

FULL: Options = {
    "--full": "show results, diffs and commands in full, not only their first and last lines"
}
SERVER_KEY: Options = {
    "--server-key-file F": "a file that contains the server's key (or HOLDFAST_SERVER_KEY)"
}


def observer_options(note: str) -> Options:
    """Return the options for observation. `note` describes the texts in the log."""
    return {
        "--log FILE": f"append one JSON line to this file for each event and each span; {note}",
        "--trace": """emit OpenTelemetry spans and metrics, which `opentelemetry-instrument
            holdfast ...` exports""",
    }


def _plan(text: str) -> str:
    if text not in ("tool", "first"):
        raise ArgumentTypeError(
            f"takes no value or the word first, not {text!r}; write the task before --plan"
        )
    return text


_FOLDER_OF_MODELS = "the folder of named models (HOLDFAST_MODELS, else ~/.config/holdfast/models)"
_MODEL: Options = {
    "--model M": """a name of the folder of models (see `holdfast models`), or the model's name as
        its provider writes it, or provider/name (HOLDFAST_MODEL)""",
    "--models DIR": _FOLDER_OF_MODELS,
    "--base-url URL": "the API's address; not needed for known providers (HOLDFAST_BASE_URL)",
    "--api-key-env NAME": "the environment variable that holds the key",
    "--retries N": Option(
        "how often to repeat a failed model call (5)", type=number("a whole number from 0", int, 0)
    ),
    "--no-stream": "request complete answers instead of streaming them",
}
_WORK: Options = {
    "--workdir DIR": "the folder to work in (the current one)",
    "--no-instructions": "do not tell the model what the AGENTS.md files of DIR's repository say",
    "--sandbox": Option(
        "run commands in a sandbox: auto (default), where one can be made; require, or end with"
        " an error; off, never (HOLDFAST_SANDBOX)",
        choices=["auto", "off", "require"],
    ),
    "--network HOST ...": """let commands in the sandbox connect to this host, such as pypi.org or
        *.example.com""",
    "--mount DIR[:rw] ...": """let the agent in the sandbox read this file or folder too; with :rw
        also change it""",
    "--allow-outside": """with --sandbox off: let the file tools work outside of DIR too; the
        shell then always can""",
    "--env NAME ...": "an environment variable that commands may see",
    "--secret NAME[=FILE] ...": """a secret that commands which name it get as an environment
        variable, and that the model is never shown: the content of FILE, else the variable of
        that name""",
    "--confirm WHAT": Option(
        "which calls wait for you: never (default), always, risky (by their risk), or tool"
        " names separated by commas, such as terminal,write_file",
        default="never",
    ),
    "--plan [first]": Option(
        "let the agent keep a plan, and show its changes; first: you approve the plan before"
        " the agent does anything but read",
        const="tool",
        type=_plan,
    ),
    "--ask": "let the agent ask you questions and wait for your answers",
    "--goal TEXT": """the goal of the work: when the agent stops, its model judges whether the goal
        is reached; if not, the agent goes on, at most five times""",
    "--goal-check COMMAND": "judge the goal by this shell command instead: exit code 0 is reached",
    "--max-steps N": "model calls per run (500)",
    "--system-prompt-file F": "use this text instead of the default system prompt",
    "--agents DIR": """let the agent delegate work to the agents in this folder or repository,
        one Markdown file each""",
}
_ATTACH: Options = {
    "--attach FILE ...": """send this file (a picture, a PDF, sound, text, ...) with the first
        message, a large picture scaled down; or an address such as https://example.org/a.pdf,
        which the model's provider fetches. A type may stand before either: application/pdf=https://example.org/42""",
}
_RECORD: Options = {
    "--store FILE": """keep the conversation in this SQLite file, which is created if it does
        not exist""",
    "--id ID": "the id of the conversation to continue, or its beginning",
    "--new": "start a new conversation with exactly the id of --id",
    "--continue": Option(
        "continue the latest conversation of the store or the server",
        dest="go_on",
    ),
    **FULL,
    **observer_options("keys are masked"),
}
_SERVER: Options = {
    "--server URL": "run the agent on this agent server, such as http://127.0.0.1:8765",
    **SERVER_KEY,
    "--workspace W": """the server's folder to work in, which is created if it does not exist (a
        new one)""",
    "--model-key-name NAME": """the variable of the server that holds the model's key (serve
        --variable)""",
}
_OPTIONS: Options = {
    "the model": _MODEL,
    "the work": {**_ATTACH, **_WORK},
    "the record": _RECORD,
    "where it runs": _SERVER,
}

_TOOL_CONFIG = "the tool config"
_HOST = "another Host header to accept"
_FILES: Options = {
    "--listen HOST:PORT": Option(
        "the address to listen on (127.0.0.1:8765); port 0 takes any free port",
        default="127.0.0.1:8765",
    ),
    "--store STORE": """the SQLite file of all journals (HOLDFAST_STORE, else holdfast-server.db);
        or postgresql://..., a database that any number of servers share""",
    "--schema NAME": Option(
        "with a Postgres database: the schema of the journals; NAME_server has the records"
        " (holdfast)",
        default="holdfast",
    ),
    "--seal-key FILE": """with a Postgres database: the key that seals clients' secrets, the same
        for all its servers; a missing file is made""",
    "--root DIR": """the folder that holds the workspaces (FILE.workspaces); with a Postgres
        database a folder that all its servers share, or there are no workspaces""",
    "--no-drive": """with a Postgres database: only answer requests, and leave the conversations to
        other servers and workers""",
    "--workspace ID=DIR ...": """let clients work in this existing folder, as the workspace ID of
        the tenant of --tenant""",
    "--tls-cert FILE": "serve https: the certificate with its chain, in PEM",
    "--tls-key FILE": "the certificate's private key; not needed if it is in the same file",
    "--insecure": "let other machines connect without TLS",
}
_ACCESS: Options = {
    "--key-file FILE": "a file that contains a client key (or HOLDFAST_SERVER_KEY)",
    "--supervised": """take a client key from the first line of standard input, and end when
        standard input ends: for a program that runs the server""",
    "--tenant T": "keys: the tenant of the keys; serve: the tenant of the given key (default)",
    "--label TEXT": Option("keys add: a note on the purpose of the key", default=""),
    "--cors-origin O ...": "let web pages of this origin use the server",
    "--allow-host NAME ...": _HOST,
}
_BOXED: Options = {
    "--sandbox": Option(
        "require: run the commands of builtin tools in a sandbox, which sees DIR alone and has no"
        " network; functions of a config stay outside (off)",
        choices=["off", "require"],
        default="off",
    ),
    "--network HOST ...": "let commands in the sandbox connect to this host",
    "--mount DIR[:rw] ...": """let tools in the sandbox read this file or folder too; with :rw
        change it""",
}
_LIMITS: Options = {
    "--sandbox": Option(
        "require: run the commands of each conversation in a sandbox of its own, which sees its"
        " workspace alone and has no network (off)",
        choices=["off", "require"],
        default="off",
    ),
    "--network HOST ...": "let commands in the sandbox connect to this host",
    "--allow-tools PATTERN ...": """modules that clients may name for tools, such as
        acme_tools.* ('*' allows all; only for a server of your own)""",
    "--allow-hook-commands": """run the commands of the hooks of clients' agents: with --sandbox in
        the sandbox, else as the user who started the server""",
    "--variable [PROVIDER:]NAME[=VALUE] ...": """the value of ${NAME} in agents: VALUE, or the
        value in the environment. Tenants other than `default` may use it only as the key for
        models of one provider: PROVIDER, or the provider known for that name""",
    "--agent NAME[=FILE] ...": """offer the agent of this file (YAML or JSON, as load_agent reads
        it) to clients of OpenAI's API, as the model NAME at /v1; without FILE the agent NAME of
        the folder of models""",
    "--a2a NAME[=FILE] ...": """offer this agent to clients of A2A, at /a2a/NAME; without FILE the
        --agent of this name, or the agent NAME of the folder of models""",
    "--a2a-url URL": "the server's address in A2A's cards (that of each request)",
    "--a2a-sign FILE": "sign A2A's cards with this private key, in PEM",
    "--model NAME ...": """let agents of all clients use this model of the folder of models, with
        its key, by its name; without it, all models of --models""",
    "--models DIR": _FOLDER_OF_MODELS,
    "--webhook-allow HOST ...": """a host that webhooks may call although it is not public, also
        without TLS: a name, an address or a network""",
    "--webhook-days N": Option(
        "the number of days for which a failed webhook delivery is repeated (3)", default=3
    ),
    "--max-running N": Option("conversations that run at once; others wait (64)", default=64),
    "--isolation": Option(
        "where conversations run: in threads of the server, or each in a process of its own,"
        " so that a crash affects no other (thread)",
        choices=["thread", "process"],
        default="thread",
    ),
    "--worker-memory MB": Option(
        "the address space of each process of --isolation process; 256 or more (no limit)",
        type=number("a whole number from 256, or 0,", int, 256, 2**30, 0),
        default=0,
    ),
    "--max-body BYTES": Option(
        "the largest body of a request (33554432)", default=32 * 1024 * 1024
    ),
    "--rate N": Option(
        "requests per second for each key (500; 0: no limit)",
        type=number("a number from 0", float, 0, 1e6),
        default=500.0,
    ),
}
_PLACE: Options = {"file FILE": "the SQLite file given as --store, or an agent server's URL"}
_STORE: Options = {"file FILE": "the SQLite file given as --store"}
_ID = "the conversation's id, or its beginning"
_ID_OR_ALL: Options = {"id [ID]": f"{_ID}; without it, all conversations"}
_ON_SERVER_INSTEAD: Options = {"--server URL": "an agent server, instead of FILE", **SERVER_KEY}
_TOLD = (
    "send approve reject answer decline pause resume interrupt condense rename tag untag ask use"
)
_ONE_TASK = "give an agent one task and watch it work"

_TALK = """\
Talk with an agent, one line per message. While the agent works, a line that
you type reaches it after its current step. Ctrl-D ends the chat, and /help
lists the commands. With holdfast[chat] there is an input box, which takes
several lines and pasted text as one message, and completes commands and files.

If standard input is not a terminal, each line is a message. It is answered
before the next one is read, and the exit code tells how the last one ended."""

_FLEET: Options = {
    "--store STORE": Option("an SQLite file, or postgresql://...", required=True),
    "--schema NAME": Option("the schema in Postgres (default holdfast)", default="holdfast"),
    "--queue NAME": "the queue that the worker serves (default: default), or that is shown",
    "--backend KIND": Option(
        "table, or procrastinate (default on Postgres if it is installed)",
        choices=["table", "procrastinate"],
    ),
}

_COMMANDS = [
    CommandLine(
        "run",
        _ONE_TASK,
        f"{_ONE_TASK.capitalize()}.\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
        {
            "task": Option("what to do; - reads it from standard input", nargs="+"),
            **_OPTIONS,
            "--output-schema FILE": """make the result JSON that matches this JSON Schema, and
                write only the result to standard output; the rest goes to standard error""",
            "--json": """write each event to standard output as a line of JSON, and then a line of
                the type "result" with status, answer, output, error, usage and cost""",
            "--quiet": "write only the answer to standard output, and errors to standard error",
        },
        EXIT_CODES,
    ),
    CommandLine(
        "chat",
        "talk with an agent",
        f"{_TALK}\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
        {
            **_OPTIONS,
            "--resume": """choose the conversation to continue from the recent ones of the store
                or the server""",
            "--no-undo": """keep no snapshots of the files in the working directory, which /undo
                puts back; they are in ~/.cache/holdfast/undo""",
            "--plain": """read plain lines, without an input box and without formatting, as for a
                screen reader (HOLDFAST_PLAIN)""",
        },
        EXIT_CODES,
        defaults={"output_schema": None},
    ),
    CommandLine(
        "demo",
        "watch an agent fix a bug; needs no key",
        """\
Watch an agent find and fix a bug in a small project in a temporary folder. The
model is scripted, so no key is needed; the tools are real. Exit code 0 means
that the project's tests failed before the fix and passed after it.""",
        {"--fast": "do not pause for reading; without a terminal the demo never pauses"},
    ),
    CommandLine(
        "show",
        "show a conversation of a store or an agent server",
        """\
Show a conversation of a store or an agent server, in the same form as `run`.
If there are several conversations and you give no ID, list them. A store is
opened for reading only.

examples:
  holdfast show ~/agent.db
  holdfast show ~/agent.db 4f0c --follow
  holdfast show --server http://127.0.0.1:8765 4f0c --follow
      continues across restarts of the server""",
        {
            **_PLACE,
            "id [ID]": _ID,
            **_ON_SERVER_INSTEAD,
            "--json": "print JSON lines: the events, or the entries of the list",
            "--at SEQ": Option(
                "show the conversation as it was after event SEQ",
                type=number("an event's number, 0 for none", int, 0),
            ),
            "--follow": """show new events as they come, until Ctrl-C, whichever process drives
                the conversation""",
            "--prompt": "show the last system prompt that the model received, part by part",
            "--until-rest": """follow until the conversation finishes, stops, pauses or waits
                for you""",
            **FULL,
            "--no-pager": """do not show what is longer than the screen with your pager ($PAGER,
                else less)""",
        },
        takes_place=True,
    ),
    CommandLine(
        "list",
        "list the conversations of a store or an agent server",
        """\
List the conversations of a store or an agent server, the newest first.

examples:
  holdfast list ~/agent.db
  holdfast list --server http://127.0.0.1:8765
  holdfast list ~/agent.db --status waiting
      list the conversations with a call that waits for you
  holdfast list ~/agent.db --tag bug --tag customer=acme
      list the conversations that have both tags
  holdfast list --server https://agents.example:8765 --limit 5 --json
      print one JSON object per line

Exit code 0: listed, also if there are none. 1: the server cannot be reached.
2: no such file or status, or a wrong key.""",
        {
            **_PLACE,
            **_ON_SERVER_INSTEAD,
            "--status S": """only conversations that are idle, running, paused, waiting,
                finished, error or stuck""",
            "--tag TAG ...": "only conversations with this tag",
            "--limit N": Option("the largest number of conversations to list (100)", default=100),
            "--json": "print JSON lines",
        },
        takes_place=True,
    ),
    CommandLine(
        "tell",
        "send a message, approve a call, pause: from any shell",
        """\
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
  rename TITLE                    set the conversation's title
  tag TAG ...                     add tags, by which `holdfast list` finds it
  untag TAG ...                   remove tags
  ask QUESTION                    ask the model aside, and print its answer; it
                                  does not see this again
  use NAME                        let another model or agent that the conversation
                                  knows answer from the next step on, such as
                                  '#fast' of the agent's `models`

CALL and QUESTION may be left out if only one is waiting. An approval applies
to the arguments that the call has in the store now.

Exit code 0: posted (with --wait: and carried out). 1: not carried out in time.
2: nothing to post, for example because no call waits.

examples:
  holdfast tell ~/agent.db 4f0c approve
  holdfast tell --server http://127.0.0.1:8765 4f0c send Mind the docs.""",
        {
            **_PLACE,
            "id ID": _ID,
            "what WHAT": Option("see above", choices=_TOLD.split()),
            "words [MORE ...]": "the text, the call, question or name, the values, reason or tags",
            **_ON_SERVER_INSTEAD,
            "--arguments JSON": (
                'approve: run the call with these arguments instead, such as \'{"command": "ls"}\''
            ),
            "--attach FILE ...": "send: a file, or an address that the model's provider fetches",
            "--key KEY": "drop the command if another one was posted under this key before",
            "--wait SECONDS": Option(
                "wait at most this long until the command is carried out",
                type=number("a number of seconds", float, 0, 1_000_000),
            ),
        },
        takes_place=True,
    ),
    CommandLine(
        "schedule",
        "send a message later: list, set and cancel timers",
        """\
List, set and cancel the timers of a conversation, also while another process
drives it. A timer sends its message once, however many processes look. It
fires in the process that has the conversation open, on an agent server, or
when the conversation is opened next.

  list            show the timers, with their next times in UTC
  add TEXT        send TEXT --at a time, --every so often, or by --cron
  cancel TIMER    cancel a timer

Exit code 0: listed or posted. 2: nothing to post, for example a time that is
past, or an unknown timer.

examples:
  holdfast schedule ~/agent.db 4f0c add Look again. --at 2026-11-24T09:00+01:00
  holdfast schedule ~/agent.db 4f0c add Write the report. --name report \\
      --cron '0 9 * * mon-fri' --timezone Europe/Berlin
  holdfast schedule --server http://127.0.0.1:8765 4f0c list""",
        {
            **_PLACE,
            "id ID": _ID,
            "what WHAT": Option("list, add or cancel", choices=["list", "add", "cancel"]),
            "words [MORE ...]": "the text, or the timer's id",
            **_ON_SERVER_INSTEAD,
            "--at TIME": "add: a time in ISO form; without an offset the clock of --timezone",
            "--every SECONDS": Option(
                "add: the seconds between two messages, from 60",
                type=number("a number of seconds from 60", float, 60),
            ),
            "--cron FIELDS": "add: minute, hour, day of month, month and day of week",
            "--timezone ZONE": "add: a zone such as Europe/Berlin; --cron without it is in UTC",
            "--misfire POLICY": Option(
                "add: what becomes of occurrences that nobody could send: one message for all"
                " (once), none if they are late (skip), or one for each of the last ten (all)",
                choices=["once", "skip", "all"],
                default="once",
            ),
            "--name NAME": "add: the timer's id; a timer of this id is replaced",
            "--key KEY": "drop the command if another one was posted under this key before",
        },
        takes_place=True,
    ),
    CommandLine(
        "replay",
        "check whether the same model requests would be made today",
        """\
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
  holdfast replay journals/
      all stores and exports of a folder, and each change once

Exit code 0: no differences. 1: differences. 2: no such file or agent.""",
        {
            "file FILE": """the SQLite file given as --store, the output of `holdfast export`, or a
                folder of such files""",
            **_ID_OR_ALL,
            "--agent MODULE:NAME": """the Agent to compare with, or a function that returns one;
                found in this folder or on the Python path""",
        },
    ),
    EVAL,
    CommandLine(
        "stats",
        "show the time, tokens and cost of conversations",
        """\
Show the time, tokens and cost of conversations by model and tool, their
errors, their longest calls, and the share of the input that providers had
cached. With ID, that conversation and all conversations that its calls spawned
are counted; without ID, all conversations of the store or the server. The
store is opened for reading only, and conversations may run meanwhile.

examples:
  holdfast stats ~/agent.db
  holdfast stats ~/agent.db 4f0c
  holdfast stats --server http://127.0.0.1:8765
  holdfast stats ~/agent.db --json | jq '.whole.tools'""",
        {
            **_PLACE,
            **_ID_OR_ALL,
            **_ON_SERVER_INSTEAD,
            "--limit N": Option(
                "the largest number of conversations, and of rows in a table (20)", default=20
            ),
            "--json": "print one JSON object with the keys whole and conversations",
        },
        takes_place=True,
    ),
    CommandLine(
        "trace",
        "draw a conversation as a page or an image",
        """\
Draw a conversation, with all conversations that its calls spawned, as one file
without scripts: a waterfall of model calls, tool calls and waits, the tokens,
the cost and the share of the context window over the steps, the tree, and (as a
page) the changed files as one diff. Times in which nothing runs are shortened.
The store is opened for reading only.

examples:
  holdfast trace ~/agent.db 4f0c -o run.html
  holdfast trace ~/agent.db 4f0c -o run.svg
  holdfast trace --server http://127.0.0.1:8765 4f0c -o run.html
  holdfast trace ~/agent.db 4f0c --json | jq '.spans[] | select(.error)'

Exit code 0: written. 1: the file cannot be written, or the server cannot be
reached. 2: no such store or conversation.""",
        {
            **_PLACE,
            "id [ID]": f"{_ID}; may be left out if there is only one",
            **_ON_SERVER_INSTEAD,
            "-o --output OUT": """write to this file, .html or .svg; without it, the page goes to
                standard output""",
            "--limit N": """the largest number of rows in the waterfall (2,000): the longest, and
                all that failed""",
            "--json": "print the trace as one JSON object",
        },
        takes_place=True,
    ),
    CommandLine(
        "check",
        "verify that a store is complete and undamaged",
        """\
Verify a store without changing it: SQLite's own integrity check, the checksum
of every event, gaps between events, forks, blobs and waiting commands. The
store may be in use. Problems are listed per conversation, with the events that
cannot be read. `holdfast export --salvage` saves the readable rest.

Exit code 0: sound. 1: damaged. 2: no such file, or the file is not a store.""",
        {**_STORE, "--json": "print the report as JSON"},
    ),
    CommandLine(
        "export",
        "write conversations of a store as JSON lines",
        """\
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
  holdfast export ~/agent.db 4f0c --to openhands -o conversations/4f0c""",
        {
            **_STORE,
            "ids [ID ...]": "a conversation's id, or its beginning; without it, all conversations",
            "-o --output OUT": """write to this file, which is replaced only after everything is
                written""",
            "--salvage": "write the readable part of a damaged store",
            "--to": Option(
                "write the single conversation ID into the new folder OUT, in OpenHands' format",
                choices=["openhands"],
            ),
        },
    ),
    CommandLine(
        "import",
        "write exported conversations into a store",
        """\
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
      holdfast chat --store agent.db --id 5d1e... continues it""",
        {
            "file FILE": "the output of `holdfast export`; - reads standard input",
            "--store STORE": Option(
                "the SQLite file to write to, which is created if it does not exist", required=True
            ),
            "--id NEW": "import the only conversation in FILE under this id",
            "--from": Option(
                "FILE is the folder of a conversation in OpenHands' format",
                dest="origin",
                choices=["openhands"],
            ),
        },
    ),
    CommandLine(
        "skills",
        "list the skills of folders and plugins",
        """\
List the skills that an agent would have of these folders: a folder of skills,
a repository, or a plugin. Each line says how the model is shown the skill: on
demand, always, by words of yours, or by files. What was left out is on standard
error, with the reason.

Exit code 0: listed. 1: something was left out. 2: a plugin cannot be read.

examples:
  holdfast skills list
  holdfast skills list ~/.agents/skills ./plugins/review""",
        {
            "what WHAT": Option("list", choices=["list"]),
            "folders [DIR ...]": "the folders (the current one)",
            "--json": "print JSON lines",
        },
    ),
    CommandLine(
        "models",
        "list the named models of a folder",
        """\
List the models and agents of a folder of small files, each under the name of
its file: the model, its list price per million tokens, its context window, and
whether there is a key, which is never shown. A file (YAML or JSON) holds a
model as an agent's file does, or an agent, which has the key `model`:

  name: gpt-5-mini
  api_key: ${OPENAI_API_KEY}

${NAME} is replaced from your environment. A model without api_key gets the key
of its provider. `run` and `chat` take such a name as --model, and `serve` offers
the models to its clients. Files that are wrong are on standard error.

Exit code 0: listed. 1: a file is wrong. 2: no such folder.

examples:
  holdfast models
  holdfast models --models ./models --json
  holdfast run "Fix the tests" --model fast""",
        {
            "--models DIR": _FOLDER_OF_MODELS,
            "--json": "print JSON lines",
        },
    ),
    CommandLine(
        "tools",
        "list, describe, call and check an agent's tools",
        """\
List, describe, call and check an agent's tools from the shell: the tools of a
tool config (YAML or JSON: functions, MCP servers, A2A agents, builtins,
skills) or, without --config, the builtin tools that work in a folder.

  list             every tool: name, service, first line of its description
  describe NAME    everything that is known about one tool
  call NAME ...    call a tool: arguments as JSON, as key=value pairs, or - for
                   JSON on standard input
  check            ask every service, also the lazy ones: does it answer, what
                   is wrong with it, which tools are quarantined or unusable

examples:
  holdfast tools
  holdfast tools --config tools.yaml check
  holdfast tools --config tools.yaml describe git.log
  holdfast tools call grep pattern=TODO path=src
  holdfast tools call read_file '{"path": "README.md", "limit": 20}'

${NAME} in the config is replaced from your environment; other variables are
not read. Modules of local functions are looked up beside the config, in the
current folder and on the Python path.

Exit code 0: success. 1: the call returned an error, or check found a problem.
2: no such tool, invalid arguments, or an invalid config.""",
        {
            "--config FILE": f"{_TOOL_CONFIG}; without it the builtin tools",
            "--workdir DIR": Option(
                "the folder that builtin tools work in (the current one)", default="."
            ),
            **_BOXED,
            "--json": "print JSON instead of text",
            "--full": "show descriptions and results in full, also on a terminal",
            "what [WHAT]": Option(
                "see above", choices=["list", "describe", "call", "check"], default="list"
            ),
            "name [NAME]": "describe, call: the tool",
            "words [ARGUMENT ...]": "call: its arguments",
        },
    ),
    CommandLine(
        "acp",
        "work in an editor, as its agent",
        """\
Serve an editor that speaks the Agent Client Protocol (Zed, JetBrains, Neovim
and others) on standard input and output. The editor starts this command; its
configuration is the command line, such as
  {"agent_servers": {"Holdfast": {"command": "holdfast",
                                  "args": ["acp", "--model", "gpt-5-mini"]}}}

The agent works in the folder that the editor names, with the files as the
editor has them. Calls that do more than read wait for your permission there,
unless you choose the mode Act. Each session is a conversation in the store:
`holdfast show` lists it, and the editor can load it again after a crash.

Exit code 0: the editor closed its end. 130, 143: SIGINT, SIGTERM. 2: a wrong
option, or a missing model or key.""",
        {
            "--agent FILE": """the agent of this file (YAML or JSON, as load_agent reads it), with
                the builtin tools that it names; without it, an agent of the options below""",
            "--mode": Option(
                "the mode of new sessions: ask (default), act, or plan, in which you approve a plan"
                " first",
                choices=["ask", "act", "plan"],
                default="ask",
            ),
            "--store FILE": """the SQLite file of the conversations
                (~/.local/state/holdfast/acp.db)""",
            "the model": _MODEL,
            "the work": {
                usage: option
                for usage, option in _WORK.items()
                if usage.split()[0] not in ("--workdir", "--confirm", "--plan", "--ask")
            },
        },
    ),
    CommandLine(
        "mcp",
        "offer tools to MCP clients, as a server",
        """\
Offer the tools of a tool config to MCP clients as one server, or with
--workdir the builtin tools that work in a folder. With --agent, offer an agent
instead, as the tool ask_NAME: its approvals and questions go to the client's
user. The server uses standard input and output, or with --http a network
address.

A client's configuration for it:
  {"mcpServers": {"mine": {"command": "holdfast",
                           "args": ["mcp", "--config", "/path/to/tools.yaml"]}}}

examples:
  holdfast mcp --config tools.yaml
  holdfast mcp --config tools.yaml --http 127.0.0.1:8000
      at http://127.0.0.1:8000/mcp
  holdfast mcp --workdir ~/src/tool --http 0.0.0.0:8000 --token-env MCP_TOKEN
      for other machines: anyone with the token may call every tool

Any address other than this machine's own needs a token. The server has no TLS;
on a network, put a proxy with TLS before it. All clients of one server share
one shell. ${NAME} in the config is replaced from your environment.

Exit code 0: the client closed its end. 130, 143: SIGINT, SIGTERM. 2: an
invalid config, or an address that is not available.""",
        {
            "--config FILE": _TOOL_CONFIG,
            "--workdir DIR": """the folder that builtin tools work in; without --config all of
                them are offered""",
            "--agent FILE": """offer this agent (YAML or JSON, as load_agent reads it); its builtin
                tools work in --workdir (the current folder). ${NAME} is replaced from your
                environment""",
            "--store FILE": """with --agent: keep its conversations in this SQLite file (in memory,
                until the end)""",
            **_BOXED,
            "--http HOST:PORT": """serve streamable HTTP at this address, under /mcp; port 0
                takes any free port""",
            "--token-env NAME": """the environment variable with the token that HTTP clients
                must send""",
            "--allow-host NAME ...": f"with --http: {_HOST}",
            "--name NAME": Option(
                "the server's name, which clients show (holdfast); with --agent the agent's name"
                " (that of its file)",
            ),
        },
    ),
    CommandLine(
        "serve",
        "run conversations for clients, over HTTP",
        """\
Run conversations for clients over HTTP. A program that uses
Conversation(agent) can use RemoteConversation(agent,
workspace=RemoteWorkspace(URL, KEY)) instead. Every conversation is kept in the
store and continues when the server restarts.

Clients send a key. The server takes its first key from --key-file or
HOLDFAST_SERVER_KEY. If neither is given and no key exists yet, the server
makes one and prints it once, with a link that signs in to the server's page.
`holdfast serve keys` makes more, for the same
tenant or for others. A tenant cannot see the conversations and workspaces of
another one through the API. Commands run as the server's user, however, and
can read what that user can read. With --sandbox require they run in a sandbox
and see the workspace of their conversation alone. Tenants who do not trust
each other at all need servers on separate machines.

  serve                          serve until Ctrl-C or SIGTERM
  serve keys add [--tenant T] [--label L]
                                 make a key and print it
  serve keys list [--tenant T]   list the ids and tenants of keys, not the keys
  serve keys remove [ID] [--tenant T]
                                 remove the key ID, or all keys of tenant T

examples:
  holdfast serve
  holdfast serve --store agents.db --root ~/work --allow-tools 'acme_tools.*'
  holdfast serve --listen 0.0.0.0:8765 --tls-cert server.pem --tls-key server.key
  holdfast serve keys add --tenant alice --store agents.db
  holdfast serve --sandbox require --network pypi.org
  holdfast serve --agent coder=coder.yaml --variable OPENAI_API_KEY
  holdfast serve --models /etc/holdfast/models

Without --sandbox require, anyone with a key can run commands as the user who
started the server. To listen on other addresses than this machine's own, give
a TLS certificate, or --insecure if a proxy provides TLS. Modules that clients
name for their tools are imported if an installed package declares them (entry
point holdfast.tools) or --allow-tools names them; other tools run at the
client.

Exit code 130, 143: ended by SIGINT or SIGTERM, after running work has stopped;
a second signal ends the server at once. 1: the store cannot be used. 2: a
wrong option, an address that is not available, a store that another server
uses.""",
        {
            "what [WHAT]": Option("keys: manage the server's keys (see above)", choices=["keys"]),
            "action [ACTION]": Option("add, list, remove", choices=["add", "list", "remove"]),
            "id [ID]": "keys remove: the key's id, as `keys list` shows it",
            "address and files": _FILES,
            "access": _ACCESS,
            "permissions and limits": _LIMITS,
            "--access-log": "write a line to stderr for each request",
            **observer_options("the texts of conversations are left out"),
        },
    ),
    CommandLine(
        "worker",
        "drive the conversations of a store, beside other workers",
        """\
Drive the conversations of a store that have work: a message, a decision, a
result, a due timer, or an owner that died. Any number of workers serve one
store, on any machines if it is in Postgres. A conversation goes on in another
worker when its worker is killed, frozen or cut off.

examples:
  holdfast worker --store agents.db --agent coder.yaml
  holdfast worker --store postgresql://db.example/agents --agent coder.yaml \\
      --variable OPENAI_API_KEY --concurrency 32 --ready 0.0.0.0:8080

SIGTERM and Ctrl-C drain the worker: each run ends at its next step and goes on
in another worker. What still runs after --grace is interrupted.

All workers of a queue take the same --backend. The password of a database is
better kept in PGPASSWORD or ~/.pgpass than in the address.

Exit code 130, 143: ended by SIGINT or SIGTERM. 1: the store cannot be used.
2: a wrong option or agent.""",
        {
            "--agent FILE": Option("the agent, as YAML or JSON", required=True),
            "--workdir DIR": "the folder of the builtin tools (default: the present one)",
            "--variable NAME[=VALUE] ...": "a variable that the agent's file refers to",
            **_FLEET,
            "--concurrency N": Option("conversations that run at once", default=16),
            "--tenant-limit N": "the same for one tenant in all workers of the queue",
            "--grace S": Option(
                "seconds to drain (default 30)",
                type=number("seconds from 0", float, 0, 86_400),
                default=30.0,
            ),
            "--ready ADDRESS": "answer GET /ready at this HOST:PORT",
        },
    ),
    CommandLine(
        "fleet",
        "show the workers and the queue of a store",
        """\
Show the workers of a store, how many conversations they drive, how many wait
and for how long, and how many come to rest per second.

example:
  holdfast fleet status --store postgresql://db.example/agents""",
        {
            "what WHAT": Option("status", choices=["status"]),
            **_FLEET,
            "--json": "print JSON",
        },
    ),
    CommandLine(
        "completion",
        "print a script that completes commands and options in a shell",
        """\
Print a script with which a shell completes the commands of holdfast, their
options and the names of files.

examples:
  holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
  holdfast completion zsh > ~/.zfunc/_holdfast      # a folder of your fpath
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish""",
        {"shell SHELL": Option("bash, zsh or fish", choices=["bash", "zsh", "fish"])},
    ),
]


def command_line() -> Parser:
    """Return the parser of all commands, in the order of the help."""
    return make_parser(ABOUT, "\n\n".join([EXAMPLES, ENVIRONMENT, EXIT_CODES]), _COMMANDS)
