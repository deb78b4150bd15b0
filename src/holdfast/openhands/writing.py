"""Writing a conversation in the on-disk format of OpenHands' SDK: the inverse of `reading`."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec

from holdfast import events as ev
from holdfast.agent.damage import stand_in
from holdfast.content import ToolCall, ToolResult, Usage
from holdfast.conversation.state import ConversationState, ConversationStatus
from holdfast.errors import ConfigurationError
from holdfast.openhands import shims
from holdfast.openhands.reading import ABOUT, ACTION_FIELDS, ACTION_KIND, PREFIX
from holdfast.openhands.shims import Fields, mapping

_FILE = re.compile(r"[0-9A-Za-z-]{1,64}")
_WRITTEN_APART = ("thinking_blocks", "security_risk", ACTION_KIND, ACTION_FIELDS)
_STATUSES = {ConversationStatus.CLOSED: "paused"}


def write_conversation(
    state: ConversationState, folder: str | os.PathLike[str], workdir: str = ""
) -> tuple[str, ...]:
    """Write a conversation into a new folder in OpenHands' format, and return notes on omitted
    parts. The folder is created atomically. Large outputs are written in the form of the journal.
    Raises `ConfigurationError` if the folder exists, `OSError` if it cannot be written."""
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{str(folder)!r} exists; give a new folder.")
    writer = _Writer(state)
    files = writer.write()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (part / "events").mkdir()
        for index, event in enumerate(files):
            name = str(event.get("id"))
            name = name if _FILE.fullmatch(name) else _uuid(name)  # ids are arbitrary strings
            (part / "events" / f"event-{index:05d}-{name}.json").write_bytes(
                msgspec.json.encode(event)
            )
        (part / "base_state.json").write_bytes(
            msgspec.json.encode(writer.base(str(target.absolute()), workdir))
        )
        part.chmod(0o755)
        if target.exists():
            target.rmdir()
        os.replace(part, target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return tuple(writer.notes)


class _Writer:
    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._files: list[Fields] = []
        self._ids: dict[int, list[str]] = {}  # file ids by seq of each message and answer
        # By call id: the id in OpenHands, the tool, the action's id, and the answer's seq.
        self._calls: dict[str, tuple[str, str, str, int]] = {}
        self._rest = _rest(state.events)
        self._originals = _originals(state.events)
        self._providers: set[str] = set()
        self._skipped: Counter[str] = Counter()
        self.notes: list[str] = []

    def write(self) -> list[Fields]:
        """Return the events' files in order."""
        head = False
        for event in self._state.events:
            if isinstance(event, ev.DamagedEvent):
                damage = f"is damaged and cannot be read ({event.reason})"
                self.notes.append(f"event {event.seq} {damage}")
                event = stand_in(event) or event
            match event:
                case ev.AgentConfigured() if not head:
                    head = True
                    self._head(event)
                case ev.MessageAdded():
                    self._message(event)
                case ev.AssistantReplied():
                    self._answer(event)
                case ev.ToolCallFinished() if event.call_id in self._calls:
                    self._result(event)
                case ev.HistoryCondensed() if event.hidden:
                    self._condensation(event)
                case ev.HistoryCondensed(compaction=ev.Compaction()):
                    self.notes.append(
                        f"the compaction {event.seq} can be read by {event.model} alone; OpenHands"
                        " will show the whole history"
                    )
                case ev.StatusChanged(status="paused"):
                    self._file(event, "PauseEvent", "user")
                case ev.ErrorRecorded():
                    fields = {"code": event.error, "detail": event.message}
                    self._file(event, "ConversationErrorEvent", "environment", **fields)
                case ev.UnknownEvent() if (original := _original(event)) is not None:
                    self._files.append(original)
                case (
                    ev.DamagedEvent()
                    | ev.StatusChanged()
                    | ev.ToolCallStarted()
                    | ev.NoteRecorded(about="openhands")
                ):
                    pass  # contained in other files
                case _:
                    self._skipped[event.type] += 1
        for kind, count in self._skipped.items():
            events = f"{kind} event{'s' if count > 1 else ''}"
            self.notes.append(f"{count} {events} not written: OpenHands has no such event")
        return self._files

    def _file(self, event: ev.AnyEvent, kind: str, source: str, id: str = "", **fields: Any) -> str:
        id = id or _uuid(event.id)
        stamp = event.timestamp.replace(tzinfo=None).isoformat()
        self._files.append({"id": id, "timestamp": stamp, "source": source, **fields, "kind": kind})
        return id

    def _head(self, event: ev.AgentConfigured) -> None:
        tools = [
            {
                "kind": shims.kind_of(tool.name).removesuffix("Action") + "Tool",
                "title": tool.name,
                "description": tool.description,
            }
            for tool in event.tools
        ]
        prompt = {"type": "text", "text": event.system_prompt}
        self._file(event, "SystemPromptEvent", "agent", system_prompt=prompt, tools=tools)

    def _message(self, event: ev.MessageAdded) -> None:
        content = [shims.block_fields(block) for block in event.content]
        message = {"role": "user", "content": content, "thinking_blocks": []}
        fields: Fields = {} if event.sender == "user" else {"sender": event.sender}
        id = self._file(
            event,
            "MessageEvent",
            "user",
            llm_message=message,
            activated_skills=self._rest.get(event.id, {}).get("activated_skills", []),
            extended_content=[],
            **fields,
        )
        self._ids[event.seq] = [id]

    def _answer(self, event: ev.AssistantReplied) -> None:
        response = event.response_id or _uuid(event.id)
        reasoning: Fields = {"reasoning_content": event.reasoning} if event.reasoning else {}
        thought = [{"type": "text", "text": event.text}] if event.text else []
        if not event.calls:
            message: Fields = {
                "role": "assistant",
                "content": thought,
                "thinking_blocks": [],
                **reasoning,
                **self._rest.get(event.id, {}),
            }
            id = self._file(
                event,
                "MessageEvent",
                "agent",
                llm_message=message,
                llm_response_id=response,
                activated_skills=[],
                extended_content=[],
            )
            self._ids[event.seq] = [id]
            return
        self._ids[event.seq] = []
        for index, call in enumerate(event.calls):
            provider = call.provider_id or f"call_{call.id}"
            if provider in self._providers:  # OpenHands finds results by this id
                provider = f"{provider}-{call.id}"
            self._providers.add(provider)
            new_id = _uuid(event.id if index == 0 else f"{event.id}:{index}")
            id = self._originals.get(call.id) or new_id
            rest = self._rest.get(id, {})
            action = None if call.invalid else _action(call, rest.get(ACTION_KIND))
            for name in ("security_risk", "summary"):
                if action is not None and name in rest:
                    action.pop(name, None)
            if action is not None:
                action |= mapping(rest.get(ACTION_FIELDS))
            self._file(
                event,
                "ActionEvent",
                "agent",
                id,
                thought=thought if index == 0 else [],
                thinking_blocks=rest.get("thinking_blocks", []),
                **(reasoning if index == 0 else {}),
                action=action,
                tool_name=call.name,
                tool_call_id=provider,
                tool_call={
                    "id": provider,
                    "name": call.name,
                    "arguments": call.raw_arguments,
                    "origin": "completion",
                },
                llm_response_id=response,
                security_risk=rest.get("security_risk", "UNKNOWN"),
                **{key: value for key, value in rest.items() if key not in _WRITTEN_APART},
            )
            self._ids[event.seq].append(id)
            self._calls[call.id] = (provider, call.name, id, event.seq)

    def _result(self, event: ev.ToolCallFinished) -> None:
        provider, tool, action, answer = self._calls[event.call_id]
        result, meta = event.result, event.result.meta
        fields: Fields = {"tool_name": tool, "tool_call_id": provider}
        kind, source = "ObservationEvent", "environment"
        if meta.get(shims.KIND) == "AgentErrorEvent" or meta.get("outcome") == "unknown":
            kind, source = "AgentErrorEvent", "agent"
            fields |= {"error": result.text, **_classified(result)}
        elif meta.get("decision") == "reject":
            kind, reason = "UserRejectObservation", result.text.removeprefix("Action rejected: ")
            fields |= {"rejection_reason": reason, **_classified(result), "action_id": action}
        else:
            fields |= {"observation": shims.to_observation(result, tool=tool), "action_id": action}
        self._ids[answer].append(self._file(event, kind, source, **fields))

    def _condensation(self, event: ev.HistoryCondensed) -> None:
        before = self._state.events[: event.seq]
        hidden = {
            seq for one in before if isinstance(one, ev.HistoryCondensed) for seq in one.hidden
        }
        place = min(event.hidden)
        groups = [ids for seq, ids in self._ids.items() if seq < place and seq not in hidden]
        head = any(file["kind"] == "SystemPromptEvent" for file in self._files)
        more: Fields = {}
        if event.summary:
            more = {"summary": event.summary, "summary_offset": sum(map(len, groups)) + head}
        if event.trimmed:
            self.notes.append(
                f"the condensation {event.seq} shortens {len(event.trimmed)} results, which"
                " OpenHands will show whole"
            )
        self._file(
            event,
            "Condensation",
            "environment",
            forgotten_event_ids=[id for seq in event.hidden for id in self._ids.get(seq, [])],
            llm_response_id=_uuid(event.id),
            **more,
        )

    def base(self, folder: str, workdir: str) -> Fields:
        """Return `base_state.json`. Its agent is a placeholder: OpenHands gets an agent when it
        opens the conversation."""
        state = self._state
        answers = [event for event in state.events if isinstance(event, ev.AssistantReplied)]
        heads = [event for event in state.events if isinstance(event, ev.AgentConfigured)]
        models = [event.model for event in reversed(answers) if event.model]
        model = next(iter(models), heads[-1].model if heads else "")
        tools: list[Fields] = [
            {"name": tool.name, "params": {}} for head in heads[-1:] for tool in head.tools
        ]
        costs: list[Fields] = []
        usages: list[Fields] = []
        for event in answers:
            cost, name = event.cost or 0.0, event.model or model
            costs.append({"model": name, "cost": cost, "timestamp": event.timestamp.timestamp()})
            usages.append(_usage(event.usage, name, event.response_id or _uuid(event.id)))
        metrics: Fields = {
            "model_name": model,
            "accumulated_cost": state.cost or 0.0,
            "accumulated_token_usage": _usage(state.usage, model, ""),
            "costs": costs,
            "response_latencies": [],
            "token_usages": usages,
        }
        llm = {"model": model, "usage_id": "agent"}
        return {
            "id": _uuid(state.id),
            "agent": {"kind": "Agent", "llm": llm, "tools": tools},
            "workspace": {"kind": "LocalWorkspace", "working_dir": workdir or "workspace"},
            "persistence_dir": folder,
            "max_iterations": 500,
            "stuck_detection": True,
            "execution_status": _STATUSES.get(state.status, state.status.value),
            "confirmation_policy": {"kind": "NeverConfirm"},
            "activated_knowledge_skills": [],
            "stats": {"usage_to_metrics": {"agent": metrics}},
        }


