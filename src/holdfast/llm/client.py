"""`LLM`: one model of one provider, with its key and settings. An `LLM` is frozen, thread-safe
and shared by any number of conversations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

from holdfast import errors
from holdfast.llm import secrets, settings
from holdfast.llm.address import Address, locate
from holdfast.llm.base import CompletionCall, ProviderModel
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.endpoint import ModelEndpoint, read_stream
from holdfast.llm.info import ModelInfo, model_info
from holdfast.llm.request import ModelRequest, RequestTarget, make_request
from holdfast.llm.retry import retrying
from holdfast.llm.vision import with_vision
from holdfast.llm.wires import answer_reader, wire_of

if TYPE_CHECKING:
    from holdfast.llm.http import HttpExchange, Transport
    from holdfast.tools.context import Cancellation

T = TypeVar("T")

NO_KEY = "No api_key was given, and none is read from the environment."


class _Post(NamedTuple):
    """One request to an endpoint. `url` is for messages."""

    path: str
    url: str
    body: bytes
    cancelled: Cancellation | None
    deadline: float | None


class LLM(ProviderModel):
    """A model behind an HTTP API.

        LLM("anthropic/claude-sonnet-4-5", api_key="...").completion("Hello!").text

    Identity and address:

    - `model`: the name as the provider writes it, or `provider/name`, such as
      `anthropic/claude-sonnet-4-5` or `groq/openai/gpt-oss-120b`. The provider prefix is removed
      only if the request goes to that provider's own address.
    - `base_url`: the API's address, with or without an ending such as `/chat/completions`. None
      means the provider's own address.
    - `wire`: the protocol: `openai_chat`, `openai_responses`, `anthropic_messages` or `gemini`.
      None means the protocol of the address.
    - `headers`: extra headers for every request. They override those that Holdfast sends.

    Settings that shape answers. Each is sent only if it is set, in the wire's own form:

    - `temperature`, `top_p`, `max_output_tokens`, `stop`, `reasoning_effort`, `reasoning_budget`
      (tokens), `seed`, `parallel_tool_calls`.
    - `response_format`: a JSON Schema, or the value that Chat Completions takes.
    - `extra_body`: merged last into the JSON of every request. Its `tools` (the provider's
      built-in ones) are added to the agent's.
    - `tool_calls`: "text" is for models without tool calling. The system prompt describes the
      tools, and the model writes calls as text.
    - `images`: True if the model accepts pictures. None means: as `info` says, and True if
      `info` says nothing. For a model that accepts none, text such as `[picture: image/png, 640
      x 480, 12 KB]` replaces each picture.
    - `prompt_caching`: True to add the marks that a provider needs to cache the stable beginning
      of requests.
    - `stream`: True to request the answer in pieces.

    Limits, in seconds unless noted:

    - `timeout`: the longest wait without receiving a byte.
    - `connect_timeout`: the longest wait for a connection.
    - `deadline`: the limit for a whole completion with its retries. None means no limit.
    - `max_retries`: the number of retries after a transient failure.

    Network: `proxy` is an `http://` URL, with user and password if needed. `ssl_context` holds the
    trusted certificates; None means the system's. Nothing is read from the environment.

    Secrets: `api_key`, `headers` and the query values of `base_url` appear neither in `repr`, nor
    in errors, nor in `parameters`. Values shorter than 8 characters are not treated as secrets.
    `extra_body` is visible, so keep keys out of it. An LLM cannot be pickled, because its key would
    be in the bytes. Copying an LLM returns the same object; `replace` makes a new one with changes.

    Raises `ConfigurationError` (a `ValueError`) naming the invalid argument.
    """

    base_url: str
    _unpicklable = "An LLM cannot be pickled: its api_key would be in the bytes"
    _arguments: dict[str, Any]
    _address: Address
    _parameters: dict[str, Any]
    _secrets: tuple[str, ...]
    _lock: threading.Lock
    _endpoint: ModelEndpoint | None

    def __init__(
        self,
        model: str,
        api_key: str = "",
        base_url: str | None = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_output_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        reasoning_effort: str | None = None,
        reasoning_budget: int | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        prompt_caching: bool = True,
        tool_calls: str = "native",
        images: bool | None = None,
        stream: bool = False,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        deadline: float | None = None,
        max_retries: int = 5,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        proxy: str | None = None,
        ssl_context: Any = None,
        wire: str | None = None,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"]
        settings.check(arguments)
        address = locate(model, base_url, wire)
        host = urlsplit(address.base_url).hostname or ""
        parameters = settings.parameters(arguments, address.wire, host)
        # Raises for settings that the wire does not support.
        wire_of(parameters).head(address.model, "", (), parameters, {})
        self._set(
            model=model,
            base_url=address.base_url,
            stream=stream,
            _price_key=(address.model, address.base_url),
            _arguments=arguments,
            _address=address,
            _parameters=parameters,
            _secrets=secrets.argument_secrets(arguments),
            _lock=threading.Lock(),
            _endpoint=None,
        )

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer. A cancellation takes effect within 100 ms."""
        endpoint = self._endpoint or self._open()
        seconds: float | None = self._arguments["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds
        return self._answer(
            call,
            self._target(endpoint, call),
            lambda request, deltas: self._attempt(endpoint, call, request, deltas, deadline),
            self._parameters["host"],
            self._arguments["max_retries"],
            deadline,
        )

    def _target(self, endpoint: ModelEndpoint, call: CompletionCall) -> RequestTarget:
        """Return the target of a request. The parameters in the journal (`head`) apply, unless they
        belong to another model that this one replaces. The host and the wire are always this LLM's.
        """
        own, key, head = self._parameters, endpoint.key, call.head
        if head is None or head.model != self.model:
            key = f"{key} {own}"
            parameters = with_vision(self, own) if call.transcript.pictures else own
        else:
            parameters = head.parameters
            if (parameters.get("host"), parameters.get("wire")) != (own["host"], own["wire"]):
                parameters = {**parameters, "wire": own["wire"], "host": own["host"]}
                key = f"{key} at {own['host']}"
        return RequestTarget(endpoint.wire, self._address.model, parameters, key)

    def count(self, call: CompletionCall) -> int:
        """Return the input tokens of a call, as the provider counts them."""
        # Loaded late: few programs count tokens.
        from holdfast.llm.wires import token_counts

        endpoint = self._endpoint or self._open()
        seconds: float | None = self._arguments["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds
        request = make_request(self._target(endpoint, call), call)
        name, model = endpoint.wire.name, self._address.model
        path, body = token_counts.count_request(name, model, self._parameters["host"], request.body)
        post = _Post(*endpoint.at(path), body, None, deadline)
        return retrying(
            lambda: self._exchange(
                endpoint, post, lambda response: token_counts.read_count(response.read())
            ),
            max_retries=self._arguments["max_retries"],
            deadline=deadline,
        )

    def _attempt(
        self,
        endpoint: ModelEndpoint,
        call: CompletionCall,
        request: ModelRequest,
        deltas: OnDelta,
        deadline: float | None,
    ) -> Completion:
        wire = answer_reader(endpoint.wire, bool(request.tools))

        def read(response: HttpExchange) -> Completion:
            if self.stream and "json" not in response.headers.get("content-type", ""):
                return read_stream(wire, response, deltas)
            answer = wire.parse(response.read())
            if self.stream and answer.text:
                # The server did not stream, but the listener still gets the text.
                deltas(Delta("text", answer.text))
            return answer

        post = _Post(endpoint.path, endpoint.url, request.body, call.cancelled, deadline)
        return self._exchange(endpoint, post, read)

    def _exchange(
        self, endpoint: ModelEndpoint, post: _Post, read: Callable[[HttpExchange], T]
    ) -> T:
        """Send one request and read its answer. Raises errors without secrets."""
        if post.cancelled:
            raise errors.Cancelled("The model call was cancelled.")
        response: HttpExchange | None = None
        try:
            response = endpoint.pool.post(
                post.path,
                post.body,
                endpoint.headers,
                cancelled=post.cancelled,
                stream=True,
                deadline=post.deadline,
            )
            if response.status != 200:
                raise self._failure(endpoint, post.url, response)
            answer = read(response)
            response.record_outcome(None)
            return answer
        except errors.LLMError as error:
            if response is not None:
                response.record_outcome(error)
            if isinstance(error, errors.AuthenticationError):
                if not secrets.credentials_of(self._arguments):
                    end = "" if str(error).endswith((".", "!", "?")) else "."
                    error.args = (f"{error}{end} {NO_KEY}",)
            elif type(error) is errors.BadResponse and post.url not in str(error):
                hint = f"It came from {post.url}: is that the API's address (base_url)?"
                error.args = (f"{error} {hint}",)
            self._scrub(error)
            raise
        finally:
            if response is not None:
                response.close()

    def _failure(
        self, endpoint: ModelEndpoint, url: str, response: HttpExchange
    ) -> errors.LLMError:
        try:
            body = response.read()
        except (errors.LLMConnectionError, errors.LLMTimeout):  # the status suffices for an error
            body = b""
        # Remove secrets before parsing, which cuts messages and could leave a part of a key.
        headers = {
            name: secrets.redact(value, self._secrets) for name, value in response.headers.items()
        }
        body = secrets.redact_bytes(body, self._secrets)
        model = self._address.model
        return endpoint.wire.error(response.status, headers, body, url, model)

    def _scrub(self, error: errors.LLMError) -> None:
        """Remove secrets from an error, because some servers repeat the key that they refuse.

        An exception that caused it may hold the whole answer, so a cause that holds a secret is
        dropped.
        """
        text = str(error)
        if secrets.holds_secret(text, self._secrets):
            error.args = (secrets.redact(text, self._secrets),)
        error.code = secrets.redact(error.code, self._secrets)
        error.request_id = secrets.redact(error.request_id, self._secrets)
        cause: BaseException | None = error.__cause__ or error.__context__
        while cause is not None:
            doc, data = getattr(cause, "doc", ""), getattr(cause, "object", "")
            if secrets.holds_secret(
                f"{cause.args!r} {vars(cause)!r} {doc} {data!r}", self._secrets
            ):
                error.__cause__ = error.__context__ = None
                break
            cause = cause.__cause__ or cause.__context__

    def _open(self) -> ModelEndpoint:
        """Return the endpoint, created at the first call."""
        with self._lock:
            if self._endpoint is None:
                self._set(_endpoint=ModelEndpoint(self._address, self._parameters, self._arguments))
            assert self._endpoint is not None
            return self._endpoint

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, secrets included: `LLM(**llm.arguments())` is the
        same model."""
        return dict(self._arguments)

    def parameters(self) -> dict[str, Any]:
        """Return the settings that shape answers: those that are sent, the wire and the host.
        The port and credentials are left out, since both may change while the answers stay the
        same. The values are JSON values without secrets."""
        return dict(self._parameters)

    @property
    def info(self) -> ModelInfo | None:
        """The table's entry for this model: context window, modalities, abilities and list
        prices. None if the table lacks the model. Does not use the network."""
        return model_info(self._address.model, self._address.provider, self.base_url)

    @property
    def sees(self) -> bool | None:
        """True if the model accepts pictures, by `images` or else by `info`; None if neither
        says. A model that accepts none gets a text in place of each picture."""
        if self._arguments["images"] is not None:
            return self._arguments["images"]
        info = self.info
        return None if info is None else "image" in info.input_modalities

    def close(self) -> None:
        """Close idle connections. Running calls continue, and the LLM stays usable."""
        if self._endpoint is not None:
            self._endpoint.pool.close()

    def replace(self, **changes: Any) -> LLM:
        """Return a new LLM with the same arguments, except for `changes`."""
        unknown = changes.keys() - self._arguments.keys()
        if unknown:
            names, known = ", ".join(sorted(unknown)), ", ".join(self._arguments)
            raise errors.ConfigurationError(f"LLM has no argument {names}. It has: {known}.")
        return LLM(**{**self._arguments, **changes})

    def with_transport(self, wrap: Callable[[Transport, Sequence[str]], Transport]) -> LLM:
        """Return a copy that sends its requests through `wrap(its connections, its secrets)`."""
        copy = self.replace()
        endpoint = copy._open()
        endpoint.pool = wrap(endpoint.pool, self._secrets)
        return copy

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"LLM is frozen; use replace({name}=...) to make another.")

    def __repr__(self) -> str:
        sent = self._parameters.items()
        settings = [f"{name}={value!r}" for name, value in sent if name not in ("wire", "host")]
        arguments = [repr(self.model), f"base_url={secrets.redact_url(self.base_url)!r}", *settings]
        return f"LLM({', '.join(arguments)})"

    def __copy__(self) -> LLM:
        return self

    def __deepcopy__(self, memo: object) -> LLM:
        return self
