"""Secrets of a conversation: values for commands and tools that no model, journal or observer is
shown.

A value is masked in the forms in which programs usually repeat it:

- unchanged, inside JSON (escaped up to three times), and in a URL;
- as base64, also in the middle of other data, and wrapped at 76 characters where the value begins
  the data.

Other transformations are not recognised.
"""

from __future__ import annotations

import re
import threading
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw

from holdfast.content import BLOCKS, ToolResult
from holdfast.errors import ConfigurationError, NotFound, ToolError

MIN_CHARACTERS = 8
"""The least length of a value. A shorter one would be masked where it is only a word."""
_MAX_VARIABLE_BYTES = 120_000  # Linux takes at most 128 KB for one variable
_MIN_LINE = 16  # characters of a line of a longer value that is masked by itself
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names that change how programs start; a command that names one would get its value.
_RESERVED = ("PATH", "HOME", "IFS", "ENV")
_RESERVED_BEGINNINGS = ("BASH", "LD_", "DYLD_", "PYTHON", "GIT_", "HOLDFAST_")
# Fields of events and calls that are Holdfast's own words, ids and hashes. Content has none.
_OWN_FIELDS = frozenset(
    (
        *("id", "call_id", "provider_id", "seq", "idempotency_key", "arguments_hash"),
        *("request_hash", "status", "decision", "stop_reason", "wire", "role", "name", "sender"),
        *("spawned_by", "question_id", "runner", "mime_type", "error_type", "risk", "kind"),
        *("phase", "state", "input_schema", "output_schema", "parameters"),
    )
)

Source = Callable[[], str]


class Secret(msgspec.Struct, frozen=True):
    """A secret with a description, which the model is shown beside the name.

    `value` is the value, or a function without arguments that returns the present one. The function
    is called at each use of the secret, on the thread that uses it.
    """

    value: str | Source
    description: str = ""

    def __repr__(self) -> str:
        return f"Secret(description={self.description!r})"


SecretsByName = Mapping[str, str | Source | Secret]


class _Form(NamedTuple):
    """A form of a value, and the mask that replaces it, both as text and in UTF-8."""

    text: str
    mask: str
    data: bytes
    mask_data: bytes


