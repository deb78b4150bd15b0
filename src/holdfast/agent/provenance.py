"""`Provenance`: the records of an agent that was loaded or derived from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.tools.config.dumper import Origin


class Provenance(NamedTuple):
    """The records of an agent that a configuration or another agent was the source of."""

    origins: tuple[Origin, ...] = ()  # of the parts that imported code made for a configuration
    connected: bool = False  # True if `tools` has the services of `mcp_servers` already
