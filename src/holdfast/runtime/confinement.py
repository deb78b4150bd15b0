"""`Confinement`: the bounds that a sandbox sets to the tools of a runtime."""

from __future__ import annotations

import msgspec


class Confinement(msgspec.Struct, frozen=True):
    """The bounds that a sandbox sets to the commands and file tools of a runtime, for judges of
    their calls. A runtime with the attribute `confinement` guarantees them.

    Args:
        workdir: The path of the working directory in the sandbox.
        writable: Paths in the sandbox that are writable folders of the host too, beside the
            working directory.
        hosts: The patterns of the hosts to which commands can connect; none: no network.
    """

    workdir: str
    writable: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