class Secrets:
    """The secrets of one conversation and of the conversations that it spawns. Thread-safe.

    Raises `ConfigurationError` for a name that is not a shell variable or that programs act on, and
    for a value of fewer than 8 characters. The message never contains the value.

    Args:
        secrets: By name: a value, a function that returns the present one, or a `Secret`.
    """

    __slots__ = ("_forms", "_lock", "_masked", "_sources")

    def __init__(self, secrets: SecretsByName) -> None:
        self._sources: dict[str, Secret] = {}
        # Shared with `limited`: all values that are masked, and their forms, the longest first.
        self._masked: dict[tuple[str, str], None] = {}
        self._forms: list[tuple[_Form, ...]] = [()]
        self._lock = threading.Lock()
        if not isinstance(secrets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise ConfigurationError(
                "secrets takes a mapping of names to values, such as {'GITHUB_TOKEN': token}."
            )
        for name, value in secrets.items():
            secret = value if isinstance(value, Secret) else Secret(value)
            _check_name(name)
            if not isinstance(secret.value, str) and not callable(secret.value):
                raise ConfigurationError(
                    f"secrets: {name} takes a str or a function that returns one, not a value of"
                    f" type {type(secret.value).__name__}."
                )
            if isinstance(secret.value, str):
                _check_value(name, secret.value)
                if any(secret.value in f"<secret:{one}>" for one in secrets):
                    raise ConfigurationError(
                        f"secrets: the value of {name} is a part of the text that masks it."
                    )
                self.mask_from_now_on(name, secret.value)
            self._sources[name] = secret

    @classmethod
    def of(cls, secrets: SecretsByName | Secrets | None) -> Secrets | None:
        """Return the secrets of an argument that may be a mapping or None."""
        return secrets if secrets is None or isinstance(secrets, Secrets) else cls(secrets)

    def limited(self, names: Iterable[str]) -> Secrets:
        """Return a copy in which only `names` can be used; the others are still masked. Raises
        `NotFound`."""
        result = Secrets({})
        result._masked, result._forms, result._lock = self._masked, self._forms, self._lock
        result._sources = {name: self._find(name) for name in names}
        return result

    def replacing(self, earlier: Secrets | None) -> Secrets:
        """Return these secrets, by which the values of `earlier` ones are still masked."""
        if earlier is not None and earlier._masked is not self._masked:
            # One record for both: a call that still has the earlier ones may use another value.
            own = list(self._masked)
            self._masked, self._forms, self._lock = earlier._masked, earlier._forms, earlier._lock
            for name, value in own:
                self.mask_from_now_on(name, value)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in alphabetical order."""
        return tuple(sorted(self._sources))

    def description(self, name: str) -> str:
        """Return the description of a secret. Raises `NotFound`."""
        return self._find(name).description

    def describe(self) -> str:
        """Return the part of a system prompt that tells a model what there is; "" for none."""
        if not self._sources:
            return ""
        lines = [
            f"- {name}: {text}" if (text := self._sources[name].description) else f"- {name}"
            for name in self.names
        ]
        return (
            "# Secrets\n\nThese secrets are there for commands and tools. A terminal command gets"
            " those that it names as environment variables ($NAME). Their values are not shown to"
            " you: wherever one comes up, you read <secret:NAME>.\n\n" + "\n".join(lines)
        )

    def get(self, name: str) -> str:
        """Return the present value of a secret. Raises `NotFound` for an unknown name, `ToolError`
        if its function fails or returns no valid value."""
        source = self._find(name).value
        if isinstance(source, str):
            return source
        try:
            value = source()
            _check_value(name, value)
        except ConfigurationError as error:
            raise ToolError(str(error), retryable=False) from None
        except Exception as error:  # its message may have the value
            raise ToolError(
                f"The secret {name} cannot be had: its function raised {type(error).__name__}."
            ) from None
        self.mask_from_now_on(name, value)
        return value

    def named_in(self, command: str) -> dict[str, str]:
        """Return the values of the secrets that a shell command names, for its environment."""
        words = set(_WORD.findall(command))
        values = {name: self.get(name) for name in self._sources if name in words}
        for name, value in values.items():
            if len(value.encode()) > _MAX_VARIABLE_BYTES:
                raise ToolError(
                    f"The secret {name} is too long for an environment variable, so no command can"
                    " use it.",
                    retryable=False,
                )
        return values

    def _find(self, name: str) -> Secret:
        secret = self._sources.get(name)
        if secret is None:
            there = ", ".join(self.names) or "none"
            raise NotFound(
                f"There is no secret {name!r} in this conversation. There are: {there}.",
                "secret",
                name,
            )
        return secret

    def mask_from_now_on(self, name: str, value: str) -> None:
        """Mask a value that no call can get, such as one that was replaced."""
        with self._lock:
            if (name, value) in self._masked:
                return
            self._masked[name, value] = None
            forms = {form.text: form for form in (*_forms(name, value), *self._forms[0])}
            self._forms[0] = tuple(sorted(forms.values(), key=lambda form: -len(form.text)))

    # --- masking ---

    def mask(self, text: str) -> str:
        """Return a text with `<secret:NAME>` in place of each value."""
        for form in self._forms[0]:
            if form.text in text:
                text = text.replace(form.text, form.mask)
        return text

    def mask_bytes(self, data: bytes) -> bytes:
        """Return bytes with each value in UTF-8 replaced by a mask."""
        for form in self._forms[0]:
            if form.data in data:
                data = data.replace(form.data, form.mask_data)
        return data

    def occur_in(self, data: bytes) -> bool:
        """Return True if a value occurs in bytes."""
        return any(form.data in data for form in self._forms[0])

    def mask_value(self, value: Any) -> Any:
        """Return a value (an event, a result, JSON) with the secrets in all its texts masked; the
        value itself if it has none. A provider's own form of an answer (`Raw`) that has one is
        left out as a whole, because a changed one would be refused."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, bytes):
            return self.mask_bytes(value)
        if isinstance(value, Raw):
            return Raw() if self.occur_in(bytes(value)) else value
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            new = [self.mask_value(item) for item in items]
            if all(one is other for one, other in zip(new, items, strict=True)):
                return items
            return new if isinstance(value, list) else tuple(new)
        if isinstance(value, dict):
            entries = cast("dict[Any, Any]", value)
            pairs = [(self.mask_value(k), self.mask_value(v)) for k, v in entries.items()]
            items = zip(pairs, entries.items(), strict=True)
            if all(k is old and v is value for (k, v), (old, value) in items):
                return entries
            masked: dict[Any, Any] = {}
            for key, one in pairs:
                while key in masked:
                    key = f"{key}'"  # two keys that are masked alike
                masked[key] = one
            return masked
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            masked_text = self.mask(text) if len(text) >= MIN_CHARACTERS else text
            return value if masked_text == text else masked_text
        if isinstance(value, msgspec.Struct):
            changes: dict[str, Any] = {}
            own = () if isinstance(value, BLOCKS) else _OWN_FIELDS
            for name in value.__struct_fields__:
                old = getattr(value, name)
                if name not in own and not isinstance(old, int | float):
                    new = self.mask_value(old)
                    if new is not old:
                        changes[name] = new
            return msgspec.structs.replace(value, **changes) if changes else value
        return value

    def mask_result(self, result: ToolResult) -> ToolResult:
        """Return a tool's result with all values masked."""
        return cast("ToolResult", self.mask_value(result))

    def mask_error(self, error: ToolError) -> ToolError:
        """Return a tool's error with a masked message, and without the errors that caused it if
        one of them has a value."""
        text = str(error)
        masked = self.mask(text)
        if masked != text:
            error.args = (masked, *error.args[1:])
        cause: BaseException | None = error.__cause__ or error.__context__
        while cause is not None:
            text = f"{cause} {cause!r} {vars(cause)!r}"
            if self.mask(text) != text:
                error.__cause__ = error.__context__ = None
                break
            cause = cause.__cause__ or cause.__context__
        return error

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.names)})"


