"""The vocabulary of all packages: content blocks, messages, tool calls, tool results, usage.

Everything here is a frozen `msgspec.Struct`: plain data, safe to share between threads,
camelCase on the wire. Tool results are the MCP output format (Model Context Protocol,
`CallToolResult`) with `meta`.
"""

from __future__ import annotations

import errno
import os
from binascii import a2b_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import msgspec

from holdfast.errors import ConfigurationError
from holdfast.nesting import MAX_STORED_DEPTH, decode_json

S = TypeVar("S", bound="Data")

_encoder = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")


# gc=False: frozen data makes no cycles, and the garbage collector need not walk through long
# journals again and again.
class Data(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all frozen data that has a JSON form."""

    def to_json(self) -> bytes:
        """Return the JSON form as UTF-8 bytes. Raises `TypeError` if a field holds a value that
        JSON cannot represent."""
        return _encoder.encode(self)

    @classmethod
    def from_json(cls: type[S], data: bytes | str) -> S:
        """Return the object that `to_json` wrote. Raises `msgspec.ValidationError` (a
        `ValueError`) on anything else."""
        return decode_json(data, cls, MAX_STORED_DEPTH)


# --- content blocks (MCP `ContentBlock`) ---

# Factories, not plain defaults: omit_defaults would drop what MCP wants always present.


class TextContent(Data, frozen=True, tag_field="type", tag="text"):
    """Text, for a model or a person to read."""

    text: str


class _Media(Data, frozen=True):
    data: bytes
    mime_type: str

    def __post_init__(self) -> None:
        name, data = type(self).__name__, self.data
        if isinstance(data, str):
            raise ConfigurationError(
                f"{name}: data takes bytes, not text. For base64 give base64.b64decode(text), for a"
                " file FileContent.from_path(path), for an address that the provider fetches"
                " FileContent(url=...)."
            )
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(f"{name}: data takes bytes, not {type(data).__name__}.")
        if not isinstance(self.mime_type, str):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            example = "image/png" if isinstance(self, ImageContent) else "audio/wav"
            raise ConfigurationError(
                f"{name}: mime_type takes a MIME type such as {example!r}, not {self.mime_type!r}."
            )


class ImageContent(_Media, frozen=True, tag_field="type", tag="image"):
    """An image: its bytes (base64 in JSON) and MIME type, such as `image/png`."""

    mime_type: str = msgspec.field(default_factory=lambda: "image/png")


class AudioContent(_Media, frozen=True, tag_field="type", tag="audio"):
    """Sound: its bytes (base64 in JSON) and MIME type, such as `audio/wav`."""

    mime_type: str = msgspec.field(default_factory=lambda: "audio/wav")


_KINDS = {"image": "image", "audio": "audio", "video": "video"}


class FileContent(Data, frozen=True, tag_field="type", tag="file"):
    """A picture, a document, sound, a video or another file for the model to look at.

    Exactly one of these gives the content:

    - `data`: its bytes (base64 in JSON).
    - `url`: an address that the provider fetches: `https:`, or a provider's own form such as
      `gs:`.
    - `file_id`: the id of a file that was uploaded to the provider.

    `mime_type` is the type, such as `application/pdf`. A `url` that ends in a known suffix needs
    none. `name` is the file's name for the model. `provider` limits an id or an address to one
    provider, by the prefix of its models ("anthropic"). Models of other providers are shown a note
    in its place.
    """

    data: bytes = b""
    mime_type: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    provider: str = ""

    def __post_init__(self) -> None:
        values: dict[str, Any] = msgspec.structs.asdict(self)
        for field, value in values.items():
            kind = bytes if field == "data" else str
            if not isinstance(value, kind):
                hint = " For a file use FileContent.from_path(path), for an address url=..."
                raise ConfigurationError(
                    f"FileContent: {field} takes {kind.__name__}, not {type(value).__name__}."
                    + (hint if field == "data" else "")
                )
        if sum(1 for place in (self.data, self.url, self.file_id) if place) != 1:
            raise ConfigurationError(
                "FileContent takes exactly one of data (bytes that are not empty), url and file_id."
            )
        if self.data and not self.mime_type:
            raise ConfigurationError(
                "FileContent: data needs a mime_type such as 'application/pdf'."
                " FileContent.from_path takes it from the file's suffix."
            )
        scheme = self.url.partition(":")[0].lower() if ":" in self.url else ""
        if self.url and scheme in ("", "file", "data"):
            raise ConfigurationError(
                "FileContent: url takes an address that the provider can fetch, such as"
                f" 'https://example.org/a.pdf', not {self.url[:80]!r}. For a file use"
                " FileContent.from_path(path), for its bytes data=..."
            )
        if self.url and not self.mime_type:
            place = self.url.partition("?")[0].partition("#")[0].partition("://")[2]
            name = place.partition("/")[2].rpartition("/")[2]  # the host's end is no suffix
            msgspec.structs.force_setattr(self, "mime_type", _mime_type(name))

    @classmethod
    def from_path(
        cls, path: str | os.PathLike[str], mime_type: str = "", max_bytes: int | None = None
    ) -> FileContent:
        """Return the file at `path` with its bytes, which are read now.

        Without a `mime_type` and a known suffix it is `text/plain` if it is UTF-8, else
        `application/octet-stream`. In its name U+FFFD replaces bytes that are not UTF-8. Raises
        `OSError` if it cannot be read or has more than `max_bytes` (`errno.EFBIG`), and
        `ConfigurationError` if it is empty.
        """
        with open(path, "rb") as file:
            data = file.read() if max_bytes is None else file.read(max_bytes + 1)
        if max_bytes is not None and len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"The file has more than {max_bytes:,} bytes", path)
        if not data:
            raise ConfigurationError(f"FileContent: the file {os.fspath(path)!r} is empty.")
        name = os.fsencode(os.path.basename(path)).decode("utf-8", "replace")
        return cls(data, mime_type or _mime_type(name) or _kind_of(data), name=name)

    @property
    def kind(self) -> Literal["image", "audio", "video", "document"]:
        """The kind of file, by its MIME type; `document` if that is another or unknown."""
        return cast("Any", _KINDS.get(self.mime_type.partition("/")[0].lower(), "document"))


# The types that not every supported Python has in its table, or that it has under an old name.
_OFFICE = "application/vnd.openxmlformats-officedocument."
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."
_TYPES_BY_SUFFIX = {
    ".docx": f"{_OFFICE}wordprocessingml.document",
    ".xlsx": f"{_OFFICE}spreadsheetml.sheet",
    ".pptx": f"{_OFFICE}presentationml.presentation",
    ".odt": f"{_OPEN_DOCUMENT}text",
    ".ods": f"{_OPEN_DOCUMENT}spreadsheet",
    ".odp": f"{_OPEN_DOCUMENT}presentation",
    ".epub": "application/epub+zip",
    ".wav": "audio/wav",
    ".m4a": "audio/mp4",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".mkv": "video/x-matroska",
    ".flv": "video/x-flv",
    ".wmv": "video/x-ms-wmv",
    ".3gp": "video/3gpp",
    ".webp": "image/webp",
    ".md": "text/markdown",
}


def _mime_type(name: str) -> str:
    from mimetypes import MimeTypes  # loaded late: few programs send files

    mime_type = _TYPES_BY_SUFFIX.get(os.path.splitext(name)[1].lower())
    # A new instance, because the module's functions read the machine's tables.
    return mime_type or MimeTypes().guess_type(name, strict=False)[0] or ""


def _kind_of(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"


class ResourceLink(Data, frozen=True, tag_field="type", tag="resource_link"):
    """A resource that a tool names but does not include."""

    uri: str
    name: str = msgspec.field(default_factory=str)
    mime_type: str | None = None


class EmbeddedResource(Data, frozen=True, tag_field="type", tag="resource"):
    """A resource that a tool includes: MCP's `{uri, mimeType, text | blob}` mapping, unchanged."""

    resource: dict[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.resource, dict):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                "EmbeddedResource: resource takes a dict such as {'uri': 'file:///a.txt', 'text':"
                f" '...'}}, not {self.resource!r}."
            )


