"""The parts of a model's answer beyond its text, its reasoning and its calls.

Several providers return these, each in its own form; a wire translates them into the types here.
Everything else that a provider says and a user may want is in `provider_details`, under the
provider's own names.
"""

from __future__ import annotations

from typing import Any, cast

from holdfast.content import Content, Data, Usage

# The `stop_reason` of an answer in which the model refused to answer.
REFUSAL = "refusal"
# The `stop_reason` of a compaction of the history, which is no answer of the model.
COMPACTION = "compaction"


class TextPart(Data, frozen=True):
    """One of several texts of an answer. `phase` is `commentary` (before the model continues to
    work), `final` (its answer), or "" if the provider does not tell them apart."""

    text: str
    phase: str = ""


class Citation(Data, frozen=True):
    """A source that a model names for a part of its answer.

    `url` is the address of the source. A file, a document or a search result without an address has
    its id or position in `source`. `quote` is the cited text of the source. `start` and `end` are
    offsets in characters of the answer's `text`: the part that the source supports, if the provider
    states it. `details` are the provider's other fields (pages, block numbers).
    """

    url: str = ""
    title: str = ""
    quote: str = ""
    source: str = ""
    start: int | None = None
    end: int | None = None
    details: dict[str, Any] = {}


class ServerToolCall(Data, frozen=True):
    """A tool call that the provider ran itself: a web search, code that it executed, a call of an
    MCP server. `output` is the provider's JSON without parts that only it can read; None if the
    answer has no result yet."""

    name: str
    id: str = ""
    arguments: Any = None
    output: Any = None
    is_error: bool = False


class TokenLogprob(Data, frozen=True):
    """The natural logarithm of a token's probability; `top` are the most likely tokens there."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class ModelRun(Data, frozen=True):
    """One of several model runs behind an answer, such as a compaction before it. `model` is "" for
    the model that answered. The price of each run depends on its size and its model."""

    usage: Usage
    model: str = ""


class AnswerDetails(Data, frozen=True):
    """The parts of an answer that only some answers have.

    - `parts`: the answer's texts, if the provider has several.
    - `citations`, `server_calls`, `media` (generated pictures, sound and files).
    - `refusal`: the text with which the model refused to answer.
    - `logprobs`: of each token, if they were requested.
    - `service_tier`, `stop_sequence`: as the provider names them.
    - `filters`: results of moderation and content filters, in the provider's JSON.
    - `provider_cost`: the price in USD, according to the provider.
    - `list_cost`: the price in USD by the table of list prices, if `provider_cost` is known.
    - `container`: the id of the container in which the provider runs code.
    - `runs`: the model runs behind the answer, if there were several; `usage` is their sum.
    - `context_tokens`: the input tokens of the last model run behind the answer, if there were
      several; `usage` has the tokens of all runs.
    - `cleared_tokens`: the input tokens of the request that the provider did not show the model.
    - `provider_details`: everything else, under the provider's own names.
    """

    parts: tuple[TextPart, ...] = ()
    citations: tuple[Citation, ...] = ()
    server_calls: tuple[ServerToolCall, ...] = ()
    media: tuple[Content, ...] = ()
    refusal: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    service_tier: str = ""
    stop_sequence: str = ""
    filters: tuple[dict[str, Any], ...] = ()
    provider_cost: float | None = None
    list_cost: float | None = None
    container: str = ""
    runs: tuple[ModelRun, ...] = ()
    context_tokens: int = 0
    cleared_tokens: int = 0
    provider_details: dict[str, Any] = {}


_NONE = AnswerDetails()


class HasDetails:
    """The attributes of `AnswerDetails`, readable on an answer that may have none."""

    __slots__ = ()

    def _known_details(self) -> AnswerDetails:
        return cast("Any", self).details or _NONE

    @property
    def parts(self) -> tuple[TextPart, ...]:
        """The texts of the answer: one, unless the provider has several."""
        text = cast("Any", self).text
        return self._known_details().parts or ((TextPart(text),) if text else ())

    @property
    def final_text(self) -> str:
        """The text that answers: the final parts if the provider names any, else all but the
        commentary. The whole text if nothing tells them apart."""
        parts = self._known_details().parts
        texts = [part.text for part in parts if part.phase == "final"]
        texts = texts or [part.text for part in parts if part.phase != "commentary"]
        if not texts or len(texts) == len(parts):
            return cast("Any", self).text
        return "\n\n".join(texts)

    @property
    def is_blank(self) -> bool:
        """True if the answer has no text, no refusal and no media, though perhaps calls."""
        details = self._known_details()
        return not (cast("Any", self).text.strip() or details.refusal or details.media)

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the model names."""
        return self._known_details().citations

    @property
    def server_calls(self) -> tuple[ServerToolCall, ...]:
        """The tool calls that the provider ran itself."""
        return self._known_details().server_calls

    @property
    def media(self) -> tuple[Content, ...]:
        """Pictures, sound and files that the model generated."""
        return self._known_details().media

    @property
    def refusal(self) -> str:
        """The text with which the model refused to answer, or ""."""
        return self._known_details().refusal

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The probability of each token, if it was requested."""
        return self._known_details().logprobs

    @property
    def service_tier(self) -> str:
        """The provider's class of service that answered, or ""."""
        return self._known_details().service_tier

    @property
    def stop_sequence(self) -> str:
        """The stop sequence that ended the answer, or ""."""
        return self._known_details().stop_sequence

    @property
    def filters(self) -> tuple[dict[str, Any], ...]:
        """Results of moderation and content filters, in the provider's JSON."""
        return self._known_details().filters

    @property
    def provider_cost(self) -> float | None:
        """The price in USD according to the provider, or None."""
        return self._known_details().provider_cost

    @property
    def list_cost(self) -> float | None:
        """The price in USD by the table of list prices, or None. `cost` is the same unless the
        provider stated a price."""
        details = self._known_details()
        return cast("Any", self).cost if details.provider_cost is None else details.list_cost

    @property
    def container(self) -> str:
        """The id of the container in which the provider runs code, or ""."""
        return self._known_details().container

    @property
    def runs(self) -> tuple[ModelRun, ...]:
        """The model runs behind the answer; () if there was only one."""
        return self._known_details().runs

    @property
    def context_tokens(self) -> int:
        """The input tokens of the last model run behind the answer; 0 if there was only one."""
        return self._known_details().context_tokens

    @property
    def cleared_tokens(self) -> int:
        """The input tokens of the request that the provider did not show the model."""
        return self._known_details().cleared_tokens

    @property
    def provider_details(self) -> dict[str, Any]:
        """All other fields of the provider, under the provider's names."""
        return self._known_details().provider_details