class StreamMask:
    """A mask for text or output that comes in pieces: a value that is split over two pieces is
    masked, too. The end of a piece that may be the beginning of a value is held back."""

    __slots__ = ("_secrets", "_tail")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._tail = b""

    def feed(self, data: bytes) -> bytes:
        """Return the output that is certain, with the values masked."""
        data = self._tail + data
        cut = len(data) - self._undecided(data)
        # A value that ends in the held part begins in it, too.
        while (begin := self._before(data, cut)) < cut:
            cut = begin
        self._tail = data[cut:]
        return self._secrets.mask_bytes(data[:cut])

    def feed_text(self, text: str) -> str:
        """Return the text that is certain, with the values masked."""
        output = self.feed(text.encode(errors="surrogatepass"))
        # a form begins at a character's first byte, so that no character is cut
        return output.decode(errors="surrogatepass")

    def flush(self) -> bytes:
        """Return the end that was held back; nothing follows."""
        tail, self._tail = self._tail, b""
        return self._secrets.mask_bytes(tail)

    def _before(self, data: bytes, cut: int) -> int:
        """Return the beginning of a value that lies across `cut`, or `cut`."""
        if cut == len(data):
            return cut
        for form in self._secrets._forms[0]:  # pyright: ignore[reportPrivateUsage]: its other half
            at = data.find(form.data, max(0, cut - len(form.data) + 1), cut + len(form.data) - 1)
            if 0 <= at < cut:
                return at
        return cut

    def _undecided(self, data: bytes) -> int:
        """Return the length of the longest end of `data` that a value may begin with."""
        longest = 0
        for form in self._secrets._forms[0]:  # pyright: ignore[reportPrivateUsage]: its other half
            at = max(0, len(data) - len(form.data) + 1)
            while (at := data.find(form.data[:1], at)) >= 0:
                if form.data.startswith(data[at:]):
                    longest = max(longest, len(data) - at)
                    break
                at += 1
        return longest


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"secrets takes names of environment variables, such as 'GITHUB_TOKEN', not {name!r}."
        )
    if name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS):
        raise ConfigurationError(
            f"secrets: {name} changes how programs start, so it cannot name a secret. Choose"
            f" another name, such as MY_{name}."
        )


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigurationError(
            f"secrets: the function of {name} returned a value of type {type(value).__name__}; it"
            " must return a str."
        )
    if len(value) < MIN_CHARACTERS or not value.strip():
        raise ConfigurationError(
            f"secrets: {name} has fewer than {MIN_CHARACTERS} characters. So short a value cannot"
            " be masked, because it may be a part of other words."
        )
    try:
        value.encode()
        problem = "a NUL character" if "\0" in value else ""
    except UnicodeEncodeError:
        problem = "half of a surrogate pair"
    if problem:
        raise ConfigurationError(f"secrets: {name} has {problem}, which no variable can hold.")


