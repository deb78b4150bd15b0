"""Scripts of code mode: the interpreter, the calls that a script makes, and its repetition.

A script has no state of its own in the journal, and runs from its beginning as often as needed. Its
clock and its randomness follow from the answer that made it. Its calls get the recorded results, in
the order of the journal. A call without a result then runs, or the attempt ends until there is a
decision.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events as ev
from holdfast.agent.code import CodeTools
from holdfast.agent.damage import stand_in
from holdfast.content import TextContent, ToolCall, ToolResult
from holdfast.conversation.calls import UNKNOWN, Calls
from holdfast.conversation.fold import made_by_script, turn
from holdfast.conversation.outputs import BLOBS
from holdfast.conversation.run_context import RunContext
from holdfast.conversation.verdicts import decide
from holdfast.errors import (
    ConversationClosed,
    ScriptDiverged,
    StoreError,
    ToolCancelled,
    WrongProcess,
)
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.object_struct import ObjectStruct
from holdfast.tools import ToolContext
from holdfast.tools.context import CallParked

if TYPE_CHECKING:
    import pydantic_monty as monty

# Round trips to the interpreter per permitted call: the call, its await, a few lookups of names.
_ROUND_TRIPS = 8
_GRACE_SECONDS = 1.0  # after the time limit, until the interpreter's process is killed
# Characters that a script may print beyond `CodeMode.output`; then it is ended. What exceeds
# `CodeMode.output` is cut.
_PRINT_ROOM = 1_000_000
_MAX_SHOWN_CALLS = 5  # calls that a message names

_LEFT = "the script ended before this call had a result."
DIVERGED = (
    "ScriptDiverged: the script was run again after an interruption, and {how}. It was ended. Its"
    " calls so far have happened. Check what is there before you repeat any."
)


class _ScriptEnded(Exception):
    """Ends a script, which cannot catch it, with a result."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.text)
        self.result = result


class Scripts(ObjectStruct):
    """The runner of the scripts of one conversation's calls."""

    _context: RunContext
    _calls: Calls

    def run(self, context: ToolContext, code: str, toolbox: CodeTools) -> ToolResult:
        """Run a script to its result. Raises `CallParked` if it waits for a decision or a client,
        or if the run is paused; `ScriptDiverged`; `ToolCancelled`."""
        script = _Script(self._context, self._calls, context, toolbox)
        try:
            result = script.run(code)
        except CallParked:
            raise
        except (ConversationClosed, StoreError, WrongProcess) as error:
            raise CallParked from error
        except BaseException:
            script.close()
            raise
        notes = script.close()
        return _with_note(result, notes) if notes else result


