"""The makers of models, recognized by model name."""

from __future__ import annotations

from functools import lru_cache

# Prefix of a model's name -> its maker.
_MAKERS = {
    "gpt-oss": "openai's open models",
    "gpt": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "codex": "openai",
    "claude": "anthropic",
    "gemini": "google",
    "gemma": "google",
    "deepseek": "deepseek",
    "qwen": "qwen",
    "qwq": "qwen",
    "kimi": "moonshot",
    "glm": "zhipu",
    "grok": "xai",
    "mistral": "mistral",
    "magistral": "mistral",
    "devstral": "mistral",
    "codestral": "mistral",
    "ministral": "mistral",
    "pixtral": "mistral",
    "llama": "meta",
    "minimax": "minimax",
    "nova": "amazon",
    "command": "cohere",
}


@lru_cache(256)  # called for every item of every request, with a handful of names
def maker(model: str) -> str:
    """Return the maker of a model, judged by its name: `deepseek/deepseek-chat` gives
    `deepseek`. Returns "" if the name is not recognized."""
    name = model.rpartition("/")[2].lower()
    return next((owner for start, owner in _MAKERS.items() if name.startswith(start)), "")