def _forms(name: str, value: str) -> list[_Form]:
    """Return the forms of a value, each once."""
    mask = f"<secret:{name}>"
    # A key file is often shown line by line, and a command's output ends in a line break.
    plain = {value, value.strip()} | {
        line.strip() for line in value.splitlines() if len(line.strip()) >= _MIN_LINE
    }
    by_form: dict[str, str] = {}
    for text in plain:
        # by Python, and by a shell in either kind of quotes
        quoted = [repr(text)[1:-1], text.replace("'", "'\\''")]
        quoted.append(re.sub(r'([$`"\\])', r"\\\1", text))
        for form in (*_json_forms(text), *_url_forms(text), *quoted):
            by_form[form] = mask
        for form in _base64_forms(text.encode()):
            # Of the same length and alphabet: data around it can still be decoded.
            by_form.setdefault(form, ("SECRET" * (len(form) // 6 + 1))[: len(form)])
    return [_Form(one, by, one.encode(), by.encode()) for one, by in by_form.items()]


def _json_forms(text: str) -> list[str]:
    forms = [text]
    wide = narrow = text
    for _ in range(3):
        wide = msgspec.json.encode(wide).decode()[1:-1]
        narrow = _ascii_json(narrow)
        forms += [wide, narrow]
    forms += [form.replace("/", "\\/") for form in forms[1:3]]
    # as Go and .NET write it for HTML, and with capital digits
    html = [re.sub("[<>&'+]", lambda one: f"\\u{ord(one[0]):04x}", form) for form in forms[1:3]]
    forms += html
    return forms + [
        re.sub(r"\\u[0-9a-f]{4}", lambda code: "\\u" + code[0][2:].upper(), form)
        for form in (forms[2], *html)
    ]


def _ascii_json(text: str) -> str:
    import json  # loaded late: few conversations have secrets

    return json.dumps(text)[1:-1]


def _url_forms(text: str) -> list[str]:
    from urllib.parse import quote, quote_plus  # loaded late, as above

    forms = [quote(text, safe=""), quote(text), quote_plus(text), quote(text, safe="!'()*")]
    return forms + [re.sub(r"%..", lambda code: code[0].lower(), form) for form in forms]


def _base64_forms(data: bytes) -> list[str]:
    """Return the base64 forms of `data`. For each position in groups of three bytes these are the
    characters that depend on `data` alone, in both alphabets. The wrapped forms follow."""
    forms: list[str] = []
    for offset, skipped in ((0, 0), (1, 2), (2, 3)):
        text = b2a_base64(bytes(offset) + data, newline=False).decode()
        core = text[skipped : (offset + len(data)) * 8 // 6]
        forms += [core, core.replace("+", "-").replace("/", "_")]
    whole = forms[0]
    if len(whole) > 76:
        for end in ("\n", "\r\n"):
            forms.append(end.join(whole[at : at + 76] for at in range(0, len(whole), 76)))
    return forms
