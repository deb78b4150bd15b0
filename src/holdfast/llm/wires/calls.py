"""Tool calls as models write them: argument text into arguments, and back into text that every server takes."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from holdfast.content import ToolCall
from holdfast.llm.wires import Names
from holdfast.llm.wires.lenient import clean, decode, whole
from holdfast.nesting import MAX_DEPTH, too_deep

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_KINDS = {"list": "an array", "str": "a string", "bool": "a boolean", "NoneType": "null"}
_POSITION = re.compile(r" \(byte (\d+)\)")


def read_call(name: str, arguments: Any, provider_id: str) -> ToolCall:
    """A call as a model gave it. Nothing for arguments means none; an object within a JSON string is taken for the object, and
    line breaks within strings for what they are. These go back as proper JSON; else `raw` is the text to the letter.

    What cannot be read as an object leaves `arguments` empty, the text in `raw`, and in `invalid` one sentence that says why.
    """
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = "" if arguments is None else _encoder.encode(arguments).decode()
    if not arguments.strip():
        return ToolCall("", name, {}, provider_id)
    if too_deep(arguments):
        why = f"The arguments are nested deeper than {MAX_DEPTH} levels. Send them flatter, or as text."
        return ToolCall("", name, {}, provider_id, whole(arguments), why)
    proper = True
    try:
        found: Any = _decoder.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        try:
            found, proper = clean(decode(whole(arguments))), False
        except ValueError:
            arguments = whole(arguments)
            return ToolCall("", name, {}, provider_id, arguments, _why(arguments, str(error)))
    try:
        if isinstance(found, str):
            if too_deep(found):
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            found, proper = clean(decode(found)), False
    except ValueError as error:
        return ToolCall("", name, {}, provider_id, arguments, _why(arguments, str(error)))
    if not isinstance(found, dict):
        kind = _KINDS.get(type(found).__name__, "a number")
        return ToolCall("", name, {}, provider_id, arguments, f"The arguments are {kind}, not a JSON object.")
    known = cast("dict[str, Any]", found)
    raw = "" if not proper or _encoder.encode(known) == arguments.encode() else arguments
    return ToolCall("", name, known, provider_id, raw)


def _why(text: str, reason: str) -> str:
    if "truncated" in reason:
        return f"The arguments are not valid JSON: they end, unfinished, at byte {len(text.encode())}."
    place = _POSITION.search(reason)
    reason = reason.removeprefix("JSON is malformed: ")
    if place is None:
        return f"The arguments are not valid JSON: {reason}."
    at = int(place[1])
    near = text.encode()[max(0, at - 20) : at + 20].decode(errors="ignore")
    return f"The arguments are not valid JSON: {_POSITION.sub('', reason)} at byte {at}, near {near!r}."


def wire_arguments(call: ToolCall) -> str:
    """The arguments of a call as they go back to a model: the provider's own text, unless that is no JSON.

    Several servers parse the arguments that they are sent and would refuse every later request of the conversation.
    """
    if call.invalid:
        return _encoder.encode({"invalid_json": call.raw}).decode()
    return call.raw_arguments


def wire_id(call: ToolCall) -> str:
    """The id of a call as the provider knows it."""
    return call.provider_id or call.id or "call_0"


def digest(text: str) -> str:
    """64 letters that stand for a text, always the same ones."""
    from hashlib import sha256  # 3 ms of import that few need

    return sha256(text.encode("utf-8", "replace")).hexdigest()


def wire_name(name: str, names: Names) -> str:
    """A tool's name on the wire; one that is not in the table any more gets the name that it would have there."""
    known = names.get(name)
    if known is None:
        from holdfast.tools.names import wire_name as made

        known = made(name)
    return known
