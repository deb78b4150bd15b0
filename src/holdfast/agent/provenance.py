"""`Provenance`: the records of an agent that was loaded or derived from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from holdfast.tools.config.dumper import Origin


class Provenance(NamedTuple):
    """The records of an agent that a configuration or another agent was the source of.

    Attributes:
        origins: Records of the parts that imported code made for a configuration.
        connected: True if the services of `mcp_servers` are among the sources of `tools` already.
    """

    origins: tuple[Origin, ...] = ()
    connected: bool = False
