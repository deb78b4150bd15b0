"""`LLM`: one model of one provider, with its key and settings. An `LLM` is frozen, thread-safe
and shared by any number of conversations."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from holdfast import errors
from holdfast.answer import COMPACTION
from holdfast.content import Usage
from holdfast.llm import secrets, settings
from holdfast.llm.address import Address, locate
from holdfast.llm.background import BackgroundAnswer
from holdfast.llm.base import CompletionCall, ProviderModel
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.endpoint import ModelEndpoint, read_stream
from holdfast.llm.info import ModelInfo, model_info
from holdfast.llm.prices import cost as list_cost
from holdfast.llm.prices import own_prices
from holdfast.llm.request import ModelRequest, RequestTarget, make_request
from holdfast.llm.retry import retrying
from holdfast.llm.transcript import Messages, as_transcript
from holdfast.llm.vision import with_vision
from holdfast.llm.wires import token_counts, wire_of
from holdfast.llm.wires.failures import is_unreadable
from holdfast.tools.json_values import freeze_json

if TYPE_CHECKING:
    from holdfast.events import AgentConfigured
    from holdfast.llm.http import HttpExchange, Transport
    from holdfast.llm.wires.protocol import Wire
    from holdfast.tools.context import Cancellation

T = TypeVar("T")

# Media types of JSON that comes in pieces (NDJSON and its relatives).
_STREAMED_JSON = re.compile(r"nd-?json|json-?l|json-?seq|stream", re.IGNORECASE)

WITH_COMPACTION = "openai_responses"
# The fields of a request that its compaction takes, too.
_COMPACTION_FIELDS = (
    *("model", "input", "instructions", "service_tier"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
)

NO_KEY = "No api_key was given, and none is read from the environment."


class _Post(msgspec.Struct, frozen=True):
    """One request to an endpoint. `url` is for messages."""

    path: str
    url: str
    body: bytes
    headers: str
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
    - `wire`: the protocol: `openai_chat`, `openai_responses`, `anthropic_messages` or `gemini`,
      or an object of your own that satisfies `holdfast.llm.wires.protocol.Wire`. None means the
      protocol of the address.
    - `headers`: extra headers for every request, which override Holdfast's own.

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
    - `prices`: US dollars per million tokens, instead of the table's:
      `{"input": 1.25, "output": 10, "cached": 0.125}`. Further kinds are `written`, `written_1h`
      (to the cache), `input_audio`, `input_image`, `reasoning`, `output_audio` and `output_image`.
      A missing kind costs as the kind that contains it. `request` is the price of a request.
    - `send_reasoning`: the reasoning of earlier answers that is sent back, for Chat Completions.
      True sends it unchanged, False never, "tags" within `<think>` tags before the text. None
      means: as the provider's documentation asks, and only with tool calls if the host is unknown.
    - `think_tags`: True if answers may begin with their reasoning in `<think>` tags, which is then
      `reasoning` and not `text`. None means: for hosts that are known to send it so.
    - `prompt_caching`: True to add a provider's marks for caching the stable beginning of requests.
      A text ("5m" or "1h") also sets the lifetime of Anthropic's cache; an hour costs more.
    - `stream`: True to request the answer in pieces.
    - `background`: True to let the provider make the answer in the background (`openai_responses`).
      The answer is then polled, or streamed, and survives a broken connection and a killed process.
      The provider stores such answers for some minutes.

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

    Raises `ConfigurationError` (a `ValueError`), which names the invalid argument.
    """

    base_url: str
    wire: Wire
    _unpicklable = "An LLM cannot be pickled: its api_key would be in the bytes"
    _arguments: dict[str, Any]
    _address: Address
    _parameters: dict[str, Any]
    _secrets: tuple[str, ...]
    _own_price: Callable[[Usage], float] | None
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
        prompt_caching: bool | str = True,
        tool_calls: str = "native",
        images: bool | None = None,
        prices: Mapping[str, float] | None = None,
        send_reasoning: bool | Literal["tags"] | None = None,
        think_tags: bool | None = None,
        stream: bool = False,
        background: bool = False,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        deadline: float | None = None,
        max_retries: int = 5,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        proxy: str | None = None,
        ssl_context: Any = None,
        wire: str | Wire | None = None,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"]
        settings.check(arguments)
        own_wire = settings.own_wire(arguments)
        address = locate(model, base_url, cast("str | None", own_wire.name if own_wire else wire))
        host = urlsplit(address.base_url).hostname or ""
        parameters = settings.parameters(arguments, address.wire, host)
        # Raises for settings that the wire does not support.
        spoken = wire_of(parameters, own_wire)
        spoken.head(address.model, "", (), parameters, {})
        self._set(
            model=model,
            base_url=address.base_url,
            stream=stream,
            _price_key=(address.model, address.base_url),
            _own_price=own_prices(prices) if prices is not None else None,
            _arguments=arguments,
            _address=address,
            _parameters=freeze_json(parameters),
            wire=spoken,
            _secrets=secrets.argument_secrets(arguments),
            _lock=threading.Lock(),
            _endpoint=None,
        )

    def complete(self, call: CompletionCall) -> Completion:
        """Return one answer. A cancellation takes effect within 100 ms."""
        endpoint = self._endpoint or self._open()
        seconds: float | None = self._arguments["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds
        attempt = partial(self._attempt, endpoint, call, deadline)
        if self._arguments["background"]:
            attempt = self._background_attempt(endpoint, call, deadline)
        parameters, retries = self._parameters, self._arguments["max_retries"]
        target = self._target(endpoint, call)
        return self._answer(call, target, attempt, parameters["host"], retries, deadline)

    def compact(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        head: AgentConfigured | None = None,
        instructions: str = "",
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """Return a compaction of `messages` by the provider (`/responses/compact`).

        The compaction is an answer without text, to append to the transcript. Later requests to
        this provider begin with it instead of the messages before. Takes the arguments of
        `completion`, and `instructions` for the compaction, which follow the system prompt. Raises
        `ConfigurationError` on a wire other than `openai_responses`, and `LLMError`.
        """
        if self._parameters["wire"] != WITH_COMPACTION:
            raise errors.ConfigurationError(
                f"LLM: compact is not supported on the wire {self._parameters['wire']}. Use"
                f" wire='{WITH_COMPACTION}' for it."
            )
        endpoint = self._endpoint or self._open()
        call = CompletionCall(as_transcript(messages), (), system, head, None, cancelled)
        path, mark, query = endpoint.path.partition("?")
        seconds: float | None = self._arguments["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds

        def attempt(request: ModelRequest, deltas: OnDelta) -> Completion:
            fields = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
            body: dict[str, Any] = {
                name: fields[name] for name in _COMPACTION_FIELDS if name in fields
            }
            if instructions:
                parts = (call.system or (head and head.system_prompt), instructions)
                body["instructions"] = "\n\n".join(filter(None, parts))
            post = _Post(
                *(f"{path}/compact{mark}{query}", f"{endpoint.url}/compact"),
                *(msgspec.json.encode(body), endpoint.headers, cancelled, deadline),
            )
            return self._exchange(
                endpoint, post, lambda response: endpoint.wire.parse(response.read())
            )

        host, retries = self._parameters["host"], self._arguments["max_retries"]
        target = self._target(endpoint, call)
        answer = self._answer(call, target, attempt, host, retries, deadline)
        model = answer.model or self._address.model
        return msgspec.structs.replace(answer, model=model, stop_reason=COMPACTION)

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
        endpoint = self._endpoint or self._open()
        seconds: float | None = self._arguments["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds
        request = make_request(self._target(endpoint, call), call)
        path, body = token_counts.count_request(
            endpoint.wire, self._address.model, self._parameters["host"], request.body
        )
        headers = endpoint.upload_headers if request.transcript.uploads else endpoint.headers
        post = _Post(*endpoint.at(path), body, headers, None, deadline)
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
        deadline: float | None,
        request: ModelRequest,
        deltas: OnDelta,
    ) -> Completion:
        """Send a request and return the answer."""
        wire = endpoint.wire if request.tools else endpoint.wire_without_tools
        headers = endpoint.upload_headers if request.transcript.uploads else endpoint.headers
        path, url = endpoint.path, endpoint.url
        post = _Post(path, url, request.body, headers, call.cancelled, deadline)
        return self._exchange(endpoint, post, partial(self._read, wire, deltas))

    def _read(self, wire: Wire, deltas: OnDelta, response: HttpExchange) -> Completion:
        media_type = response.headers.get("content-type", "")
        if self.stream:
            is_whole = _is_whole_json(media_type)
        else:  # some proxies stream every answer
            is_whole = "event-stream" not in media_type
        if not is_whole:
            return read_stream(wire, response, deltas)
        answer = wire.parse(response.read())
        if self.stream and answer.text:  # the listener still gets the text
            deltas(Delta("text", answer.text))
        return answer

    def _background_attempt(
        self, endpoint: ModelEndpoint, call: CompletionCall, deadline: float | None
    ) -> Callable[[ModelRequest, OnDelta], Completion]:
        """Return a function like `_attempt` for one answer that the provider makes in the
        background."""
        background_answers: list[BackgroundAnswer] = []

        def attempt(request: ModelRequest, deltas: OnDelta) -> Completion:
            if not background_answers:
                fail = partial(self._failure, endpoint, endpoint.url)
                host = self._parameters["host"]
                request_key = f"{request.hash} {self._address.model} {host}" if request.hash else ""
                background_answers.append(
                    BackgroundAnswer(endpoint, fail, request_key, call.cancelled, deadline)
                )
            if call.cancelled:
                raise errors.Cancelled("The model call was cancelled.")
            wire = endpoint.wire if request.tools else endpoint.wire_without_tools
            try:
                return background_answers[0].ask(wire, request.body, deltas, self.stream)
            except errors.LLMError as error:
                self._explain(error, endpoint.url)
                raise

        return attempt

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
                post.headers,
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
            self._explain(error, post.url)
            raise
        finally:
            if response is not None:
                response.close()

    def _explain(self, error: errors.LLMError, url: str) -> None:
        """Add a hint to an error that a wrong key or address explains, and remove secrets."""
        if isinstance(error, errors.AuthenticationError):
            if not secrets.credentials_of(self._arguments):
                end = "" if str(error).endswith((".", "!", "?")) else "."
                error.args = (f"{error}{end} {NO_KEY}",)
        elif is_unreadable(error) and url not in str(error):
            hint = f"It came from {url}: is that the API's address (base_url)?"
            error.args = (f"{error} {hint}",)
        self._scrub(error)

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
                self._set(_endpoint=ModelEndpoint(self._address, self.wire, self._arguments))
            assert self._endpoint is not None
            return self._endpoint

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, secrets included: `LLM(**llm.arguments())` is the
        same model."""
        return dict(self._arguments)

    def parameters(self) -> dict[str, Any]:
        """Return the settings that shape answers: the sent ones, the wire and the host. The port
        and credentials are left out, since both may change while the answers stay the same. The
        values are JSON values without secrets. The dict is shared, so it is immutable."""
        return self._parameters

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

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of one call in USD, by `prices` or else by the table; None if neither
        knows the model."""
        price = self._own_price
        return list_cost(usage, *self._price_key) if price is None else price(usage)

    def close(self) -> None:
        """Close idle connections. Running calls continue, and the LLM stays usable."""
        if self._endpoint is not None:
            self._endpoint.pool.close()

    def replace(self, **changes: Any) -> LLM:
        """Return a new LLM with the same arguments, except for `changes`."""
        unknown = changes.keys() - self._arguments.keys()
        if unknown:
            names, valid_names = ", ".join(sorted(unknown)), ", ".join(self._arguments)
            raise errors.ConfigurationError(f"LLM has no argument {names}. It has: {valid_names}.")
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
        parameters = self._parameters.items()
        settings = [
            f"{name}={value!r}" for name, value in parameters if name not in ("wire", "host")
        ]
        arguments = [repr(self.model), f"base_url={secrets.redact_url(self.base_url)!r}", *settings]
        return f"LLM({', '.join(arguments)})"

    def __copy__(self) -> LLM:
        return self

    def __deepcopy__(self, memo: object) -> LLM:
        return self


def _is_whole_json(content_type: str) -> bool:
    """Return True if a response is one JSON value: some servers ignore a request for a stream."""
    return "json" in content_type and not _STREAMED_JSON.search(content_type)
