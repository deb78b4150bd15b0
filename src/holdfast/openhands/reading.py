"""Reading a conversation of OpenHands' SDK from its folder: `base_state.json`, and one event each
in `events/event-00000-<id>.json`, ...

The result is an ordinary journal. The actions of one answer become one `AssistantReplied` event.
Usage and cost come from the statistics in the base state, by the answer's id. Fields without a
place in a journal (risks, summaries, the provider's thinking blocks) are kept in a `NoteRecorded`
about `openhands`. Events of other kinds are kept as `UnknownEvent`. Nothing is lost either way.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast import events as ev
from holdfast.content import Content, TextContent, ToolCall, ToolResult, Usage
from holdfast.conversation.state import AT_REST, ConversationState, ConversationStatus
from holdfast.error_text import describe_error
from holdfast.errors import ConfigurationError
from holdfast.nesting import MAX_DOCUMENT_DEPTH, too_deep
from holdfast.openhands import shims
from holdfast.openhands.shims import Fields, mapping
from holdfast.tools.names import word_set
from holdfast.tools.results import clean

ABOUT = "openhands"  # the subject of notes that keep the rest of OpenHands' events
# The key in such a note of an action's kind, if it does not follow from the tool's name.
ACTION_KIND = "action_kind"
# The fields of an action that the call's arguments do not have, such as defaults.
ACTION_FIELDS = "action_fields"
PREFIX = "openhands/"  # of the type of an event that is kept verbatim

_ID = re.compile(r"[\w.:-]{1,200}")
_NAME = re.compile(r"event-(\d+)-(.+)\.json")
_S = ConversationStatus
_STATUSES = {status.value: status for status in _S if status is not _S.CLOSED}
_CUT_OFF = (
    "This conversation was imported from OpenHands, where this call has no result: its outcome is"
    " unknown. It may have happened, in part or whole, or not at all. Check what is there before"
    " you repeat it."
)

# The fields of an answer's events that journal events contain; a note keeps the rest.
_JOURNALED_FIELDS = word_set(
    "id timestamp source kind thought reasoning_content tool_name tool_call_id tool_call"
    " llm_response_id action"
)
# The fields of a result's event that the writer makes again.
_TOKENS = ("prompt", "completion", "cache_read", "cache_write", "reasoning")
_REWRITTEN_FIELDS = frozenset(("id", "timestamp", "source", "tool_name", "action_id"))
_EMPTY_VALUES: tuple[Any, ...] = (None, [], {}, "", "UNKNOWN")


# Errors that reading a malformed event raises. (`ConfigurationError` is a `ValueError`,
# `KeyError` and `IndexError` are `LookupError`s.)
_FORMAT_ERRORS = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError)


class Imported(msgspec.Struct, frozen=True):
    """An imported OpenHands conversation. `notes` describe the parts that changed in the import.
    `model`, `tools` and `workdir` are those of the OpenHands agent."""

    state: ConversationState
    notes: tuple[str, ...] = ()
    model: str = ""
    tools: tuple[str, ...] = ()
    workdir: str = ""


def read_conversation(folder: str | os.PathLike[str]) -> Imported:
    """Return the conversation in a folder in OpenHands' format.

    `Conversation.from_state(read_conversation(folder).state, agent)` continues it with any agent. A
    call without a result has an unknown outcome, which the model is shown. A call that waited for
    confirmation still waits. A conversation that was running becomes PAUSED. Unreadable parts are
    kept verbatim or named in `notes`.

    Raises `ConfigurationError` (a `ValueError`), which names the unreadable file, if there is no
    such conversation.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigurationError(
            f"There is no folder {str(folder)!r}. Give the one with base_state.json and events/."
        )
    base: Fields = {}
    notes: list[str] = []
    path = root / "base_state.json"
    if path.is_file():
        try:
            base = msgspec.json.decode(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        if not isinstance(base, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{path} does not hold a JSON object.")
    elif not (root / "events").is_dir():
        inside = sorted(str(path.parent.name) for path in root.glob("*/base_state.json"))
        more = ", ..." if len(inside) > 5 else ""
        hint = f" There are conversations in it: {', '.join(inside[:5])}{more}." if inside else ""
        raise ConfigurationError(
            f"{str(folder)!r} is not an OpenHands conversation: it has neither base_state.json nor"
            f" events/.{hint}"
        )
    if not base:
        notes.append("base_state.json is missing: usage, cost and status are unknown")
    reader = _Reader(base, notes)
    events = reader.read(_events(root / "events", notes))
    id = base.get("id")
    if not isinstance(id, str) or not _ID.fullmatch(id):
        id = root.resolve().name
    tools = _objects(mapping(base.get("agent")).get("tools"))
    return Imported(
        ConversationState(id, events),
        tuple(notes),
        reader.model,
        tuple([str(tool.get("name")) for tool in tools if tool.get("name")]),
        str(mapping(base.get("workspace")).get("working_dir") or ""),
    )


def _events(folder: Path, notes: list[str]) -> list[tuple[Fields, bytes]]:
    """Return the events in order, each with its bytes."""
    files: list[tuple[int, str]] = []
    if folder.is_dir():
        for entry in os.scandir(folder):
            fits = _NAME.fullmatch(entry.name)
            if fits is not None and entry.is_file(follow_symlinks=False):
                files.append((int(fits[1]), entry.path))
            elif not entry.name.startswith("."):
                notes.append(f"events/{entry.name} is not an event's file and was left out")
    files.sort()
    events: list[tuple[Fields, bytes]] = []
    expected = 0
    for index, path in files:
        if index == expected + 1:
            notes.append(f"event {expected} is not there")
        elif index > expected:
            notes.append(f"events {expected} to {index - 1} are not there")
        elif index < expected:
            notes.append(f"there are two events {index}; both were read")
        expected = index + 1
        data, problem = Path(path).read_bytes(), ""
        try:
            if too_deep(data, MAX_DOCUMENT_DEPTH):
                problem = f"is nested deeper than {MAX_DOCUMENT_DEPTH} levels and was left out"
            elif isinstance(event := msgspec.json.decode(data), dict):
                events.append((cast(Fields, event), data))
            else:
                problem = "is not an event and was left out"
        except ValueError as error:
            problem = f"is not JSON and was left out: {error}"
        if problem:
            notes.append(f"events/{os.path.basename(path)} {problem}")
    return events


class _Reader:
    """A converter of OpenHands' events into a journal, one after the other."""

    def __init__(self, base: Fields, notes: list[str]) -> None:
        self._base = base
        self._notes = notes
        self._journal: list[ev.AnyEvent] = []
        self._time = ev.EPOCH
        self._id = ""
        self._status = _S.IDLE
        # Call ids without a result, by OpenHands' id, which several calls may share.
        self._open: dict[str, list[str]] = {}
        # The places of the actions of one answer, by the place of the first.
        self._answers: dict[int, list[int]] = {}
        self._within: set[int] = set()  # the places of actions that are not the first
        self._ids: list[str] = []  # a unique id for each event
        # The ids of the events that became each message and answer, by its seq.
        self._members: dict[int, list[str]] = {}
        # The seq of each condensation's summary, by OpenHands' id for it.
        self._summaries: dict[str, int] = {}
        self.model = str(mapping(mapping(base.get("agent")).get("llm")).get("model") or "")
        self._usages, self._costs = _usages(base)
        self._unknown: Counter[str] = Counter()

    def read(self, events: Sequence[tuple[Fields, bytes]]) -> list[ev.AnyEvent]:
        """Return the journal."""
        self._group([event for event, _ in events])
        for place, (event, data) in enumerate(events):
            self._time, self._id = _time(event.get("timestamp"), self._time), self._ids[place]
            if place in self._within:
                continue
            size, status = len(self._journal), self._status
            open = {id: list(calls) for id, calls in self._open.items()}
            try:
                self._convert(place, event, data, events)
                for new in self._journal[size:]:
                    ev.record(new)  # an event that cannot be read again must not be written
            except _FORMAT_ERRORS as error:
                del self._journal[size:]
                self._open, self._status = open, status
                self._members = {seq: ids for seq, ids in self._members.items() if seq <= size}
                note = f"event {self._id} is not in OpenHands' format and was kept verbatim:"
                self._notes.append(f"{note} {describe_error(error)}"[:500])
                for action_place in self._answers.get(place, [place]):
                    self._id = self._ids[action_place]
                    self._keep(str(event.get("kind"))[:100], events[action_place][1])
        self._finish()
        for kind, count in self._unknown.items():
            are = "s of the kind {} are" if count > 1 else " of the kind {} is"
            self._notes.append(f"{count} event{are.format(kind)} kept verbatim")
        return self._journal

    def _group(self, events: Sequence[Fields]) -> None:
        """Assign unique ids to the events and group the actions of one answer. Actions belong
        together if they have the same response id, with no message and no action of another
        response between them."""
        response, current, used_ids = "", list[int](), set[str]()
        for place, event in enumerate(events):
            id = event.get("id")
            if not isinstance(id, str) or not 0 < len(id) <= 200 or id in used_ids:
                id = f"event-{place}"
            used_ids.add(id)
            self._ids.append(id)
            kind = event.get("kind")
            if kind == "ActionEvent":
                of = str(event.get("llm_response_id") or "")
                if current and of and of == response:
                    current.append(place)
                    self._within.add(place)
                else:
                    response, current = of, [place]
                    self._answers[place] = current
            elif kind == "MessageEvent":
                response, current = "", []

    def _convert(
        self, place: int, event: Fields, data: bytes, events: Sequence[tuple[Fields, bytes]]
    ) -> None:
        match event.get("kind"):
            case "SystemPromptEvent":
                self._system_prompt(event)
            case "MessageEvent" if event.get("source") == "agent":
                self._agent_message(event)
            case "MessageEvent":
                self._user_message(event)
            case "ActionEvent":
                places = self._answers[place]
                self._actions([(self._ids[one], events[one][0]) for one in places])
            case "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation" if self._open.get(
                str(event.get("tool_call_id") or "")
            ):
                self._observation(event)
            case "Condensation":
                self._condensation(event)
            case "PauseEvent" | "InterruptEvent":
                self._set_status(_S.PAUSED)
            case "ConversationErrorEvent":
                self._add(
                    ev.ErrorRecorded,
                    error=str(event.get("code") or "Error"),
                    message=clean(str(event.get("detail") or "")),
                )
                self._set_status(_S.ERROR)
            case "ConversationStateUpdateEvent" if (
                event.get("key") == "execution_status" and str(event.get("value")) in _STATUSES
            ):
                # Waiting for confirmation is applied only at the end, and a conversation with open
                # calls does not come to rest.
                status = _STATUSES[str(event["value"])]
                waits = status is _S.WAITING_FOR_CONFIRMATION
                if not waits and not (status in AT_REST and self._open):
                    self._set_status(status)
            case kind:
                self._keep(str(kind or "?")[:100], data)

    def _add(self, kind: Any, id: str = "", **fields: Any) -> Any:
        seq = len(self._journal) + 1
        id = id or f"{self._id or 'openhands'}.{seq}"
        self._journal.append(kind(seq=seq, id=id, timestamp=self._time, **fields))
        return self._journal[-1]

    # --- kinds of events ---

    def _system_prompt(self, event: Fields) -> None:
        tools: dict[str, ev.ToolDefinition] = {}
        for tool in _objects(event.get("tools")):
            title = mapping(tool.get("annotations")).get("title")
            name = str(tool.get("name") or tool.get("title") or title or "")
            schema = mapping(tool.get("input_schema")) or mapping(tool.get("inputSchema"))
            description = clean(str(tool.get("description") or ""))
            definition = ev.ToolDefinition(name, description, schema or {"type": "object"}, name)
            if name:
                tools.setdefault(name, definition)
        parts = [mapping(event.get(name)) for name in ("system_prompt", "dynamic_context")]
        texts = [part.get("text") for part in parts]
        prompt = "\n\n".join(clean(one) for one in texts if isinstance(one, str) and one.strip())
        self._add(
            ev.AgentConfigured,
            self._id,
            system_prompt=prompt,
            tools=tuple(tools.values()),
            model=self.model,
        )

    def _user_message(self, event: Fields) -> None:
        content = (
            *shims.content_of(mapping(event.get("llm_message")).get("content")),
            *shims.content_of(event.get("extended_content")),
        )
        if not content:
            return
        sender = event.get("sender")
        by = {"sender": clean(sender)} if isinstance(sender, str) and sender else {}
        message = self._add(ev.MessageAdded, self._id, content=content, **by)
        self._members[message.seq] = [self._id]
        if skills := event.get("activated_skills"):
            self._note({self._id: {"activated_skills": skills}})
        if self._status in AT_REST:
            self._set_status(_S.RUNNING)

    def _agent_message(self, event: Fields) -> None:
        message = mapping(event.get("llm_message"))
        self._close_open_calls()
        answer = self._answer(event, shims.content_of(message.get("content")), message, ())
        self._members[answer.seq] = [self._id]
        keys = ("thinking_blocks", "responses_reasoning_item")
        if rest := {key: message[key] for key in keys if message.get(key)}:
            self._note({self._id: rest})

    def _actions(self, actions: Sequence[tuple[str, Fields]]) -> None:
        self._close_open_calls()
        seq = len(self._journal) + 1
        calls: list[ToolCall] = []
        rest: dict[str, Fields] = {}
        for index, (id, action) in enumerate(actions):
            tool, call_id = str(action.get("tool_name") or ""), f"{seq}.{index}"
            try:
                call = shims.to_tool_call(action, call_id)
            except ConfigurationError:
                call = ToolCall(call_id, tool or "unknown", invalid="it could not be read")
            names = ToolCall.__struct_fields__  # a journal holds plain calls only
            calls.append(ToolCall(*[getattr(call, name) for name in names]))
            self._open.setdefault(call.provider_id, []).append(call.id)
            rest[id] = {
                key: value
                for key, value in action.items()
                if key not in _JOURNALED_FIELDS and value not in _EMPTY_VALUES
            }
            kind = mapping(action.get("action")).get("kind")
            if isinstance(kind, str) and kind != shims.kind_of(tool):
                rest[id][ACTION_KIND] = kind
            if kind != "MCPToolAction" and not call.invalid:
                arguments = call.arguments
                more = {
                    key: value
                    for key, value in mapping(action.get("action")).items()
                    if key != "kind" and (key not in arguments or arguments[key] != value)
                }
                if more:
                    rest[id][ACTION_FIELDS] = more
        events = [action for _, action in actions]
        thought = [block for event in events for block in shims.content_of(event.get("thought"))]
        thinking = next((one for one in events if one.get("reasoning_content")), events[0])
        self._answer(events[0], thought, thinking, tuple(calls))
        self._members[seq] = list(rest)
        # With several actions the note also maps ids to calls.
        if len(actions) > 1 or any(rest.values()):
            self._note(rest)
        if self._status in AT_REST:
            self._set_status(_S.RUNNING)

    def _answer(
        self,
        event: Fields,
        content: Sequence[Content],
        thinking: Fields,
        calls: tuple[ToolCall, ...],
    ) -> ev.AssistantReplied:
        response = str(event.get("llm_response_id") or "")
        texts = [block.text for block in content if isinstance(block, TextContent) and block.text]
        reasoning = thinking.get("reasoning_content")
        return self._add(
            ev.AssistantReplied,
            self._id,
            text="\n".join(texts),
            reasoning=clean(reasoning) if isinstance(reasoning, str) else "",
            calls=calls,
            usage=self._usages.get(response, Usage()),
            cost=self._costs.get(response),
            stop_reason="tool_calls" if calls else "stop",
            based_on=len(self._journal),
            model=self.model,
            response_id=response,
        )

    def _observation(self, event: Fields) -> None:
        provider = str(event.get("tool_call_id") or "")
        call_id = self._open[provider].pop(0)
        if not self._open[provider]:
            del self._open[provider]
        self._members[int(call_id.partition(".")[0])].append(self._id)
        try:
            rest = {key: value for key, value in event.items() if key not in _REWRITTEN_FIELDS}
            result = shims.to_tool_result(rest)
        except ConfigurationError as error:
            result = ToolResult.failure(f"The observation could not be read: {error}", "unknown")
        if event.get("kind") == "UserRejectObservation":
            by = str(event.get("rejection_source") or "user")
            reason = clean(str(event.get("rejection_reason") or ""))
            self._add(ev.DecisionMade, call_id=call_id, decision="reject", by=by, reason=reason)
        else:
            self._add(ev.ToolCallStarted, call_id=call_id)
        self._add(ev.ToolCallFinished, self._id, call_id=call_id, result=result)

    def _condensation(self, event: Fields) -> None:
        ids: Any = event.get("forgotten_event_ids")
        forgotten = {str(id) for id in cast("list[Any]", ids if isinstance(ids, list) else [])}
        hidden = [seq for seq, members in self._members.items() if forgotten.issuperset(members)]
        touched = [seq for seq, members in self._members.items() if forgotten.intersection(members)]
        if parts := set(touched) - set(hidden):
            self._notes.append(
                f"the condensation {self._id} forgets only a part of {len(parts)} answers; those"
                " are shown whole"
            )
        summary_ids = [id for id in self._summaries if id in forgotten]
        replaced = tuple([self._summaries.pop(id) for id in summary_ids])
        summary = event.get("summary")
        before = {
            seq
            for one in self._journal
            if isinstance(one, ev.HistoryCondensed)
            for seq in one.hidden
        }
        new = tuple(seq for seq in hidden if seq not in before) or tuple(hidden)
        if not new:
            return
        self._add(
            ev.HistoryCondensed,
            self._id,
            hidden=new,
            summary=clean(summary) if isinstance(summary, str) else "",
            replaced=replaced,
        )
        self._summaries[f"{self._id}-summary"] = min(new)

    def _keep(self, kind: str, data: bytes) -> None:
        """Keep an event without a journal form, byte for byte, in an `UnknownEvent` event."""
        seq, type = len(self._journal) + 1, PREFIX + kind
        id = self._id or f"openhands.{seq}"
        fields = {
            "type": type,
            "seq": seq,
            "id": id,
            "timestamp": self._time.isoformat().replace("+00:00", "Z"),
            "event": msgspec.Raw(data.strip()),
        }
        raw = msgspec.Raw(msgspec.json.encode(fields))
        self._journal.append(
            ev.UnknownEvent(seq=seq, id=id, timestamp=self._time, original_type=type, raw=raw)
        )
        if kind != "ConversationStateUpdateEvent":  # the base state contains the same
            self._unknown[kind] += 1

    def _note(self, details: dict[str, Fields]) -> None:
        risks = [str(one["security_risk"]) for one in details.values() if "security_risk" in one]
        summaries = [one.get("summary") for one in details.values()]
        text = "; ".join(one for one in summaries if isinstance(one, str))
        self._add(
            ev.NoteRecorded, about=ABOUT, text=clean(text or ", ".join(risks)), details=details
        )

    # --- status ---

    def _set_status(self, status: ConversationStatus) -> None:
        if status is not self._status:
            self._status = status
            self._add(ev.StatusChanged, status=status.value)

    def _close_open_calls(self) -> None:
        """Answer all open calls, because no answer may follow one with open calls."""
        for call_id in self._open_calls():
            result = ToolResult.failure(_CUT_OFF, "unknown", meta={"outcome": "unknown"})
            self._add(ev.ToolCallStarted, call_id=call_id)
            self._add(ev.ToolCallFinished, call_id=call_id, result=result)
        self._open.clear()

    def _open_calls(self) -> list[str]:
        """Return the calls without a result, in order."""
        return sorted(
            [call_id for calls in self._open.values() for call_id in calls],
            key=lambda call_id: int(call_id.partition(".")[2]),
        )

    def _finish(self) -> None:
        last = _STATUSES.get(str(self._base.get("execution_status") or ""), self._status)
        self._id = ""
        if self._open and last is _S.WAITING_FOR_CONFIRMATION:
            answers = [event for event in self._journal if isinstance(event, ev.AssistantReplied)]
            calls = {call.id: call for answer in answers for call in answer.calls}
            for call_id in self._open_calls():
                self._add(
                    ev.DecisionMade,
                    call_id=call_id,
                    decision="ask",
                    by="openhands",
                    reason="it waited for confirmation in OpenHands",
                    arguments_hash=calls[call_id].arguments_hash,
                )
            self._set_status(_S.WAITING_FOR_CONFIRMATION)
            return
        self._close_open_calls()
        if last in (_S.RUNNING, _S.WAITING_FOR_CONFIRMATION):
            last = _S.PAUSED  # an import must not start anything
        self._set_status(last)


# --- JSON values ---


def _objects(value: Any) -> list[Fields]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast(Fields, item) for item in items if isinstance(item, dict)]


def _time(text: Any, before: datetime) -> datetime:
    """Return a time stamp; OpenHands writes UTC without a zone. An invalid one becomes that of
    the event before."""
    try:
        stamp = datetime.fromisoformat(text)
        return stamp.replace(tzinfo=UTC) if stamp.tzinfo is None else stamp.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return before


def _usages(base: Fields) -> tuple[dict[str, Usage], dict[str, float]]:
    """Return the tokens and the cost in US dollars of each answer, by its OpenHands id."""
    usages: dict[str, Usage] = {}
    costs: dict[str, float] = {}
    for metrics in mapping(mapping(base.get("stats")).get("usage_to_metrics")).values():
        counted = _objects(mapping(metrics).get("token_usages"))
        priced = _objects(mapping(metrics).get("costs"))
        prices = [one.get("cost") for one in priced] if len(priced) == len(counted) else []
        for usage, price in zip_longest(counted, prices):
            response = str(usage.get("response_id") or "")
            counts = [usage.get(f"{name}_tokens") or 0 for name in _TOKENS]
            if response and all(type(count) is int and 0 <= count < 2**53 for count in counts):
                usages[response] = Usage(*counts)
                if isinstance(price, int | float):
                    costs[response] = float(price)
    return usages, costs
