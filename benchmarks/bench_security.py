"""Milliseconds of the shell rules for ordinary commands and for hostile ones. `python
benchmarks/bench_security.py`"""

from __future__ import annotations

import time
import timeit
from pathlib import Path

from holdfast import ToolCall
from holdfast.agent.risk import Surroundings
from holdfast.agent.security import RiskRules, standard

ORDINARY = (
    "ls -la",
    "cat README.md",
    "grep -rn foo src | head -20",
    "git status",
    "python -m pytest tests -q",
    "cd src && ls",
    "sed -n 1,20p README.md",
    "echo hi > out.txt",
    "find . -name '*.py' | xargs grep foo",
    "for f in a b; do echo $f; done",
    "git add -A && git commit -m 'x y z'",
)
HOSTILE = {
    "1 MB": "a" * 1_000_000,
    "10,000 nested substitutions": "$(" * 10_000 + ")" * 10_000,
    "20,000 commands": "ls;" * 20_000,
    "30,000 words": "ls " + "a " * 30_000,
    "64 KB of quotes": "echo " + "'a'" * 21_000,
    "64 KB of a script for sed": "sed '" + "s/a\\/b/" * 8000 + "' f",
    "2^40 braces": "echo " + "{a,b}" * 40,
}


def main() -> None:
    """Print the table."""
    analyzer, about = standard(), Surroundings(workdir=str(Path(__file__).parents[1] / "docs"))
    took = {
        one: (
            min(
                timeit.repeat(
                    lambda one=one: analyzer.assess(
                        ToolCall("", "terminal", {"command": one}), about
                    ),
                    number=200,
                    repeat=7,
                )
            )
            * 5
        )
        for one in ORDINARY
    }
    for command, milliseconds in took.items():
        print(f"{milliseconds:8.3f} ms  {command}")
    print(f"{sum(took.values()) / len(took):8.3f} ms  mean (goal: 0.1)")
    for name, command in HOSTILE.items():
        began = time.perf_counter()
        risk = RiskRules().command(command)
        print(f"{(time.perf_counter() - began) * 1000:8.1f} ms  {name}: {risk.level}")


if __name__ == "__main__":
    main()
