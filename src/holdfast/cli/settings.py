"""From options and environment to what a run needs: model and key, and what the agent's commands may know."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from holdfast.cli.exits import UsageError

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE", re.IGNORECASE)
_CREDENTIALS_IN_URL = re.compile(r"://[^/\s]*@")

# What builds, tests and tools of the usual languages look at. Anything else is passed by name with --env.
_NAMES = """\
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR CI
XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_ROOT PYENV_VERSION PYTHONPATH PYTHONDONTWRITEBYTECODE UV_CACHE_DIR PIP_CACHE_DIR
NODE_PATH NODE_OPTIONS NVM_DIR NPM_CONFIG_PREFIX JAVA_HOME MAVEN_HOME GRADLE_HOME GRADLE_USER_HOME ANDROID_HOME
GOPATH GOROOT GOBIN GOFLAGS CARGO_HOME RUSTUP_HOME GEM_HOME GEM_PATH RBENV_ROOT DOTNET_ROOT
CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS LD_LIBRARY_PATH DYLD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH
HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS NIX_PATH"""
_PASSED = frozenset(_NAMES.split())


def model_name(option: str | None, env: Mapping[str, str]) -> str:
    """The model. Raises `UsageError` that says what to set."""
    name = option or env.get("HOLDFAST_MODEL", "")
    if not name.strip():
        raise UsageError(
            "no model was given. Use --model NAME or set HOLDFAST_MODEL, such as: export HOLDFAST_MODEL=gpt-5-mini"
            " (`holdfast demo` needs neither model nor key)"
        )
    return name.strip()


def base_url(option: str | None, env: Mapping[str, str]) -> str | None:
    """The API's address if one was given."""
    return option or env.get("HOLDFAST_BASE_URL") or None


def api_key(address: str, named: str | None, env: Mapping[str, str]) -> str:
    """The key for the API at `address`, from the variable that was `named` or the usual ones; "" where none is needed.

    OpenAI's key goes to OpenAI alone, unless it was named. Raises `UsageError` that says what to set.
    """
    if named is not None:
        if not env.get(named):
            raise UsageError(f"the environment variable {named}, named by --api-key-env, is not set")
        return env[named].strip()
    if env.get("HOLDFAST_API_KEY"):
        return env["HOLDFAST_API_KEY"].strip()
    parts = urlsplit(address)
    host = parts.hostname or ""
    openai = host == "openai.com" or host.endswith(".openai.com")
    if openai and env.get("OPENAI_API_KEY"):
        return env["OPENAI_API_KEY"].strip()
    if parts.scheme == "http":  # a server on this machine or net, which seldom wants one; if it does, its answer says so
        return ""
    if openai:
        raise UsageError("no API key was found. Set OPENAI_API_KEY or HOLDFAST_API_KEY, or name another variable with --api-key-env")
    also = " (OPENAI_API_KEY is set, but goes to OpenAI only)" if env.get("OPENAI_API_KEY") else ""
    raise UsageError(f"no API key for {host} was found{also}. Set HOLDFAST_API_KEY, or name a variable with --api-key-env")


def shell_environment(env: Mapping[str, str], asked: Sequence[str]) -> dict[str, str]:
    """What the agent's commands see: a chosen part of `env` without secrets, and the variables that were `asked` for by name.

    Raises `UsageError` for an asked one that is not set.
    """
    found = {
        name: value
        for name, value in env.items()
        if (name in _PASSED or name.startswith("LC_")) and not _SECRET.search(name) and not _CREDENTIALS_IN_URL.search(value)
    }
    for name in asked:
        if name not in env:
            raise UsageError(f"the environment variable {name}, named by --env, is not set")
        found[name] = env[name]
    return found


def wants_colour(env: Mapping[str, str], is_tty: bool) -> bool:
    """NO_COLOR (no-color.org) wins, then FORCE_COLOR (force-color.org), then whether the output is a terminal that knows colours."""
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_tty and env.get("TERM", "") != "dumb"