def _classified(result: ToolResult) -> Fields:
    """Return the fields of a failed call's event that classify the failure."""
    rest = mapping(result.meta.get(shims.REST))
    return {key: rest[key] for key in ("classification", "rejection_source") if key in rest}


def _action(call: ToolCall, kind: Any) -> Fields:
    """Return a call as an action. `kind` is the action's kind in OpenHands if it does not follow
    from the tool's name."""
    if not isinstance(kind, str):
        return shims.to_action(call)
    if kind == "MCPToolAction":
        return {"kind": kind, "data": dict(call.arguments)}
    return {**{key: value for key, value in call.arguments.items() if key != "kind"}, "kind": kind}


def _originals(events: Iterable[ev.AnyEvent]) -> dict[str, str]:
    """Return the OpenHands action ids by call id, as far as notes contain them. The note that
    follows an answer lists the ids in the order of the answer's calls."""
    ids: dict[str, str] = {}
    calls: list[str] | None = None
    for event in events:
        match event:
            case ev.AssistantReplied():
                calls = [call.id for call in event.calls]
            case ev.NoteRecorded(about="openhands") if len(event.details) == len(calls or ()):
                ids.update(zip(calls or (), event.details, strict=True))
                calls = None
            case _:
                pass
    return ids


def _rest(events: Iterable[ev.AnyEvent]) -> dict[str, Fields]:
    """Return the fields that notes keep of OpenHands' events, by event id."""
    return {
        id: cast(Fields, fields)
        for event in events
        if isinstance(event, ev.NoteRecorded) and event.about == ABOUT
        for id, fields in event.details.items()
        if isinstance(fields, dict)
    }


def _original(event: ev.UnknownEvent) -> Fields | None:
    """Return the OpenHands event that was kept verbatim, None for other events."""
    if not event.original_type.startswith(PREFIX):
        return None
    original = msgspec.json.decode(event.raw).get("event")
    return cast(Fields, original) if isinstance(original, dict) else None


def _uuid(id: str) -> str:
    """Return an id as a UUID in canonical form. Another id is mapped to a UUID derived from it."""
    try:
        return str(UUID(id))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, id))


def _usage(usage: Usage, model: str, response_id: str) -> Fields:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "context_window": 0,
        "per_turn_token": 0,
        "model": model,
        "response_id": response_id,
    }
