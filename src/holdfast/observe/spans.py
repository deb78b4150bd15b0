"""Conversion of one conversation's events and calls to spans: runs, model calls, tool calls and
condensations. A `SpanMaker` creates the spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast import events as ev
from holdfast.content import Usage
from holdfast.llm.retry import retry_listener
from holdfast.observe import names
from holdfast.observe.content import answer_json, cut, messages_json, prompt_json

if TYPE_CHECKING:
    from holdfast.agent.condenser import Condensed
    from holdfast.content import ToolCall
    from holdfast.conversation.observer import OnOutcome, Undo
    from holdfast.conversation.state import Fold
    from holdfast.llm.completion import Completion

S = TypeVar("S")

Attributes = dict[str, Any]

_MAX_INPUT_EVENTS = 100  # messages and results kept as content of the next request's span
_NO_USAGE = Usage()
_PARAMETERS = (
    ("temperature", names.TEMPERATURE),
    ("top_p", names.TOP_P),
    ("max_tokens", names.MAX_TOKENS),
    ("max_output_tokens", names.MAX_TOKENS),
)


def no_undo() -> None:
    """Do nothing."""


class SpanStart(NamedTuple, Generic[S]):
    """The beginning of a span. Without a parent, the span begins below the current span of this
    thread."""

    name: str
    attributes: Attributes
    parent: S | None = None
    client: bool = False  # True for a request to another service
    ago: float = 0.0  # seconds since the beginning
    link: S | None = None


class SpanMaker(Generic[S]):
    """The base of observers that make spans."""

    content = False
    """True if spans hold messages, answers, arguments and results."""
    on_event: Callable[[str, ev.AnyEvent], None] | None = None
    """A function that receives each conversation's events, too."""

    def watch(
        self, conversation_id: str, fold: Callable[[], Fold] | None, elsewhere: bool = False
    ) -> Spans[S]:
        """See `Observer.watch`."""
        return Spans(self, conversation_id, fold, None, elsewhere)

    def headers(self) -> Mapping[str, str]:
        """See `Observer.headers`."""
        return {}

    def start(self, opening: SpanStart[S]) -> S:
        """Begin a span."""
        raise NotImplementedError

    def note(self, span: S, name: str, attributes: Attributes) -> None:
        """Add an event to a span."""
        raise NotImplementedError

    def end(self, span: S, attributes: Attributes, error: str = "", message: str = "") -> None:
        """End a span. `error` is the type of its failure, or ""."""
        raise NotImplementedError

    def enter(self, span: S) -> Undo:
        """Make a span current on this thread, until the returned function is called."""
        return no_undo

    def measure(
        self,
        seconds: float,
        usage: Usage,
        cost: float | None,
        labels: Attributes,
        server_tools: Sequence[str] = (),
    ) -> None:
        """Record the metrics of an operation. `server_tools` are the names of the calls that the
        provider ran."""


class _OpenSpan(NamedTuple, Generic[S]):
    """An open span of a tool call, or of a model call with the model's `host`."""

    span: S
    name: str
    started: float
    host: str = ""


