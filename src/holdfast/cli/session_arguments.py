"""The commands that let an agent work, with their options: run, chat, demo, eval, acp."""

from __future__ import annotations

from argparse import ArgumentTypeError

from holdfast.cli.exit_codes import EXIT_CODES
from holdfast.cli.parser import CommandLine, Option, Options, number

_ON_MACHINE = """\
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

_CONFIRM = """\
With --confirm, the calls of the tools that you name wait for you. With
`--confirm risky`, calls wait unless they are proven to stay within the folder.
Each waiting call is shown in full; then you answer
  y  run it              n  reject it; the model gets the reason that you type
  e  edit it first       a  run it, and all later calls of that tool
  q  leave it waiting (also Ctrl-D); Ctrl-C pauses
Without a terminal, the command ends there with exit code 3. To decide on a
waiting call later, use `holdfast tell`, or open the conversation again with
chat."""

_ON_SERVER = """\
With --server, the agent works on an agent server (`holdfast serve`), in a
folder of its own there; the output here is the same. Your model key is sent
along, sealed; with --model-key-name the server uses a key of its own. If the
connection is lost, the agent works on. Ctrl-C pauses it, and leaving stops it.
--id with the id of an existing conversation continues that one with its own
model, tools and folder, so that no other option is needed."""

_TALK = """\
Talk with an agent, one line per message. While the agent works, a line that
you type reaches it after its current step. Ctrl-D ends the chat, and /help
lists the commands. With holdfast[chat] there is an input box, which takes
several lines and pasted text as one message, and completes commands and files.

If standard input is not a terminal, each line is a message. It is answered
before the next one is read, and the exit code tells how the last one ended."""

FULL: Options = {
    "--full": "show results, diffs and commands in full, not only their first and last lines"
}
SERVER_KEY: Options = {
    "--server-key-file F": "a file that contains the server's key (or HOLDFAST_SERVER_KEY)"
}
SANDBOX_REACH: Options = {
    "--network HOST ...": "let commands in the sandbox connect to this host",
    "--mount DIR[:rw] ...": """let tools in the sandbox read this file or folder too; with :rw
        change it""",
}
FOLDER_OF_MODELS = "the folder of named models (HOLDFAST_MODELS, else ~/.config/holdfast/models)"


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


_MODEL: Options = {
    "--model M": """a name of the folder of models (see `holdfast models`), or the model's name as
        its provider writes it, or provider/name (HOLDFAST_MODEL)""",
    "--models DIR": FOLDER_OF_MODELS,
    "--base-url URL": "the API's address; not needed for known providers (HOLDFAST_BASE_URL)",
    "--api-key-env NAME": "the environment variable that holds the key",
    "--retries N": Option(
        "how often to repeat a failed model call (5)", type=number("a whole number from 0", int, 0)
    ),
    "--no-stream": "request complete answers instead of streaming them",
}
_WORK: Options = {
    "--workdir DIR": "the folder to work in (the current one)",
    "--no-instructions": "do not show the model the AGENTS.md files of DIR's repository",
    "--sandbox {auto,off,require}": """run commands in a sandbox: auto (default), where one can be
        made; require, or end with an error; off, never (HOLDFAST_SANDBOX)""",
    "--network HOST ...": """let commands in the sandbox connect to this host, such as pypi.org or
        *.example.com""",
    "--mount DIR[:rw] ...": """let the agent in the sandbox read this file or folder too; with :rw
        also change it""",
    "--allow-outside": """with --sandbox off: let the file tools work outside of DIR too; the
        shell then always can""",
    "--env NAME ...": "an environment variable that commands may see",
    "--secret NAME[=FILE] ...": """a secret that the model is never shown: the content of FILE, else
        the variable of that name; commands that name it get it as an environment variable""",
    "--confirm WHAT = never": """which calls wait for you: never (default), always, risky (by their
        risk), or tool names separated by commas, such as terminal,write_file""",
    "--plan [first]": Option(
        "let the agent keep a plan, and show its changes; first: you approve the plan before"
        " the agent does anything but read",
        const="tool",
        type=_plan,
    ),
    "--ask": "let the agent, and its sub-agents, ask you questions and wait for your answers",
    "--goal TEXT": """the goal of the work: when the agent stops, its model judges whether the goal
        is reached; if not, the agent continues, at most five times""",
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
_EVAL_OPTIONS: Options = {
    "suite SUITE": "a folder with cases.jsonl or suite.py, or such a file",
    "--agent [NAME=]AGENT ...": """an agent: its file (YAML or JSON, as load_agent reads it), or
        MODULE:NAME, an Agent or a function of one; a function with a parameter gets the runtime of
        the run's folder. The others are compared with the first one""",
    "--out DIR": "the folder of the results; an existing one is continued (SUITE.eval)",
    "--repeat N = 1": "runs of each agent on each case (1)",
    "--parallel N = 4": "runs at once (4)",
    "--max-cost USD": Option(
        "the most that all runs and scorers may cost together",
        type=number("a number above 0", float, 1e-9, 1e9),
    ),
    "--score-seconds N = 600": "the seconds that a scorer may take (600)",
    "the exit code": {
        "--fail-under SHARE": Option(
            "exit code 1 if an agent passes less than this share of the cases, such as 0.9",
            type=number("a share from 0 to 1", float, 0, 1),
        ),
        "--strict": "exit code 1 also if any single case got worse",
    },
    "the runs' folders": {
        "--sandbox {auto,off,require}": """run the commands of builtin tools in a sandbox: auto
            (default), where one can be made; require, or end with an error; off, never
            (HOLDFAST_SANDBOX)""",
        **SANDBOX_REACH,
        "--env NAME ...": "an environment variable that commands may see",
    },
    "--json": "print the lines of results.jsonl instead of text",
}
_ONE_TASK = "give an agent one task and watch it work"

