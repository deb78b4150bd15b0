"""`LLM`: one model of one provider, with its key and settings. Frozen, thread-safe, shared by any number of conversations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from holdfast.content import Usage
from holdfast.errors import AuthenticationError, BadResponse, Cancelled, ConfigurationError, LLMConnectionError, LLMError, LLMTimeout
from holdfast.llm import prices, settings
from holdfast.llm.address import Address, locate
from holdfast.llm.completion import Completion, Delta, OnDelta, Told
from holdfast.llm.line import Line, read_stream
from holdfast.llm.model import ToolLike
from holdfast.llm.pictures import BLIND, with_sight
from holdfast.llm.request import Request, make_request
from holdfast.llm.retry import retrying
from holdfast.llm.secrets import blot, blot_data, credentials_of, holds_one, secrets, shown
from holdfast.llm.transcript import Messages, Transcript, as_transcript
from holdfast.llm.wires import reader, wire_of

if TYPE_CHECKING:
    from holdfast.events import Agent
    from holdfast.llm.http import Exchange, Transport
    from holdfast.llm.info import ModelInfo
    from holdfast.tools.context import Cancellation

NO_KEY = "No api_key was given, and none is read from the environment."


class LLM:
    """A model behind an HTTP API.

        LLM("anthropic/claude-sonnet-4-5", api_key="...").completion("Hello!").text

    Which model, and where:

    - `model`: its name as the provider writes it, or `provider/name`, such as `anthropic/claude-sonnet-4-5` or
      `groq/openai/gpt-oss-120b`. The provider's name is taken off where the request goes to that provider's own address; to any other
      address the name is sent as it is.
    - `base_url`: the API's address, with or without `/chat/completions` and the like at its end. None: the provider's own.
    - `wire`: the protocol: `openai_chat`, `openai_responses`, `anthropic_messages` or `gemini`. None: the one that the address speaks.
    - `headers`: sent with every request, also in place of those that Holdfast sends.

    What shapes its answers. Each is sent only if given, in the words of the wire:

    - `temperature`, `top_p`, `max_output_tokens`, `stop`, `reasoning_effort`, `reasoning_budget` (tokens), `seed`,
      `parallel_tool_calls`, and `response_format` (a JSON Schema, or what Chat Completions takes).
    - `extra_body`: merged into every request's JSON last. Its `tools`, the provider's own, stand beside the agent's.
    - `tool_calls`: "text" is for models that cannot call tools: they are told of them in the system prompt, and write calls as text.
    - `images`: whether the model takes pictures. None: what `info` says, and yes if it says nothing. A model that does not is told
      `[picture: image/png, 640 x 480, 12 KB]` in the place of each.
    - `prompt_caching`: whether to place what a provider needs to read the stable beginning of requests from its cache.
    - `stream`: whether to ask for the answer piece by piece.

    How long to try, in seconds:

    - `timeout`: to wait without a byte; `connect_timeout`: for a connection; `deadline`: for a whole completion with its retries (None:
      for ever).
    - `max_retries`: how often to ask again after a failure that passes.

    How to get there: `proxy` is an `http://` URL, with user and password if need be; `ssl_context` the certificates to trust (None: the
    system's). Nothing is read from the environment.

    Secrets: `api_key`, `headers`, and the values in the query of `base_url` are shown nowhere: not by `repr`, in errors, or in
    `parameters` (what is shorter than 8 characters is no secret). `extra_body` is shown, so keep keys out of it. An LLM cannot be
    pickled, since its key would be in the bytes; copies are the LLM itself. `replace` makes one with changes.

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
            "_secrets": secrets(given),
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
    _line: Line | None

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
        messages = as_transcript(messages)
        parameters, key = self._asked_for(line, head, messages)
        request = make_request(line.wire, self._sent, parameters, messages, tools, system, head, self.stream, key)
        began = time.monotonic()
        wait: float | None = self._given["deadline"]
        until = None if wait is None else began + wait
        told = Told(on_delta)
        answer = retrying(
            lambda: self._ask(line, request, told, cancelled, until),
            max_retries=self._given["max_retries"],
            deadline=until,
            cancelled=cancelled,
            before_retry=told.restart,
        )
        return request.canonically(
            answer,
            duration=time.monotonic() - began,
            cost=self.cost(answer.usage),
            notes=request.transcript.notes(line.wire, self._sent, parameters["host"], parameters.get(BLIND) is not False),
            host=parameters["host"],
        )

    def _asked_for(self, line: Line, head: Agent | None, transcript: Transcript) -> tuple[Mapping[str, Any], str]:
        """The parameters of a request, and the key under which a transcript keeps what is made of them and of `head`.

        What the journal says is what is asked for, unless it speaks of another model, for which this one stands in. Where the request goes
        and how it is said there is ours to know.
        """
        own = self._parameters
        if head is None or head.model != self.model:
            key = f"{line.key} {own}"
            return (with_sight(self, own) if transcript.pictures else own), key
        if head.parameters.get("host") == own["host"] and head.parameters.get("wire") == own["wire"]:
            return head.parameters, line.key
        return {**head.parameters, "wire": own["wire"], "host": own["host"]}, f"{line.key} at {own['host']}"

    def _ask(self, line: Line, request: Request, told: OnDelta, cancelled: Cancellation | None, until: float | None) -> Completion:
        if cancelled:
            raise Cancelled("The model call was cancelled.")
        response: Exchange | None = None
        wire = reader(line.wire, bool(request.tools))
        try:
            response = line.pool.post(line.path, request.body, line.headers, cancelled=cancelled, stream=True, deadline=until)
            if response.status != 200:
                raise self._failure(line, response)
            if self.stream and "json" not in response.headers.get("content-type", ""):
                answer = read_stream(wire, response, told)
            else:
                answer = wire.parse(response.read())
                if self.stream and answer.text:  # a server that does not stream: whoever watches is told all the same
                    told(Delta("text", answer.text))
            response.settle(None)
            return answer
        except LLMError as error:
            if response is not None:
                response.settle(error)
            if isinstance(error, AuthenticationError) and not credentials_of(self._given):
                end = "" if str(error).endswith((".", "!", "?")) else "."
                error.args = (f"{error}{end} {NO_KEY}",)
            elif type(error) is BadResponse and line.url not in str(error):
                error.args = (f"{error} It came from {line.url}: is that the API's address (base_url)?",)
            self._scrub(error)
            raise
        finally:
            if response is not None:
                response.close()

    def _failure(self, line: Line, response: Exchange) -> LLMError:
        try:
            body = response.read()
        except (LLMConnectionError, LLMTimeout):  # the status says enough
            body = b""
        # Before anything is read in it: what is shown of it is cut to a length, which could leave a part of a key.
        headers = {name: blot(value, self._secrets) for name, value in response.headers.items()}
        return line.wire.error(response.status, headers, blot_data(body, self._secrets), line.url, self._sent)

    def _scrub(self, error: LLMError) -> None:
        """Take our secrets out of an error: some servers repeat the key that they refuse. What led to it may hold the answer whole."""
        text = str(error)
        if holds_one(text, self._secrets):
            error.args = (blot(text, self._secrets),)
        error.code = blot(error.code, self._secrets)
        error.request_id = blot(error.request_id, self._secrets)
        led: BaseException | None = error.__cause__ or error.__context__
        while led is not None:
            held = f"{led.args!r} {vars(led)!r} {getattr(led, 'doc', '')} {getattr(led, 'object', '')!r}"
            if holds_one(held, self._secrets):
                error.__cause__ = error.__context__ = None
                break
            led = led.__cause__ or led.__context__

    def _open(self) -> Line:
        """The connection pool and what every request has in common, made at the first call."""
        with self._lock:
            if self._line is None:
                object.__setattr__(self, "_line", Line(self._address, self._parameters, self._given))
            line = self._line
        assert line is not None
        return line

    # --- about it -----------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """What it was made with, secrets included: `LLM(**llm.arguments())` is the same model."""
        return dict(self._given)

    def parameters(self) -> dict[str, Any]:
        """What shapes the answers beside the messages: the settings that are sent, the wire, and the host (without port or
        credentials, since both change where the answers do not). JSON values, no secrets."""
        return dict(self._parameters)

    def cost(self, usage: Usage) -> float | None:
        """What `usage` costs in USD by a table of list prices; None for a model that is not in it. Asks no network."""
        return prices.cost(usage, self._sent, self.base_url)

    @property
    def info(self) -> ModelInfo | None:
        """What a table of models says of this one: context window, modalities, abilities, list prices; None if it is not in it.
        Asks no network."""
        from holdfast.llm.info import model_info

        return model_info(self._sent, self._address.provider, self.base_url)

    @property
    def sees(self) -> bool | None:
        """Whether the model takes pictures, by `images` or, without that, by `info`; None if neither tells. One that does not is told of
        them in words."""
        if self._given["images"] is not None:
            return self._given["images"]
        known = self.info
        return None if known is None else "image" in known.input_modalities

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
        sent = {name: value for name, value in self._parameters.items() if name not in ("wire", "host")}
        return f"LLM({', '.join([repr(self.model), f'base_url={shown(self.base_url)!r}', *(f'{k}={v!r}' for k, v in sent.items())])})"

    def __copy__(self) -> LLM:
        return self

    def __deepcopy__(self, memo: object) -> LLM:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("An LLM cannot be pickled: its api_key would be in the bytes. Send its arguments and make it anew.")
