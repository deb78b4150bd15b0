"""Reasons of failed exchanges with A2A agents: a short text and an error type."""

from __future__ import annotations

import json
from typing import Any

from holdfast.tools.json_values import as_object
from holdfast.tools.results import clip
from holdfast.tools.running import ERROR_TYPE_OF_STATUS

_KIND_OF_STATUS = {
    **ERROR_TYPE_OF_STATUS,
    400: "validation",
    413: "validation",
    422: "validation",
}

# The protocol's errors (A2A 1.0, section 3.3.2), by their classes in the SDK, which maps codes and
# reasons to them.
_KIND_OF_ERROR = {
    "TaskNotFoundError": "not_found",
    "MethodNotFoundError": "not_found",
    "InvalidParamsError": "validation",
    "InvalidRequestError": "validation",
    "ContentTypeNotSupportedError": "validation",
    "UnsupportedOperationError": "validation",
    "TaskNotCancelableError": "validation",
    "JSONParseError": "internal",
    "VersionNotSupportedError": "internal",
    "ExtensionSupportRequiredError": "internal",
    "InternalError": "internal",
    "InvalidAgentResponseError": "internal",
}


def reason_of(error: BaseException, limit: float = 0.0) -> tuple[str, str]:
    """Return a short reason, which ends in a full stop, and its error type. `limit` is the
    timeout in seconds that a timeout error mentions."""
    import httpx
    from a2a.utils.errors import A2AError

    chain = _chain(error)
    for one in chain:
        if isinstance(one, httpx.HTTPStatusError):
            status = one.response.status_code
            kind = _KIND_OF_ERROR.get(type(error).__name__) or _KIND_OF_STATUS.get(
                status, "internal"
            )
            message = _error_message(one.response)
            hint = " Check its token." if kind == "authentication" else ""
            if 300 <= status < 400:
                hint = (
                    " This client does not follow redirects; configure the address that the"
                    " redirect names."
                )
            return _sentence(f"HTTP {status}{': ' * bool(message)}{message}") + hint, kind
        if isinstance(one, TimeoutError | httpx.TimeoutException):
            return f"it did not answer within {limit:g} s.", "timeout"
        if isinstance(one, httpx.RequestError | OSError):
            text = f"{type(one).__name__}: {one}".removesuffix(": ")
            return _sentence(text), "network"
    last = chain[-1]
    if isinstance(error, A2AError):
        return _sentence(str(error)), _KIND_OF_ERROR.get(type(error).__name__) or "internal"
    return _sentence(f"{type(last).__name__}: {last}"), "internal"


def _error_message(response: Any) -> str:
    """Return the message of a JSON error in either version of the protocol, or ""."""
    try:
        body: Any = json.loads(response.content)
    except (ValueError, RuntimeError):  # httpx raises RuntimeError for a body that was not read
        return ""
    top = as_object(body)
    found = (top.get("message"), as_object(top.get("error")).get("message"))
    return next((text for text in found if isinstance(text, str)), "")


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _sentence(text: str) -> str:
    text = clip(text)
    return text if text.endswith((".", "!", "?")) else text + "."
