"""The `holdfast` command: an agent in a terminal. Only this package reads the environment and
writes to the standard streams."""

from __future__ import annotations

try:
    import os
    import sys
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from importlib import import_module

    from holdfast.cli.arguments import command_line
    from holdfast.cli.console import Console
    from holdfast.cli.exit_codes import Exit, UsageError
    from holdfast.error_text import describe_error
    from holdfast.errors import ConfigurationError, HoldfastError
except KeyboardInterrupt:  # Ctrl-C while the command loads
    raise SystemExit(130) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: the arguments of the process) and return its
    exit code. Never raises: errors are printed to stderr."""
    env = os.environ
    _make_streams_safe()
    try:
        parser = command_line()
        options = parser.parse_args(argv)
        if options.command is None:
            parser.print_help()
            code = Exit.FINISHED
        else:
            code = _run(options, env)
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


def _run(options: Namespace, env: Mapping[str, str]) -> Exit:
    import logging  # takes 10 ms, which the help does not wait for

    if env.get("HOLDFAST_DEBUG"):
        logging.basicConfig(
            level=logging.DEBUG, format="%(asctime)s %(name)s %(levelname)s %(message)s"
        )
    else:
        # The events show what the library logs. Without a handler Python would print the log into
        # the conversation.
        logging.getLogger("holdfast").addHandler(logging.NullHandler())
    name, function = options.command, options.function
    if getattr(options, "what", None) == "keys":
        name, function = "serve keys", "serve_keys.serve_keys"
    try:
        # Imported only when the command runs: the help must not wait for an HTTP client.
        module, _, function = function.partition(".")
        command = getattr(import_module(f"holdfast.cli.{module}"), function)
    except ModuleNotFoundError as error:
        extra = {"serve": "server", "acp": "acp"}.get(name)
        if extra is None or (error.name or "holdfast").startswith("holdfast"):
            raise
        raise UsageError(
            f"holdfast {name} needs {error.name}, which is not installed: pip install"
            f" 'holdfast[{extra}]'"
        ) from None
    return command(options, env)


def _report(error: Exception, env: Mapping[str, str]) -> Exit:
    """Print an error as one line to stderr and return its exit code."""
    debug = env.get("HOLDFAST_DEBUG")
    if debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    console = Console(env)
    if isinstance(error, HoldfastError | UsageError):
        console.error(str(error))
        return Exit.USAGE if isinstance(error, UsageError | ConfigurationError) else Exit.FAILED
    hint = "" if debug else " HOLDFAST_DEBUG=1 shows the traceback."
    console.error(f"internal error: {describe_error(error)}.{hint}")
    return Exit.INTERNAL


def _make_streams_safe() -> None:
    """Open missing streams; print characters that the terminal's encoding lacks as `?`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # The parent process closed it (`>&-`). The next opened file must not get its number.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def forget_output() -> None:
    """Redirect standard output to nowhere, so that the interpreter's last flush does not raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(null)
