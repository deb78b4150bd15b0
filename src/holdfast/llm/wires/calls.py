"""Tool calls as models write them: parsing argument text, and encoding arguments so that every
server accepts them."""

from __future__ import annotations

import operator
import re
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall
from holdfast.llm.completion import Completion
from holdfast.llm.wires.lenient_json import clean_texts, decode, join_surrogates
from holdfast.llm.wires.protocol import Names
from holdfast.nesting import MAX_DEPTH, too_deep
from holdfast.tools import names as tool_names

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_objects = msgspec.json.Decoder(dict[str, Any])
_TOO_DEEP = (
    f"The arguments are nested deeper than {MAX_DEPTH} levels. Send them flatter, or as text."
)
_KINDS = {"list": "an array", "str": "a string", "bool": "a boolean", "NoneType": "null"}
_POSITION = re.compile(r" \(byte (\d+)\)")


def read_call(name: str, arguments: Any, provider_id: str) -> ToolCall:
    """Return a call from the name and arguments that a model wrote.

    Missing arguments count as none. An object inside a JSON string counts as the object. Raw line
    breaks within strings are accepted. Such arguments are sent back as proper JSON. Otherwise `raw`
    keeps the text. Without a JSON object, `invalid` holds one sentence with the reason.
    """
    if not isinstance(arguments, str):  # some servers send the object itself
        encoded = b"" if arguments is None else _encoder.encode(arguments)
        if isinstance(arguments, dict) and not too_deep(encoded):
            return ToolCall("", name, cast("dict[str, Any]", arguments), provider_id)
        arguments = encoded.decode()
    if arguments.count("{") + arguments.count("[") <= MAX_DEPTH:  # nearly always
        try:
            fields = _objects.decode(arguments)
        except (msgspec.DecodeError, UnicodeEncodeError):
            pass  # the rest of this function reads it leniently, or names the fault
        else:
            raw = "" if _encoder.encode(fields) == arguments.encode() else arguments
            return ToolCall("", name, fields, provider_id, raw)
    if not arguments.strip():
        return ToolCall("", name, {}, provider_id)
    try:
        fields, is_proper = _read_object(arguments)
    except ValueError as error:
        return ToolCall("", name, {}, provider_id, join_surrogates(arguments), str(error))
    raw = "" if not is_proper or _encoder.encode(fields) == arguments.encode() else arguments
    return ToolCall("", name, fields, provider_id, raw)


def limit_calls(completion: Completion) -> Completion:
    """Return an answer of any model, a custom one included, with calls marked as invalid if their
    arguments are nested too deeply."""
    calls = tuple([_limit_call(call) for call in completion.calls])
    same = all(map(operator.is_, calls, completion.calls))
    return completion if same else msgspec.structs.replace(completion, calls=calls)


def _limit_call(call: ToolCall) -> ToolCall:
    try:
        if not call.arguments or not too_deep(_encoder.encode(call.arguments)):
            return call
    except RecursionError:
        pass
    except (TypeError, ValueError):  # values that are not JSON: the journal names them
        return call
    return msgspec.structs.replace(call, arguments={}, invalid=_TOO_DEEP)


def _read_object(text: str) -> tuple[dict[str, Any], bool]:
    """Return the object of a JSON text, and True if the text is valid JSON for it. Raises
    `ValueError` with the reason, as a sentence, if there is no object."""
    if too_deep(text):
        raise ValueError(_TOO_DEEP)
    is_proper = True
    try:
        value: Any = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        text = join_surrogates(text)
        try:
            value, is_proper = clean_texts(decode(text)), False
        except ValueError:
            raise ValueError(_invalid_reason(text, str(error))) from None
    if isinstance(value, str):
        try:
            if too_deep(value):
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            value, is_proper = clean_texts(decode(value)), False
        except ValueError as error:
            raise ValueError(_invalid_reason(text, str(error))) from None
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value).__name__, "a number")
        raise ValueError(f"The arguments are {kind}, not a JSON object.")
    return cast("dict[str, Any]", value), is_proper


def _invalid_reason(text: str, reason: str) -> str:
    data = text.encode()
    place = _POSITION.search(reason)
    if "truncated" in reason:
        reason = f"they end, unfinished, at byte {len(data)}"
    else:
        reason = _POSITION.sub("", reason.removeprefix("JSON is malformed: "))
        if place is not None:
            at = int(place[1])
            near = data[max(0, at - 20) : at + 20].decode(errors="ignore")
            reason += f" at byte {at}, near {near!r}"
    return f"The arguments are not valid JSON: {reason}."


def wire_arguments(call: ToolCall) -> str:
    """Return a call's arguments for sending back: the provider's own text if it is JSON. Servers
    that parse it would otherwise refuse every later request of the conversation."""
    if call.invalid:
        return _encoder.encode(wire_input(call)).decode()
    return call.raw or _encoder.encode(call.arguments).decode()


def wire_input(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as the object that some APIs require."""
    return {"invalid_json": call.raw} if call.invalid else call.arguments


def wire_id(call: ToolCall) -> str:
    return call.provider_id or call.id or "call_0"


def digest(text: str) -> str:
    from hashlib import sha256  # rarely needed, and takes 3 ms to import

    return sha256(text.encode("utf-8", "replace")).hexdigest()


def wire_name(name: str, names: Names) -> str:
    """Return a tool's name on the wire. A tool that has left the table keeps the name that it
    would have there."""
    entry = names.get(name)
    return tool_names.wire_name(name) if entry is None else entry
