"""Messages of the Gemini wire: the contents of a request, each encoded once.

Three kinds of contents go to Gemini: a user's, a model's, and the results of calls, whose role is
also `user`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.content import (
    AudioContent,
    Content,
    EmbeddedResource,
    FileContent,
    ImageContent,
    ToolCall,
)
from holdfast.llm.wires import content_parts
from holdfast.llm.wires.calls import wire_input, wire_name
from holdfast.llm.wires.content_parts import Media, Part
from holdfast.llm.wires.protocol import Calls, Fragments, Names, Results

_json = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder()

# Gemini 3 refuses a call of the current turn without a signature. Google's documentation of thought
# signatures gives this substitute for calls of another model, on Gemini API and Vertex AI alike.
# Older models need no signature but also receive it, because a fragment is not bound to one model.
_NO_SIGNATURE = "skip_thought_signature_validator"

_USER = b'{"role":"user"'
_RESULTS = b'{"role":"user","parts":[{"functionResponse":'
# The API requires requests to begin and end with a user's content. The beginning may have been
# condensed away, and an answer from another provider may end in a pause.
_OPENING_MESSAGE = b'{"role":"user","parts":[{"text":"(what came before is not shown)"}]}'
_CONTINUE_MESSAGE = b'{"role":"user","parts":[{"text":"Go on."}]}'

_MEDIA_TYPES = ("image/", "audio/", "video/", "application/pdf")
# The files that Gemini 3 reads within a result, by MIME type.
_RESULT_TYPES = ("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain")
_FILES_URL = "https://generativelanguage.googleapis.com/v1beta/"
# The API refuses text/x-python, application/json and other kinds of text.
_TEXT_KIND = re.compile(r"text/(?!x-)")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
# Families of models. Gemini 3 reads files within a result, on Vertex AI also by address. Older
# models refuse the parts of tools that Google ran beside functions.
_BEFORE_3 = "before 3"
_GEMINI_3 = "3"
_GEMINI_3_VERTEX = "3 on Vertex AI"
_NEW_PARTS = ("toolCall", "toolResponse")

# Function names begin with a letter or an underscore. A tool name that begins with a digit or a
# dash gets an underscore in front. A name that already looks so gets one more, so the mapping stays
# invertible.
_NEEDS_UNDERSCORE = re.compile(r"_*[0-9-]")


def version(model: str) -> tuple[int, int]:
    """Return the version in a model's name. A name without a number, such as gemini-flash-latest,
    belongs to a new model."""
    match = _VERSION.search(model)
    return (int(match[1]), int(match[2] or 0)) if match else (9, 0)


def family(model: str, host: str) -> str:
    model = model.lower()
    if "gemini" not in model:
        return ""
    if version(model) < (3, 0):
        return _BEFORE_3
    return _GEMINI_3_VERTEX if host.endswith("aiplatform.googleapis.com") else _GEMINI_3


def call_id(call: ToolCall, family: str = "") -> str:
    """Return the model's id, if it assigned one. Calls without ids are matched by order."""
    return call.provider_id


def system(text: str) -> bytes:
    """Encode a system message as a user message, because the API accepts no other there."""
    return _content([{"text": f"<system>\n{text}\n</system>"}])


def user(content: Sequence[Content], family: str = "") -> bytes:
    """Encode text, files, and resources of kinds that the models can read."""
    parts = [_media_part(block) or {"text": content_parts.as_text(block)} for block in content]
    return _content(parts or [{"text": ""}])


def _content(parts: list[Part]) -> bytes:
    return _json({"role": "user", "parts": parts})


def _media_part(block: Content, of_tool: bool = False) -> Part | None:
    """Return a file as a part. A user's file of any kind is sent. A tool's is sent only if its kind
    can be read, because a refused one would end the conversation."""
    media = content_parts.media_of(block)
    if media is None:
        return None
    if not media.data:
        uri = media.url or _file_uri(media.file_id)
        kind = {"mimeType": media.mime_type} if media.mime_type else {}
        return {"fileData": {"fileUri": uri, **kind}}
    if not _is_readable(block, media, of_tool):
        return None
    kind = media.mime_type
    if content_parts.is_text_type(kind) and not _TEXT_KIND.match(kind):
        kind = "text/plain"
    return {"inlineData": {"mimeType": kind, "data": media.data}}


