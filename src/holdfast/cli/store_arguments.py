"""The command lines of the commands that read or change the conversations of a store or an agent
server."""

from __future__ import annotations

from holdfast.cli.agent_arguments import FULL, SERVER_KEY
from holdfast.cli.parser import COUNT, CommandLine, Options, number, value

SHOW = """\
Show a conversation of a store or an agent server, in the same form as `run`.
If there are several conversations and you give no ID, list them. A store is
opened for reading only.

examples:
  holdfast show ~/agent.db
  holdfast show ~/agent.db 4f0c --follow
  holdfast show --server http://127.0.0.1:8765 4f0c --follow
      continues across restarts of the server"""

LIST = """\
List the conversations of a store or an agent server, the newest first.

examples:
  holdfast list ~/agent.db
  holdfast list --server http://127.0.0.1:8765
  holdfast list ~/agent.db --status waiting
      list the conversations with a call that waits for you
  holdfast list --server https://agents.example:8765 --limit 5 --json
      print one JSON object per line

Exit code 0: listed, also if there are none. 1: the server cannot be reached.
2: no such file or status, or a wrong key."""

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

STATS = """\
Show the time, tokens and cost of conversations by model and tool, their
errors, their longest calls, and the share of the input that providers had
cached. With ID, that conversation and all conversations that its calls spawned
are counted; without ID, all conversations of the store. The store is opened
for reading only, and conversations may run meanwhile.

examples:
  holdfast stats ~/agent.db
  holdfast stats ~/agent.db 4f0c
  holdfast stats ~/agent.db --json | jq '.whole.tools'"""

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

_PLACE: Options = {"file FILE": "the SQLite file given as --store, or an agent server's URL"}
_STORE: Options = {"file FILE": "the SQLite file given as --store"}
_ID = "the conversation's id, or its beginning"
_ID_OR_ALL: Options = {"id [ID]": f"{_ID}; without it, all conversations"}
_SERVER: Options = {
    "--server URL": "an agent server, instead of FILE",
    **SERVER_KEY,
}
_TOLD = "send approve reject answer decline pause resume interrupt condense"

COMMANDS = [
    CommandLine(
        "show",
        "show a conversation of a store or an agent server",
        SHOW,
        {
            **_PLACE,
            "id [ID]": _ID,
            **_SERVER,
            "--json": "print JSON lines: the events, or the entries of the list",
            "--at SEQ": value(
                "show the conversation as it was after event SEQ",
                type=number("an event's number, 0 for none", int, 0),
            ),
            "--follow": (
                "show new events as they come, until Ctrl-C, whichever process drives the"
                " conversation"
            ),
            "--prompt": "show the last system prompt that the model received, part by part",
            "--until-rest": (
                "follow until the conversation finishes, stops, pauses or waits for you"
            ),
            **FULL,
        },
        takes_place=True,
    ),
    CommandLine(
        "list",
        "list the conversations of a store or an agent server",
        LIST,
        {
            **_PLACE,
            **_SERVER,
            "--status S": (
                "only conversations that are idle, running, paused, waiting, finished, error or"
                " stuck"
            ),
            "--limit N": value(
                "the largest number of conversations to list (100)", type=COUNT, default=100
            ),
            "--json": "print JSON lines",
        },
        takes_place=True,
    ),
    CommandLine(
        "tell",
        "send a message, approve a call, pause: from any shell",
        TELL,
        {
            **_PLACE,
            "id ID": _ID,
            "what WHAT": value("see above", choices=_TOLD.split()),
            "words [MORE ...]": "the text, the call or question, the values or the reason",
            **_SERVER,
            "--arguments JSON": (
                'approve: run the call with these arguments instead, such as \'{"command": "ls"}\''
            ),
            "--key KEY": "drop the command if another one was posted under this key before",
            "--wait SECONDS": value(
                "wait at most this long until the command is carried out",
                type=number("a number of seconds", float, 0, 1_000_000),
            ),
        },
        takes_place=True,
    ),
    CommandLine(
        "replay",
        "check whether the same model requests would be made today",
        REPLAY,
        {
            "file FILE": "the SQLite file given as --store, or the output of `holdfast export`",
            **_ID_OR_ALL,
            "--agent MODULE:NAME": (
                "the Agent to compare with, or a function that returns one; found in this folder"
                " or on the Python path"
            ),
        },
    ),
    CommandLine(
        "stats",
        "show the time, tokens and cost of conversations",
        STATS,
        {
            **_STORE,
            **_ID_OR_ALL,
            "--limit N": value(
                "the largest number of conversations, and of rows in a table (20)",
                type=COUNT,
                default=20,
            ),
            "--json": "print one JSON object with the keys whole and conversations",
        },
    ),
    CommandLine(
        "check",
        "verify that a store is complete and undamaged",
        CHECK,
        {
            **_STORE,
            "--json": "print the report as JSON",
        },
    ),
    CommandLine(
        "export",
        "write conversations of a store as JSON lines",
        EXPORT,
        {
            **_STORE,
            "ids [ID ...]": "a conversation's id, or its beginning; without it, all conversations",
            "-o --output OUT": (
                "write to this file, which is replaced only after everything is written"
            ),
            "--salvage": "write the readable part of a damaged store",
            "--to": value(
                "write the single conversation ID into the new folder OUT, in OpenHands' format",
                choices=["openhands"],
            ),
        },
    ),
    CommandLine(
        "import",
        "write exported conversations into a store",
        IMPORT,
        {
            "file FILE": "the output of `holdfast export`; - reads standard input",
            "--store STORE": value(
                "the SQLite file to write to, which is created if it does not exist", required=True
            ),
            "--id NEW": "import the only conversation in FILE under this id",
            "--from": value(
                "FILE is the folder of a conversation in OpenHands' format",
                dest="origin",
                choices=["openhands"],
            ),
        },
    ),
]
