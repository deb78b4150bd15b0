"""A process with a host whose conversations are in workers, for tests that kill it: `python
server_isolation_program.py FOLDER URL COUNT`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from holdfast import LLM, Agent, LocalRuntime
from holdfast.agent.serial_form import form_of, tools_of
from holdfast.commands import Send
from holdfast.server.shapes import CreateRequest
from tests.server_host_program import host_of


def main() -> None:
    """Drive COUNT conversations, and print the process ids once all are open."""
    folder, url, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    host = host_of(folder, isolation="process")
    with LocalRuntime() as runtime:
        agent = Agent(LLM("mock", base_url=url, api_key="sk-planted"), tools=runtime.tools)
        form, tools = form_of(agent), tools_of(agent)
    for number in range(count):
        host.create(
            "default",
            CreateRequest(agent=form.mapping, secrets=form.secrets, tools=tools, id=f"c{number}"),
        )
        host.start("default", f"c{number}")
        host.execute("default", f"c{number}", Send("go"))
    processes = host._workers.processes  # pyright: ignore[reportOptionalMemberAccess]
    while len(processes.pids()) < count:
        time.sleep(0.01)
    print(
        json.dumps(
            {
                "fork_server": processes.home.pid,
                "workers": processes.pids(),
                "folder": processes.home.folder,
            }
        ),
        flush=True,
    )
    time.sleep(600)


if __name__ == "__main__":
    main()
