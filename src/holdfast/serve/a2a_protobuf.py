"""Messages of A2A as the SDK has them, in protobuf: made of JSON, written as JSON, and checked.

The SDK looks at the options of every field for each message that it checks, and `ParseDict` at the
names of all fields. Here that is done once for each type.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

from holdfast.serve import a2a_shapes as shapes


class _Field(NamedTuple):
    """A field of a type. `inner` is the type of its messages, None for plain values; those of
    `is_foreign` types are times and any JSON."""

    name: str
    inner: Any
    is_foreign: bool
    is_list: bool
    is_required: bool
    default: Any
    """The value that counts as none; None for a field that says itself whether it is set."""


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    """Return the fields of a type of messages, by their names in JSON."""
    from google.api.field_behavior_pb2 import FieldBehavior, field_behavior

    return {
        one.camelcase_name: _Field(
            one.name,
            one.message_type,
            one.message_type is not None and one.message_type.file.package == "google.protobuf",
            _is_list(one),
            FieldBehavior.REQUIRED in one.GetOptions().Extensions[cast("Any", field_behavior)],
            None if one.has_presence or _is_list(one) else one.default_value,
        )
        for one in kind.fields
    }


def _is_list(field: Any) -> bool:
    """Return True for a repeated field. Protobuf before 6.31 has no `is_repeated`, 7 no `label`."""
    is_repeated = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if is_repeated is None else is_repeated


def message_of(kind: str, data: shapes.Json) -> Any:
    """Return a message of the protocol. Unknown fields are an error of ours."""
    from a2a import types
    from google.protobuf.json_format import ParseDict

    return ParseDict(data, getattr(types, kind)())


def plain_message(kind: str, data: shapes.Json) -> Any:
    """Return the result of `message_of`, in a twentieth of its time, for a message without fields
    of bytes or maps."""
    from a2a import types

    message_class = getattr(types, kind)
    return message_class(**_arguments(message_class.DESCRIPTOR, data))


def _arguments(kind: Any, data: shapes.Json) -> dict[str, Any]:
    """Return the fields of a message as arguments of its class."""
    arguments: dict[str, Any] = {}
    fields = _fields(kind)
    for name, value in data.items():
        field = fields[name]
        if field.inner is None:
            arguments[field.name] = value
        elif field.is_foreign:
            from google.protobuf.json_format import ParseDict
            from google.protobuf.message_factory import GetMessageClass

            arguments[field.name] = ParseDict(value, GetMessageClass(field.inner)())
        elif isinstance(value, list):
            arguments[field.name] = [
                _arguments(field.inner, one) for one in cast("list[Any]", value)
            ]
        else:
            arguments[field.name] = _arguments(field.inner, value)
    return arguments


def json_of(message: Any) -> shapes.Json:
    """Return a message as JSON, without fields that are not set."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message)


def check_required(message: Any) -> None:
    """Raise the SDK's `InvalidParamsError` if a message of a request, or one in it, lacks a
    required field. There are no maps of messages in requests."""
    if _lacks(message):
        from a2a.utils.proto_utils import validate_proto_required_fields

        validate_proto_required_fields(message)  # says which ones


def _lacks(message: Any) -> bool:
    """Return True if a required field has no value, at any depth."""
    fields = _fields(message.DESCRIPTOR)
    for field in fields.values():
        if not field.is_required:
            continue
        if field.is_list or field.default is not None:
            value = getattr(message, field.name)
            if not value if field.is_list else value == field.default:
                return True
        elif not message.HasField(field.name):
            return True
    for one, value in message.ListFields():
        field = fields[one.camelcase_name]
        if field.inner is not None and not field.is_foreign:
            for inner in value if field.is_list else (value,):
                if _lacks(inner):
                    return True
    return False
