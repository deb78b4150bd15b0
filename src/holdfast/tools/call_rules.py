"""The rules of a manager's calls: hooks, limits on concurrent calls, and limits on the length of
results. The whole text of a longer result goes to a file.

Limits are by patterns of tool names. A conversation has `Agent(output_limit=)`, which keeps whole
outputs in its store; `result_limit` serves a `ToolManager` without a conversation.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

import msgspec

from holdfast.content import Content, EmbeddedResource, TextContent, ToolCall, ToolResult
from holdfast.errors import ConfigurationError, ToolCancelled, ToolError
from holdfast.tools.arguments import is_whole, wrong
from holdfast.tools.context import Cancellation, ToolContext
from holdfast.tools.hooks import Hook, Hooks
from holdfast.tools.names import RUN_CODE
from holdfast.tools.patterns import name_fits
from holdfast.tools.results import OUTPUT
from holdfast.tools.running import error_result
from holdfast.tools.tool import Tool

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class CallRules(NamedTuple):
    """The rules of a manager's calls: hooks, limits by name pattern, pinned definitions."""

    hooks: tuple[Hook, ...]
    concurrency: dict[str, int]
    result_limit: dict[str, int]
    pinned: bool


class ConcurrencyLimit:
    """A limit on concurrent calls. Further calls wait for their turn, in order."""

    def __init__(self, calls: int) -> None:
        self._lock = threading.Lock()
        self._free = calls
        self._waiting: deque[threading.Event] = deque()

    def enter(self, cancelled: Cancellation) -> None:
        """Wait for a free slot and take it. Raises `ToolCancelled`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        remove_callback = cancelled.add_callback(turn.set)
        try:
            turn.wait()
        except BaseException:  # Ctrl-C
            if not self._withdraw(turn):
                self.leave()
            raise
        finally:
            remove_callback()
        if self._withdraw(turn):
            raise ToolCancelled("The call was cancelled while it waited for its turn.")

    def _withdraw(self, turn: threading.Event) -> bool:
        """Withdraw from the queue. Returns False if the slot was already assigned."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return True
        return False

    def leave(self) -> None:
        """Release the slot to the call that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class RuledCalls:
    """Calls under the rules of a manager, which its variants share. `rules` are as configured;
    `is_limited` is True if there are limits."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        concurrency: Mapping[str, int] | int | None,
        result_limit: Mapping[str, int] | int | None,
        result_dir: str | Path | None,
        pinned: bool,
    ) -> None:
        calls = _limits("concurrency", concurrency or {}, "calls", 1)
        lengths = _limits("result_limit", result_limit or {}, "characters", 200)
        if lengths and result_dir is None:
            raise ConfigurationError(
                "result_limit needs result_dir, a folder for the texts over the limit."
            )
        self.rules = CallRules(tuple(hooks), calls, lengths, pinned)
        self.hooks = Hooks(self.rules.hooks) if hooks else None
        self.is_limited = bool(calls or lengths)
        self._caps = [(pattern, ConcurrencyLimit(most)) for pattern, most in sorted(calls.items())]
        self._lengths = lengths
        self._folder = Path(result_dir or ".")

    def make(
        self,
        tool: Tool,
        call: ToolCall,
        context: ToolContext,
        attempts: Callable[[Tool, dict[str, Any], ToolContext], ToolResult],
        hooks: Hooks | None,
    ) -> ToolResult:
        """Make the attempts of a call within hooks and limits. Raises `ToolError`."""
        hooked_call = call
        added: list[str] = []
        if hooks is not None:
            answer = hooks.before(call, context, added)
            if isinstance(answer, ToolResult):
                return hooks.with_context(answer, added) if added else answer
            hooked_call = answer
        # a script holds no place: its calls take theirs, and would wait for it
        capped = self._caps and call.name != RUN_CODE
        with self._slots(call.name, context.cancelled) if capped else nullcontext():
            try:
                result = attempts(tool, hooked_call.arguments, context)
            except ToolError as error:
                if hooks is None:
                    raise
                result = error_result(error)
        if hooks is not None:
            if hooked_call is not call:
                result = hooks.with_arguments(result, hooked_call)
            result = hooks.after(hooked_call, result, context)
        result = self.limit_result(call, result)
        return hooks.with_context(result, added) if hooks is not None and added else result

    @contextmanager
    def _slots(self, name: str, cancelled: Cancellation) -> Generator[None]:
        """Hold a slot of each cap that matches a tool, always in the same order. Raises
        `ToolCancelled`."""
        with ExitStack() as slots:
            for pattern, cap in self._caps:
                if name_fits(name, pattern):
                    cap.enter(cancelled)
                    slots.callback(cap.leave)
            yield

    def limit_result(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Return a result with parts over the smallest matching limit moved to files.

        The limit holds for all texts together (including those of embedded resources), and for
        the structured content as JSON. Long texts become one text without its middle. Long
        structured content becomes `{"note": <place of the file>}`. If a file cannot be written,
        its content is lost, but the result is not.
        """
        limits = [
            limit for pattern, limit in self._lengths.items() if name_fits(call.name, pattern)
        ]
        if not limits or result.meta.get(OUTPUT) is True:
            return result
        limit = min(limits)
        stem = _UNSAFE.sub("_", f"{call.name}-{call.id}" if call.id else call.name)[:100]
        stem = f"{stem}-{uuid4().hex[:8]}"
        changes: dict[str, Any] = {}
        texts = [text for block in result.content if (text := _text(block)) is not None]
        if sum(map(len, texts)) > limit:
            text = "\n".join(texts)
            place = self._write_file(f"{stem}.txt", text, "text")
            whole = TextContent(_cut(text, limit, place))
            # The blocks without text, with one text at the position of the first.
            first = next(
                index for index, one in enumerate(result.content) if _text(one) is not None
            )
            rest = [block for block in result.content[first:] if _text(block) is None]
            changes["content"] = (*result.content[:first], whole, *rest)
        data = _json(result.structured_content)
        if len(data) > limit:
            place = self._write_file(f"{stem}.json", data, "JSON")
            note = f"{len(data):,} characters of JSON are left out: {place}."
            changes["structured_content"] = {"note": note}
        if result.error is not None and len(result.error.message) > limit:
            message = _cut(result.error.message, limit, "see the text of the result")
            changes["error"] = msgspec.structs.replace(result.error, message=message)
        return msgspec.structs.replace(result, **changes) if changes else result

    def _write_file(self, name: str, text: str, what: str) -> str:
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        except OSError as error:
            return f"the rest is lost: {path} cannot be written ({error.strerror})"
        return f"the whole {what} is in {path}"


def failed_result(error: ToolError, hooks: Hooks | None) -> ToolResult:
    """Return the result for an error, marked with the hook that caused it."""
    return error_result(error) if hooks is None else hooks.marked(error_result(error), error)


def _limits(argument: str, value: Any, unit: str, least: int) -> dict[str, int]:
    """Return the limits of an argument by patterns. Raises `ConfigurationError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"*": value}
    if not isinstance(value, Mapping):
        form = "a number, or a mapping of name patterns to numbers"
        raise wrong(f"ToolManager: {argument}", form, value)
    limits = dict(cast("Mapping[str, int]", value))
    for pattern, limit in limits.items():
        if not is_whole(limit, least):
            raise wrong(argument, f"a number of {unit} from {least} for {pattern!r}", limit)
    return limits


def _text(block: Content) -> str | None:
    if isinstance(block, TextContent):
        return block.text
    text = block.resource.get("text") if isinstance(block, EmbeddedResource) else None
    return text if isinstance(text, str) else None


def _json(data: Any) -> str:
    """Return the JSON of `data`; "" for None and for values that JSON cannot represent."""
    try:
        return "" if data is None else msgspec.json.encode(data).decode()
    except (TypeError, ValueError):
        return ""


def _cut(text: str, limit: int, where: str) -> str:
    end = limit // 4
    return (
        f"{text[: limit - end]}\n\n[... {len(text) - limit:,} of {len(text):,} characters left out;"
        f" {where} ...]\n\n{text[-end:]}"
    )
