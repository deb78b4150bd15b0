"""The whole command line: the texts of its help, and its commands in their order."""

from __future__ import annotations

from holdfast.cli import journal_arguments as journals
from holdfast.cli import server_arguments as servers
from holdfast.cli import session_arguments as sessions
from holdfast.cli.exit_codes import EXIT_CODES
from holdfast.cli.parser import Parser, make_parser

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

_COMMANDS = (
    *(sessions.RUN, sessions.CHAT, sessions.DEMO),
    *(journals.SHOW, journals.LIST, journals.TELL, journals.SCHEDULE, journals.REPLAY),
    sessions.EVAL,
    *(journals.STATS, journals.TRACE, journals.CHECK, journals.EXPORT, journals.IMPORT),
    *(servers.SKILLS, servers.MODELS, servers.TOOLS),
    sessions.ACP,
    *(servers.MCP, servers.SERVE, servers.WORKER, servers.FLEET, servers.COMPLETION),
)


def command_line() -> Parser:
    """Return the parser of all commands, in the order of the help."""
    return make_parser(ABOUT, "\n\n".join([EXAMPLES, ENVIRONMENT, EXIT_CODES]), _COMMANDS)
