"""Tests of `MCPClient` by the MCP project's conformance kit: every scenario that a revision of the
specification requires of a client.

The lists are the kit's (`conformance list --client --requirements REVISION`), frozen with each
revision.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import mcp_parts
from tests.paths import DATA

CLIENT = DATA / "mcp_conformance_client.py"

BOTH = [
    "tools_call",
    *[f"auth/metadata-{name}" for name in ("default", "var1", "var2", "var3")],
    "auth/basic-cimd",
    *[
        f"auth/scope-{name}"
        for name in (
            "from-www-authenticate",
            "from-scopes-supported",
            "omitted-when-undefined",
            "step-up",
            "retry-limit",
        )
    ],
    *[f"auth/token-endpoint-auth-{name}" for name in ("basic", "post", "none")],
    "auth/pre-registration",
]
REQUIRED = {
    "2025-11-25": ["initialize", "elicitation-sep1034-client-defaults", "sse-retry", *BOTH],
    "2026-07-28": [
        *BOTH,
        "request-metadata",
        "auth/resource-mismatch",
        *[f"auth/offline-access-{name}" for name in ("scope", "not-supported")],
        "auth/authorization-server-migration",
        *[
            f"auth/iss-{name}"
            for name in (
                "supported",
                "not-advertised",
                "supported-missing",
                "wrong-issuer",
                "unexpected",
                "normalized",
            )
        ],
        "auth/metadata-issuer-mismatch",
        "sep-2322-client-request-state",
        *[
            f"http-{name}"
            for name in ("standard-headers", "custom-headers", "invalid-tool-headers")
        ],
        "json-schema-ref-no-deref",
    ],
}
# Not required of any client, and supported here all the same. No revision: the kit's extensions have none.
BEYOND = [
    ("2025-11-25", "json-schema-2020-12-preservation"),
    ("2026-07-28", "json-schema-2020-12-preservation"),
    ("", "auth/client-credentials-basic"),
    ("", "auth/client-credentials-jwt"),
]


def test_the_lists_are_as_long_as_the_kits() -> None:
    assert {revision: len(names) for revision, names in REQUIRED.items()} == {
        "2025-11-25": 18,
        "2026-07-28": 32,
    }


@pytest.mark.proof
@pytest.mark.parametrize(
    ("revision", "scenario"), [*[(r, s) for r, names in REQUIRED.items() for s in names], *BEYOND]
)
def test_the_kit_finds_nothing_wrong(revision: str, scenario: str, tmp_path: Path) -> None:
    kit = mcp_parts.program("conformance")
    if not kit:
        pytest.skip(f"the conformance kit is not installed: {mcp_parts.INSTALL}")
    command = [
        *kit,
        "client",
        "--command",
        f"{sys.executable} {CLIENT}",
        "--scenario",
        scenario,
        "--output-dir",
        str(tmp_path),
    ]
    command += ["--spec-version", revision] if revision else []
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    assert "OVERALL: PASSED" in process.stdout  # a scenario that was skipped also ends with 0
    assert " 0 failed, 0 warnings" in process.stdout