Content = TextContent | ImageContent | AudioContent | FileContent | ResourceLink | EmbeddedResource
ContentLike = str | Content | Mapping[str, Any] | Iterable[Content | Mapping[str, Any]]

BLOCKS = (TextContent, ImageContent, AudioContent, FileContent, ResourceLink, EmbeddedResource)


def blocks(content: ContentLike) -> tuple[Content, ...]:
    """Return content in any accepted shape as a tuple of blocks; a `str` becomes one `TextContent`.
    Raises `ConfigurationError` (a `ValueError`) naming the value given."""
    items: tuple[Any, ...]
    if type(content) is tuple:
        items = cast("tuple[Any, ...]", content)
    elif isinstance(content, str):
        return (TextContent(content),) if content else ()
    elif isinstance(content, BLOCKS):
        return (content,)
    elif isinstance(content, dict) and "type" in content:
        return (_block_of(content),)
    elif isinstance(content, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
        items = tuple(cast("Iterable[Any]", content))
    else:
        raise ConfigurationError(
            f"content takes a str, a content block or a list of blocks, not {content!r}."
        )
    if any(type(block) in (dict, str) for block in items):
        items = tuple([_block_of(block) for block in items])
    for block in items:
        if not isinstance(block, BLOCKS):
            raise ConfigurationError(
                "content takes a str, a content block or a list of blocks, not a list with"
                f" {block!r}."
            )
    return cast("tuple[Content, ...]", items)


def _block_of(block: Any) -> Content:
    """Return a content block that may be given as text or as MCP's JSON. Raises
    `ConfigurationError`."""
    if isinstance(block, str):
        return TextContent(block)
    if not isinstance(block, dict):
        return block
    try:
        return msgspec.convert(block, Content)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"content takes a str, a content block or a list of blocks, not a list with {block!r}:"
            f" {error}."
        ) from None


