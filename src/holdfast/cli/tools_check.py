"""`holdfast tools check`: finds problems of an agent's services and tools."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.console import Console
from holdfast.cli.exit_codes import Exit
from holdfast.cli.text import counted, duration, json_shown, one_line

if TYPE_CHECKING:
    from holdfast.tools import ToolManager

_HEALTH_SECONDS = 10.0  # for a service's health check


def check(
    options: argparse.Namespace,
    manager: ToolManager,
    console: Console,
    status: Console,
    warnings: list[str],
) -> Exit:
    """Ask every service and print the problems. `warnings` collects the library's warnings
    meanwhile."""
    status.status("asking services")
    manager.discover()
    manager.search("")  # asks all lazy services at once
    for id in manager.summary()["services"]:
        manager.discover(id)
    status.status("checking the health of services")
    health = manager.health(_HEALTH_SECONDS)
    status.status("")
    summary = manager.summary()
    errors = manager.errors
    # Without the warnings about services and quarantined tools, which are shown below.
    unusable = [
        text
        for text in dict.fromkeys(warnings)
        if text not in errors.values() and not any(repr(name) in text for name in manager.held)
    ]
    sound = (
        not errors
        and not summary["held"]
        and not unusable
        and all(one.ok for one in health.values())
    )
    services: dict[str, Any] = summary["services"]
    if options.json:
        report = {
            "ok": sound,
            "tools": summary["tools"],
            "services": {
                id: {
                    "tools": state if isinstance(state, int) else 0,
                    "error": errors.get(id),
                    "health": msgspec.to_builtins(health.get(id)),
                }
                for id, state in services.items()
            },
            "held": summary["held"],
            "warnings": unusable,
        }
        console.line(json_shown(json.dumps(report, ensure_ascii=False, indent=2)))
        return Exit.FINISHED if sound else Exit.FAILED
    for id, state in services.items():
        one = health.get(id)
        if id in errors:
            console.line(one_line(f"{id}: {errors[id]}"), "error")
        elif one is not None and not one.ok:
            unhealthy = f"{id}: {counted(state, 'tool')}, but unhealthy: {one.detail}"
            console.line(one_line(unhealthy), "error")
        else:
            took = "" if one is None else f", answers in {duration(one.seconds)}"
            console.line(one_line(f"{id}: {counted(state, 'tool')}{took}"))
    for name, change in summary["held"].items():
        console.line(one_line(f"{name}: quarantined until it is approved: {change}"), "error")
    for text in unusable:
        console.line(one_line(text), "error")
    tools = [manager.get_tool_info(tool.name) for tool in manager.list_tools()]
    local = summary["tools"] - sum(tool["service"] is not None for tool in tools)
    verdict = "no problems" if sound else "there are problems"
    console.line(f"{counted(summary['tools'], 'tool')}, {local:,} of them local: {verdict}.")
    return Exit.FINISHED if sound else Exit.FAILED
