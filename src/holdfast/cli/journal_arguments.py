"""The commands that read and change the conversations of a store or an agent server."""

from __future__ import annotations

from holdfast.cli.parser import CommandLine, Option, Options, number
from holdfast.cli.session_arguments import FULL, SERVER_KEY

_STORE_OPTION: Options = {"--store FILE": "the SQLite file, as for `run` and `chat`"}
_PLACE: Options = {
    "file FILE": "the SQLite file given as --store, or an agent server's URL",
    **_STORE_OPTION,
    "--server URL": "an agent server, instead of FILE",
    **SERVER_KEY,
}
_STORE: Options = {"file FILE": "the SQLite file given as --store", **_STORE_OPTION}
_ID = "the conversation's id, or its beginning"
_ID_OR_ALL: Options = {"id [ID]": f"{_ID}; without it, all conversations"}
_TELL_COMMANDS = (
    "send,approve,reject,answer,decline,pause,resume,interrupt,condense,rename,tag,untag,ask,use"
)

SHOW = CommandLine(
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
        "--json": "print JSON lines: the events, or the entries of the list",
        "--at SEQ": Option(
            "show the conversation as it was after event SEQ",
            type=number("an event's number, 0 for none", int, 0),
        ),
        "--follow": """show new events until Ctrl-C, also while another process drives the
            conversation""",
        "--prompt": "show the last system prompt that the model received, part by part",
        "--until-rest": """follow until the conversation finishes, stops, pauses or waits
            for you""",
        **FULL,
        "--no-pager": """do not use your pager ($PAGER, else less) for output that is longer
            than the screen""",
    },
)
LIST = CommandLine(
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
        "--status S": """only conversations that are idle, running, paused, waiting,
            finished, error or stuck""",
        "--tag TAG ...": "only conversations with this tag",
        "--limit N = 100": "the largest number of conversations to list (100)",
        "--json": "print JSON lines",
    },
    function="show.list_",
)
TELL = CommandLine(
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
        f"what WHAT {{{_TELL_COMMANDS}}}": "see above",
        "words [MORE ...]": "the text, the call, question or name, the values, reason or tags",
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
)
SCHEDULE = CommandLine(
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
        "what WHAT {list,add,cancel}": "list, add or cancel",
        "words [MORE ...]": "the text, or the timer's id",
        "--at TIME": "add: a time in ISO form; without an offset the clock of --timezone",
        "--every SECONDS": Option(
            "add: the seconds between two messages, from 60",
            type=number("a number of seconds from 60", float, 60),
        ),
        "--cron FIELDS": "add: minute, hour, day of month, month and day of week",
        "--timezone ZONE": "add: a zone such as Europe/Berlin; --cron without it is in UTC",
        "--misfire POLICY {once,skip,all} = once": """add: the rule for missed
            occurrences: one message for all (once), none if they are late (skip), or one for each
            of the last ten (all)""",
        "--name NAME": "add: the timer's id; a timer of this id is replaced",
        "--key KEY": "drop the command if another one was posted under this key before",
    },
)
REPLAY = CommandLine(
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
        **_STORE_OPTION,
        **_ID_OR_ALL,
        "--agent MODULE:NAME": """the Agent to compare with, or a function that returns one;
            found in this folder or on the Python path""",
    },
)
STATS = CommandLine(
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
        "--limit N = 20": "the largest number of conversations, and of rows in a table (20)",
        "--json": "print one JSON object with the keys whole and conversations",
    },
)
TRACE = CommandLine(
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
        "-o --output OUT": """write to this file, .html or .svg; without it, the page goes to
            standard output""",
        "--limit N": """the largest number of rows in the waterfall (2,000): the longest and
            the failed ones""",
        "--json": "print the trace as one JSON object",
    },
)
CHECK = CommandLine(
    "check",
    "verify that a store is complete and undamaged",
    """\
Verify a store without changing it: SQLite's own integrity check, the checksum
of every event, gaps between events, forks, blobs and waiting commands. The
store may be in use. Problems are listed per conversation, with the events that
cannot be read. `holdfast export --salvage` saves the readable rest.

Exit code 0: sound. 1: damaged. 2: no such file, or the file is not a store.""",
    {**_STORE, "--json": "print the report as JSON"},
)
EXPORT = CommandLine(
    "export",
    "write conversations of a store as JSON lines",
    """\
Write conversations as JSON lines: a header, then each stored event, then the
blobs (outputs kept in full) that the events refer to. Without ID, write all
conversations, one after the other. `holdfast import` reads them back.

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
        "--to {openhands}": """write the single conversation ID into the new folder OUT, in
            OpenHands' format""",
    },
    function="transfer.export",
)
IMPORT = CommandLine(
    "import",
    "write exported conversations into a store",
    """\
Write exported conversations into a store under their ids. Each conversation is
checked first, and written completely or not at all. A conversation that the
store already has, event for event, is left unchanged. A different one with the
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
        "--from {openhands}": Option(
            "FILE is the folder of a conversation in OpenHands' format",
            dest="origin",
        ),
    },
    function="transfer.import_",
)