def content_at(address: str, mime_type: str = "") -> Content | None:
    """Return the content at an address of an answer. A `data:` address gives its bytes, or None if
    they cannot be read. An address that a provider can fetch gives a `FileContent`; any other, such
    as a relative one, a `ResourceLink`. `mime_type` is used unless the address has its own."""
    if address[:5].lower() == "data:":
        head, _, text = address[5:].partition(",")
        data = _inline_bytes(text, head.lower().endswith(";base64"))
        kind = head.partition(";")[0].strip()
        return typed_content(data, kind or mime_type) if data else None
    try:
        return FileContent(url=address, mime_type=mime_type)
    except ConfigurationError:
        return ResourceLink(address, mime_type=mime_type or None)


def _inline_bytes(text: str, is_base64: bool) -> bytes:
    from urllib.parse import unquote_to_bytes  # loaded late: few answers hold files

    try:
        data = unquote_to_bytes(text)
        return a2b_base64(data) if is_base64 else data
    except ValueError:
        return b""


def typed_content(data: bytes, mime_type: str) -> Content:
    """Return bytes as a picture, as sound or as another file, by their MIME type."""
    family = mime_type.partition("/")[0].lower()
    if family == "image":
        return ImageContent(data, mime_type)
    if family == "audio":
        return AudioContent(data, mime_type)
    return FileContent(data, mime_type or "application/octet-stream")


def answer_seq(call_id: str) -> int:
    """Return the seq of the answer that contains a call, which begins the call's id. Return 0 for
    an id that Holdfast did not make."""
    first = call_id.partition(".")[0]
    return int(first) if first.isdecimal() and len(first) < 16 else 0


def is_nested(call_id: str) -> bool:
    """Return True for the id of a call that a script made (`{seq}.{index}.{n}`). A model is not
    shown it."""
    return call_id.count(".") == 2


def text_of(content: Sequence[Content]) -> str:
    """Return the text blocks of `content`, joined by newlines."""
    return "\n".join([block.text for block in content if isinstance(block, TextContent)])


# --- messages and calls ---


class ToolCall(Data, frozen=True):
    """One tool call of the model.

    `id` is Holdfast's (`{assistant_seq}.{index}`), `provider_id` the provider's. `name` is the
    tool's canonical name. `raw` is the provider's argument text if it differs from the encoded
    `arguments`. `invalid` says why that text is not a JSON object; then `arguments` is empty.
    `provider_kind` is the provider's name for a call of a special kind, such as `computer_call`,
    and determines the form of the result. A call of a function has "".
    """

    id: str
    name: str
    arguments: dict[str, Any] = {}
    provider_id: str = ""
    raw: str = ""
    invalid: str = ""
    provider_kind: str = ""

    @property
    def raw_arguments(self) -> str:
        """The arguments as JSON text, exactly as the provider sent them."""
        return self.raw or _encoder.encode(self.arguments).decode()

    @property
    def arguments_hash(self) -> str:
        """The SHA-256 in hex of the arguments as sorted JSON, to which a decision is bound."""
        from hashlib import sha256  # loaded late: 3 ms of import that few need

        return sha256(_sorted.encode(self.arguments)).hexdigest()


class Message(Data, frozen=True):
    """One message of a chat, for `LLM.completion`. `role` is system, user, assistant or tool.

    `Message("hi")` is a user message. An assistant message may carry `tool_calls`; a tool message
    answers the call whose id is `tool_call_id`.
    """

    content: tuple[Content, ...] = ()
    role: Literal["system", "user", "assistant", "tool"] = "user"
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "content", blocks(self.content))
        if self.role not in ("system", "user", "assistant", "tool"):
            raise ConfigurationError(
                f"Message: role takes system, user, assistant or tool, not {self.role!r}."
            )
        if type(self.tool_calls) is not tuple:
            msgspec.structs.force_setattr(self, "tool_calls", tuple(self.tool_calls))

    @property
    def text(self) -> str:
        """The text of all blocks."""
        return text_of(self.content)