RUN = CommandLine(
    "run",
    _ONE_TASK,
    f"{_ONE_TASK.capitalize()}.\n\n{_ON_MACHINE}\n\n{_CONFIRM}\n\n{_ON_SERVER}",
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
    defaults={"no_undo": True},
)
CHAT = CommandLine(
    "chat",
    "talk with an agent",
    f"{_TALK}\n\n{_ON_MACHINE}\n\n{_CONFIRM}\n\n{_ON_SERVER}",
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
)
DEMO = CommandLine(
    "demo",
    "watch an agent fix a bug; needs no key",
    """\
Watch an agent find and fix a bug in a small project in a temporary folder. The
model is scripted, so no key is needed; the tools are real. Exit code 0 means
that the project's tests failed before the fix and passed after it.""",
    {"--fast": "do not pause for reading; without a terminal the demo never pauses"},
)
EVAL = CommandLine(
    "eval",
    "let agents work on the cases of a suite, and compare them",
    """\
Let agents work on the cases of a suite, score their work, and compare them:
pass rates with 95 % intervals, cost, tokens, time, and the first step at which
two agents differ on a case. The results are in DIR: report.html, results.jsonl
(one JSON object in each line), and eval.db, the journals of all runs, for
`holdfast show` and `holdfast replay`.

A case is a line of cases.jsonl:
  {"id": "add", "input": "What is 17 + 25?", "expected": "42"}
  {"id": "fix", "input": "Make the tests pass.", "files": {"a.py": {"file":
   "broken.py"}}, "score": {"command": "python -m pytest -q"}}

Ctrl-C pauses the runs after their present steps. The same command continues,
also after a kill; it asks no model again for a run that is over. Runs with an
error are tried again.

examples:
  holdfast eval evals/ --agent agent.yaml
  holdfast eval evals/ --agent old=agents:old --agent new=agents:new --repeat 3
  holdfast eval cases.jsonl --agent agents:make --max-cost 5 --fail-under 0.9

Exit code 0: no agent is worse than the first one. 1: one is, beyond chance, or
passes less than --fail-under, or runs ended with errors. 2: a wrong suite or
agent. 3: the budget is spent, and runs are missing. 130: Ctrl-C.""",
    _EVAL_OPTIONS,
    function="eval.eval_",
    defaults={"allow_outside": False, "store": None},
)
ACP = CommandLine(
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
        "--mode {ask,act,plan} = ask": """the mode of new sessions: ask (default), act, or plan, in
            which you approve a plan first""",
        "--store FILE": """the SQLite file of the conversations
            (~/.local/state/holdfast/acp.db)""",
        "the model": _MODEL,
        "the work": {
            usage: option
            for usage, option in _WORK.items()
            if usage.split()[0] not in ("--workdir", "--confirm", "--plan", "--ask")
        },
    },
    defaults={"plan": None, "output_schema": None, "model_key_name": None},
)
