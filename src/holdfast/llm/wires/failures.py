"""What a provider says went wrong, as one of our errors: by status, by its own code, and where it has none by its words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    PermissionDenied,
    RateLimited,
    ServerError,
)
from holdfast.llm.retry import retry_after

SHOWN = 300  # characters of an answer that is shown in a message

# The words of servers that give this failure no code of its own: vLLM, llama.cpp, LM Studio, Ollama, TGI, Anthropic, Bedrock, Gemini.
_TOO_LONG = re.compile(
    r"maximum context length|context[ _]length|context window|context size|prompt is too long|input is too long"
    r"|too many (input )?tokens|exceeds? the (maximum|max) (number of )?(input )?tokens|input token count|max_model_len"
    r"|reduce the length of the (messages|prompt|input)",
    re.IGNORECASE,
)
_TOO_LONG_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "request_too_large",
    "string_above_max_length",
}
_FILTERED_CODES = {"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "data_inspection_failed"}
_NO_QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "credit_balance_too_low",
    "account_deactivated",
}
_BY_CODE: dict[str, int] = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "tokens": 429,
    "requests": 429,
    "insufficient_quota": 429,
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "server_error": 500,
    "internal_server_error": 500,
    "overloaded_error": 529,
    "timeout": 408,
}


class Said:
    """What an error body says: the message, the codes (most telling first), and whether it was a JSON error at all."""

    __slots__ = ("codes", "json", "message")

    def __init__(self, message: str, codes: list[str], json: bool) -> None:
        self.message = message
        self.codes = codes
        self.json = json


def read_error(body: bytes) -> Said:
    """Whatever shape it has: OpenAI's, Gemini's list, FastAPI's `detail`, a bare string, or a proxy's HTML page."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Said(shorten(body.decode("utf-8", "replace")), [], False)
    return said(found)


def said(found: Any) -> Said:
    """The same for a decoded body, or the `error` object of a stream."""
    if isinstance(found, list) and found:
        found = cast("list[Any]", found)[0]
    codes: list[str] = []
    message = ""
    for _ in range(3):  # an error may lie in an error: proxies wrap
        if not isinstance(found, dict):
            break
        level = cast("dict[str, Any]", found)
        codes[:0] = [str(level[key]) for key in ("code", "type", "status") if isinstance(level.get(key), str | int)]
        text = level.get("message") or level.get("detail") or level.get("msg")
        if text:
            message = text if isinstance(text, str) else msgspec.json.encode(text).decode()
        found = level.get("error")
    if isinstance(found, str):
        message = found
    return Said(shorten(message), codes, bool(message or codes))


def shorten(text: str) -> str:
    """Text on one line, without HTML, cut to what a message can carry."""
    if "<" in text and re.search(r"<(!doctype|html|head|body)", text, re.IGNORECASE):
        text = re.sub(r"(?is)<(script|style).*?</\1>|<[^>]*>", " ", text)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[:SHOWN] + " [...]"


def http_error(status: int, headers: Mapping[str, str], body: bytes, url: str, model: str) -> LLMError:
    """The error for a response of another status than 200. `headers` have names in lower case."""
    error = _error(status, read_error(body), url, model, headers.get("location", ""))
    error.request_id = headers.get("x-request-id") or headers.get("request-id") or headers.get("cf-ray") or ""
    error.retry_after = retry_after(headers)
    return error


def reported_error(found: Any, url: str = "", model: str = "") -> LLMError:
    """The error for an error object that came with status 200, alone or in a stream. Without a known code: `ServerError`."""
    what = said(found)
    status = next((int(code) for code in what.codes if code.isdecimal() and 400 <= int(code) < 600), 0)
    if not status:
        status = next((_BY_CODE[code] for code in what.codes if code in _BY_CODE), 0)
    error = _error(status or (400 if _too_long(what) else 500), what, url, model, "")
    error.status = status
    return error


def _too_long(what: Said) -> bool:
    return bool(_TOO_LONG_CODES & set(what.codes)) or bool(_TOO_LONG.search(what.message))


def _error(status: int, what: Said, url: str, model: str, location: str) -> LLMError:
    codes = set(what.codes)
    code = next((code for code in what.codes if not code.isdecimal()), "")
    message = what.message or "no reason given"
    at = url or "the provider"

    def make(kind: type[LLMError], text: str, retryable: bool | None = None) -> LLMError:
        error = kind(text, status=status, code=code)
        if retryable is not None:
            error.retryable = retryable
        return error

    if 300 <= status < 400:
        return make(BadRequest, f"{at} redirects ({status}) to {location or 'nowhere'}; redirects are not followed: set base_url to it.")
    if codes & _NO_QUOTA_CODES or status == 402:
        return make(RateLimited, f"No quota or credit left at {at} ({status}): {message}", False)
    if codes & _FILTERED_CODES and status < 500:
        return make(ContentFiltered, f"The provider's content filter stopped the request ({status}): {message}")
    if status == 413 or (status in (400, 422, 429) and _too_long(what)) or (status == 429 and message.startswith("Request too large")):
        return make(ContextTooLong, f"The request does not fit {model or 'the model'} ({status}): {message}")
    if status == 401:
        return make(AuthenticationError, f"The API key was refused (401): check api_key for {at}. The provider says: {message}")
    if status == 403:
        return make(PermissionDenied, f"The API key may not do this (403) at {at}: {message}")
    if status in (404, 405):
        if what.json and (codes & {"model_not_found", "not_found_error", "NotFoundError"} or "model" in message.lower()):
            return make(ModelNotFound, f"{at} has no model {model!r} ({status}): {message}")
        return make(ModelNotFound, f"No such path ({status}): {at}. A base_url usually ends in /v1. The server says: {message}")
    if status == 408:
        return make(LLMTimeout, f"{at} gave up waiting (408): {message}")
    if status == 409:
        return make(BadRequest, f"The request met another one (409) at {at}: {message}", True)
    if status == 429:
        return make(RateLimited, f"Too many requests (429) at {at}: {message}")
    if status >= 500:
        return make(ServerError, f"The provider failed ({status}) at {at}: {message}")
    return make(BadRequest, f"The request was refused ({status}) at {at}: {message}")
