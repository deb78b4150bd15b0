"""`LiteLLM`: any model that the litellm package reaches (Bedrock, Vertex AI, ...), behind
Holdfast's `Model` interface. Needs `pip install 'holdfast[litellm]'`.

Requests and answers use the Chat Completions wire; the package does the rest. The package is
large and slow (3 s to import), so use it only for providers whose protocol Holdfast does not
speak itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast import errors
from holdfast.error_text import describe_error, typed_text
from holdfast.llm.base import CompletionCall, ProviderModel
from holdfast.llm.completion import Completion, OnDelta
from holdfast.llm.info import model_info
from holdfast.llm.request import RequestTarget, make_request
from holdfast.llm.secrets import credentials, redact, worth_hiding
from holdfast.llm.vision import with_vision
from holdfast.llm.wires import openai_chat

if TYPE_CHECKING:
    from holdfast.tools.context import Cancellation

HOST = "litellm"

# The names of settings that hold secrets. `max_tokens` and similar names do not match.
_SECRET_NAMES = re.compile(
    r"key|token(?!s)|secret|password|credential|header|authorization", re.IGNORECASE
)


class LiteLLM(ProviderModel):
    """A model by litellm's name for it, such as `bedrock/anthropic.claude-sonnet-4-5`.

    `settings` are passed to `litellm.completion` unchanged (`temperature=`, `api_key=`,
    `aws_region_name=`, ...). Settings named like secrets (keys, tokens, passwords, headers, ...)
    are never shown.

    litellm's own retries and fallbacks are off; `max_retries` applies here. A cancellation takes
    effect between the pieces of a stream and between retries, because litellm cannot be
    interrupted. litellm itself reads environment variables. Raises `ConfigurationError` if the
    package is not installed.
    """

    _unpicklable = "A LiteLLM cannot be pickled: its settings hold keys"
    _timeout: float
    _max_retries: int
    _settings: dict[str, Any]
    _secrets: tuple[str, ...]

    def __init__(
        self,
        model: str,
        *,
        stream: bool = True,
        timeout: float = 600.0,
        max_retries: int = 5,
        **settings: Any,
    ) -> None:
        if not isinstance(model, str) or not model.strip():  # pyright: ignore[reportUnnecessaryIsInstance]: callers are not all typed
            raise errors.ConfigurationError(f"LiteLLM: model takes a model's name, not {model!r}.")
        _package()
        self._set(
            model=model,
            stream=stream,
            _price_key=(model, ""),
            _timeout=timeout,
            _max_retries=max_retries,
            _settings=settings,
            _secrets=worth_hiding(_secret_values(settings)),
        )

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, secrets included: `LiteLLM(**llm.arguments())` is
        the same model."""
        return {
            "model": self.model,
            "stream": self.stream,
            "timeout": self._timeout,
            "max_retries": self._max_retries,
            **self._settings,
        }

    def parameters(self) -> dict[str, Any]:
        """Return the settings that are JSON values, without those named like secrets."""
        settings: dict[str, Any] = {"wire": openai_chat.name, "host": HOST}
        for name, value in _without_secrets(self._settings).items():
            try:
                settings[name] = msgspec.json.decode(msgspec.json.encode(value))
            except (TypeError, ValueError):
                continue  # not JSON, such as a client object or a callback
        return settings

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer, as `LLM` does."""
        litellm = _package()
        limits = {"timeout": self._timeout, "num_retries": 0, "max_retries": 0}
        return self._answer(
            call,
            self._target(call),
            lambda request, deltas: self._attempt(
                litellm,
                {**msgspec.json.decode(request.body), **self._settings, **limits},
                deltas,
                call.cancelled,
            ),
            HOST,
            self._max_retries,
        )

    def _target(self, call: CompletionCall) -> RequestTarget:
        if call.head is not None and call.head.model == self.model:
            parameters = call.head.parameters
        else:
            own = self.parameters()
            parameters = with_vision(self, own) if call.transcript.pictures else own
        return RequestTarget(openai_chat, self.model, parameters, f"litellm {self.model}")

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call by `litellm.token_counter`, which sends no request."""
        body = msgspec.json.decode(make_request(self._target(call), call).body)
        try:
            return int(
                _package().token_counter(
                    model=self.model, messages=body["messages"], tools=body.get("tools")
                )
            )
        except Exception as error:
            raise self._failure(error) from None

    def _attempt(
        self,
        litellm: Any,
        call_arguments: Mapping[str, Any],
        deltas: OnDelta,
        cancelled: Cancellation | None,
    ) -> Completion:
        if cancelled:
            raise errors.Cancelled("The model call was cancelled.")
        try:
            answer = litellm.completion(**call_arguments)
            if not self.stream:
                return openai_chat.parse(answer.model_dump_json().encode())
            parser = openai_chat.stream()
            for chunk in answer:
                if cancelled:
                    raise errors.Cancelled("The model call was cancelled.")
                event = chunk.model_dump_json(exclude_none=True).encode()
                parser.feed(b"data: %b\n\n" % event, deltas)
            return parser.finish()
        except errors.LLMError:
            raise
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> errors.LLMError:
        text = redact(str(error) or describe_error(error), self._secrets)
        status = getattr(error, "status_code", None)
        kind = type(error).__name__
        if kind == "Timeout" or isinstance(error, TimeoutError):
            return errors.LLMTimeout(text)
        if kind == "APIConnectionError" or isinstance(error, ConnectionError):
            return errors.LLMConnectionError(text)
        if isinstance(status, int) and status >= 400:
            details = {"message": text, "code": getattr(error, "code", None)}
            body = msgspec.json.encode({"error": details})
            headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
            lower = {str(name).lower(): str(value) for name, value in headers.items()}
            return openai_chat.error(status, lower, body, "litellm", self.model)
        return errors.BadResponse(f"litellm failed: {typed_text(kind, text)}")

    @property
    def sees(self) -> bool | None:
        """True if the model accepts pictures, by the table of models; None if the table lacks
        the model."""
        info = model_info(self.model)
        return None if info is None else "image" in info.input_modalities

    def close(self) -> None:
        """Do nothing: litellm keeps its own connections."""

    def __repr__(self) -> str:
        return f"LiteLLM({self.model!r})"


def _secret_values(settings: Any, secret: bool = False) -> Iterator[str]:
    """Yield the strings of all settings named like secrets, at any depth."""
    if isinstance(settings, Mapping):
        for name, value in cast("Mapping[Any, Any]", settings).items():
            yield from _secret_values(value, secret or bool(_SECRET_NAMES.search(str(name))))
    elif isinstance(settings, list | tuple):
        for value in cast("Sequence[Any]", settings):
            yield from _secret_values(value, secret)
    elif secret and isinstance(settings, str):
        yield from credentials(settings)


def _without_secrets(settings: Any) -> Any:
    if isinstance(settings, Mapping):
        items = cast("Mapping[Any, Any]", settings).items()
        public = [(name, value) for name, value in items if not _SECRET_NAMES.search(str(name))]
        return {name: _without_secrets(value) for name, value in public}
    if isinstance(settings, list | tuple):
        return [_without_secrets(value) for value in cast("Sequence[Any]", settings)]
    return settings


def _package() -> Any:
    try:
        import litellm  # pyright: ignore[reportMissingImports]: an extra, 300 MB, that is not there in development
    except ImportError:
        raise errors.ConfigurationError(
            "LiteLLM needs the litellm package: pip install 'holdfast[litellm]'."
        ) from None
    package = cast(Any, litellm)
    package.suppress_debug_info = True  # otherwise every error prints advertisements to stdout
    return package
