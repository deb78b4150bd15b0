"""The command lines of `run`, `chat` and `demo`."""

from __future__ import annotations

from argparse import ArgumentTypeError

from holdfast.cli.exit_codes import EXIT_CODES
from holdfast.cli.parser import COUNT, CommandLine, Options, number, value

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
        "--trace": (
            "emit OpenTelemetry spans and metrics, which `opentelemetry-instrument holdfast ...`"
            " exports"
        ),
    }


def _plan(text: str) -> str:
    if text not in ("tool", "first"):
        raise ArgumentTypeError(
            f"takes no value or the word first, not {text!r}; write the task before --plan"
        )
    return text


_MODEL: Options = {
    "--model M": "the model's name as its provider writes it, or provider/name (HOLDFAST_MODEL)",
    "--base-url URL": "the API's address; not needed for known providers (HOLDFAST_BASE_URL)",
    "--api-key-env NAME": "the environment variable that holds the key",
    "--retries N": value(
        "how often to repeat a failed model call (5)", type=number("a whole number from 0", int, 0)
    ),
    "--no-stream": "request complete answers instead of streaming them",
}
_WORK: Options = {
    "--workdir DIR": "the folder to work in (the current one)",
    "--no-instructions": "do not tell the model what the AGENTS.md files of DIR's repository say",
    "--allow-outside": "let the file tools work outside of DIR too; the shell always can",
    "--env NAME ...": "an environment variable that commands may see",
    "--confirm WHAT": value(
        "which calls wait for you: never (default), always, risky (by their risk), or tool"
        " names separated by commas, such as terminal,write_file",
        default="never",
    ),
    "--plan [first]": value(
        "let the agent keep a plan, and show its changes; first: you approve the plan before"
        " the agent does anything but read",
        const="tool",
        type=_plan,
    ),
    "--ask": "let the agent ask you questions and wait for your answers",
    "--max-steps N": value("model calls per run (500)", type=COUNT),
    "--system-prompt-file F": "use this text instead of the default system prompt",
    "--agents DIR": (
        "let the agent delegate work to the agents in this folder or repository, one Markdown"
        " file each"
    ),
}
_RECORD: Options = {
    "--store FILE": (
        "keep the conversation in this SQLite file, which is created if it does not exist"
    ),
    "--id ID": (
        "the id of the conversation to continue, or its beginning; an id that matches none"
        " starts a new conversation"
    ),
    "--new": "start a new conversation with exactly the id of --id",
    **FULL,
    **observer_options("keys are masked"),
}
_SERVER: Options = {
    "--server URL": "run the agent on this agent server, such as http://127.0.0.1:8765",
    **SERVER_KEY,
    "--workspace W": (
        "the server's folder to work in, which is created if it does not exist (a new one)"
    ),
    "--model-key-name NAME": (
        "the variable of the server that holds the model's key (serve --variable)"
    ),
}
_OPTIONS: Options = {
    "the model": _MODEL,
    "the work": _WORK,
    "the record": _RECORD,
    "where it runs": _SERVER,
}

_ONE_TASK = "give an agent one task and watch it work"
RUN = CommandLine(
    "run",
    _ONE_TASK,
    f"{_ONE_TASK.capitalize()}.\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
    {
        "task": value("what to do; - reads it from standard input", nargs="+"),
        **_OPTIONS,
        "--output-schema FILE": (
            "make the result JSON that matches this JSON Schema, and write only the result to"
            " standard output; the rest goes to standard error"
        ),
    },
    EXIT_CODES,
)
CHAT = CommandLine(
    "chat",
    "talk with an agent",
    f"{TALK}\n\n{MODEL_OPTIONS}\n\n{CONFIRM}\n\n{ON_SERVER}",
    _OPTIONS,
    EXIT_CODES,
    defaults={"output_schema": None},
)
DEMO_COMMAND = CommandLine(
    "demo",
    "watch an agent fix a bug; needs no key",
    DEMO,
    {
        "--fast": "do not pause for reading; without a terminal the demo never pauses",
    },
)