def _is_readable(block: Content, media: Media, of_tool: bool) -> bool:
    match block:
        case FileContent():
            return not of_tool or media.mime_type.startswith((*_MEDIA_TYPES, "text/"))
        case EmbeddedResource():
            return media.mime_type.startswith(_MEDIA_TYPES)
        case _:
            return isinstance(block, ImageContent | AudioContent)


def _file_uri(file_id: str) -> str:
    """Return the address of a file of the Files API, which alone is accepted. Any other address,
    such as `gs:`, is unchanged."""
    if _URI.match(file_id):
        return file_id
    return _FILES_URL + (file_id if file_id.startswith("files/") else f"files/{file_id}")


# --- answers ---


class _CallShape(msgspec.Struct):
    name: str = ""
    id: Any = ""


class _PartShape(msgspec.Struct, rename="camel"):
    function_call: _CallShape | None = None
    thought_signature: Any = None


class _ContentShape(msgspec.Struct):
    parts: list[_PartShape] = []


class _Native(msgspec.Struct):
    content: Raw


_natives = msgspec.json.Decoder(_Native)
_content_shapes = msgspec.json.Decoder(_ContentShape)


def assistant(text: str, calls: Calls, native: Raw, names: Names, family: str = "") -> bytes:
    """Encode an answer of the model. Its own content is sent verbatim if its calls still have the
    same names and ids. Otherwise a new one is made from text and calls, in which the first call
    carries the documented substitute for a missing signature."""
    if native:
        content = _natives.decode(native).content
        if family == _BEFORE_3:
            content = _without_new_parts(content)
        parts = _content_shapes.decode(content).parts
        native_calls = [part.function_call for part in parts if part.function_call]
        if len(native_calls) == len(calls):
            ours = [(_name(call, names), call.provider_id) for call in calls]
            signed = not calls or any(part.thought_signature for part in parts)
            if signed and ours == [(one.name, one.id or "") for one in native_calls]:
                return bytes(content) if parts else b""
            return _rename_calls(content, calls, names, signed)
    new_parts: list[Part] = [{"text": text}] if text else []
    for call in calls:
        function_call = {"name": _name(call, names), "args": wire_input(call), **_id(call)}
        signature = {"thoughtSignature": _NO_SIGNATURE} if call is calls[0] else {}
        new_parts.append({"functionCall": function_call, **signature})
    return _json({"role": "model", "parts": new_parts}) if new_parts else b""


def _without_new_parts(raw: Raw) -> Raw:
    data = bytes(raw)
    if not any(key.encode() in data for key in _NEW_PARTS):
        return raw
    content: Any = _decoder.decode(raw)
    parts = [part for part in content["parts"] if part.keys().isdisjoint(_NEW_PARTS)]
    return Raw(_json({**content, "parts": parts}))


def _rename_calls(raw: Raw, calls: Calls, names: Names, signed: bool) -> bytes:
    """Return a content whose calls have the names and ids of their results. A model may call a
    tool that does not exist, or use one id for two calls."""
    content: Any = _decoder.decode(raw)
    entries = [part for part in content["parts"] if part.get("functionCall")]
    for part, call in zip(entries, calls, strict=True):
        function_call = part["functionCall"]
        function_call["name"] = _name(call, names)
        function_call.pop("id", None)
        function_call.update(_id(call))
    if not signed:
        entries[0]["thoughtSignature"] = _NO_SIGNATURE
    return _json(content)


def _id(call: ToolCall) -> dict[str, str]:
    return {"id": call.provider_id} if call.provider_id else {}


def _name(call: ToolCall, names: Names) -> str:
    return name_to_wire(wire_name(call.name, names))


def name_to_wire(name: str) -> str:
    """Return a tool's wire name as a function name, with an underscore before a digit or dash."""
    return "_" + name if _NEEDS_UNDERSCORE.match(name) else name


def name_from_wire(name: str) -> str:
    """Invert `name_to_wire`, and remove the `default_api.` that models sometimes write."""
    if name[:12] in ("default_api.", "default_api:"):
        name = name[12:]
    return name[1:] if _NEEDS_UNDERSCORE.match(name) and name[0] == "_" else name


# --- results ---


