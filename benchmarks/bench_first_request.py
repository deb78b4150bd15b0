"""Seconds from the start of a process to the first byte of its first model request, beside a script
that only uses `http.client`.

This is the whole wait of a user before the model begins: the interpreter, the imports, an agent
with one function tool, a conversation, the connection. The clock runs in this process, from just
before the start to the byte's arrival at a socket of its own.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import harness
from harness import Goal, Row, in_turns
from mock_model import plain

HOLDFAST = """\
import sys
from holdfast import LLM, Agent, Conversation

def look_up(key: str, limit: int = 10) -> str:
    "Look up what is known of an item."
    return key

agent = Agent(LLM("mock", base_url=sys.argv[1]), [look_up])
conversation = Conversation(agent)
conversation.send_message("hello")
assert conversation.run().status == "finished"
"""

BARE = """\
import http.client, json, sys

connection = http.client.HTTPConnection(sys.argv[1].split("/")[2])
body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hello"}]})
connection.request("POST", "/chat/completions", body, {"Content-Type": "application/json"})
connection.getresponse().read()
"""


def measure(program: str) -> float:
    """Return the seconds to the first byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.perf_counter()
        with harness.process(
            [sys.executable, "-c", program, url], stderr=subprocess.PIPE, text=True
        ) as child:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(30)
                assert peer.recv(1)
                seconds = time.perf_counter() - began
                peer.recv(1 << 20)
                peer.sendall(plain(0, 0, 1))
                _, errors = child.communicate(timeout=30)
            if child.returncode:
                raise harness.Failed(errors.strip())
    return seconds


def rows(quick: bool) -> list[Row]:
    programs = {"holdfast": HOLDFAST, "bare": BARE}
    with harness.compiled():
        for program in programs.values():
            measure(program)  # the first start fills the disk cache and compiles the files
        seconds = in_turns(
            3 if quick else 15,
            {name: lambda program=program: measure(program) for name, program in programs.items()},
        )
    return [Row("to the first request", "s", seconds["holdfast"], seconds["bare"], Goal(0.3))]
