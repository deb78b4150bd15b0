"""Costs of tokens: our arithmetic against that of the package with the price table."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import LLM, Agent, Limits
from holdfast.content import Usage
from holdfast.errors import ConfigurationError
from holdfast.llm import prices
from holdfast.llm.prices import cost

MILLION = 1_000_000


@pytest.mark.slow
def test_our_arithmetic_is_that_of_the_table_for_every_model() -> None:
    import genai_prices
    from genai_prices.data_snapshot import get_snapshot

    chance = random.Random(7)
    compared = 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            entries: list[Any] = (
                [(c, c.prices) for c in model.prices]
                if isinstance(model.prices, list)
                else [(None, model.prices)]
            )
            table = prices._compile_all(entries)
            for size in (0, 1000, 200_000, 200_001, 600_000):
                cached = chance.randint(0, size)
                cache_writes = chance.randint(0, size - cached)
                output = chance.randint(0, 9000)
                usage = Usage(size, output, cached, cache_writes, chance.randint(0, output))
                theirs = model.calc_price(
                    genai_prices.Usage(
                        input_tokens=size,
                        output_tokens=output,
                        cache_read_tokens=cached,
                        cache_write_tokens=cache_writes,
                        output_reasoning_tokens=usage.reasoning_tokens,
                    ),
                    provider,
                )
                ours = prices._current(table).cost_of(usage)
                assert ours == pytest.approx(float(theirs.total_price), rel=1e-9, abs=1e-12), (
                    provider.id,
                    model.id,
                )
                compared += 1
    assert compared > 5000


def test_input_tokens_include_the_cached_and_the_written_ones() -> None:
    claude = "claude-sonnet-4-5"
    assert cost(Usage(1000), claude) == pytest.approx(1000 * 3 / MILLION)
    assert cost(Usage(1000, 0, 1000), claude) == pytest.approx(1000 * 0.3 / MILLION)
    assert cost(Usage(1000, 0, 0, 1000), claude) == pytest.approx(1000 * 3.75 / MILLION)
    assert cost(Usage(1000, 0, 600, 300), claude) == pytest.approx(
        (100 * 3 + 600 * 0.3 + 300 * 3.75) / MILLION
    )
    assert cost(Usage(0, 100, 0, 0, 90), "gpt-5") == pytest.approx(
        100 * 10 / MILLION
    )  # reasoning is part of the output
    assert cost(Usage(10, 0, 600, 300), claude) == pytest.approx(
        (600 * 0.3 + 300 * 3.75) / MILLION
    )  # a provider that counts otherwise


def test_a_long_request_has_the_price_of_its_size() -> None:
    gemini = "gemini-2.5-pro"
    assert cost(Usage(200_000), gemini) == pytest.approx(200_000 * 1.25 / MILLION)
    assert cost(Usage(200_001), gemini) == pytest.approx(200_001 * 2.5 / MILLION)


def test_a_price_that_depends_on_the_hour_or_the_day_is_that_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datetime as clock

    from genai_prices.data_snapshot import get_snapshot
    from genai_prices.types import TimeOfDateConstraint

    provider, model = next(
        (provider, model)
        for provider in get_snapshot().providers
        for model in provider.models
        if isinstance(model.prices, list)
        and any(isinstance(c.constraint, TimeOfDateConstraint) for c in model.prices)
    )
    usage = Usage(MILLION, 0)
    table = prices._compile_all([(c, c.prices) for c in model.prices])  # pyright: ignore[reportUnknownArgumentType, reportAttributeAccessIssue]
    costs: set[float] = set()
    for hour in range(24):
        now = datetime(2026, 1, 1, hour, 30, tzinfo=UTC)

        class Then(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return now  # noqa: B023

        monkeypatch.setattr(clock, "datetime", Then)
        ours = prices._current(table).cost_of(usage)
        monkeypatch.undo()
        import genai_prices

        theirs = model.calc_price(
            genai_prices.Usage(input_tokens=MILLION, output_tokens=0),
            provider,
            genai_request_timestamp=now,
        )
        assert ours == pytest.approx(float(theirs.total_price))
        costs.add(ours)
    assert len(costs) > 1


@pytest.mark.parametrize(
    ("model", "base_url"),
    [
        ("gpt-4o", "https://api.openai.com/v1"),
        ("openai/gpt-4o", "https://openrouter.ai/api/v1"),
        ("openai/gpt-4o", ""),
        ("gpt-4o-2024-08-06", "https://gateway.example.com/v1"),
        ("claude-sonnet-4-5", "https://api.anthropic.com/v1"),
        ("gemini-2.5-flash", "https://generativelanguage.googleapis.com/v1beta"),
        ("llama-3.3-70b-versatile", "https://api.groq.com/openai/v1"),
        ("gemini/gemini-2.5-flash", ""),
    ],
)
def test_a_model_of_the_table_has_a_price(model: str, base_url: str) -> None:
    price = cost(Usage(1000, 100), model, base_url)
    assert price is not None
    assert 0 < price < 1


def test_what_the_table_does_not_know_has_no_price() -> None:
    assert cost(Usage(1000), "my-own-model", "https://example.com/v1") is None
    assert (
        cost(Usage(1000), "whisper-large-v3", "https://api.groq.com/openai/v1") is None
    )  # paid by the hour


def test_a_server_on_this_machine_or_net_has_no_price_and_loads_no_table() -> None:
    code = (
        "import sys\nfrom holdfast.content import Usage\nfrom holdfast.llm.prices import cost\nfor"
        " host in ('localhost:8000', '127.0.0.1', '10.0.0.1', '192.168.1.1', 'nas.local',"
        " '[::1]:80', 'vllm:8000'):\n    assert cost(Usage(1000), 'gpt-4o', f'http://{host}/v1') is"
        " None\nsys.exit(' '.join(sorted({'genai_prices', 'pydantic', 'asyncio'} &"
        " set(sys.modules))))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stderr.strip()
        == ""
    )


# --- custom prices ---

OWN = {"input": 1.0, "output": 10.0, "cached": 0.1, "request": 0.5}


def test_prices_of_ones_own_replace_the_table() -> None:
    usage = Usage(1_000_000, 100_000, cached_input_tokens=400_000)
    llm = LLM("gpt-5", "key-of-mine", prices=OWN)
    assert llm.cost(usage) == pytest.approx(0.6 + 0.04 + 1.0 + 0.5)
    assert llm.cost(usage) != LLM("gpt-5", "key-of-mine").cost(usage)
    assert LLM("unheard-of", base_url="http://localhost:1/v1", prices=OWN).cost(Usage()) == 0.5
    assert llm.replace(prices={"input": 0, "output": 0}).cost(usage) == 0.0


def test_a_limit_of_cost_may_rest_on_prices_of_ones_own() -> None:
    llm = LLM("unheard-of", base_url="http://localhost:1/v1", prices=OWN)
    assert Agent(llm, limits=Limits(cost=1.0)).limits.cost == 1.0
    with pytest.raises(ConfigurationError, match="the price of 'unheard-of' is not known"):
        Agent(llm.replace(prices=None), limits=Limits(cost=1.0))


def test_prices_are_in_the_serial_form_and_not_in_the_journal() -> None:
    llm = LLM("gpt-5", "key-of-mine", prices=OWN)
    assert "prices" not in llm.parameters()
    again = Agent.from_json(Agent(llm).to_json(), variables={"secret_1": "key-of-mine"}).llm
    assert again.cost(Usage(10, 10)) == llm.cost(Usage(10, 10))


@pytest.mark.parametrize(
    "prices",
    [
        {"input": 1.0},
        {"input": 1.0, "output": -1},
        {"input": "1", "output": 1},
        {"input": 1, "output": 1, "inptu": 1},
        [1, 2],
        {"input": float("nan"), "output": 1},
    ],
)
def test_wrong_prices_are_refused(prices: Any) -> None:
    with pytest.raises(ConfigurationError, match="LLM: prices takes a mapping with input and"):
        LLM("gpt-5", "key-of-mine", prices=prices)
