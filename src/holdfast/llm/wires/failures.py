"""Conversion of a provider's failures to Holdfast's errors: by status, by the provider's code,
or else by the wording."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from holdfast import errors
from holdfast.llm.retry import duration, retry_after

EXCERPT_CHARS = 300  # characters of an answer shown in a message

# Patterns are strings, which `re` compiles at their first use: most processes see no failure.

# The wording of servers without a code for this failure: vLLM, llama.cpp, LM Studio, Ollama, TGI,
# Anthropic, Bedrock, Gemini, OpenAI, xAI, Moonshot, DashScope, Perplexity, Zhipu, GitHub.
_TOO_LONG = (
    r"(?i)maximum context length|context[ _](length|limit)|context window|context size"
    r"|(prompt|input|length of all messages) is too long|too many (input )?tokens"
    r"|input token count|prompt token count|max_model_len|model token limit|`inputs` tokens \+"
    r"|exceeds? the (maximum|max) (number of )?(input )?tokens|maximum prompt length"
    r"|input tokens exceeds? (the configured limit|maximum length)|inputs` must have less than"
    r"|range of input length|prompt exceeds max length|token limit exceeded"
    r"|reduce the length of the (messages|prompt|input)"
)
# Wording about a rate limit, not about size.
_RATE_WORDING = r"(?i)per (minute|hour|day)|please wait|try again|retry (in|after)"
_INVALID_KEY = (
    r"(?i)API key (not valid|not found|expired)|(incorrect|invalid) api key|unregistered callers"
)
_NO_CREDIT = r"(?i)credit balance is too low|insufficient (account )?(balance|credits?|funds|quota)"
_FILTERED = r"(?i)content management policy|flagged as potentially violating|requires moderation"
_OVERLOADED = r"(?i)overload|(at|over|no|insufficient) capacity|capacity exceeded|high demand"
_TRY_AGAIN = (
    r"(?i)(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?)"
    r" ?(ms|s|m|h|seconds?|minutes?)((?:\d+(?:\.\d+)?(?:ms|s|m))*)"
)

_TOO_LONG_CODES = {
    *("context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"),
    "request_too_large",
}
# OpenAI's code for any text above its limit, such as an id or a tool's description. For the content
# of messages it means that the conversation is too long.
_STRING_TOO_LONG = "string_above_max_length"
_MESSAGE_PARAM = r"input|(messages|input)\W.*\b(content|output)\b.*"
_NAMED_PARAM = r"'((?:messages|input)\b[^']*)'"
_FILTERED_CODES = {
    *("content_filter", "content_policy_violation", "image_content_policy_violation"),
    *("ResponsibleAIPolicyViolation", "data_inspection_failed"),
}
_NO_QUOTA_CODES = {
    *("insufficient_quota", "insufficient_balance", "exceeded_current_quota_error"),
    *("billing_hard_limit_reached", "billing_not_active", "billing_error"),
    *("credit_balance_too_low", "account_deactivated"),
}
_NO_MODEL_CODES = {
    *("model_not_found", "not_found_error", "NotFoundError", "DeploymentNotFound"),
    "model_decommissioned",
}
_INVALID_KEY_CODES = {"API_KEY_INVALID", "invalid_api_key"}
_OVERLOADED_CODES = {
    *("overloaded_error", "overloaded", "engine_overloaded", "engine_overloaded_error"),
    *("server_overloaded", "server_is_overloaded", "service_tier_capacity_exceeded"),
    *("UNAVAILABLE", "MODEL_CAPACITY_EXHAUSTED", "NoCapacity"),
}
# The usual status of each code, for errors that come without a status (in a stream).
_STATUS_CODES: dict[int, tuple[str, ...]] = {
    400: (
        *("invalid_request_error", "invalid_prompt", "BadRequestError"),  # OpenAI
        *("invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url"),
        *("invalid_image_mode", "image_too_large", "image_too_small", "image_parse_error"),
        *("image_content_policy_violation", "image_file_too_large", "image_file_not_found"),
        *("unsupported_image_media_type", "empty_image_file", "failed_to_download_image"),
        *("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"),  # Google
    ),
    401: ("invalid_api_key", "authentication_error", "UNAUTHENTICATED", "InvalidApiKey"),
    402: ("billing_error",),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("model_not_found", "not_found_error", "NOT_FOUND"),
    408: ("timeout",),
    409: ("ABORTED",),
    413: ("request_too_large",),
    429: (
        *("rate_limit_exceeded", "tokens", "requests", "insufficient_quota"),  # OpenAI
        *("rate_limit_error", "RESOURCE_EXHAUSTED"),
    ),
    500: ("server_error", "internal_server_error", "api_error", "INTERNAL", "UNKNOWN"),
    501: ("UNIMPLEMENTED",),
    503: (
        *("engine_overloaded", "engine_overloaded_error", "overloaded"),
        *("server_overloaded", "server_is_overloaded", "UNAVAILABLE"),
    ),
    504: ("vector_store_timeout", "timeout_error", "DEADLINE_EXCEEDED"),
    529: ("overloaded_error",),
}
_STATUS_OF_CODE = {code: status for status, codes in _STATUS_CODES.items() for code in codes}
_ENVELOPES = {"error", "response.failed", "failed"}  # words that say only that this is an error

_REQUEST_IDS = (
    *("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid"),
    *("x-ms-request-id", "x-goog-request-id", "cf-ray"),
)

# The forms of providers' keys. A server may repeat a key that is not among the LLM's secrets.
_KEY_FORMS = (
    r"\b(?:sk|gsk|xai|pplx|hf|csk|fw|nvapi|r8)[-_][\w-]{16,}|\bAIza[\w-]{30,}|(?<=Bearer )\S{8,}"
)


class ErrorBody(msgspec.Struct):
    """The content of an error body."""

    message: str = ""
    codes: list[str] = []  # most specific first
    json: bool = False  # True if the body was a JSON error at all
    param: str = ""  # the invalid parameter
    request_id: str = ""  # for the provider's support
    retry_after: float | None = None  # seconds to wait
    headers: dict[str, str] = {}  # of an upstream server
    daily: bool = False  # True if a daily quota is used up


def parse_error(value: Any) -> ErrorBody:
    """Parse an error from a decoded body, an event of a stream, or the `error` object in one."""
    error_body = ErrorBody()
    for _ in range(4):  # errors may be nested, because proxies wrap them
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if not isinstance(value, dict):
            break
        level = cast("dict[str, Any]", value)
        candidates = [level.get(key) for key in ("code", "type", "status", "status_code")]
        codes = [str(code) for code in candidates if isinstance(code, str | int)]
        error_body.codes[:0] = [
            code for code in codes if code not in _ENVELOPES and re.fullmatch(r"\S{0,79}", code)
        ]
        text = level.get("message") or level.get("detail") or level.get("msg")
        if text:
            is_text = isinstance(text, str)
            error_body.message = text if is_text else msgspec.json.encode(text).decode()
        if isinstance(level.get("param"), str):
            error_body.param = level["param"]
        if isinstance(level.get("request_id"), str):
            error_body.request_id = level["request_id"][:200]
        _read_details(level.get("details"), error_body)
        if isinstance(level.get("metadata"), dict):
            _read_metadata(level["metadata"], error_body)
        value = level.get("error") or level.get("response") or level.get("errors")
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
        reason, delay, violations = map(part.get, ("reason", "retryDelay", "violations"))
        if isinstance(reason, str) and reason:
            error_body.codes.insert(0, reason)
        if isinstance(delay, str):
            error_body.retry_after = duration(delay)
        if isinstance(violations, list) and b"PerDay" in msgspec.json.encode(violations):
            error_body.daily = True


def _read_metadata(metadata: dict[str, Any], error_body: ErrorBody) -> None:
    """Read OpenRouter's metadata: the upstream provider's message, and a limit's headers."""
    if isinstance(metadata.get("raw"), str):
        error_body.message = f"{error_body.message}: {metadata['raw']}"
    if isinstance(metadata.get("headers"), dict):
        headers = cast("dict[str, Any]", metadata["headers"])
        error_body.headers = {name.lower(): str(value) for name, value in headers.items()}


