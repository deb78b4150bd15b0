"""Shared fixtures and settings of all tests. One fixture checks that no test leaves a Holdfast
thread behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import forks, order, samples
from tests.postgres import NoPostgres, PostgresServer, shared_server

# A script that starts the tests in the background makes them and their child processes ignore
# terminal signals.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)

# A busy machine generates and runs examples slowly. No test measures their time.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# `holdfast run` runs commands without a sandbox, except in the tests of the sandbox
# (`tests/cli/test_sandbox_command.py`).
os.environ["HOLDFAST_SANDBOX"] = "off"
# Chats read plain lines, except in the tests of the input box (`tests/cli/test_live_chat.py`).
os.environ["HOLDFAST_PLAIN"] = "1"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check that every Holdfast thread that a test starts has ended when the test ends. The name of
    a thread that a test leaves on purpose does not start with `holdfast`."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 20.0
    while True:
        remaining = [
            t.name
            for t in threading.enumerate()
            if t not in before and t.name.startswith("holdfast")
        ]
        if not remaining or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert not remaining, f"threads left behind: {remaining}"


# --- Postgres ---


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server that all tests share. No test stops it."""
    pytest.importorskip("psycopg")
    try:
        with shared_server() as server:
            yield server
    except NoPostgres as problem:
        pytest.skip(f"no PostgreSQL: {problem}")


@pytest.fixture
def postgres_schema(postgres_server: PostgresServer) -> Iterator[str]:
    """Return the name of a schema for one test, and drop the schema after the test."""
    import psycopg

    name = f"test_{os.urandom(6).hex()}"
    yield name
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """Return the address, with a password, of an empty database for one test."""
    import psycopg

    name = f"test_{os.urandom(6).hex()}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{postgres_server.dsn(password='s3cret-phrase').removesuffix('/postgres')}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


# --- the programs of tests ---


@pytest.fixture(autouse=True, scope="session")
def forking_process() -> Iterator[None]:
    """Start the process of `tests.forks` before all tests, so that it is not a child of a test."""
    forks.prepare()
    yield
    forks.close()


# --- the size of a run ---


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Turn the garbage collector off. Thousands of tests are objects that live until the end of the
    run, and each collection would visit all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, unchosen = samples.choose(items)
    config.hook.pytest_deselected(items=unchosen)
    items[:] = order.sort_items(chosen)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    by_file = config.getoption("dist") == "loadfile"
    return order.Distribution(config, log) if by_file else None


# --- live checks (llm/test_live.py) ---


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--size",
        choices=list(samples.SHARES),
        default="fast",
        help="how many samples random tests and long proofs take (tests/samples.py)",
    )
    parser.addoption(
        "--freeze",
        action="store_true",
        help="write the expected bytes of tests/test_frozen.py anew",
    )
    parser.addoption(
        "--live",
        action="append",
        default=[],
        metavar="PROVIDER[:MODEL][@URL]=KEY",
        help=(
            "ask a real provider too, such as openai=sk-... or"
            " anthropic:claude-haiku-4-5=sk-ant-...; may be repeated, costs cents"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    samples.use(config.getoption("--size"))
    if config.getoption("--size") == "prove" and config.option.timeout is None:
        config.option.timeout = 3 * 3600
    # Long tracebacks show arguments. A shortened key among them cannot be found and removed.
    if config.getoption("--live"):
        config.option.tbstyle = "short"
        config.option.showlocals = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remove the key from the report of a live check."""
    report = yield
    for spec in item.config.getoption("--live") or ():
        key = spec.partition("=")[2] or spec
        if report.failed:
            report.longrepr = str(report.longrepr).replace(key, "***")
        report.sections = [(name, text.replace(key, "***")) for name, text in report.sections]
    return report
