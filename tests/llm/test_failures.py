"""Providers' errors in their own words, and the waits that they request."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

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
from holdfast.llm.retry import MAX_RETRY_AFTER_SECONDS, delay, duration, retry_after
from holdfast.llm.wires.failures import http_error, reported_error
from tests.paths import SHARED

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
TRAFFIC = SHARED / "provider_traffic"


def error(status: int, body: Any, **headers: str) -> LLMError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_error(status, header_fields, data, "https://api.example.com/v1/x", "some-model")


def anthropic(kind: str, message: str = "words") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}


def google(
    code: int, status: str, message: str = "words", *details: dict[str, Any]
) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def openai(code: str | None, kind: str | None, message: str = "words") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("param", "message", "kind"),
    [
        ("messages[2].content", "Invalid 'messages[2].content': string too long.", ContextTooLong),
        ("messages.[2].content[0].text", "string too long", ContextTooLong),
        ("input", "string too long", ContextTooLong),
        ("input[3].output", "string too long", ContextTooLong),
        (None, "Invalid 'messages[2].content': string too long.", ContextTooLong),
        (
            "messages[2].tool_calls[0].id",
            "Invalid 'messages[2].tool_calls[0].id': string too long.",
            BadRequest,
        ),
        ("messages[2].tool_call_id", "string too long", BadRequest),
        ("input[2].call_id", "string too long", BadRequest),
        ("tools[0].function.description", "string too long", BadRequest),
        ("metadata.content", "string too long", BadRequest),
        (None, "Invalid 'input[2].id': string too long.", BadRequest),
        (None, "string too long", BadRequest),
    ],
)
def test_only_a_content_that_is_too_long_could_be_condensed(
    param: str | None, message: str, kind: type[LLMError]
) -> None:
    body = openai("string_above_max_length", "invalid_request_error", message)
    body["error"]["param"] = param
    assert error(400, body).__class__ is kind
    assert reported_error(body).__class__ is kind


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"error":' * 100_000, b'{"error": {"message":' + b"[" * 100_000]
)
def test_a_body_that_is_nested_without_end_is_shown_as_it_is(body: bytes) -> None:
    failure = error(500, body)
    assert failure.__class__ is ServerError
    assert body[:20].decode() in str(failure)


# --- by provider ---


@pytest.mark.parametrize(
    ("status", "type", "kind", "retryable"),
    [
        (400, "invalid_request_error", BadRequest, False),
        (401, "authentication_error", AuthenticationError, False),
        (402, "billing_error", RateLimited, False),
        (403, "permission_error", PermissionDenied, False),
        (404, "not_found_error", ModelNotFound, False),
        (413, "request_too_large", ContextTooLong, False),
        (429, "rate_limit_error", RateLimited, True),
        (500, "api_error", ServerError, True),
        (504, "timeout_error", LLMTimeout, True),
        (529, "overloaded_error", Overloaded, True),
    ],
)
def test_anthropics_errors(status: int, type: str, kind: type[LLMError], retryable: bool) -> None:
    failure = error(status, anthropic(type))
    in_a_stream = reported_error(anthropic(type))
    inner = reported_error(anthropic(type)["error"])
    for each in (failure, in_a_stream, inner):
        assert each.__class__ is kind
        assert (each.code, each.status, each.retryable) == (type, status, retryable)
        assert "words" in str(each)
    assert (failure.request_id, in_a_stream.request_id) == ("req_011", "req_011")


@pytest.mark.parametrize(
    "message",
    [
        "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages have 280000.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Your request exceeded model token limit: 131072 (requested: 140000)",
        "prompt token count of 70000 exceeds the limit of 64000",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
        "The total length of all messages is too long.",
        "Prompt exceeds max length",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please shorten it.",
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 and 1000",
    ],
)
def test_a_request_that_is_too_long_is_known_by_its_words(message: str) -> None:
    failure = error(400, openai(None, "invalid_request_error", message))
    assert isinstance(failure, ContextTooLong)


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens.",
        "max_new_tokens must be positive",
        "Invalid 'tools': too many tools, at most 128 are allowed.",
    ],
)
def test_other_limits_are_no_matter_of_the_length(message: str) -> None:
    assert type(error(400, openai(None, "invalid_request_error", message))) is BadRequest


def test_anthropics_words() -> None:
    assert isinstance(
        error(
            400,
            anthropic(
                "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"
            ),
        ),
        ContextTooLong,
    )
    low = error(
        400,
        anthropic(
            "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
        ),
    )
    assert low.__class__ is RateLimited
    assert not low.retryable


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        (google(400, "INVALID_ARGUMENT"), BadRequest, False),
        (
            google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
            AuthenticationError,
            False,
        ),
        (
            google(
                400, "INVALID_ARGUMENT", "x", {"@type": "ErrorInfo", "reason": "API_KEY_INVALID"}
            ),
            AuthenticationError,
            False,
        ),
        (
            google(400, "INVALID_ARGUMENT", "API key expired. Please renew the API key."),
            AuthenticationError,
            False,
        ),
        (
            google(
                400,
                "INVALID_ARGUMENT",
                "The input token count (1200000) exceeds the maximum number of tokens allowed"
                " (1048576).",
            ),
            ContextTooLong,
            False,
        ),
        (
            google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
            PermissionDenied,
            False,
        ),
        (google(401, "UNAUTHENTICATED"), AuthenticationError, False),
        (google(403, "PERMISSION_DENIED"), PermissionDenied, False),
        (
            google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers."),
            AuthenticationError,
            False,
        ),
        (
            google(404, "NOT_FOUND", "models/x is not found for API version v1beta"),
            ModelNotFound,
            False,
        ),
        (google(429, "RESOURCE_EXHAUSTED"), RateLimited, True),
        (google(500, "INTERNAL"), ServerError, True),
        (
            google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
            Overloaded,
            True,
        ),
        (google(503, "UNAVAILABLE"), Overloaded, True),
        (google(504, "DEADLINE_EXCEEDED"), LLMTimeout, True),
    ],
)
def test_googles_errors(body: dict[str, Any], kind: type[LLMError], retryable: bool) -> None:
    status = body["error"]["code"]
    for each in (
        error(status, body),
        error(status, [body]),
        reported_error(body),
        reported_error(body["error"]),
    ):
        assert each.__class__ is kind
        assert (each.status, each.retryable) == (status, retryable)
        assert each.code in (body["error"]["status"], "API_KEY_INVALID")


def test_googles_quotas_say_when_to_come_back_and_those_of_a_day_are_not_waited_for() -> None:
    def exhausted(*quotas: str, delay: str = "37s") -> LLMError:
        violations = [
            {"quotaMetric": "generativelanguage.googleapis.com/requests", "quotaId": quota}
            for quota in quotas
        ]
        details: list[dict[str, Any]] = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
        ]
        return error(
            429, google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", *details)
        )

    minute, day = (
        "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
        "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
    )
    assert (exhausted(minute).retryable, exhausted(minute).retry_after) == (True, 37.0)
    assert exhausted(minute, delay="1.5s").retry_after == 1.5
    assert exhausted(minute, delay="soon").retry_after is None
    assert not exhausted(minute, day).retryable
    assert "daily quota" in str(exhausted(day))
    in_a_stream = reported_error(
        google(429, "RESOURCE_EXHAUSTED", "x", {"@type": "RetryInfo", "retryDelay": "4s"})
    )
    assert in_a_stream.retry_after == 4.0


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (
            400,
            openai("context_length_exceeded", "invalid_request_error"),
            ContextTooLong,
            "context_length_exceeded",
        ),
        (400, openai("model_not_found", "invalid_request_error"), ModelNotFound, "model_not_found"),
        (400, openai("content_filter", None), ContentFiltered, "content_filter"),
        (
            400,
            openai(
                "invalid_prompt",
                "invalid_request_error",
                "Your prompt was flagged as potentially violating our usage policy.",
            ),
            ContentFiltered,
            "invalid_prompt",
        ),
        (
            401,
            openai("invalid_api_key", "invalid_request_error"),
            AuthenticationError,
            "invalid_api_key",
        ),
        (
            403,
            openai("unsupported_country_region_territory", "request_forbidden"),
            PermissionDenied,
            "unsupported_country_region_territory",
        ),
        (429, openai("rate_limit_exceeded", "tokens"), RateLimited, "rate_limit_exceeded"),
        (
            429,
            openai(
                "rate_limit_exceeded", "tokens", "Request too large for gpt-4o on tokens per min"
            ),
            ContextTooLong,
            "rate_limit_exceeded",
        ),
        (500, openai(None, "server_error"), ServerError, "server_error"),
        (
            503,
            openai(
                None,
                "service_unavailable",
                "The engine is currently overloaded, please try again later",
            ),
            Overloaded,
            "",
        ),
        (503, openai(None, None, "no healthy upstream"), ServerError, ""),
        (503, b"<html><body>Service Unavailable</body></html>", ServerError, ""),
        (504, b"<html><body>Gateway Time-out</body></html>", LLMTimeout, ""),
    ],
)
def test_openais_errors(status: int, body: Any, kind: type[LLMError], code: str) -> None:
    failure = error(status, body)
    assert failure.__class__ is kind
    assert failure.code == code or not code


@pytest.mark.parametrize(
    ("event", "kind", "status"),
    [
        (
            {"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None},
            RateLimited,
            429,
        ),
        (
            {
                "type": "error",
                "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "slow"},
            },
            RateLimited,
            429,
        ),
        (
            {"type": "error", "code": "context_length_exceeded", "message": "long"},
            ContextTooLong,
            0,
        ),
        ({"type": "error", "code": None, "message": "?"}, ServerError, 0),
        ({"code": "server_error", "message": "oops"}, ServerError, 500),
        ({"code": "invalid_image_url", "message": "bad picture"}, BadRequest, 400),
        ({"code": "vector_store_timeout", "message": "late"}, LLMTimeout, 504),
        ({"code": "server_is_overloaded", "message": "busy"}, Overloaded, 503),
        ({"code": "insufficient_quota", "message": "pay"}, RateLimited, 429),
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}},
            },
            ServerError,
            500,
        ),
    ],
)
def test_the_errors_in_a_responses_stream(
    event: dict[str, Any], kind: type[LLMError], status: int
) -> None:
    failure = reported_error(event)
    assert failure.__class__ is kind
    assert failure.status == status
    assert failure.code not in ("error", "response.failed", "failed")


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (
            400,
            {
                "code": "Client specified an invalid argument",
                "error": "Incorrect API key provided: x",
            },
            AuthenticationError,
            False,
        ),  # xAI
        (
            402,
            {"error": {"message": "Insufficient Balance", "type": "unknown_error"}},
            RateLimited,
            False,
        ),  # DeepSeek
        (
            429,
            {
                "object": "error",
                "type": "service_tier_capacity_exceeded",
                "message": "x",
                "code": "3505",
            },
            Overloaded,
            True,
        ),  # Mistral
        (
            429,
            {"error": {"type": "engine_overloaded_error", "message": "x"}},
            Overloaded,
            True,
        ),  # Moonshot
        (
            429,
            {"error": {"type": "exceeded_current_quota_error", "message": "x"}},
            RateLimited,
            False,
        ),
        (
            429,
            {"message": "Too many tokens, please wait before trying again."},
            RateLimited,
            True,
        ),  # Bedrock
        (498, {"error": {"message": "Flex capacity exceeded"}}, Overloaded, True),  # Groq
        (
            400,
            {"error": {"code": "tool_use_failed", "message": "x", "failed_generation": "<f"}},
            BadResponse,
            True,
        ),
        (
            413,
            {
                "error": {
                    "code": "rate_limit_exceeded",
                    "message": "Request too large on tokens per minute (TPM)",
                }
            },
            ContextTooLong,
            False,
        ),
        (
            404,
            {"error": {"code": 404, "message": "No endpoints found for x/y."}},
            ModelNotFound,
            False,
        ),  # OpenRouter
        (
            403,
            {"error": {"code": 403, "message": "x requires moderation. Your input was flagged"}},
            ContentFiltered,
            False,
        ),
        (
            404,
            {"error": {"code": "DeploymentNotFound", "message": "x"}},
            ModelNotFound,
            False,
        ),  # Azure
        (
            404,
            {"error": "model 'x' not found, try pulling it first"},
            ModelNotFound,
            False,
        ),  # Ollama
        (404, {"detail": "Not Found"}, ModelNotFound, False),
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 10",
                "code": 400,
            },
            ContextTooLong,
            False,
        ),  # vLLM
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, BadRequest, False),
    ],
)
def test_the_errors_of_compatible_servers(
    status: int, body: Any, kind: type[LLMError], retryable: bool
) -> None:
    failure = error(status, body)
    assert failure.__class__ is kind
    assert failure.retryable is retryable


def test_a_routers_error_shows_the_upstreams_words_and_its_limit() -> None:
    body = {
        "error": {
            "code": 429,
            "message": "Provider returned error",
            "metadata": {"raw": "x is rate-limited upstream"},
        }
    }
    assert "rate-limited upstream" in str(error(429, body))
    reset = str(int((datetime.now(UTC).timestamp() + 30) * 1000))
    body["error"]["metadata"] = {
        "headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
    }  # pyright: ignore[reportArgumentType]
    assert error(429, body).retry_after == pytest.approx(30, abs=2)


def test_the_providers_id_of_a_request_is_kept() -> None:
    for name in (
        "x_request_id",
        "request_id",
        "apim_request_id",
        "x_amzn_requestid",
        "x_goog_request_id",
    ):
        assert error(500, b"", **{name: "abc"}).request_id == "abc"
    assert error(500, anthropic("api_error"), request_id="header").request_id == "header"
    assert error(500, b"").request_id == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"[[]]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"error": 5}',
        b'{"error": {"details": [1, {"violations": 1}]}}',
        b'{"error": {"metadata": [], "code": [], "type": {}}}',
        b'{"response": {"error": {"error": {"error": {"error": {}}}}}}',
    ],
)
def test_any_body_makes_an_error(body: bytes) -> None:
    for status in (302, 400, 401, 404, 418, 429, 500, 529):
        assert isinstance(error(status, body), LLMError)


def test_an_error_holds_no_key() -> None:
    keys = [
        "sk-proj-abcdefghijklmnop_1234",
        "sk-ant-api03-abcdefghijklmnopqrst",
        "AIza" + "SyA1234567890abcdefghijklmnopqrstu",
        "gsk_abcdefghijklmnop12",
    ]
    for key in keys:
        for each in (
            error(401, openai("invalid_api_key", None, f"Incorrect API key provided: {key}.")),
            reported_error({"message": key}),
        ):
            assert key not in f"{each!r} {each.__dict__}"
            assert "***" in str(each)
    assert "sk-" not in str(error(400, openai(None, None, "Authorization: Bearer sk-short-one")))
    moved = error(307, b"", location="https://cdn.example.com/x?signature=secret")
    assert "secret" not in str(moved)
    assert "task-list-of-many-words" in str(
        error(400, openai(None, None, "task-list-of-many-words is no tool"))
    )


# --- waits ---


def wait_of(status: int = 429, **headers: str) -> float | None:
    return retry_after(
        {name.replace("_", "-"): value for name, value in headers.items()},
        NOW.timestamp,
        status=status,
    )


def test_a_used_up_limit_says_when_it_is_there_again() -> None:
    assert wait_of(x_ratelimit_reset_requests="1s", x_ratelimit_remaining_requests="0") == 1.0
    openai = {
        "x_ratelimit_reset_requests": "8.64s",
        "x_ratelimit_remaining_requests": "99",
        "x_ratelimit_reset_tokens": "1m30.5s",
        "x_ratelimit_remaining_tokens": "0",
    }
    assert wait_of(**openai) == 90.5
    assert (
        wait_of(
            **{**openai, "x_ratelimit_remaining_requests": "0", "x_ratelimit_reset_requests": "2m"}
        )
        == 120.0
    )  # the longest
    assert wait_of(**{**openai, "x_ratelimit_remaining_tokens": "5"}) is None
    assert wait_of(**openai, retry_after="3") == 3.0
    assert (
        wait_of(x_ratelimit_reset_requests="60", x_ratelimit_remaining_requests="0") == 60.0
    )  # Azure: plain seconds
    assert (
        wait_of(x_ratelimit_reset_requests="1s", x_ratelimit_reset_tokens="2s") is None
    )  # ambiguous
    assert wait_of(x_ratelimit_reset_requests="2s") == 2.0


def test_anthropics_limits_name_a_moment() -> None:
    headers = {
        "anthropic_ratelimit_requests_remaining": "0",
        "anthropic_ratelimit_requests_reset": "2026-01-01T12:00:07Z",
        "anthropic_ratelimit_input_tokens_remaining": "0",
        "anthropic_ratelimit_input_tokens_reset": "2026-01-01T13:00:20+01:00",
        "anthropic_ratelimit_output_tokens_remaining": "4000",
        "anthropic_ratelimit_output_tokens_reset": "2026-01-01T12:05:00Z",
    }
    assert wait_of(**headers) == 20.0
    assert wait_of(anthropic_ratelimit_tokens_reset="2025-12-31T12:00:00Z") == 0.0


def test_general_limits_are_seconds_or_moments_told_apart_by_size() -> None:
    epoch = int(NOW.timestamp()) + 45
    for value in ("45", str(epoch), str(epoch * 1000), "45s"):
        assert wait_of(x_ratelimit_reset=value, x_ratelimit_remaining="0") == 45.0
        assert wait_of(ratelimit_reset=value) == 45.0
    assert wait_of(ratelimit_reset="45", ratelimit_remaining="3") is None


def test_limits_are_looked_at_only_after_a_429() -> None:
    for status in (200, 400, 500, 503, 529):
        assert (
            wait_of(status, x_ratelimit_reset_requests="1s", x_ratelimit_remaining_requests="0")
            is None
        )
    assert error(503, b"", x_ratelimit_reset="5").retry_after is None
    assert error(429, b"", x_ratelimit_reset="5").retry_after == 5.0


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "soon",
        "-5",
        "nan",
        "inf",
        "1x",
        "2026-99-99T00:00:00Z",
        "T",
        "1s2",
        "0001-01-01T00:00:00",
    ],
)
def test_an_illegible_limit_is_ignored(odd: str) -> None:
    assert wait_of(x_ratelimit_reset=odd) in (None, 0.0)
    assert wait_of(anthropic_ratelimit_tokens_reset=odd) in (None, 0.0)


def test_durations() -> None:
    expected = {
        "1s": 1.0,
        "6m0s": 360.0,
        "120ms": 0.12,
        "1h2m": 3720.0,
        "2m59.56s": 179.56,
        "1d": 86400.0,
        "250us": 0.00025,
        "0s": 0.0,
    }
    assert {text: duration(text) for text in expected} == pytest.approx(expected)
    for text in ("", "s", "1", "1s ", "-1s", "1 s", "a1s"):
        assert duration(text) is None


def test_a_rate_limit_in_a_stream_says_in_words_how_long_to_wait() -> None:
    def wait_in(message: str) -> float | None:
        return reported_error({"code": "rate_limit_exceeded", "message": message}).retry_after

    assert wait_in("Rate limit reached. Please try again in 1.898s. Visit x") == 1.898
    assert wait_in("Please try again in 120ms.") == 0.12
    assert wait_in("Please try again in 2m59.56s.") == pytest.approx(179.56)
    assert wait_in("Please retry after 6 seconds.") == 6.0
    assert wait_in("Please try again later.") is None
    assert (
        reported_error({"code": "invalid_prompt", "message": "try again in 5s"}).retry_after is None
    )


def test_a_limit_of_the_day_is_an_error_at_once_instead_of_a_long_wait() -> None:
    failure = error(
        429, b"", x_ratelimit_reset_requests="7h12m", x_ratelimit_remaining_requests="0"
    )
    assert failure.retry_after == 25920.0
    assert failure.retry_after > MAX_RETRY_AFTER_SECONDS
    assert delay(failure, 0, lambda: 1.0) is None


# --- recorded errors ---

RECORDED = {
    "anthropic__anthropic_explicit_effort_xhigh_unsupported_model_errors": (
        BadRequest,
        "invalid_request_error",
    ),
    "model_name_suggestions__model_name_suggestion_anthropic": (ModelNotFound, "not_found_error"),
    "model_name_suggestions__model_name_suggestion_google": (ModelNotFound, "NOT_FOUND"),
    "multimodal_tool_returns__multimodal_tool_return_matrix_tool_return_content-url-image-google_vertex": (
        BadRequest,
        "INVALID_ARGUMENT",
    ),
    "model_name_suggestions__model_name_suggestion_openai-chat": (ModelNotFound, "model_not_found"),
    "multimodal_tool_returns__multimodal_tool_return_matrix_direct-url-audio-openai_chat": (
        BadRequest,
        "invalid_value",
    ),
    "openai__openai_o1_mini_system_role_system": (BadRequest, "unsupported_value"),
    "model_name_suggestions__inferred_model_name_suggestion": (ModelNotFound, "model_not_found"),
    "multimodal_tool_returns__multimodal_tool_return_matrix_direct-url-audio-openai_responses": (
        BadRequest,
        "unsupported_file",
    ),
}


@pytest.mark.skipif(not TRAFFIC.is_dir(), reason="the recorded provider traffic is not here")
def test_recorded_errors_are_what_they_are() -> None:
    names: set[str] = set()
    for path in sorted(TRAFFIC.glob("*/*.json")):
        recording = json.loads(path.read_text())
        if "error_status" not in recording["features"]:
            continue
        kind, code = RECORDED[path.stem]
        for interaction in recording["interactions"]:
            response = interaction["response"]
            if response["status"] < 400:
                continue
            body = response["body"]
            failure = error(
                response["status"],
                body.encode() if isinstance(body, str) else body,
                **response["headers"],
            )
            assert failure.__class__ is kind, path.stem
            assert (failure.code, failure.retryable, failure.retry_after) == (code, False, None)
            assert failure.request_id == (body.get("request_id") or "")
            names.add(path.stem)
    assert names == RECORDED.keys()
