"""`holdfast tools check`: finds problems of an agent's services and tools."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.render import Line
from holdfast.cli.screen import Screen
from holdfast.cli.text import counted, duration, json_shown, one_line

if TYPE_CHECKING:
    from holdfast.tools import ToolManager
    from holdfast.tools.sources import Health

_HEALTH_SECONDS = 10.0  # for a service's health check


def check(
    options: argparse.Namespace,
    manager: ToolManager,
    screen: Screen,
    status: Screen,
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
    if options.json:
        services = {
            id: _service(id, state, health.get(id), errors)
            for id, state in summary["services"].items()
        }
        report = {
            "ok": sound,
            "tools": summary["tools"],
            "services": services,
            "held": summary["held"],
            "warnings": unusable,
        }
        screen.show([Line("plain", json_shown(json.dumps(report, ensure_ascii=False, indent=2)))])
        return Exit.FINISHED if sound else Exit.FAILED
    lines: list[Line] = []
    for id, state in summary["services"].items():
        one = health.get(id)
        if id in errors:
            lines.append(Line("error", one_line(f"{id}: {errors[id]}")))
        elif one is not None and not one.ok:
            lines.append(
                Line(
                    "error",
                    one_line(f"{id}: {counted(state, 'tool')}, but unhealthy: {one.detail}"),
                )
            )
        else:
            took = "" if one is None else f", answers in {duration(one.seconds)}"
            lines.append(Line("plain", one_line(f"{id}: {counted(state, 'tool')}{took}")))
    lines += [
        Line("error", one_line(f"{name}: quarantined until it is approved: {change}"))
        for name, change in summary["held"].items()
    ]
    lines += [Line("error", one_line(text)) for text in unusable]
    local = summary["tools"] - sum(len(tools) for tools in _by_service(manager).values())
    verdict = "no problems" if sound else "there are problems"
    lines.append(
        Line("plain", f"{counted(summary['tools'], 'tool')}, {local:,} of them local: {verdict}.")
    )
    screen.show(lines)
    return Exit.FINISHED if sound else Exit.FAILED


def _by_service(manager: ToolManager) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tool in manager.list_tools():
        service = manager.get_tool_info(tool.name)["service"]
        if service is not None:
            found.setdefault(service, []).append(tool.name)
    return found


def _service(
    id: str, state: Any, health: Health | None, errors: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "tools": state if isinstance(state, int) else 0,
        "error": errors.get(id),
        "health": None if health is None else msgspec.to_builtins(health),
    }
