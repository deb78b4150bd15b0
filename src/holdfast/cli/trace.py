"""`holdfast trace`: a run as a picture."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit, UsageError
from holdfast.cli.files import path_of, reason
from holdfast.cli.places import StoredConversations, open_place, place_text, place_words
from holdfast.cli.text import json_shown
from holdfast.observe.trace import MAX_SPANS, RunTrace
from holdfast.observe.trace import trace as traced
from holdfast.observe.trace_picture import trace_html, trace_svg

_FORMS = {".html": trace_html, ".htm": trace_html, ".svg": trace_svg}


def trace(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Write the trace of a conversation. Raises `UsageError`, `StoreError`."""
    console = Console(env)
    output = None if options.output is None else path_of(options.output)
    form = trace_html
    if output is not None:
        if output.suffix.lower() not in _FORMS:
            raise UsageError(f"-o takes a file that ends in .html or .svg, not {options.output!r}")
        form = _FORMS[output.suffix.lower()]
    elif not options.json and sys.stdout.isatty():
        raise UsageError("a trace is a page for a browser; name its file with -o FILE.html")
    run_trace = _read(options, env)
    if options.json:
        console.line(json_shown(run_trace.to_json().decode()))
    elif output is None:
        sys.stdout.write(form(run_trace))
    else:
        try:
            output.write_text(form(run_trace), encoding="utf-8")
        except OSError as error:
            console.error(f"{options.output!r} cannot be written: {reason(error)}.")
            return Exit.FAILED
        console.notice(f"{options.output} shows {run_trace.conversations[0].id}.", "dim")
    return console.loss if console.broken else Exit.FINISHED


def _read(options: Namespace, env: Mapping[str, str]) -> RunTrace:
    limit = MAX_SPANS if options.limit is None else min(options.limit, MAX_SPANS)
    with closing(open_place(options, env, read_only=True)) as place:
        if options.id is not None:
            id = place.find(options.id).id
        else:
            roots = [entry for entry in place.list() if not entry.spawner]
            if len(roots) != 1:
                if not roots:
                    raise UsageError(f"there is no conversation {place_text(options)}")
                hint = f"holdfast list {place_words(options)}"
                raise UsageError(f"give the ID of one of {len(roots):,} conversations. See: {hint}")
            id = roots[0].id
        if isinstance(place, StoredConversations):
            return traced(place.store, id, limit)
        return place.trace(id, limit)