class _Printed:
    """The text that a script prints, up to `limit` characters. More than these call `overflow`,
    which ends the script: reading endless output costs this process as much as writing it costs
    the script."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._count = 0
        self.overflow: Callable[[], None] = lambda: None
        self.excess = ""
        """The message for a script that printed too much, or ""."""

    def __call__(self, stream: str, text: str) -> None:
        if self.excess:
            return
        self._parts.append(text)
        self._count += len(text)
        if self._count > self._limit:
            self.excess = f"The script was ended: it printed more than {self._limit:,} characters."
            self.overflow()

    @property
    def output(self) -> str:
        return "".join(self._parts)


class _Script:
    """One attempt of a script."""

    def __init__(
        self, context: RunContext, calls: Calls, call_context: ToolContext, toolbox: CodeTools
    ) -> None:
        import pydantic_monty

        self._monty = pydantic_monty
        self._context, self._calls, self._journal = context, calls, context.journal
        self._id, self._token = call_context.call_id, call_context.cancelled
        self._mode = toolbox.mode
        self._functions = toolbox.functions(context.agent.tools)
        self._tools = {one.tool.name: one.tool for one in self._functions.values()}
        with self._journal.lock:
            answer = self._journal.fold.assistant
            assert answer is not None  # of which this call is
        self._time = answer.timestamp
        self._last_seq = answer.seq  # the last event that was read
        self._recorded: dict[str, ToolCall] = {}
        self._arrived: list[tuple[str, ToolResult]] = []  # not yet given to the script, in order
        self._pending: dict[str, int] = {}  # the interpreter's numbers by call id
        self._new: list[ToolCall] = []  # made by the script, and not yet journaled
        self._call_count = 0

    # --- the interpreter ---

    def run(self, code: str) -> ToolResult:
        """Run the script until its result."""
        self._read()
        mode, printed = self._mode, _Printed(_PRINT_ROOM + self._mode.output)
        limits: monty.ResourceLimits = {
            "max_feed_duration_secs": mode.seconds,
            "max_memory": mode.memory,
            "max_suspensions": mode.calls * _ROUND_TRIPS + 1000,
        }
        policy: monty.OSPolicy = {
            "datetime": self._time,
            "sleep": "zero",
            "random_start": {"seed": f"{self._id} {self._time.isoformat()}"},
        }
        pool = self._monty.Monty(max_processes=1, feed_duration_limit_grace=_GRACE_SECONDS)
        failed, value = "", None
        try:
            with pool, pool.checkout(limits=limits, os_policy=policy) as session:
                stop = _killer(session.worker_pid)
                forget = self._token.add_callback(stop)
                printed.overflow = stop
                try:
                    value = self._drive(session.feed_start(code, print_callback=printed), printed)
                finally:
                    forget()
        except _ScriptEnded as ended:
            return _cut(printed.output, ended.result, mode.output)
        except self._monty.MontyCrashedError as error:
            self._check_cancelled()
            failed = f"The script was ended: {error}"
        except (self._monty.MontySyntaxError, self._monty.MontyRuntimeError) as error:
            failed = error.display("traceback")
        except self._monty.MontyError as error:
            failed = str(error)
        failed = printed.excess or failed
        result = ToolResult.failure(failed) if failed else ToolResult(_as_content(value))
        return _cut(printed.output, result, mode.output)

    def _drive(self, snapshot: monty.SyncSnapshot, printed: _Printed) -> Any:
        """Answer the interpreter until the script ends; return its value."""
        kinds = self._monty
        while not (printed.excess or isinstance(snapshot, kinds.MontyComplete)):
            if isinstance(snapshot, kinds.NameLookupSnapshot):
                name = snapshot.variable_name
                is_function = name in self._functions
                snapshot = (
                    snapshot.resume(value=_function_named(name))
                    if is_function
                    else snapshot.resume()
                )
            elif isinstance(snapshot, kinds.FunctionSnapshot):
                if snapshot.is_os_function:
                    snapshot = snapshot.resume_not_handled()
                    continue
                answer: Any = {"future": ...}
                try:
                    call = self._call(str(snapshot.function_name), snapshot.args, snapshot.kwargs)
                    self._pending[call.id] = snapshot.call_id
                except (NameError, TypeError, ValueError) as error:
                    answer = {"exception": error}
                snapshot = snapshot.resume(answer)
            else:
                call_id, result = self._next()
                number = self._pending.pop(call_id)
                snapshot = snapshot.resume({number: self._outcome(call_id, result)})
        if printed.excess:
            raise _ScriptEnded(ToolResult.failure(printed.excess))
        assert isinstance(snapshot, kinds.MontyComplete)
        return snapshot.output

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
        """Return the next call of the script. Raises `NameError`, `TypeError` or `ValueError` for
        the script, and `ScriptDiverged`."""
        function = self._functions.get(name)
        if function is None:
            near = difflib.get_close_matches(name, self._functions, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise NameError(f"name {name!r} is not defined.{hint}")
        if len(args) > len(function.parameters):
            raise TypeError(f"{name}() takes keyword arguments.")
        arguments = dict(zip(function.parameters, args, strict=False))
        if twice := arguments.keys() & kwargs.keys():
            raise TypeError(f"{name}() got multiple values for argument {min(twice)!r}")
        data = _arguments(name, {**arguments, **kwargs})
        if self._call_count >= self._mode.calls:
            text = f"The script was ended: it may make {self._mode.calls:,} calls."
            raise _ScriptEnded(ToolResult.failure(text))
        call = ToolCall(
            f"{self._id}.{self._call_count}", function.tool.name, msgspec.json.decode(data)
        )
        if self._journal.secrets is not None:
            call = self._journal.secrets.mask_value(call)
        self._call_count += 1
        earlier = self._recorded.get(call.id)
        if earlier is None:
            self._new.append(call)
        elif (earlier.name, earlier.arguments_hash) != (call.name, call.arguments_hash):
            how = f"call {call.id} is now {_brief(call)}, not {_brief(earlier)}"
            raise ScriptDiverged(DIVERGED.format(how=how))
        return call

    def _outcome(self, call_id: str, result: ToolResult) -> Any:
        """Return a result for the interpreter. A call with an unknown outcome, and one that an
        interrupt kept from running, end the script."""
        error = result.error
        if result.meta.get("outcome") == "unknown":
            text = (
                f"The script was ended at its call {_brief(self._recorded[call_id])}:"
                f" {result.text or UNKNOWN}"
            )
            meta = {"outcome": "unknown"}
            raise _ScriptEnded(ToolResult.failure(text, "unknown", meta=meta))
        if error is not None and error.type == "cancelled" and "decision" not in result.meta:
            raise _ScriptEnded(
                ToolResult.failure(f"The script was ended: {result.text}", "cancelled")
            )
        if result.is_error:
            return {"exception": RuntimeError(result.text)}
        return {"return_value": _value(result)}

    # --- the journal ---

    def _read(self) -> None:
        """Read the calls of this script and their results that were appended since."""
        with self._journal.lock:
            events = self._journal.after(self._last_seq)
        for event in events:
            if type(event) is ev.DamagedEvent:
                event = stand_in(event) or event
            if type(event) is ev.CodeCallsMade and event.call_id == self._id:
                if event.interpreter != self._interpreter:
                    how = f"its interpreter is now {self._interpreter}, not {event.interpreter}"
                    raise ScriptDiverged(DIVERGED.format(how=how))
                self._recorded |= {call.id: call for call in event.calls}
            elif type(event) is ev.ToolCallFinished and event.call_id in self._recorded:
                self._arrived.append((event.call_id, event.result))
        if events:
            self._last_seq = events[-1].seq

    @property
    def _interpreter(self) -> str:
        return f"monty {self._monty.__version__}"

    def _next(self) -> tuple[str, ToolResult]:
        """Return the call whose result the script is given next, and the whole result. Of the
        awaited results, the first one in the journal comes next. Raises `CallParked` if none
        comes."""
        if self._new:
            self._issue()
        while True:
            for index, (call_id, result) in enumerate(self._arrived):
                if call_id in self._pending:
                    del self._arrived[index]
                    if BLOBS in result.meta:
                        result = self._journal.output(call_id) or result
                    return call_id, result
            self._advance()

    def _advance(self) -> None:
        """Run or settle the calls whose turn it is. Raises `CallParked` if none can proceed."""
        before = self._last_seq
        with self._journal.lock:
            now = self._journal.fold.nested(self._id)
            orphans = [item.call for item in now if item.attempt and not item.runner]
            ready = [item.call for item in now if item.ready]
        self._check_cancelled()
        if orphans:
            self._calls.recover(orphans, self._id)
        elif ready:
            self._calls.run(ready, (), self._token, None, self._id)
        self._read()
        if self._last_seq == before:
            raise CallParked

    def _check_cancelled(self) -> None:
        """Raise `ToolCancelled` after an interrupt, and `CallParked` if the conversation closes."""
        if self._context.closing:
            raise CallParked
        if self._token:
            raise ToolCancelled("The script was cancelled.")

    def _issue(self) -> None:
        """Append the new calls, the decisions on them and the starts of calls that run at once, and
        run these."""
        calls, self._new = tuple(self._new), []
        context, journal = self._context, self._journal
        tools = self._tools
        clients = [call for call in calls if tools[call.name].executor == "client"]
        verdicts = decide(context, calls, self._token)
        names = {call.name for call in clients}
        refusals = self._calls.refuse_client_calls(calls, verdicts, names)
        ready: list[ToolCall] = []
        started: list[ToolCall] = []
        with journal:
            event = journal.add(
                ev.CodeCallsMade,
                call_id=self._id,
                calls=calls,
                parallel=tuple([call.id for call in calls if tools[call.name].parallel]),
                clients=tuple([call.id for call in clients]),
                interpreter=self._interpreter,
            )
            before = [item for item in journal.fold.open.values() if item.parent == self._id]
            items = {item.call.id: item for item in before} | made_by_script(event)
            for index, result in refusals.items():
                self._calls.write_start(calls[index], 1)
                self._calls.write_result(calls[index], result)
                del items[calls[index].id]
            for index, (call, verdict) in enumerate(zip(calls, verdicts, strict=False)):
                if index in refusals:
                    continue
                self._calls.write_decision(call, verdict)
                if verdict.decision == "deny":
                    del items[call.id]
                elif verdict.decision == "ask":
                    items[call.id].ask_reason = verdict.reason
            if context.may_ask and not self._token:
                ready = [item.call for item in turn(items.values()) if item.ready]
                started = ready[: context.agent.parallel_calls]
                for call in started:
                    self._calls.write_start(call, 1)
        if started:
            ids = {call.id for call in started}
            self._calls.run(ready, ids, self._token, None, self._id)
        self._read()

    def close(self) -> list[str]:
        """Settle the calls that the script left open; calls that have begun have an unknown
        outcome. Return notes on calls whose result the script does not have."""
        journal, notes = self._journal, list[str]()
        if self._new:
            notes.append(
                f"[Not run, because the script did not await it: {_named_calls(self._new)}]"
            )
        with journal.lock:
            unsettled = [item for item in journal.fold.open.values() if item.parent == self._id]
        if not unsettled:
            return notes
        with journal:
            for item in unsettled:
                self._calls.write_settled(item, _LEFT, "unknown")
        unknown = [item.call for item in unsettled if item.attempt]
        if unknown:
            notes.append(f"[The outcome of {_named_calls(unknown)} is unknown. {UNKNOWN}]")
        return notes


def _killer(pid: int | None) -> Callable[[], None]:
    """Return a function that ends the interpreter's process."""

    def kill() -> None:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return kill


