"""The runtime's tools for a model: names, descriptions and parameters.

The neighbouring modules implement the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from holdfast.content import ToolResult
from holdfast.errors import RuntimeFault, ToolError, ToolNotFound
from holdfast.object_struct import ObjectStruct
from holdfast.runtime.files import Files
from holdfast.runtime.search import GrepQuery, Search
from holdfast.runtime.terminal import Terminal
from holdfast.tools import Tool, ToolAnnotations, ToolContext
from holdfast.tools.policy import LOCAL_READ

Seconds = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]

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


class BuiltinTools(ObjectStruct):
    """The tools of `runtime`. Each is a method with the tool's name, description and parameters."""

    runtime: object
    shell: Terminal
    files: Files
    search: Search

    def usual(self) -> list[Tool]:
        """Return the tools that every agent of the runtime has."""
        return [
            self._tool(self.terminal, _RUNS, "terminal"),
            self._tool(self.terminal_input, _RUNS, "terminal"),
            self._tool(self.read_file, LOCAL_READ, "files"),
            self._tool(self.write_file, _WRITES, "files"),
            self._tool(self.edit_file, _EDITS, "files"),
            self._tool(self.glob, LOCAL_READ, "search"),
            self._tool(self.grep, LOCAL_READ, "search"),
        ]

    def more(self) -> list[Tool]:
        """Return the tools that an agent is given only on request."""
        return [
            self._tool(self.apply_patch, _EDITS, "files"),
            self._tool(self.str_replace_based_edit_tool, _EDITS, "files"),
            self._tool(self.view_image, LOCAL_READ, "files"),
            self._tool(self.terminal_background, _RUNS, "terminal"),
            self._tool(self.terminal_collect, _RUNS, "terminal"),
        ]

    def _tool(
        self, method: Callable[..., ToolResult], annotations: ToolAnnotations, category: str
    ) -> Tool:
        function = _tool_errors()(method)
        # The workdir's name is left out: definitions that are the same in every folder let
        # conversations share a provider's prompt cache.
        seconds = f"{self.shell.command_timeout:g}"
        function.__doc__ = (method.__doc__ or "").replace("{timeout}", seconds)
        tool = Tool.from_function(function, annotations=annotations, category=category)
        tool.runtime = self.runtime
        return tool

    def terminal(
        self,
        context: ToolContext,
        command: str,
        timeout: Annotated[float | None, Gt(0)] = None,
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
            (self.shell, context.conversation_id),
            lambda: self.shell.close_conversation(context.conversation_id),
        )
        return self.shell.run(
            command,
            context.conversation_id,
            timeout=timeout,
            wait=wait,
            interactive=interactive,
            cancelled=context.cancelled,
            mark=context.process_environment,
            secrets=context.secrets,
            report=context.report_progress,
        )

    def terminal_input(
        self,
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
        return self.shell.send(
            context.conversation_id,
            text,
            enter=enter,
            control=control,
            wait=wait,
            cancelled=context.cancelled,
            report=context.report_progress,
        )

    def read_file(self, path: str, offset: Count = 1, limit: Count = 2000) -> ToolResult:
        """Read a text file with line numbers, see an image, or list a directory.

        Args:
            path: Relative to the working directory, or absolute.
            offset: The first line to show, counted from 1.
            limit: The maximum number of lines to show.
        """
        return self.files.view(path, offset, limit)

    def write_file(self, path: str, content: str) -> ToolResult:
        """Make a file, or overwrite all of it. To change a part of a file use edit_file.

        Args:
            path: Relative to the working directory, or absolute. Missing directories are made.
            content: The whole text of the file.
        """
        return self.files.write_text(path, content)

    def edit_file(self, path: str, old: str, new: str, replace_all: bool = False) -> ToolResult:
        """Replace a piece of a text file by another. `old` must be in the file exactly once, white
        space included.

        Args:
            path: Relative to the working directory, or absolute.
            old: The text to replace, as it is in the file, without line numbers; enough of it to
                be unique.
            new: The text to put in its place.
            replace_all: Replace every place instead of one.
        """
        return self.files.edit(path, old, new, replace_all)

    def glob(
        self, context: ToolContext, pattern: str, path: str = ".", limit: Count = 100
    ) -> ToolResult:
        """Find files by name, those changed last first. Files that git ignores are left out.

        Args:
            pattern: Such as **/*.py or src/**/test_*.{js,ts}; ** stands for any number of
                directories.
            path: The directory to search in.
            limit: The maximum number of files to answer.
        """
        return self.search.glob(pattern, path, limit, context.cancelled)

    def grep(
        self,
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
        return self.search.grep(query, context.cancelled)

    def apply_patch(self, patch: str) -> ToolResult:
        """Change, add, delete and move text files with one patch. All of its files change, or none.

        The patch is in this form:

            *** Begin Patch
            *** Update File: src/app.py
            @@ def main():
             a context line, with a space before it
            -a line to remove
            +a line to add
            *** Add File: notes/todo.md
            +each line of the new file
            *** Delete File: old.py
            *** End Patch

        `*** Move to: path` under an Update File line moves that file. The text after @@ is a line
        above the change, such as a class or function, and may be left out; several @@ lines lead
        from the outermost to the innermost. Give about three context lines before and after a
        change, exactly as they are in the file, and the chunks of a file in its order. `*** End of
        File` after a chunk means that it ends the file. A unified diff, as by `git diff`, is
        accepted too.

        Args:
            patch: The whole patch. Paths are relative to the working directory, or absolute.
        """
        return self.files.apply_patch(patch)

    def str_replace_based_edit_tool(
        self,
        command: Literal["view", "create", "str_replace", "insert"],
        path: str,
        view_range: list[int] | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: Annotated[int | None, Ge(0)] = None,
        insert_text: str | None = None,
    ) -> ToolResult:
        """View, create and edit text files.

        view shows a file with line numbers, an image, or the entries of a directory. create makes a
        file, or overwrites all of it. str_replace replaces old_str, which must be in the file
        exactly once, white space included. insert puts insert_text behind a line.

        Args:
            command: What to do.
            path: Relative to the working directory, or absolute.
            view_range: For view: the first and the last line, counted from 1; -1 is the end.
            file_text: For create: the whole text of the file.
            old_str: For str_replace: the text to replace, without line numbers.
            new_str: For str_replace: the text to put in its place; nothing removes it.
            insert_line: For insert: the line behind which to insert; 0 is the beginning.
            insert_text: For insert: the text to insert.
        """
        arguments = {"file_text": file_text, "old_str": old_str, "insert_line": insert_line}
        needed = {"create": "file_text", "str_replace": "old_str", "insert": "insert_line"}
        name = needed.get(command)
        if name is not None and arguments[name] is None:
            raise ToolError(f"{command} needs {name}.", "validation")
        match command:
            case "view" if view_range:
                first, last = view_range[0], view_range[-1]
                if len(view_range) != 2 or first < 1 or -1 != last < first:
                    raise ToolError("view_range takes [first, last], from 1; last may be -1.")
                return self.files.view(path, first, 1_000_000 if last == -1 else last - first + 1)
            case "view":
                return self.files.view(path)
            case "create":
                return self.files.write_text(path, file_text or "")
            case "str_replace":
                return self.files.edit(path, old_str or "", new_str or "")
            case "insert":
                # earlier versions of this editor call the text new_str
                text = new_str if insert_text is None else insert_text
                if text is None:
                    raise ToolError("insert needs insert_text.", "validation")
                return self.files.insert(path, insert_line or 0, text)

    def view_image(self, path: str) -> ToolResult:
        """Look at a picture: PNG, JPEG, GIF or WebP. A large one is scaled down.

        Args:
            path: Relative to the working directory, or absolute.
        """
        return self.files.view_image(path)

    def terminal_background(self, context: ToolContext, command: str) -> ToolResult:
        """Start a command that goes on while you do other things, such as a build, a long test or a
        server. The answer has its id. It starts in your shell's directory, has no input, and is
        ended with the conversation.

        Args:
            command: The command to run.
        """
        context.on_close(
            (self.shell, context.conversation_id),
            lambda: self.shell.close_conversation(context.conversation_id),
        )
        return self.shell.start_background(
            command,
            context.conversation_id,
            cancelled=context.cancelled,
            mark=context.process_environment,
            secrets=context.secrets,
        )

    def terminal_collect(
        self,
        context: ToolContext,
        id: str = "",
        wait: Annotated[float, Ge(0), Le(3600)] = 30,
        stop: bool = False,
    ) -> ToolResult:
        """Get the output of a background command since the last time, and its exit code once it has
        ended. The answer comes when it ends, or after `wait` seconds.

        Args:
            id: The command's id; leave it out to list all of them.
            wait: Seconds to wait for the end.
            stop: True ends the command first, with all that it started.
        """
        return self.shell.collect(
            context.conversation_id, id, wait=wait, stop=stop, cancelled=context.cancelled
        )