class Usage(Data, frozen=True):
    """Tokens of one model call, or a sum of them.

    `input_tokens` includes the cached ones, those written to the cache, and those of sound and
    pictures; `output_tokens` includes the reasoning, sound and pictures. `cache_write_1h_tokens`
    are the part of `cache_write_tokens` that the cache keeps for an hour.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_image_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            self.input_audio_tokens + other.input_audio_tokens,
            self.output_audio_tokens + other.output_audio_tokens,
            self.input_image_tokens + other.input_image_tokens,
            self.output_image_tokens + other.output_image_tokens,
        )


def known_cost(cost: float, unpriced: int) -> float | None:
    """Return a sum of costs; None if all its calls have an unknown price."""
    return None if unpriced and not cost else cost


def cost_sum(one: float | None, other: float | None, unpriced: int) -> float | None:
    """Return the sum of two costs that leave out `unpriced` calls together."""
    return known_cost((one or 0.0) + (other or 0.0), unpriced)


# --- tool results ---


class ErrorInfo(Data, frozen=True):
    """The reason of a failed call, for programs: the taxonomy's `type`, the message, and the
    retry policy that applied."""

    type: str
    message: str
    retryable: bool = False
    max_retries: int = 0
    backoff: Literal["none", "fixed", "exponential"] = "none"


class _FromMCP(Data, frozen=True):
    """The fields of a result, and the `_meta` of MCP's own results."""

    content: tuple[Content, ...] = ()
    structured_content: Any = None
    meta: dict[str, Any] = {}
    is_error: bool = False
    error: ErrorInfo | None = None
    mcp_meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_MCP_NAMES = {"isError": "is_error", "structuredContent": "structured_content", "_meta": "meta"}
_construct = type(Data).__call__


class _MCPNames(type(Data)):
    """A metaclass whose structs accept MCP's spelling of their fields in the constructor."""

    if not TYPE_CHECKING:  # a type checker takes the fields' own names from the struct

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            if fields and not _MCP_NAMES.keys().isdisjoint(fields):
                for theirs, ours in _MCP_NAMES.items():
                    if theirs in fields and ours in fields:
                        raise TypeError(f"{cls.__name__}: give {ours} or {theirs}, not both.")
                fields = {_MCP_NAMES.get(name, name): value for name, value in fields.items()}
            return _construct(cls, *args, **fields)


class ToolResult(Data, frozen=True, metaclass=_MCPNames):
    """The result of a tool call, in the MCP output format with `meta`.

    The constructor and the attributes have MCP's spelling, too: `ToolResult("no", isError=True)`,
    `result.structuredContent`. Blocks may be dicts in MCP's form. `from_json` reads `_meta` as
    `meta`.

    `ToolResult()` is an empty success. `ToolResult("text")` is short for one `TextContent`. In
    JSON `content` and `isError` are always there: `{"content":[{"type":"text","text":"Hello
    world"}],"meta":{"exitCode":0},"isError":false}`.
    """

    # Factories here too, for the two keys that MCP wants always present.
    content: tuple[Content, ...] = msgspec.field(default_factory=lambda: ())
    structured_content: Any = None
    meta: dict[str, Any] = {}
    is_error: bool = msgspec.field(default_factory=lambda: False)
    error: ErrorInfo | None = None

    def __post_init__(self) -> None:
        if type(self.content) is tuple:
            # A loop, because this runs for every result and `blocks` costs more than the check.
            for block in self.content:
                if type(block) not in BLOCKS:
                    break
            else:
                return
        msgspec.structs.force_setattr(self, "content", blocks(self.content))

    @property
    def success(self) -> bool:
        """True if the call succeeded."""
        return not self.is_error

    @property
    def isError(self) -> bool:  # noqa: N802 - MCP's spelling
        """`is_error` under its name in MCP."""
        return self.is_error

    @property
    def structuredContent(self) -> Any:  # noqa: N802 - MCP's spelling
        """`structured_content` under its name in MCP."""
        return self.structured_content

    @classmethod
    def from_json(cls, data: bytes | str) -> ToolResult:
        """Return a result from its JSON form, or from MCP's. Raises `msgspec.ValidationError` (a
        `ValueError`) on anything else."""
        form = decode_json(data, _FromMCP, MAX_STORED_DEPTH)
        return cls(
            form.content,
            form.structured_content,
            {**(form.mcp_meta or {}), **form.meta},
            form.is_error,
            form.error,
        )

    @property
    def data(self) -> Any:
        """The structured content if there is any, else the text."""
        return self.text if self.structured_content is None else self.structured_content

    @property
    def text(self) -> str:
        """The text of all blocks."""
        return text_of(self.content)

    @classmethod
    def failure(
        cls, message: str, error_type: str = "internal", *, meta: dict[str, Any] | None = None
    ) -> ToolResult:
        """Return an error result whose text, shown to the model, is `message`."""
        return cls((TextContent(message),), None, meta or {}, True, ErrorInfo(error_type, message))