def shorten(text: str) -> str:
    """Return text on one line, without HTML and keys, cut to `EXCERPT_CHARS`."""
    if "<" in text and re.search(r"<(!doctype|html|head|body)", text, re.IGNORECASE):
        text = re.sub(r"(?is)<(script|style).*?</\1>|<[^>]*>", " ", text)
    text = re.sub(_KEY_FORMS, "***", " ".join(text.split()))
    return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + " [...]"


def excerpt(data: bytes) -> str:
    return shorten(data[:5000].decode("utf-8", "replace"))


def http_error(
    status: int, headers: Mapping[str, str], body: bytes, url: str = "", model: str = ""
) -> errors.LLMError:
    """Return the error for a response with a status other than 200. `headers` have names in
    lower case."""
    try:
        error_body = parse_error(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error_body = ErrorBody(excerpt(body))
    error = _error(status, error_body, url, model, headers.get("location", ""))
    ids = [headers[name] for name in _REQUEST_IDS if headers.get(name)]
    error.request_id = ids[0] if ids else error_body.request_id
    error.retry_after = retry_after(headers, status=status)
    if error.retry_after is None:
        error.retry_after = _requested_wait(error, error_body, status)
    return error


def reported_error(value: Any, url: str = "", model: str = "") -> errors.LLMError:
    """Return the error for an error object that came with status 200, alone or in a stream. An
    unknown code gives `ServerError`."""
    error_body = parse_error(value)
    codes = error_body.codes
    numbers = [int(code) for code in codes if code.isdecimal() and 400 <= int(code) < 600]
    numbers += [_STATUS_OF_CODE[code] for code in codes if code in _STATUS_OF_CODE]
    status = numbers[0] if numbers else 0
    error = _error(status or (400 if _too_long(error_body) else 500), error_body, url, model, "")
    error.status = status
    error.request_id = error_body.request_id
    error.retry_after = _requested_wait(error, error_body, status)
    return error


def is_unreadable(error: errors.LLMError) -> bool:
    """Return True if an answer could not be read; False for an error that the provider reported."""
    return type(error) is errors.BadResponse and not (error.status or error.code)


def _requested_wait(error: errors.LLMError, error_body: ErrorBody, status: int) -> float | None:
    """Return the seconds to wait that the body asks for, in a field or in words."""
    wait = retry_after(error_body.headers, status=status)
    wait = error_body.retry_after if wait is None else wait
    if wait is not None or not isinstance(error, errors.RateLimited):
        return wait
    match = re.search(_TRY_AGAIN, error_body.message)
    if match is None:
        return None
    number, unit, rest = (group.lower() for group in match.groups())
    return duration(f"{number}{unit if unit == 'ms' else unit[0]}{rest}")


def _too_long(error_body: ErrorBody) -> bool:
    if _STRING_TOO_LONG in error_body.codes:
        named_param = re.search(_NAMED_PARAM, error_body.message)
        param = error_body.param or (named_param[1] if named_param else "")
        return re.fullmatch(_MESSAGE_PARAM, param) is not None
    has_code = not _TOO_LONG_CODES.isdisjoint(error_body.codes)
    return has_code or re.search(_TOO_LONG, error_body.message) is not None


def _error(
    status: int, error_body: ErrorBody, url: str, model: str, location: str
) -> errors.LLMError:
    server, message = url or "the provider", error_body.message or "no reason given"
    if 300 <= status < 400:
        target = location.partition("?")[0] or "nowhere"  # a query may hold a signature
        kind, retryable = errors.BadRequest, None
        reason = f"{server} redirects ({status}) to {target}"
        text = f"{reason}; redirects are not followed: set base_url to it."
    else:
        kind, reason, retryable = _classify(status, error_body, message, server, model)
        text = f"{reason}: {message}"
    code = next((code for code in error_body.codes if not code.isdecimal()), "")
    error = kind(text, status=status, code=code)
    if retryable is not None:
        error.retryable = retryable
    return error


def _classify(
    status: int, error_body: ErrorBody, message: str, server: str, model: str
) -> tuple[type[errors.LLMError], str, bool | None]:
    """Return the kind of an error, its text up to the provider's message, and `retryable` if it
    differs from the kind's default. The order of the rules matters."""
    codes = set(error_body.codes)
    at = f"({status}) at {server}"
    no_model = f"{server} has no model {model!r} ({status})"
    if (
        codes & _NO_QUOTA_CODES
        or status == 402
        or (status < 500 and re.search(_NO_CREDIT, message))
    ):
        return errors.RateLimited, f"No quota or credit left at {server} ({status})", False
    is_filtered = codes & _FILTERED_CODES or (
        status in (400, 403) and re.search(_FILTERED, message)
    )
    if status < 500 and is_filtered:
        reason = f"The provider's content filter stopped the request ({status})"
        return errors.ContentFiltered, reason, None
    too_long = status in (400, 422, 429) and _too_long(error_body)
    if status == 429:  # a request above the limit per minute never succeeds
        too_long = too_long and not re.search(_RATE_WORDING, error_body.message)
        too_long = too_long or error_body.message.startswith("Request too large")
    if too_long or status == 413:
        return (
            errors.ContextTooLong,
            f"The request does not fit {model or 'the model'} ({status})",
            None,
        )
    is_key_invalid = codes & _INVALID_KEY_CODES or re.search(_INVALID_KEY, message)
    if status == 401 or (status in (400, 403) and is_key_invalid):
        reason = f"The API key was refused ({status}): check api_key for {server}."
        return errors.AuthenticationError, f"{reason} The provider says", None
    if status in (400, 403, 404, 405) and codes & _NO_MODEL_CODES:
        return errors.ModelNotFound, no_model, None
    if status == 403 or (status == 400 and "FAILED_PRECONDITION" in codes):
        return errors.PermissionDenied, f"The API key may not do this {at}", None
    if status in (404, 405):
        words = message.lower() if error_body.json else ""
        if "model" in words or "no endpoints found" in words:
            return errors.ModelNotFound, no_model, None
        reason = f"No such path ({status}): {server}. A base_url usually ends in /v1."
        return errors.ModelNotFound, f"{reason} The server says", None
    if status in (408, 504):
        return errors.LLMTimeout, f"{server} gave up waiting ({status})", None
    if status == 409:
        return errors.BadRequest, f"The request conflicts with another one {at}", True
    is_overloaded = codes & _OVERLOADED_CODES or (status >= 500 and re.search(_OVERLOADED, message))
    if status in (498, 529) or is_overloaded:  # 498: Groq's flex tier
        return errors.Overloaded, f"The provider is overloaded {at}", None
    if status == 429 and error_body.daily:
        return errors.RateLimited, f"The daily quota is used up {at}", False
    if status == 429:
        return errors.RateLimited, f"Too many requests {at}", None
    if status >= 500:
        return errors.ServerError, f"The provider failed {at}", None
    if "tool_use_failed" in codes:  # Groq: the model's output was not a valid tool call
        return errors.BadResponse, f"The model's tool call could not be read {at}", None
    return errors.BadRequest, f"The request was refused {at}", None
