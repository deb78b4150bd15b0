"""`holdfast chat`, up to its first prompt. The user can type while the rest loads, so this module
imports little."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit
from holdfast.cli.signals import Signals
from holdfast.cli.terminal_input import is_interactive, keys_kept


def chat(options: Namespace, env: Mapping[str, str]) -> Exit:
    """Talk until the user leaves. Raises `UsageError`, `HoldfastError`."""
    with Signals() as signals, ExitStack() as terminal:
        console = terminal.enter_context(closing(_console(options, env, terminal)))
        if not options.resume:  # which first shows a list
            console.start()
        from holdfast.cli.talk import talk  # the user sees the prompt meanwhile

        return talk(options, env, console, signals)


def _console(options: Namespace, env: Mapping[str, str], terminal: ExitStack) -> Console:
    """Return a console with an input box where there is a terminal and prompt_toolkit. What
    changes at the terminal for it is undone by `terminal`."""
    plain = options.plain or env.get("HOLDFAST_PLAIN") or env.get("TERM", "dumb") == "dumb"
    if plain or not is_interactive():
        return Console(env)
    with ExitStack() as keys:
        keys.enter_context(keys_kept())
        try:
            from holdfast.cli.live_console import LiveConsole
        except ImportError:  # the extra `chat` is not installed
            return Console(env)
        terminal.enter_context(keys.pop_all())
    return LiveConsole(env, _history_file(env))


def _history_file(env: Mapping[str, str]) -> Path | None:
    home = env.get("HOME")
    state = env.get("XDG_STATE_HOME") or (f"{home}/.local/state" if home else None)
    return Path(state, "holdfast", "chat_history") if state else None
