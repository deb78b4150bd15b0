"""The top level of the command: runs the chosen subcommand and prints its errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from holdfast.cli.arguments import make_parser
from holdfast.cli.exits import Exit, UsageError
from holdfast.cli.streams import forget_output, make_streams_safe


def command(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Errors are printed to stderr, not raised."""
    env = os.environ
    make_streams_safe()
    try:
        parser = make_parser()
        try:
            options = parser.parse_args(argv)
            if options.command is None:
                parser.print_help()
                options = None
            code = Exit.FINISHED if options is None else _dispatch(options, env)
        except SystemExit as ended:  # argparse: --help, --version, errors
            code = ended.code if isinstance(ended.code, int) else Exit.USAGE
    except BrokenPipeError:
        code = Exit.BROKEN_PIPE
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except Exception as error:
        code = _report(error, env)
    try:
        sys.stdout.flush()
    except OSError:
        # A closed pipe or a terminal that hung up. The interpreter would flush again at its end and
        # print an error.
        forget_output()
        code = Exit.BROKEN_PIPE if code == Exit.FINISHED else code
    return int(code)


def _dispatch(options: argparse.Namespace, env: Mapping[str, str]) -> Exit:
    # Import a command's module only when it is used: the help must not wait for an HTTP client.
    import logging

    if env.get("HOLDFAST_DEBUG"):
        logging.basicConfig(
            level=logging.DEBUG, format="%(asctime)s %(name)s %(levelname)s %(message)s"
        )
    else:
        # The events show what the library logs. Without a handler Python would print the log into
        # the conversation.
        logging.getLogger("holdfast").addHandler(logging.NullHandler())
    match options.command:
        case "run":
            from holdfast.cli.run import run as chosen
        case "chat":
            from holdfast.cli.chat import chat as chosen
        case "tell":
            from holdfast.cli.tell import tell as chosen
        case "replay":
            from holdfast.cli.replay import replay as chosen
        case "demo":
            from holdfast.cli.demo import demo as chosen
        case "stats":
            from holdfast.cli.stats import stats as chosen
        case "check":
            from holdfast.cli.check import check as chosen
        case "export":
            from holdfast.cli.transfer import export as chosen
        case "import":
            from holdfast.cli.transfer import import_ as chosen
        case "tools":
            from holdfast.cli.tools import tools as chosen
        case "mcp":
            from holdfast.cli.mcp import mcp as chosen
        case "list":
            from holdfast.cli.list import list_ as chosen
        case "serve":
            from holdfast.cli.serve import serve as chosen
        case _:
            from holdfast.cli.show import show as chosen
    return chosen(options, env)


def _report(error: Exception, env: Mapping[str, str]) -> Exit:
    """Print an error as one line to stderr and return its exit code."""
    from holdfast.cli.screen import Screen
    from holdfast.errors import ConfigurationError, HoldfastError

    if env.get("HOLDFAST_DEBUG"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    screen = Screen(env)
    if isinstance(error, HoldfastError | UsageError):
        screen.error(str(error))
        return Exit.USAGE if isinstance(error, UsageError | ConfigurationError) else Exit.FAILED
    hint = "" if env.get("HOLDFAST_DEBUG") else " HOLDFAST_DEBUG=1 shows the traceback."
    screen.error(f"internal error: {type(error).__name__}: {error}.{hint}")
    return Exit.INTERNAL
