"""The declaration of `holdfast eval`."""

from __future__ import annotations

from holdfast.cli.parser import CommandLine, Option, Options, number

_OPTIONS: Options = {
    "suite SUITE": "a folder with cases.jsonl or suite.py, or such a file",
    "--agent [NAME=]AGENT ...": """an agent: its file (YAML or JSON, as load_agent reads it), or
        MODULE:NAME, an Agent or a function of one; a function with a parameter gets the runtime of
        the run's folder. The others are compared with the first one""",
    "--out DIR": "the folder of the results, to go on with if it exists (SUITE.eval)",
    "--repeat N": Option("runs of each agent on each case (1)", default=1),
    "--parallel N": Option("runs at once (4)", default=4),
    "--max-cost USD": Option(
        "the most that all runs and scorers may cost together",
        type=number("a number above 0", float, 1e-9, 1e9),
    ),
    "--score-seconds N": Option("the seconds that a scorer may take (600)", default=600),
    "the exit code": {
        "--fail-under SHARE": Option(
            "exit code 1 if an agent passes less than this share of the cases, such as 0.9",
            type=number("a share from 0 to 1", float, 0, 1),
        ),
        "--strict": "exit code 1 also if any single case got worse",
    },
    "the runs' folders": {
        "--sandbox": Option(
            "run the commands of builtin tools in a sandbox: auto (default), where one can be made;"
            " require, or end with an error; off, never (HOLDFAST_SANDBOX)",
            choices=["auto", "off", "require"],
        ),
        "--network HOST ...": "let commands in the sandbox connect to this host",
        "--mount DIR[:rw] ...": """let tools in the sandbox read this file or folder too; with :rw
            change it""",
        "--env NAME ...": "an environment variable that commands may see",
    },
    "--json": "print the lines of results.jsonl instead of text",
}

EVAL = CommandLine(
    "eval",
    "let agents work on the cases of a suite, and compare them",
    """\
Let agents work on the cases of a suite, score their work, and compare them:
pass rates with 95 % intervals, cost, tokens, time, and the first step at which
two agents part on a case. The results are in DIR: report.html, results.jsonl
(one JSON object in each line), and eval.db, the journals of all runs, for
`holdfast show` and `holdfast replay`.

A case is a line of cases.jsonl:
  {"id": "add", "input": "What is 17 + 25?", "expected": "42"}
  {"id": "fix", "input": "Make the tests pass.", "files": {"a.py": {"file":
   "broken.py"}}, "score": {"command": "python -m pytest -q"}}

Ctrl-C pauses the runs after their present steps. The same command goes on, also
after a kill; it asks no model again for a run that is over. Runs with an error
are tried again.

examples:
  holdfast eval evals/ --agent agent.yaml
  holdfast eval evals/ --agent old=agents:old --agent new=agents:new --repeat 3
  holdfast eval cases.jsonl --agent agents:make --max-cost 5 --fail-under 0.9

Exit code 0: no agent is worse than the first one. 1: one is, beyond chance, or
passes less than --fail-under, or runs ended with errors. 2: a wrong suite or
agent. 3: the budget is spent, and runs are missing. 130: Ctrl-C.""",
    _OPTIONS,
)