class Spans(Generic[S]):
    """A `Watch` of one conversation. `elsewhere` is True if another process calls the model;
    then only events arrive here."""

    def __init__(
        self,
        maker: SpanMaker[S],
        id: str,
        fold: Callable[[], Fold] | None,
        above: Callable[[], S | None] | None = None,
        elsewhere: bool = False,
    ) -> None:
        self._maker = maker
        self._id = id
        self._fold = fold
        self._parent_span = above
        self._elsewhere = elsewhere
        # Guards the begin and end of a run. Not held while a span ends, because that may export it.
        self._lock = threading.Lock()
        self._closed = False
        self._run: S | None = None
        self._waiting_run: S | None = None  # the run that waits for a confirmation
        self._model_call: _OpenSpan[S] | None = None
        self._calls: dict[str, _OpenSpan[S]] = {}
        self._pending_calls: dict[str, ToolCall] = {}  # requested calls without a result
        self._decisions: dict[str, Attributes] = {}
        self._head: ev.AgentConfigured | None = None
        self._error = ("", "")
        self._input_events: list[ev.AnyEvent] = []
        self._steps, self._usage, self._cost = 0, _NO_USAGE, 0.0

    # --- runs ---

    def _current_run(self) -> S | None:
        """Return the run's span, or None after closing. A run begun by a lost process gets a new
        span here."""
        run = self._run
        return self._begin(True) if run is None and not self._closed else run

    def _begin(self, resumed: bool) -> S | None:
        with self._lock:
            if self._run is not None or self._closed:
                return self._run
            head = self._known_head()
            attributes = self._operation(names.INVOKE_AGENT)
            title = names.INVOKE_AGENT
            if head is not None and head.name:
                attributes[names.AGENT_NAME] = head.name
                title += f" {head.name}"
            if resumed:
                attributes[names.RESUMED] = True
            above = None if self._parent_span is None else self._parent_span()
            last, self._waiting_run = self._waiting_run, None
            self._run = self._maker.start(SpanStart(title, attributes, above, link=last))
            self._steps, self._usage, self._cost, self._error = 0, _NO_USAGE, 0.0, ("", "")
            return self._run

    def _operation(self, name: str) -> Attributes:
        return {names.OPERATION: name, names.CONVERSATION: self._id}

    def _end(self, status: str, cut_off: bool = False) -> None:
        with self._lock:
            run, self._run = self._run, None
            if run is None:
                return
            if status == "waiting_for_confirmation":
                self._waiting_run = run
        attributes: Attributes = {
            names.STATUS: status,
            names.STEPS: self._steps,
            **_usage_attributes(self._usage, self._cost),
        }
        head = self._known_head()
        if head is not None:
            attributes[names.PROVIDER] = names.provider_of(head.parameters.get("host", ""))
            attributes[names.REQUEST_MODEL] = head.model
            if self._maker.content:
                attributes[names.SYSTEM_INSTRUCTIONS] = prompt_json(head)
        if cut_off:
            attributes[names.CUT_OFF] = True
        error, message = {"error": self._error, "stuck": ("stuck", "")}.get(status, ("", ""))
        self._maker.end(run, attributes, error, message if self._maker.content else "")

    def _known_head(self) -> ev.AgentConfigured | None:
        return self._head if self._head is not None or self._fold is None else self._fold().agent

    # --- events ---

    def on_events(self, events: Sequence[ev.AnyEvent]) -> None:
        """See `Watch.on_events`."""
        if self._maker.on_event is not None:
            for event in events:
                self._maker.on_event(self._id, event)
        if not self._closed:
            for event in events:
                self._on_event(event)

    def _on_event(self, event: ev.AnyEvent) -> None:
        match event:  # the most frequent events first
            case ev.ToolCallStarted():
                self._on_tool_start(event)
            case ev.ToolCallFinished():
                self._on_tool_result(event)
            case ev.AssistantReplied():
                self._on_answer(event)
            case ev.CodeCallsMade():
                self._pending_calls.update({call.id: call for call in event.calls})
            case ev.StatusChanged(status="running"):
                self._begin(False)
            case ev.StatusChanged():
                self._end(event.status)
            case ev.DecisionMade():
                self._add_usage(event.usage, event.cost)
                self._on_decision(event)
            case ev.AgentConfigured():
                self._head = event
            case ev.MessageAdded():
                self._add_usage(event.usage, event.cost)
                self._keep_input(event)
                if event.about:
                    self._note(names.NOTE, {names.ABOUT: event.about})
            case ev.HistoryCondensed():
                self._add_usage(event.usage, event.cost)
                if self._elsewhere and event.request is None:
                    hidden = {names.HIDDEN: len(event.hidden)}
                    self._note(names.CONDENSE, {**hidden, names.REQUEST_MODEL: event.model})
            case ev.AsideAnswered():
                self._add_usage(event.usage, event.cost)
                self._note(names.NOTE, {names.ABOUT: "aside"})
            case ev.ErrorRecorded():
                self._error = (event.error, event.message)
            case ev.NoteRecorded():
                self._add_usage(event.usage, event.cost)
                self._note(names.NOTE, {names.ABOUT: event.about})
            case _:
                pass

    def _add_usage(self, usage: Usage, cost: float | None) -> None:
        if usage is not _NO_USAGE and usage != _NO_USAGE:
            self._usage += usage
        self._cost += cost or 0.0

    def _keep_input(self, event: ev.AnyEvent) -> None:
        if self._maker.content and len(self._input_events) < _MAX_INPUT_EVENTS:
            self._input_events.append(event)

    def _note(self, name: str, attributes: Attributes) -> None:
        if self._run is not None:
            self._maker.note(self._run, name, attributes)

    def _on_answer(self, event: ev.AssistantReplied) -> None:
        self._steps += 1
        self._usage += event.usage
        self._cost += event.cost or 0.0
        for call in event.calls:
            self._pending_calls[call.id] = call
        if self._elsewhere:
            chat = self._start_chat(self._known_head(), event.duration)
            self._end_chat(chat, event, event.duration)

    def _on_decision(self, event: ev.DecisionMade) -> None:
        opened = self._calls.get(event.call_id)
        if event.question is not None or event.question_id:
            name, id = names.ANSWERED, event.question_id
            if event.question is not None:
                name, id = names.ASKED, event.question.id
            if opened is not None:
                fields = {names.QUESTION: id, names.DECISION: event.decision}
                self._maker.note(opened.span, name, fields)
            return
        decision: Attributes = {names.DECISION: event.decision, names.DECIDED_BY: event.by}
        if event.risk:
            decision[names.RISK] = event.risk
        call = self._find_call(event.call_id)
        of = {names.TOOL_CALL_ID: event.call_id, names.TOOL_NAME: "" if call is None else call.name}
        self._note(names.DECISION, {**of, **decision})
        self._decisions[event.call_id] = {**self._decisions.get(event.call_id, {}), **decision}

    def _find_call(self, call_id: str) -> ToolCall | None:
        call = self._pending_calls.get(call_id)
        if call is None and self._fold is not None:
            opened = self._fold().open.get(call_id)
            return None if opened is None else opened.call
        return call

    def _on_tool_start(self, event: ev.ToolCallStarted) -> None:
        opened = self._calls.get(event.call_id)
        if opened is not None:
            self._maker.note(opened.span, names.RETRY, {names.ATTEMPT: event.attempt})
            return
        call = self._find_call(event.call_id)
        name = "unknown" if call is None else call.name
        attributes = self._operation(names.EXECUTE_TOOL)
        attributes[names.TOOL_NAME] = name
        attributes[names.TOOL_CALL_ID] = event.call_id
        if event.attempt > 1:
            attributes[names.ATTEMPT] = event.attempt
        if event.runner:
            attributes[names.RUNNER] = event.runner
        if event.call_id in self._decisions:
            attributes |= self._decisions[event.call_id]
        if self._maker.content and call is not None:
            attributes[names.TOOL_ARGUMENTS] = cut(call.raw_arguments)
        title = f"{names.EXECUTE_TOOL} {name}"
        span = self._maker.start(SpanStart(title, attributes, self._current_run()))
        self._calls[event.call_id] = _OpenSpan(span, name, time.perf_counter())

    def _on_tool_result(self, event: ev.ToolCallFinished) -> None:
        self._keep_input(event)
        self._decisions.pop(event.call_id, None)
        call = self._pending_calls.pop(event.call_id, None)
        opened = self._calls.pop(event.call_id, None)
        result = event.result
        if opened is None:
            if result.meta.get("outcome") == "unknown":
                name = "unknown" if call is None else call.name
                of = {names.TOOL_CALL_ID: event.call_id, names.TOOL_NAME: name}
                self._note(names.NOTE, {names.ABOUT: "outcome:unknown", **of})
            return
        content = {names.TOOL_RESULT: cut(result.text)} if self._maker.content else {}
        error = message = ""
        if result.error is not None:
            error = result.error.type
            message = result.error.message if error and self._maker.content else ""
        elif result.is_error:
            error = "tool_error"
        self._maker.end(opened.span, content, error, message)
        labels: Attributes = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: opened.name}
        if error:
            labels[names.ERROR_TYPE] = error
        self._maker.measure(time.perf_counter() - opened.started, _NO_USAGE, None, labels)

    # --- operations on this thread ---

    def asking(self, head: ev.AgentConfigured) -> OnOutcome[Completion]:
        """See `Watch.asking`."""
        self._head = head
        chat = self._model_call = self._start_chat(head)
        token = retry_listener.set(partial(self._note_retry, chat.span))
        undo = self._maker.enter(chat.span)

        def done(outcome: Completion | BaseException | None) -> None:
            undo()
            retry_listener.reset(token)
            if self._model_call is chat:  # otherwise it was closed meanwhile
                self._model_call = None
                self._end_chat(chat, outcome, time.perf_counter() - chat.started)

        return done

    def _start_chat(self, head: ev.AgentConfigured | None, ago: float = 0.0) -> _OpenSpan[S]:
        model = "unknown" if head is None else head.model
        parameters: Mapping[str, Any] = {} if head is None else head.parameters
        host = parameters.get("host", "")
        attributes = self._operation(names.CHAT)
        attributes[names.PROVIDER] = names.provider_of(host)
        attributes[names.REQUEST_MODEL] = model
        if host:
            attributes[names.SERVER_ADDRESS] = host
        for setting, name in _PARAMETERS:
            if isinstance(value := parameters.get(setting), int | float):
                attributes[name] = value
        if self._maker.content:
            attributes[names.INPUT_MESSAGES] = messages_json(self._input_events)
        opening = SpanStart(f"{names.CHAT} {model}", attributes, self._current_run(), True, ago)
        return _OpenSpan(self._maker.start(opening), model, time.perf_counter(), host)

    def _end_chat(
        self,
        chat: _OpenSpan[S],
        outcome: Completion | ev.AssistantReplied | BaseException | None,
        seconds: float,
    ) -> None:
        self._input_events.clear()
        labels: Attributes = {names.OPERATION: names.CHAT, names.REQUEST_MODEL: chat.name}
        if isinstance(outcome, BaseException) or outcome is None:
            error = "_OTHER" if outcome is None else type(outcome).__name__
            status = getattr(outcome, "status", None)
            failure = {names.HTTP_STATUS: status} if isinstance(status, int) and status else {}
            self._maker.end(chat.span, failure, error, str(outcome))
            labels |= {names.PROVIDER: names.provider_of(chat.host), names.ERROR_TYPE: error}
            self._maker.measure(seconds, _NO_USAGE, None, labels)
            return
        provider = names.provider_of(outcome.host or chat.host)
        model = outcome.model or chat.name
        attributes: Attributes = {
            names.PROVIDER: provider,
            names.RESPONSE_MODEL: model,
            names.FINISH_REASONS: (outcome.stop_reason,),
            **_usage_attributes(outcome.usage, outcome.cost),
        }
        if outcome.response_id:
            attributes[names.RESPONSE_ID] = outcome.response_id
        if outcome.route:
            attributes[names.ROUTE] = outcome.route
        if outcome.details is not None:
            attributes |= _details_attributes(outcome, provider)
        if self._maker.content:
            attributes[names.OUTPUT_MESSAGES] = answer_json(outcome)
        self._maker.end(chat.span, attributes)
        labels |= {names.PROVIDER: provider, names.RESPONSE_MODEL: model}
        server_tools = [call.name for call in outcome.server_calls]
        self._maker.measure(seconds, outcome.usage, outcome.cost, labels, server_tools)

    def _note_retry(self, span: S, error: Exception, number: int, seconds: float) -> None:
        fields = {names.ERROR_TYPE: type(error).__name__, names.ATTEMPT: number + 1}
        with suppress(Exception):
            # A failure of the maker must not prevent the retry.
            self._maker.note(span, names.RETRY, {**fields, names.DELAY: seconds})

    def calling(self, call_id: str) -> Undo:
        """See `Watch.calling`."""
        opened = self._calls.get(call_id)
        return no_undo if opened is None else self._maker.enter(opened.span)

    def condensing(self) -> OnOutcome[Condensed]:
        """See `Watch.condensing`."""
        # There may be no run now.
        operation = self._operation(names.CONDENSE)
        span = self._maker.start(SpanStart(names.CONDENSE, operation, self._run))
        undo = self._maker.enter(span)

        def done(outcome: Condensed | BaseException | None) -> None:
            undo()
            attributes: Attributes = {}
            error = message = ""
            if isinstance(outcome, BaseException):
                error = type(outcome).__name__
                message = str(outcome) if self._maker.content else ""
            elif outcome is None:
                attributes[names.HIDDEN] = 0
            else:
                attributes[names.HIDDEN] = len(outcome.hidden)
                attributes |= _usage_attributes(outcome.usage, outcome.cost)
                if outcome.model:
                    attributes[names.REQUEST_MODEL] = outcome.model
            self._maker.end(span, attributes, error, message)

        return done

    def spawned(
        self, conversation_id: str, fold: Callable[[], Fold] | None, call_id: str
    ) -> Spans[S]:
        """See `Watch.spawned`."""
        opened = self._calls.get(call_id)  # the call may have ended: a child may outlive it
        above = (lambda: self._run) if opened is None else (lambda: opened.span)
        return Spans(self._maker, conversation_id, fold, above, self._elsewhere)

    def close(self) -> None:
        """See `Watch.close`."""
        with self._lock:
            self._closed = True
        while self._calls:
            try:
                _, opened = self._calls.popitem()
            except KeyError:  # another thread took it
                break
            self._maker.end(opened.span, {names.CUT_OFF: True})
        chat, self._model_call = self._model_call, None
        if chat is not None:
            self._maker.end(chat.span, {names.CUT_OFF: True})
        self._end("closed", cut_off=True)


def _details_attributes(answer: Completion | ev.AssistantReplied, provider: str) -> Attributes:
    """Return the attributes of an answer's details."""
    attributes: Attributes = {}
    if answer.server_calls:
        attributes[names.SERVER_TOOLS] = tuple([call.name for call in answer.server_calls])
    if answer.citations:
        attributes[names.CITATIONS] = len(answer.citations)
    if answer.service_tier and provider in ("openai", "azure.ai.openai"):
        attributes[names.SERVICE_TIER] = answer.service_tier
    if answer.provider_cost is not None:
        attributes[names.PROVIDER_COST] = answer.provider_cost
        if answer.list_cost is not None:
            attributes[names.LIST_COST] = answer.list_cost
    return attributes


def _usage_attributes(usage: Usage, cost: float | None) -> Attributes:
    attributes: Attributes = {}
    if usage.input_tokens or usage.output_tokens:
        for field, name, kind in names.USAGE_ATTRIBUTES:
            count = getattr(usage, field)
            if count or not kind:
                attributes[name] = count
    if cost:
        attributes[names.COST] = cost
    return attributes