def results(batch: Results, names: Names, family: str = "") -> bytes:
    """Encode one `functionResponse` for each call, all in one content, because the API counts them.

    Its text, or the structured content alone, is under `output` or `error`. Gemini 3 reads files of
    some kinds within the response. All others follow in a content of their own, because beside a
    response they break the count.
    """
    responses: list[Part] = []
    following: list[Part] = []
    for call, result in batch:
        name = _name(call, names)
        output: Any = result.structured_content
        within: list[Part] = []
        if text := content_parts.only_text(result):
            output = text
        elif result.content or output is None:
            parts = [_media_part(block, of_tool=True) for block in result.content]
            if any(parts):
                within = [part for part in parts if part and _is_within_result(part, family)]
                outside = [part for part in parts if part and not _is_within_result(part, family)]
                if outside:
                    following.append({"text": content_parts.caption(name, call.provider_id)})
                    following += outside
                kinds = [_mime_type(part) if part else "" for part in parts]
                result = content_parts.with_mentions(result, kinds)
            output = content_parts.result_text(result)
        response: Part = {
            "name": name,
            "response": {"error" if result.is_error else "output": output},
        }
        files = {"parts": within} if within else {}
        responses.append({"functionResponse": {**response, **files, **_id(call)}})
    return _content(responses) + (b"," + _content(following) if following else b"")


def _mime_type(part: Part) -> str:
    return next(iter(part.values())).get("mimeType") or "file"


def _is_within_result(part: Part, family: str) -> bool:
    """Return True for a file that the models of the family read within a result."""
    if "fileData" in part and family != _GEMINI_3_VERTEX:
        return False
    return family in (_GEMINI_3, _GEMINI_3_VERTEX) and _mime_type(part) in _RESULT_TYPES


# --- order ---


class _Turn(msgspec.Struct):
    role: str = "user"
    parts: list[Raw] = []


_turns = msgspec.json.Decoder(list[_Turn])


def in_order(fragments: Sequence[bytes]) -> list[bytes]:
    """Return the contents of a request as the API requires them.

    Results follow their calls directly; messages that came between them follow the results. Answers
    in a row become one content, like their results, because the API counts the results of a
    content's calls. A user's messages are not joined: Gemini 3 takes text beside a result as the
    model's own.
    """
    contents = list(fragments)
    # Messages that an earlier request has found in order are not checked again, except the last
    # two: one may have grown, and the other is before it.
    checked = fragments.in_order if isinstance(fragments, Fragments) else 0
    roles = _roles(contents[max(0, checked - 2) :])
    # In most histories results follow their calls, and neither comes twice in a row.
    if "mm" in roles or "rr" in roles or "ur" in roles:
        contents = _reorder(contents, _roles(contents))
    elif isinstance(fragments, Fragments):
        fragments.in_order = len(contents)
    if contents and not contents[-1].startswith(_USER):
        contents.append(_CONTINUE_MESSAGE)
    if contents and not contents[0].startswith(_USER):
        contents.insert(0, _OPENING_MESSAGE)
    return contents


def _roles(contents: Sequence[bytes]) -> str:
    """Return a letter for each content: "m" for a model's, "r" for results, "u" for any other."""
    return "".join(
        [
            "m" if not one.startswith(_USER) else "r" if one.startswith(_RESULTS) else "u"
            for one in contents
        ]
    )


def _reorder(fragments: Sequence[bytes], roles: str) -> list[bytes]:
    contents: list[bytes] = []
    end = 0  # the position after the last answer or result
    last_role = ""  # of the content at that position
    for fragment, role in zip(fragments, roles, strict=True):
        at = end if role == "r" and end else len(contents)
        if role == last_role and at == end:
            contents[end - 1] = _join(contents[end - 1], fragment)
            continue
        contents.insert(at, fragment)
        if role != "u":
            end, last_role = at + 1, role
    return contents


def _join(one: bytes, other: bytes) -> bytes:
    """Return two fragments of one kind as one: their first contents, and the files that follow."""
    first, second = (_turns.decode(b"[%b]" % fragment) for fragment in (one, other))
    longer = max(first, second, key=len)
    contents: list[bytes] = []
    for place, turn in enumerate(longer):
        parts = [
            part
            for turns in (first, second)
            for one in turns[place : place + 1]
            for part in one.parts
        ]
        contents.append(_json({"role": turn.role, "parts": parts}))
    return b",".join(contents)
