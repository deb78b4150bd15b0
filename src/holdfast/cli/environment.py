"""Settings from options and environment: model, key, and the variables of the agent's commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from holdfast.cli.exit_codes import UsageError
from holdfast.cli.files import read_text
from holdfast.errors import ConfigurationError
from holdfast.llm.providers import COMPATIBLE, PROVIDERS, find_provider, provider_at
from holdfast.tools.secrets import Secrets

_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE", re.IGNORECASE
)
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s]*@")

# Variables that builds, tests and tools of common languages read. --env passes any other variable.
_NAMES = """\
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR CI
XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_ROOT PYENV_VERSION
PYTHONPATH PYTHONDONTWRITEBYTECODE UV_CACHE_DIR PIP_CACHE_DIR
NODE_PATH NODE_OPTIONS NVM_DIR NPM_CONFIG_PREFIX
JAVA_HOME MAVEN_HOME GRADLE_HOME GRADLE_USER_HOME ANDROID_HOME
GOPATH GOROOT GOBIN GOFLAGS CARGO_HOME RUSTUP_HOME GEM_HOME GEM_PATH RBENV_ROOT DOTNET_ROOT
CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS
LD_LIBRARY_PATH DYLD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH
HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS NIX_PATH"""
_PASSED = frozenset(_NAMES.split())

_MAKERS_KEYS = {
    "OPENAI_API_KEY": "OpenAI",
    "ANTHROPIC_API_KEY": "Anthropic",
    "GEMINI_API_KEY": "Google",
    "GOOGLE_API_KEY": "Google",
}
# Not the variable of a region, a project or a host.
_KEY_VARIABLE = re.compile(r"(?!AWS_)\w*(KEY|TOKEN|PAT)")


def model_name(option: str | None, env: Mapping[str, str]) -> str:
    """Return the model's name. Raises `UsageError`, which says what to set."""
    name = option or env.get("HOLDFAST_MODEL", "")
    if not name.strip():
        raise UsageError(
            "no model was given. Use --model NAME or set HOLDFAST_MODEL, such as: export"
            " HOLDFAST_MODEL=gpt-5-mini (`holdfast demo` needs neither model nor key)"
        )
    return name.strip()


def base_url(option: str | None, env: Mapping[str, str]) -> str | None:
    return option or env.get("HOLDFAST_BASE_URL") or None


def api_key(address: str, variable: str | None, env: Mapping[str, str], provider: str = "") -> str:
    """Return the key for the API at `address`, from the named `variable` or the usual ones; "" if
    no key is needed. Raises `UsageError`, which says what to set.

    A provider's key goes only to that provider's own address, unless the user named the
    variable. `provider` tells the owner of an address whose host several providers share."""
    if variable is not None:
        if not env.get(variable):
            raise not_set(variable, "--api-key-env")
        return env[variable].strip()
    if env.get("HOLDFAST_API_KEY"):
        return env["HOLDFAST_API_KEY"].strip()
    parts = urlsplit(address)
    # A server on this machine or network rarely needs a key; if it does, its answer says so.
    if parts.scheme == "http":
        return ""
    names = key_variables(provider or provider_at(address))
    for name in names:
        if env.get(name):
            return env[name].strip()
    if names:
        raise UsageError(
            f"no API key was found. Set {' or '.join(names)} or HOLDFAST_API_KEY, or name another"
            " variable with --api-key-env"
        )
    others = [
        f"{name} is set, but is sent to {owner} only"
        for name, owner in _MAKERS_KEYS.items()
        if env.get(name)
    ]
    also = f" ({'; '.join(others)})" if others else ""
    raise UsageError(
        f"no API key for {parts.hostname} was found{also}. Set HOLDFAST_API_KEY, or name a variable"
        " with --api-key-env"
    )


def not_set(name: str, option: str) -> UsageError:
    """Return the error for a variable, named by an option, that the environment lacks."""
    return UsageError(f"the environment variable {name}, named by {option}, is not set")


def key_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that usually hold a provider's key; none without a fixed address."""
    if provider in PROVIDERS:
        return tuple([name for name, owner in _MAKERS_KEYS.items() if owner.lower() == provider])
    entry = find_provider(provider) if provider else None
    if entry is None or "{" in COMPATIBLE.get(provider, entry.api):
        return ()
    return tuple([name for name in entry.env if _KEY_VARIABLE.fullmatch(name)])


def shell_environment(env: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the environment of the agent's commands: chosen variables of `env` without secrets,
    and the variables `names`. Raises `UsageError` if one of these is not set."""
    variables = {
        name: value
        for name, value in env.items()
        if (name in _PASSED or name.startswith("LC_"))
        and not _SECRET.search(name)
        and not _CREDENTIALS_IN_URL.search(value)
    }
    for name in names:
        if name not in env:
            raise not_set(name, "--env")
        variables[name] = env[name]
    return variables


def secrets_of(env: Mapping[str, str], specs: Sequence[str]) -> Secrets | None:
    """Return the secrets of `--secret NAME[=FILE]`, or None. Raises `UsageError`."""
    values: dict[str, str] = {}
    for one in specs:
        name, equals, file = one.partition("=")
        if equals:
            values[name] = read_text(file, "--secret").rstrip("\r\n")
        elif name not in env:
            raise UsageError(f"{not_set(name, '--secret')}; NAME=FILE takes it from a file")
        else:
            values[name] = env[name]
    try:
        return Secrets(values) if values else None
    except ConfigurationError as error:
        raise UsageError(f"--secret: {str(error).removeprefix('secrets').lstrip(': ')}") from None
