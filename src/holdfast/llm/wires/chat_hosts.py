"""The table of Chat Completions hosts: what each takes or sends otherwise than OpenAI.

A row describes one provider. `family` names the rules for a model at a host in one string, which
keys the cache of encoded messages, and `rules` reads that string.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from holdfast.llm.providers import is_local, maker

# The reasoning of earlier answers that goes back to the provider:
# - never: none, because the provider refuses the field
# - calls: with tool calls alone, in the field that it came in
# - all: with every answer, in the field that it came in
# - tags: with every answer, as <think>...</think> before the text
SendReasoning = Literal["never", "calls", "all", "tags"]


class ChatRules(msgspec.Struct, frozen=True):
    """The rules for requests to one host, and for its answers.

    - `call_ids`: the form of call ids: `openai`, `mistral` or "".
    - `send_reasoning`: the reasoning of earlier answers that is sent.
    - `think_tags`: True if answers begin with their reasoning in `<think>` tags.
    - `video`: True if the host takes `video_url` parts.
    - `documents`: the part for a document: OpenAI's `file` (bytes or an id), `file_or_url` (the
      same, or an address), `document_url` or `file_url`.
    - `audio`: the value of an `input_audio` part: an `object`, an object with a `data_url` or an
      address, or a `string`.
    - `marks_cache`: True if requests ask for the prompt caching of Claude by `cache_control`.
    - `empty_answers`: False if the host refuses an answer without text and calls.
    """

    call_ids: str = ""
    send_reasoning: SendReasoning = "calls"
    think_tags: bool = False
    video: bool = False
    documents: Literal["file", "file_or_url", "document_url", "file_url"] = "file"
    audio: Literal["object", "data_url", "string"] = "object"
    marks_cache: bool = False
    empty_answers: bool = True

    @property
    def strict_roles(self) -> bool:
        """True if a user message may not follow a tool message, and no request may end in an
        answer."""
        return self.call_ids == "mistral"


# provider -> its rules, from its documentation. Hosts that send <think> tags for some of their
# models are marked.
HOSTS: dict[str, ChatRules] = {
    "": ChatRules(),
    # On servers of this machine (Ollama, vLLM, llama.cpp, LM Studio) the model's chat template
    # keeps or drops the reasoning of earlier turns.
    "local": ChatRules(send_reasoning="all", video=True),
    "openai": ChatRules(call_ids="openai"),
    # "Assistant message must have either content or tool_calls, but not none."
    "mistral": ChatRules(
        call_ids="mistral",
        send_reasoning="never",
        documents="document_url",
        audio="string",
        empty_answers=False,
    ),
    "openrouter": ChatRules(video=True, documents="file_or_url", marks_cache=True),
    # Preserved thinking: the complete reasoning must come back; without `clear_thinking: false`
    # the server drops it.
    "zai": ChatRules(send_reasoning="all", video=True, documents="file_url"),
    # Reasoning is required beside calls; kimi-k2.7 and `thinking: {keep: all}` want all of it.
    # "The message at position 2 with role 'assistant' must not be empty."
    "moonshot": ChatRules(send_reasoning="all", video=True, empty_answers=False),
    # "The full response must be appended", with its <think> text.
    "minimax": ChatRules(send_reasoning="all", think_tags=True, video=True),
    "qwen": ChatRules(send_reasoning="all", video=True, audio="data_url"),
    # Once a turn has called tools, all of its reasoning is required; any other is ignored.
    "deepseek": ChatRules(send_reasoning="all"),
    # GLM and Qwen take earlier reasoning only within the text.
    "cerebras": ChatRules(send_reasoning="tags", think_tags=True),
    "ollama": ChatRules(send_reasoning="all"),
    **dict.fromkeys(
        (
            *("groq", "together", "fireworks", "deepinfra", "perplexity", "sambanova", "novita"),
            *("huggingface", "nvidia", "nebius", "siliconflow", "hyperbolic", "cloudflare"),
            *("azure-ai", "github", "venice"),
        ),
        ChatRules(think_tags=True),
    ),
}
_ENDINGS = {
    "api.openai.com": "openai",
    ".openai.azure.com": "openai",
    ".mistral.ai": "mistral",
    "openrouter.ai": "openrouter",
    "api.z.ai": "zai",
    ".bigmodel.cn": "zai",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.kimi.com": "moonshot",
    "api.minimax.io": "minimax",
    "api.minimaxi.com": "minimax",
    ".aliyuncs.com": "qwen",
    "api.deepseek.com": "deepseek",
    "api.cerebras.ai": "cerebras",
    "ollama.com": "ollama",
    "api.groq.com": "groq",
    "api.together.ai": "together",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "api.deepinfra.com": "deepinfra",
    "api.perplexity.ai": "perplexity",
    "api.sambanova.ai": "sambanova",
    "api.novita.ai": "novita",
    "router.huggingface.co": "huggingface",
    "integrate.api.nvidia.com": "nvidia",
    ".nebius.com": "nebius",
    "api.siliconflow.cn": "siliconflow",
    "api.siliconflow.com": "siliconflow",
    "api.hyperbolic.xyz": "hyperbolic",
    "api.cloudflare.com": "cloudflare",
    ".services.ai.azure.com": "azure-ai",
    "models.github.ai": "github",
    "api.venice.ai": "venice",
}


# The host of `LiteLLM`, which reaches many providers. Some of them refuse fields.
_LITELLM = "litellm"


@lru_cache(256)  # called for every request, with a handful of hosts
def provider_of(host: str) -> str:
    """Return the row for a host; "" for an unknown one."""
    for ending, provider in _ENDINGS.items():
        if host.endswith(ending):
            return provider
    return "local" if host not in ("", _LITELLM) and is_local(host) else ""


def family(model: str, host: str, send_reasoning: str = "") -> str:
    """Return the name of the rules for a model at a host. `send_reasoning` overrides the table's
    choice."""
    provider = provider_of(host)
    row = HOSTS[provider]
    made_by = maker(model)
    ids = row.call_ids or (made_by if made_by in ("openai", "mistral") else "")
    if not send_reasoning and provider == "cerebras" and made_by == "openai's open models":
        send_reasoning = "calls"  # gpt-oss has no such tags
    return "/".join((ids, provider, send_reasoning)).rstrip("/")


@lru_cache(256)
def rules(family: str) -> ChatRules:
    """Return the rules that `family` names."""
    ids, provider, send_reasoning = (*family.split("/"), "", "")[:3]
    changes: dict[str, str] = {"call_ids": ids}
    if send_reasoning:
        changes["send_reasoning"] = send_reasoning
    return msgspec.structs.replace(HOSTS[provider], **changes)
