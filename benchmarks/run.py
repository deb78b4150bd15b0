"""Run the benchmarks and print their tables: `run.py [SUBJECT ...] [--quick] [--markdown] [--json
FILE]`. Without subjects, all run but the long ones."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import harness

# Subject `x` is `bench_x.py`: the first paragraph of its docstring is the heading, and it has a
# function `rows(quick)`.
SUBJECTS = [
    "install",
    "import",
    "first_request",
    "step",
    "fleet",
    "turns",
    "timers",
    "memory",
    "dispatch",
    "append",
    "group_commit",
    "postgres",
    "fork",
    "undo",
    "tree",
    "open",
    "condense",
    "behaviour",
    "observe",
    "http",
    "llm",
    "tools",
    "remote",
    "page",
    "chat",
    "sandbox",
    "code",
    "suite",
    "doors",
]
# Each takes minutes at full size, so they run only on request.
LONG_SUBJECTS = ["survival", "scale", "worker_memory"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure Holdfast beside its floors, here and now."
    )
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help=f"which to run: {', '.join(SUBJECTS)} (default: all of these), or one that takes"
        f" minutes: {', '.join(LONG_SUBJECTS)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller repeats, to see that all works"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every repeat of every figure there"
    )
    options = parser.parse_args()
    subjects = [*SUBJECTS, *LONG_SUBJECTS]
    unknown = [name for name in options.subjects if name not in subjects]
    if unknown:
        parser.error(f"no subject {unknown[0]!r}; there are {', '.join(subjects)}")

    began = time.monotonic()
    machine = harness.Machine()
    print(f"{machine}\n", flush=True)
    everything: dict[str, list[dict[str, Any]]] = {}
    failures = missed = 0
    for subject in options.subjects or SUBJECTS:
        module = import_module(f"bench_{subject}")
        heading = " ".join((module.__doc__ or "").split("\n\n", 1)[0].split())
        print(
            f"### {subject}\n\n{heading}\n" if options.markdown else f"{subject}: {heading}",
            flush=True,
        )
        try:
            rows = module.rows(options.quick)
        except (harness.Failed, OSError) as error:
            failures += 1
            print(f"  FAILED: {error}\n", flush=True)
            continue
        print(harness.table(rows, options.markdown), end="\n\n", flush=True)
        missed += sum(row.met is False for row in rows)
        everything[subject] = [row.to_dict() for row in rows]
    if options.json:
        options.json.write_text(
            json.dumps(
                {"machine": asdict(machine), "quick": options.quick, "subjects": everything},
                indent=1,
            )
            + "\n"
        )
    goals = sum(row["met"] is not None for rows in everything.values() for row in rows)
    print(
        f"{goals - missed} of {goals} goals met; {failures} subjects failed;"
        f" {time.monotonic() - began:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    # a kill, too, runs the `finally` blocks
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        harness.end_all()