def _function_named(name: str) -> Callable[..., None]:
    """Return a value that the interpreter takes for an outer function of this name."""

    def function() -> None:
        pass

    function.__name__ = name
    return function


def _arguments(name: str, arguments: dict[str, Any]) -> bytes:
    """Return the arguments of a call as JSON. Raises `TypeError` or `ValueError` for the script."""
    try:
        data = msgspec.json.encode(arguments)
        deep = too_deep(data, MAX_DEPTH)
    except RecursionError:
        data, deep = b"", True
    if deep:
        raise ValueError(f"{name}(): the arguments are nested deeper than {MAX_DEPTH} levels")
    if b"null" in data:  # also the form of a number that JSON does not have
        try:
            json.dumps(arguments, allow_nan=False, default=str)
        except ValueError:
            raise ValueError(
                f"{name}(): the arguments hold nan or an infinite number, which is not JSON"
            ) from None
    return data


def _value(result: ToolResult) -> Any:
    """Return a result as the value of a call: its structured content, else its text, with a line
    for each block of another kind."""
    if result.structured_content is not None:
        return result.structured_content
    texts = [
        block.text if isinstance(block, TextContent) else f"[{type(block).__name__}]"
        for block in result.content
    ]
    return "\n".join(texts) if texts else None


def _as_content(value: Any) -> tuple[TextContent, ...]:
    """Return the value of a script's last expression as content; nothing for None."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextContent(value),)
    try:
        try:
            text = msgspec.json.encode(value).decode()
        except (TypeError, ValueError):
            text = repr(value)
        deep = too_deep(text)  # Pythons differ in how deep they go
    except RecursionError:
        deep, text = True, ""
    if deep:
        text = f"(a {type(value).__name__} that is nested too deeply to be shown)"
    return (TextContent(text),)


def _cut(printed: str, result: ToolResult, limit: int) -> ToolResult:
    """Return a result after the text that the script printed, each with at most `limit`
    characters. An error keeps its end, which is what went wrong."""
    text, texts = printed.rstrip("\n"), list[str]()
    if len(text) > limit:
        text = f"{text[:limit]}\n[{len(text) - limit:,} more characters were left out]"
    texts += [text] if text else []
    text = result.text
    if len(text) > limit:
        end = limit // 2 if result.is_error else 0
        left_out = f"[{len(text) - limit:,} more characters were left out]"
        text = "\n".join([text[: limit - end], left_out, *([text[-end:]] if end else [])])
    texts += [text] if text else []
    content = TextContent("\n".join(texts) or "(The script printed nothing.)")
    return msgspec.structs.replace(result, content=(content,))


def _with_note(result: ToolResult, notes: list[str]) -> ToolResult:
    text = "\n".join([result.text, *notes])
    return msgspec.structs.replace(result, content=(TextContent(text),))


def _named_calls(calls: list[ToolCall]) -> str:
    text = ", ".join([_brief(call) for call in calls[:_MAX_SHOWN_CALLS]])
    more = len(calls) - _MAX_SHOWN_CALLS
    return f"{text} and {more:,} more" if more > 0 else text


def _brief(call: ToolCall) -> str:
    text = f"{call.name}({call.raw_arguments})"
    return text if len(text) <= 200 else f"{text[:200]}...)"
