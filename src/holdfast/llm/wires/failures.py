"""Conversion of a provider's failures to Holdfast's errors: by status, by the provider's code,
or else by the wording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import (
    AuthenticationError,
    BadRequest,
    BadResponse,
    ContentFiltered,
    ContextTooLong,
    LLMError,
    LLMTimeout,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    ServerError,
)
from holdfast.llm.retry import duration, retry_after

EXCERPT_CHARS = 300  # characters of an answer shown in a message

# The wording of servers without a code for this failure: vLLM, llama.cpp, LM Studio, Ollama, TGI,
# Anthropic, Bedrock, Gemini.
_TOO_LONG = re.compile(
    r"maximum context length|context[ _]length|context window|context size|prompt is too long|input"
    r" is too long"
    r"|too many (input )?tokens|exceeds? the (maximum|max) (number of )?(input )?tokens|input token"
    r" count|max_model_len"
    r"|reduce the length of the (messages|prompt|input)",
    re.IGNORECASE,
)
# Wording about a rate limit, not about size.
_RATE_WORDING = re.compile(
    r"per (minute|hour|day)|please wait|try again|retry (in|after)", re.IGNORECASE
)
_INVALID_KEY = re.compile(
    r"API key (not valid|not found|expired)|(incorrect|invalid) api key|unregistered callers",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(
    r"credit balance is too low|insufficient (account )?(balance|credits?|funds|quota)",
    re.IGNORECASE,
)
_FILTERED = re.compile(
    r"content management policy|flagged as potentially violating|requires moderation", re.IGNORECASE
)
_OVERLOADED = re.compile(
    r"overload|(at|over|no|insufficient) capacity|capacity exceeded|high demand", re.IGNORECASE
)
_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?)"
    r" ?(ms|s|m|h|seconds?|minutes?)((?:\d+(?:\.\d+)?(?:ms|s|m))*)",
    re.IGNORECASE,
)

_TOO_LONG_CODES = {
    "context_length_exceeded",
    "exceed_context_size_error",
    "context_window_exceeded",
    "request_too_large",
}
# OpenAI's code for any text above its limit, such as an id or a tool's description. For the content
# of messages it means that the conversation is too long.
_STRING_TOO_LONG = "string_above_max_length"
_MESSAGE_PARAM = re.compile(r"input|(messages|input)\W.*\b(content|output)\b.*")
_NAMED_PARAM = re.compile(r"'((?:messages|input)\b[^']*)'")
_FILTERED_CODES = {
    "content_filter",
    "content_policy_violation",
    "image_content_policy_violation",
    "ResponsibleAIPolicyViolation",
    "data_inspection_failed",
}
_NO_QUOTA_CODES = {
    "insufficient_quota",
    "insufficient_balance",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "credit_balance_too_low",
    "account_deactivated",
    "exceeded_current_quota_error",
}
_NO_MODEL_CODES = {
    "model_not_found",
    "not_found_error",
    "NotFoundError",
    "DeploymentNotFound",
    "model_decommissioned",
}
_INVALID_KEY_CODES = {"API_KEY_INVALID", "invalid_api_key"}
_OVERLOADED_CODES = {
    "overloaded_error",
    "overloaded",
    "engine_overloaded",
    "engine_overloaded_error",
    "server_overloaded",
    "server_is_overloaded",
    "service_tier_capacity_exceeded",
    "UNAVAILABLE",
    "MODEL_CAPACITY_EXHAUSTED",
    "NoCapacity",
}
# The usual status of each code, for errors that come without a status (in a stream).
_BY_CODE: dict[str, int] = {
    # OpenAI and servers that follow it
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "BadRequestError": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "timeout": 408,
    "rate_limit_exceeded": 429,
    "tokens": 429,
    "requests": 429,
    "insufficient_quota": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "engine_overloaded": 503,
    "engine_overloaded_error": 503,
    "overloaded": 503,
    "server_overloaded": 503,
    "server_is_overloaded": 503,
    "vector_store_timeout": 504,
    **dict.fromkeys(
        (
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_content_policy_violation",
            "invalid_image_mode",
            "image_file_too_large",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
            "image_file_not_found",
        ),
        400,
    ),
    # Anthropic
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # Google
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
_ENVELOPES = {"error", "response.failed", "failed"}  # words that say only that this is an error

_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "apim-request-id",
    "x-amzn-requestid",
    "x-ms-request-id",
    "x-goog-request-id",
    "cf-ray",
)

# The forms of providers' keys. A server may repeat a key that is not among the LLM's secrets.
_KEY_FORMS = re.compile(
    r"\b(?:sk|gsk|xai|pplx|hf|csk|fw|nvapi|r8)[-_][\w-]{16,}|\bAIza[\w-]{30,}|(?<=Bearer )\S{8,}"
)


class ErrorBody(msgspec.Struct):
    """The content of an error body: the message and the codes (most specific first), and whether it
    was a JSON error at all.

    Further fields: the invalid parameter, an id for the provider's support, seconds to wait,
    headers of an upstream server, and whether a daily quota is used up.
    """

    message: str = ""
    codes: list[str] = []
    json: bool = False
    param: str = ""
    request_id: str = ""
    retry_after: float | None = None
    headers: dict[str, str] = {}
    daily: bool = False


def read_error(body: bytes) -> ErrorBody:
    """Parse an error body of any shape: OpenAI's, Anthropic's, Gemini's (also inside a list),
    FastAPI's `detail`, a bare string, or a proxy's HTML page."""
    try:
        return parse_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody(shorten(body.decode("utf-8", "replace")))


def parse_error(value: Any) -> ErrorBody:
    """Parse an error from a decoded body, an event of a stream, or the `error` object within
    one."""
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    error_body = ErrorBody()
    for _ in range(4):  # errors may be nested, because proxies wrap them
        if not isinstance(value, dict):
            break
        level = cast("dict[str, Any]", value)
        codes = [
            str(level[key])
            for key in ("code", "type", "status")
            if isinstance(level.get(key), str | int)
        ]
        error_body.codes[:0] = [
            code
            for code in codes
            if code not in _ENVELOPES and len(code) < 80 and not re.search(r"\s", code)
        ]
        text = level.get("message") or level.get("detail") or level.get("msg")
        if text:
            error_body.message = (
                text if isinstance(text, str) else msgspec.json.encode(text).decode()
            )
        if isinstance(level.get("param"), str):
            error_body.param = level["param"]
        if isinstance(level.get("request_id"), str):
            error_body.request_id = level["request_id"][:200]
        _read_details(level.get("details"), error_body)
        _read_metadata(level.get("metadata"), error_body)
        value = level.get("error") or level.get("response")
    if isinstance(value, str):
        error_body.message = value
    error_body.message = shorten(error_body.message)
    error_body.json = bool(error_body.message or error_body.codes)
    return error_body


def _read_details(details: Any, error_body: ErrorBody) -> None:
    """Read Google's error details (https://google.aip.dev/193): `ErrorInfo.reason`,
    `RetryInfo.retryDelay`, `QuotaFailure.violations[].quotaId`."""
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        if not isinstance(detail, dict):
            continue
        part = cast("dict[str, Any]", detail)
        reason, delay, violations = (
            part.get("reason"),
            part.get("retryDelay"),
            part.get("violations"),
        )
        if isinstance(reason, str) and reason:
            error_body.codes.insert(0, reason)
        if isinstance(delay, str):
            error_body.retry_after = duration(delay)
        if isinstance(violations, list):
            error_body.daily = (
                error_body.daily or "PerDay" in msgspec.json.encode(violations).decode()
            )


def _read_metadata(metadata: Any, error_body: ErrorBody) -> None:
    """Read OpenRouter's error metadata: the upstream provider's own message, and the headers of
    a limit."""
    if not isinstance(metadata, dict):
        return
    part = cast("dict[str, Any]", metadata)
    if isinstance(part.get("raw"), str):
        error_body.message = f"{error_body.message}: {part['raw']}"
    if isinstance(part.get("headers"), dict):
        error_body.headers = {
            name.lower(): str(value)
            for name, value in cast("dict[str, Any]", part["headers"]).items()
        }


def shorten(text: str) -> str:
    """Return text on one line, without HTML and keys, cut to the length that an error message
    can carry."""
    if "<" in text and re.search(r"<(!doctype|html|head|body)", text, re.IGNORECASE):
        text = re.sub(r"(?is)<(script|style).*?</\1>|<[^>]*>", " ", text)
    text = _KEY_FORMS.sub("***", " ".join(text.split()))
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + " [...]"


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, url: str, model: str
) -> LLMError:
    """Return the error for a response with a status other than 200. `headers` have names in
    lower case."""
    error_body = read_error(body)
    error = _error(status, error_body, url, model, headers.get("location", ""))
    error.request_id = (
        next((headers[name] for name in _REQUEST_IDS if headers.get(name)), "")
        or error_body.request_id
    )
    error.retry_after = _first_known(
        retry_after(headers, status=status),
        retry_after(error_body.headers, status=status),
        _requested_wait(error, error_body),
    )
    return error


def reported_error(value: Any, url: str = "", model: str = "") -> LLMError:
    """Return the error for an error object that came with status 200, alone or in a stream. An
    unknown code gives `ServerError`."""
    error_body = parse_error(value)
    status = next(
        (int(code) for code in error_body.codes if code.isdecimal() and 400 <= int(code) < 600), 0
    )
    if not status:
        status = next((_BY_CODE[code] for code in error_body.codes if code in _BY_CODE), 0)
    error = _error(status or (400 if _too_long(error_body) else 500), error_body, url, model, "")
    error.status = status
    error.request_id = error_body.request_id
    error.retry_after = _first_known(
        retry_after(error_body.headers, status=status), _requested_wait(error, error_body)
    )
    return error


def _first_known(*found: float | None) -> float | None:
    return next((each for each in found if each is not None), None)


def _requested_wait(error: LLMError, error_body: ErrorBody) -> float | None:
    """Return the seconds to wait that the body asks for, in a field or (as in OpenAI's stream
    errors) in words."""
    if error_body.retry_after is not None or not isinstance(error, RateLimited):
        return error_body.retry_after
    found = _TRY_AGAIN.search(error_body.message)
    if found is None:
        return None
    number, unit, rest = found.groups()
    return duration(
        f"{number}{unit.lower() if unit.lower() == 'ms' else unit[0].lower()}{rest.lower()}"
    )


def _too_long(error_body: ErrorBody) -> bool:
    if _STRING_TOO_LONG in error_body.codes:
        named_param = _NAMED_PARAM.search(error_body.message)
        return bool(
            _MESSAGE_PARAM.fullmatch(error_body.param or (named_param[1] if named_param else ""))
        )
    return bool(_TOO_LONG_CODES & set(error_body.codes)) or bool(
        _TOO_LONG.search(error_body.message)
    )


def _error(status: int, error_body: ErrorBody, url: str, model: str, location: str) -> LLMError:
    codes = set(error_body.codes)
    code = next((code for code in error_body.codes if not code.isdecimal()), "")
    message = error_body.message or "no reason given"
    server = url or "the provider"

    def make(kind: type[LLMError], text: str, retryable: bool | None = None) -> LLMError:
        error = kind(text, status=status, code=code)
        if retryable is not None:
            error.retryable = retryable
        return error

    if 300 <= status < 400:
        target = location.partition("?")[0] or "nowhere"  # a query may hold a signature
        return make(
            BadRequest,
            f"{server} redirects ({status}) to {target}; redirects are not followed: set base_url"
            " to it.",
        )
    if codes & _NO_QUOTA_CODES or status == 402 or (status < 500 and _NO_CREDIT.search(message)):
        return make(
            RateLimited, f"No quota or credit left at {server} ({status}): {message}", False
        )
    if status < 500 and (
        codes & _FILTERED_CODES or (status in (400, 403) and _FILTERED.search(message))
    ):
        return make(
            ContentFiltered,
            f"The provider's content filter stopped the request ({status}): {message}",
        )
    if _does_not_fit(status, error_body):
        return make(
            ContextTooLong, f"The request does not fit {model or 'the model'} ({status}): {message}"
        )
    if status == 401 or (
        status in (400, 403) and (codes & _INVALID_KEY_CODES or _INVALID_KEY.search(message))
    ):
        return make(
            AuthenticationError,
            f"The API key was refused ({status}): check api_key for {server}. The provider says:"
            f" {message}",
        )
    if status in (400, 403, 404, 405) and codes & _NO_MODEL_CODES:
        return make(ModelNotFound, f"{server} has no model {model!r} ({status}): {message}")
    if status == 403 or (status == 400 and "FAILED_PRECONDITION" in codes):
        return make(
            PermissionDenied, f"The API key may not do this ({status}) at {server}: {message}"
        )
    if status in (404, 405):
        if error_body.json and (
            "model" in message.lower() or "no endpoints found" in message.lower()
        ):
            return make(ModelNotFound, f"{server} has no model {model!r} ({status}): {message}")
        return make(
            ModelNotFound,
            f"No such path ({status}): {server}. A base_url usually ends in /v1. The server says:"
            f" {message}",
        )
    if status in (408, 504):
        return make(LLMTimeout, f"{server} gave up waiting ({status}): {message}")
    if status == 409:
        return make(
            BadRequest, f"The request conflicts with another one (409) at {server}: {message}", True
        )
    if (
        status in (498, 529)
        or codes & _OVERLOADED_CODES
        or (status >= 500 and _OVERLOADED.search(message))
    ):  # 498: Groq's flex tier
        return make(Overloaded, f"The provider is overloaded ({status}) at {server}: {message}")
    if status == 429 and error_body.daily:
        return make(RateLimited, f"The daily quota is used up (429) at {server}: {message}", False)
    if status == 429:
        return make(RateLimited, f"Too many requests (429) at {server}: {message}")
    if status >= 500:
        return make(ServerError, f"The provider failed ({status}) at {server}: {message}")
    if "tool_use_failed" in codes:  # Groq: the model's output was not a valid tool call
        return make(
            BadResponse,
            f"The model's tool call could not be read ({status}) at {server}: {message}",
        )
    return make(BadRequest, f"The request was refused ({status}) at {server}: {message}")


def _does_not_fit(status: int, error_body: ErrorBody) -> bool:
    if status == 429:  # a request above the limit per minute never succeeds
        return error_body.message.startswith("Request too large") or (
            _too_long(error_body) and not _RATE_WORDING.search(error_body.message)
        )
    return status == 413 or (status in (400, 422) and _too_long(error_body))
