"""A process with a host, for tests that kill it: `python server_host_program.py FOLDER URL COUNT`
drives COUNT conversations and prints its progress."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from holdfast import LLM, Agent, LocalRuntime, SQLiteStore
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.server.host import Host
from holdfast.server.host_settings import HostSettings
from holdfast.server.policy import Policy
from holdfast.server.records import Records
from holdfast.server.sealing import Seal
from holdfast.server.shapes import CreateRequest


def host_of(folder: Path, **options: object) -> Host:
    """Return a host on the files in a folder."""
    seal = Seal.of_file(folder / "server.key")
    options = {"policy": Policy([]), "root": folder / "workspaces", **options}
    records = Records(folder / "store.db.server.db", seal)
    settings = HostSettings(**options)  # pyright: ignore[reportArgumentType]
    return Host(SQLiteStore(folder / "store.db"), records, settings)


def main() -> None:
    """Create, start and ask."""
    folder, url, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    host = host_of(folder)
    with LocalRuntime() as runtime:
        agent = Agent(LLM("mock", base_url=url, api_key="sk-planted"), tools=runtime.tools)
        form, tools = form_of(agent), tools_of(agent)
    conversations = [("default" if number % 2 else "acme", f"c{number}") for number in range(count)]
    for tenant, id in conversations:
        host.create(
            tenant, CreateRequest(agent=form.mapping, secrets=form.secrets, tools=tools, id=id)
        )
        host.start(tenant, id)
    for tenant, id in conversations:
        host.execute(tenant, id, Send("go"))
    print("asked", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
