"""The runtime's tools for a model: names, descriptions and parameters.

The neighbouring modules implement the tools.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field

from holdfast.content import ToolResult
from holdfast.errors import RuntimeFault, ToolError, ToolNotFound
from holdfast.runtime.files import Files
from holdfast.runtime.search import GrepQuery, Search
from holdfast.runtime.terminal import Terminal
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.policy import LOCAL_READ

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]

_WRITES = ToolAnnotations(read_only=False, destructive=True, idempotent=True, open_world=False)
_EDITS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=False)
_RUNS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=True)


@contextmanager
def _tool_errors() -> Generator[None]:
    """Convert a `RuntimeFault` to an error for the model, which no retry would fix."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolNotFound(str(error)) from error
    except RuntimeFault as error:
        raise ToolError(str(error), "validation") from error


def make_tools(runtime: object, shell: Terminal, files: Files, search: Search) -> list[Tool]:
    """Return the tools of `runtime`, which use these parts."""

    def terminal(
        context: ToolContext,
        command: str,
        timeout: Annotated[float | None, Field(gt=0)] = None,
        wait: Seconds = 60,
        interactive: bool = False,
    ) -> ToolResult:
        """Run a command, or a script of several lines, in bash. The first command starts in the
        working directory.

        The directory, variables and background processes last from call to call; functions, aliases
        and options do not. The answer has the output (stdout and stderr) and the exit code. A
        command that is not done after `wait` seconds goes on; follow it with terminal_input. Start
        servers in the background with &. There is no terminal and, unless `interactive`, no input.

        Args:
            command: The command to run.
            timeout: Seconds after which the command and all that it started are ended; {timeout}
                if not given.
            wait: Seconds to wait for the command before answering.
            interactive: True if the command will read input that you send with terminal_input.
                Otherwise its input is empty.
        """
        context.on_close(
            (shell, context.conversation_id),
            lambda: shell.close_conversation(context.conversation_id),
        )
        return shell.run(
            command,
            context.conversation_id,
            timeout=timeout,
            wait=wait,
            interactive=interactive,
            cancelled=context.cancelled,
            mark=context.process_environment,
            secrets=context.secrets,
        )

    def terminal_input(
        context: ToolContext,
        text: str = "",
        enter: bool = True,
        control: Literal["none", "interrupt", "eof", "kill"] = "none",
        wait: Seconds = 10,
    ) -> ToolResult:
        """Follow the command that is still running in your shell: wait for more output, send it
        input, or stop it.

        The answer has the output since the last answer. It comes when the command ends, when it
        falls silent after an input, or after `wait` seconds.

        Args:
            text: The text to write to its input. Leave it empty to just wait.
            enter: True adds a line end to the text.
            control: interrupt is Ctrl-C, eof is Ctrl-D, kill ends it and all that it started.
            wait: Seconds to wait before answering.
        """
        return shell.send(
            context.conversation_id,
            text,
            enter=enter,
            control=control,
            wait=wait,
            cancelled=context.cancelled,
        )

    def read_file(path: str, offset: Count = 1, limit: Count = 2000) -> ToolResult:
        """Read a text file with line numbers, see an image, or list a directory.

        Args:
            path: Relative to the working directory, or absolute.
            offset: The first line to show, counted from 1.
            limit: The maximum number of lines to show.
        """
        return files.view(path, offset, limit)

    def write_file(path: str, content: str) -> ToolResult:
        """Make a file, or overwrite all of it. To change a part of a file use edit_file.

        Args:
            path: Relative to the working directory, or absolute. Missing directories are made.
            content: The whole text of the file.
        """
        return files.write_text(path, content)

    def edit_file(path: str, old: str, new: str, replace_all: bool = False) -> ToolResult:
        """Replace a piece of a text file by another. `old` must be in the file exactly once, white
        space included.

        Args:
            path: Relative to the working directory, or absolute.
            old: The text to replace, as it is in the file, without line numbers; enough of it to
                be unique.
            new: The text to put in its place.
            replace_all: Replace every place instead of one.
        """
        return files.edit(path, old, new, replace_all)

    def glob(context: ToolContext, pattern: str, path: str = ".", limit: Count = 100) -> ToolResult:
        """Find files by name, those changed last first. Files that git ignores are left out.

        Args:
            pattern: Such as **/*.py or src/**/test_*.{js,ts}; ** stands for any number of
                directories.
            path: The directory to search in.
            limit: The maximum number of files to answer.
        """
        return search.glob(pattern, path, limit, context.cancelled)

    def grep(
        context: ToolContext,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        ignore_case: bool = False,
        context_lines: int = 0,
        mode: Literal["content", "files", "count"] = "content",
        limit: Count = 100,
    ) -> ToolResult:
        """Find lines in text files by a regular expression (Python's). Files that git ignores and
        binary files are left out.

        Args:
            pattern: The regular expression to find within a line.
            path: The directory or file to search in.
            glob: Only files that fit this, such as *.py or src/**/*.ts.
            ignore_case: True ignores the difference between capital and small letters.
            context_lines: Lines to show before and after each match.
            mode: content answers file:line:text, files the names of files with a match, count
                how many lines match in each.
            limit: The maximum number of matching lines (or files) to answer.
        """
        lines = min(max(0, context_lines), 50)
        query = GrepQuery(pattern, path, glob, ignore_case, lines, mode, limit)
        return search.grep(query, context.cancelled)

    # The workdir's name is left out: definitions that are the same in every folder let
    # conversations share a provider's prompt cache.
    seconds = f"{shell.command_timeout:g}"
    terminal.__doc__ = (terminal.__doc__ or "").replace("{timeout}", seconds)
    tools = [
        Tool.from_function(_tool_errors()(function), annotations=annotations, category=category)
        for function, annotations, category in (
            (terminal, _RUNS, "terminal"),
            (terminal_input, _RUNS, "terminal"),
            (read_file, LOCAL_READ, "files"),
            (write_file, _WRITES, "files"),
            (edit_file, _EDITS, "files"),
            (glob, LOCAL_READ, "search"),
            (grep, LOCAL_READ, "search"),
        )
    ]
    for tool in tools:
        tool.runtime = runtime
    return tools
