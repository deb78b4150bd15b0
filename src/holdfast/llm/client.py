"""`LLM`: one model of one provider, with its key and settings. Frozen, thread-safe, shared by any number of conversations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from holdfast.content import Usage
from holdfast.errors import BadResponse, Cancelled, ConfigurationError, LLMConnectionError, LLMError, LLMTimeout, StreamInterrupted
from holdfast.llm import settings
from holdfast.llm.address import Address, locate
from holdfast.llm.completion import Completion, Delta, OnDelta
from holdfast.llm.model import ToolLike
from holdfast.llm.request import Request, make_request
from holdfast.llm.retry import retrying
from holdfast.llm.transcript import Messages
from holdfast.llm.wires import Wire, wire_of

if TYPE_CHECKING:
    from holdfast.events import Agent
    from holdfast.llm.http import Exchange, Transport
    from holdfast.llm.info import ModelInfo
    from holdfast.tools.context import Cancellation

AFTER_FINISH = 10.0  # seconds to wait, once an answer is complete, for a server to count tokens and end the stream


class LLM:
    """A model behind an HTTP API.

    `model` is a name as the provider writes it, or `provider/name`, such as `anthropic/claude-sonnet-4-5` or `groq/openai/gpt-oss-120b`;
    `base_url` the API's address, with or without `/chat/completions` and the like at its end (None: the provider's own). A provider's
    name before a slash is taken off where the request goes to that provider's own address; to any other address the name is sent
    as it is. `wire` is the protocol: `openai_chat`, `openai_responses`, `anthropic_messages` or `gemini` (None: the one that the address speaks).

    `temperature`, `top_p`, `max_output_tokens`, `stop`, `reasoning_effort`, `reasoning_budget` (tokens), `seed`, `parallel_tool_calls` and
    `response_format` (a JSON Schema, or what Chat Completions takes) are sent only if given, in the words of the wire; `extra_body` is
    merged into every request's JSON last (its `tools`, the provider's own, stand beside the agent's), `headers` into its headers. `prompt_caching` places what a provider needs to read the
    stable beginning of requests from its cache. `tool_calls="text"` is for models that cannot call tools: they are told of them in the
    system prompt, and write their calls as text. `stream` asks for the answer piece by piece. `timeout` is how long to wait without a byte, `connect_timeout` for a connection, `deadline` for a whole
    completion with its retries (None: for ever); all in seconds. `proxy` is an `http://` URL; nothing is read from the environment.

    `api_key` and `headers` are shown nowhere: not by `repr`, in errors, or in `parameters`; `extra_body` is, so keep keys out of it. An LLM cannot be pickled, since its key would be in
    the bytes; copies are the LLM itself. `replace` makes one with changes.

    Raises `ConfigurationError` (a `ValueError`) naming the argument that does not fit.
    """

    model: str
    base_url: str
    stream: bool

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
        given = dict(locals())
        del given["self"]
        settings.check(given)
        address = locate(model, base_url, wire)
        parameters = settings.parameters(given, address.wire, urlsplit(address.base_url).hostname or "")
        wire_of(parameters).head(address.model, "", (), parameters, {})  # raises for what the wire cannot say
        state = {
            "model": model,
            "base_url": address.base_url,
            "stream": stream,
            "_given": given,
            "_address": address,
            "_sent": address.model,
            "_parameters": parameters,
            "_secrets": settings.secrets(given),
            "_lock": threading.Lock(),
            "_line": None,
        }
        for name, value in state.items():
            object.__setattr__(self, name, value)

    _given: dict[str, Any]
    _address: Address
    _sent: str
    _parameters: dict[str, Any]
    _secrets: tuple[str, ...]
    _lock: threading.Lock
    _line: _Line | None

    # --- asking -------------------------------------------------------------------------------

    def completion(
        self,
        messages: Messages,
        tools: Sequence[ToolLike] = (),
        *,
        system: str | None = None,
        head: Agent | None = None,
        on_delta: OnDelta | None = None,
        cancelled: Cancellation | None = None,
    ) -> Completion:
        """One answer of the model to `messages`: a str, a list of `Message`, or a `Transcript`, which costs only what is new in it.

        `tools` are what it may call (their calls come back, nothing is run), `system` the system prompt. A conversation gives
        `head` instead, its `Agent` event, from which prompt, tools and parameters are taken. `on_delta` is told of the pieces
        of a streamed answer, on this thread. Raising `cancelled` ends the call within 100 ms with `Cancelled`.

        Failures that pass are retried up to `max_retries` times; Retry-After is honoured. Raises what is left, an `LLMError`.
        """
        line = self._line or self._open()
        # What the journal says is what is asked for, unless it speaks of another model, for which this one stands in.
        journaled = head is not None and head.model == self.model
        parameters = head.parameters if head is not None and journaled else self._parameters
        key = line.key if journaled else f"{line.key} {self._parameters}"
        request = make_request(line.wire, self._sent, parameters, messages, tools, system, head, self.stream, key)
        began = time.monotonic()
        wait: float | None = self._given["deadline"]
        until = None if wait is None else began + wait
        told = False

        def tell(delta: Delta) -> None:
            nonlocal told
            told = True
            if on_delta is not None:
                on_delta(delta)

        def restart(_: LLMError) -> None:
            nonlocal told
            if told and on_delta is not None:
                told = False
                on_delta(Delta("restart"))

        answer = retrying(
            lambda: self._ask(line, request, tell, cancelled, until),
            max_retries=self._given["max_retries"],
            deadline=until,
            cancelled=cancelled,
            before_retry=restart,
        )
        return request.canonically(
            answer,
            duration=time.monotonic() - began,
            cost=line.cost(answer.usage, self._sent, self.base_url),
            notes=request.transcript.notes(line.wire, self._sent, parameters.get("host", "")),
            host=self._parameters["host"],
        )

    def _ask(self, line: _Line, request: Request, tell: OnDelta, cancelled: Cancellation | None, until: float | None) -> Completion:
        if cancelled:
            raise Cancelled("The model call was cancelled.")
        response: Exchange | None = None
        try:
            response = line.pool.post(line.path, request.body, line.headers, cancelled=cancelled, stream=True, deadline=until)
            if response.status != 200:
                raise self._failure(line, response)
            if self.stream and "json" not in response.headers.get("content-type", ""):
                return _read_stream(line.wire, response, tell)
            answer = line.wire.parse(response.read())
            if self.stream and answer.text:  # a server that does not stream: whoever watches is told all the same
                tell(Delta("text", answer.text))
            return answer
        except LLMError as error:
            self._scrub(error)
            raise
        finally:
            if response is not None:
                response.close()

    def _failure(self, line: _Line, response: Exchange) -> LLMError:
        try:
            body = response.read()
        except (LLMConnectionError, LLMTimeout):  # the status says enough
            body = b""
        return line.wire.error(response.status, response.headers, body, line.url, self._sent)

    def _scrub(self, error: LLMError) -> None:
        """Take our secrets out of an error: some servers repeat the key that they refuse. What led to it may hold the answer whole."""
        text = str(error)
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "***")
                error.args = (text,)
            error.code = error.code.replace(secret, "***")
            error.request_id = error.request_id.replace(secret, "***")
        led: BaseException | None = error.__cause__ or error.__context__
        while led is not None:
            held = f"{led.args!r} {vars(led)!r} {getattr(led, 'doc', '')} {getattr(led, 'object', '')!r}"
            if any(secret in held for secret in self._secrets):
                error.__cause__ = error.__context__ = None
                break
            led = led.__cause__ or led.__context__

    def _open(self) -> _Line:
        """The connection pool and what every request has in common, made at the first call."""
        with self._lock:
            if self._line is None:
                object.__setattr__(self, "_line", _Line(self._address, self._parameters, self._given))
            line = self._line
        assert line is not None
        return line

    # --- about it -----------------------------------------------------------------------------

    def parameters(self) -> dict[str, Any]:
        """What shapes the answers beside the messages: the settings that are sent, the wire, and the host (without port or
        credentials, since both change where the answers do not). JSON values, no secrets."""
        return dict(self._parameters)

    def cost(self, usage: Usage) -> float | None:
        """What `usage` costs in USD by a table of list prices; None for a model that is not in it. Asks no network."""
        from holdfast.llm.prices import cost

        return cost(usage, self._sent, self.base_url)

    @property
    def info(self) -> ModelInfo | None:
        """What a table of models says of this one: context window, modalities, abilities, list prices; None if it is not in it.
        Asks no network."""
        from holdfast.llm.info import model_info

        return model_info(self._sent, self._address.provider, self.base_url)

    def close(self) -> None:
        """Close idle connections. Calls that run go on, and the LLM stays usable."""
        if self._line is not None:
            self._line.pool.close()

    def replace(self, **changes: Any) -> LLM:
        """A new LLM with the same arguments but these."""
        unknown = changes.keys() - self._given.keys()
        if unknown:
            raise ConfigurationError(f"LLM has no argument {', '.join(sorted(unknown))}. It has: {', '.join(self._given)}.")
        return LLM(**{**self._given, **changes})

    def through(self, wrap: Callable[[Transport, Sequence[str]], Transport]) -> LLM:
        """A copy that sends its requests through `wrap(its connections, its secrets)`."""
        found = self.replace()
        line = found._open()
        line.pool = wrap(line.pool, self._secrets)
        return found

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"LLM is frozen; use replace({name}=...) to make another.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("LLM is frozen.")

    def __repr__(self) -> str:
        shown = {name: value for name, value in self._parameters.items() if name not in ("wire", "host")}
        return f"LLM({', '.join([repr(self.model), f'base_url={self.base_url!r}', *(f'{k}={v!r}' for k, v in shown.items())])})"

    def __copy__(self) -> LLM:
        return self

    def __deepcopy__(self, memo: object) -> LLM:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("An LLM cannot be pickled: its api_key would be in the bytes. Send its arguments and make it anew.")


class _Line:
    """What all requests of one LLM share: wire, pool, path, header lines."""

    __slots__ = ("cost", "headers", "key", "path", "pool", "url", "wire")

    wire: Wire
    pool: Transport
    cost: Callable[[Usage, str, str], float | None]

    def __init__(self, address: Address, parameters: dict[str, Any], given: dict[str, Any]) -> None:
        from holdfast.llm.http import HTTPPool, header_text
        from holdfast.llm.prices import cost

        self.cost = cost
        base_url, model = address.base_url, address.model
        self.wire = wire_of(parameters)
        self.key = f"{self.wire.name} {model}"
        parts = urlsplit(base_url)
        path, _, query = self.wire.path(model, given["stream"]).partition("?")
        query = "&".join(part for part in (query, parts.query) if part)
        self.path = f"{parts.path}{path}?{query}" if query else parts.path + path
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}{path}"
        headers: dict[str, str] = {"User-Agent": "holdfast", **self.wire.headers(given["api_key"]), **(given["headers"] or {})}
        # The later of two names that differ only in case counts: a caller's Authorization replaces ours.
        self.headers = header_text({name.lower(): value for name, value in headers.items()})
        self.pool = HTTPPool(
            base_url,
            timeout=(given["connect_timeout"], given["timeout"]),
            proxy=given["proxy"],
            ssl_context=given["ssl_context"],
        )


def _read_stream(wire: Wire, response: Exchange, tell: OnDelta) -> Completion:
    parser = wire.stream()
    try:
        for chunk in response:
            try:
                parser.feed(chunk, tell)
            except BadResponse:
                if not parser.finished:
                    raise
                break  # garbage behind a whole answer does not make it less whole
            if parser.finished:
                response.hurry(AFTER_FINISH if not parser.done else 0.1)  # the end of the body lets the connection be reused
    except (LLMConnectionError, LLMTimeout) as error:
        if not parser.finished:
            if isinstance(error, LLMTimeout):
                raise
            raise StreamInterrupted(f"The stream broke off before the answer was complete: {error}") from error
    return parser.finish()
