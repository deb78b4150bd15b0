"""A real A2A agent for the tests: `python a2a_agent.py '{"version": "1.0", "transport": "JSONRPC", ...}'`; prints its port.

Settings: `version` (1.0, or 0.3: only that one is answered), `transport` (JSONRPC, HTTP+JSON), `streaming`, `token` (what a request must bear),
`port`, `endpoint` (what the card names in place of itself), `card` (keys that replace the card's), `log` (a file: one line for each request),
`extended` (a card for those who have the token), `fault` (silent, garbage, flood, redirect: how the card is answered).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any

import uvicorn
from a2a.helpers import (
    new_data_part,
    new_raw_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
    new_url_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCard, Message, Role
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

SETTINGS: dict[str, Any] = {
    "version": "1.0",
    "transport": "JSONRPC",
    "streaming": True,
    "token": "",
    "port": 0,
    **json.loads(sys.argv[1]),
}
SKILLS: list[dict[str, Any]] = [
    {"id": "echo", "description": "Says what it was told.", "examples": ["Say hello."]},
    {"id": "everything", "inputModes": ["text/plain", "application/json", "image/png"]},
    {"id": "form", "description": "Fills in a form.", "inputModes": ["application/json"]},
    *(
        {"id": name, "description": f"Ends as {name}."}
        for name in ("failed", "rejected", "canceled")
    ),
    *(
        {"id": name, "description": "Works."}
        for name in (
            "ask",
            "auth",
            "work",
            "hang",
            "crash",
            "die",
            "refuse",
            "reply",
            "nothing",
            "odd/one",
            "pieces",
            "repeat",
        )
    ),
]
RELEASED = asyncio.Event()


def log(line: str) -> None:
    if SETTINGS.get("log"):
        with open(SETTINGS["log"], "a") as file:
            file.write(line + "\n")


def words(text: str) -> Message:
    return new_text_message(text, role=Role.ROLE_AGENT)


class Executor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        asked = MessageToDict(message.metadata).get("skillId", "")
        text = context.get_user_input()
        log(
            f"execute {asked} message={message.message_id} context={context.context_id} text={text}"
        )
        if asked == "crash":
            raise RuntimeError("no luck today")
        if asked == "refuse":
            raise (
                InvalidParamsError("refused by the agent")
                if text == "params"
                else UnsupportedOperationError("refused by the agent")
            )
        if asked == "reply":
            await event_queue.enqueue_event(
                new_text_message(
                    f"reply: {text}", context_id=context.context_id, role=Role.ROLE_AGENT
                )
            )
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await getattr(self, asked.replace("/", "_"))(updater, text, message)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        log(f"cancelled {context.task_id}")
        await TaskUpdater(event_queue, str(context.task_id), str(context.context_id)).cancel()

    async def echo(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.add_artifact([new_text_part(f"echo: {text}")])
        await updater.complete()

    odd_one = echo

    async def everything(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.add_artifact([new_text_part("first, ")], artifact_id="a")
        await updater.add_artifact([new_text_part("second")], artifact_id="a", append=True)
        await updater.add_artifact(
            [
                new_data_part({"count": 3, "got": [MessageToDict(part) for part in message.parts]}),
                new_raw_part(b"\x89PNG...", media_type="image/png"),
                new_raw_part(b"RIFF", media_type="audio/wav"),
                new_raw_part(b"a,b", media_type="text/csv", filename="a b.csv"),
                new_raw_part(b"\x00\xff", media_type="application/x-thing", filename="thing"),
                new_url_part("https://files.example/big.zip?x=1", media_type="application/zip"),
            ]
        )
        await updater.complete(words("that was all"))

    async def form(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.add_artifact([new_data_part(MessageToDict(message.parts[0].data))])
        await updater.complete()

    async def failed(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.add_artifact([new_text_part("half of it")])
        await updater.failed(words("the printer is on fire"))

    async def rejected(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.reject(words("not on a Sunday"))

    async def canceled(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.cancel()

    async def ask(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.start_work()
        if text in ("blue", "red"):
            await updater.add_artifact([new_text_part(f"painted {text} in {updater.task_id}")])
            await updater.complete()
        else:
            await updater.requires_input(words("Which colour?"))

    async def repeat(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await asyncio.sleep(0.3)  # meanwhile the task is shown with the question that was answered
        await updater.requires_input(words(f"asked by {text}"))

    async def pieces(self, updater: TaskUpdater, text: str, message: Message) -> None:
        for number, piece in enumerate(("Hel", "lo, ", "world")):
            await updater.add_artifact([new_text_part(piece)], artifact_id="a", append=number > 0)
        await updater.add_artifact([new_text_part("!")], artifact_id="b")
        await updater.complete()

    async def auth(self, updater: TaskUpdater, text: str, message: Message) -> None:
        if text == "released":  # in-band: the message itself is the word that it may go on
            await updater.complete(words("thank you"))
            return
        await updater.requires_auth(words("Open https://login.example and sign in."))
        if text == "out of band":
            await RELEASED.wait()
            await updater.add_artifact([new_text_part("done without a word")])
            await updater.complete()
            log("went on")

    async def work(self, updater: TaskUpdater, text: str, message: Message) -> None:
        for step in ("digging", "digging", "planting"):
            await updater.start_work(words(step))
            await asyncio.sleep(float(text))
        await updater.add_artifact([new_text_part("a garden")])
        await updater.complete()

    async def hang(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.start_work(words("hanging"))
        log("hanging")
        await asyncio.sleep(60)

    async def die(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.start_work(words("dying"))
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    async def nothing(self, updater: TaskUpdater, text: str, message: Message) -> None:
        await updater.complete()


def card(port: int, skills: list[dict[str, Any]]) -> dict[str, Any]:
    """As an agent of that version writes it."""
    url = SETTINGS.get("endpoint") or f"http://127.0.0.1:{port}/a2a"
    about = {
        "name": "Tester",
        "description": "For tests.",
        "version": "7",
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
    }
    skills = [
        {"name": skill["id"], "description": "", "tags": ["test"], **skill} for skill in skills
    ]
    capabilities: dict[str, Any] = {"streaming": SETTINGS["streaming"]}
    if SETTINGS["version"] == "0.3":
        about |= {
            "url": url,
            "preferredTransport": SETTINGS["transport"],
            "protocolVersion": "0.3.0",
        }
        about |= {"supportsAuthenticatedExtendedCard": True} if SETTINGS.get("extended") else {}
    else:
        about |= {
            "supportedInterfaces": [
                {"url": url, "protocolBinding": SETTINGS["transport"], "protocolVersion": "1.0"}
            ]
        }
        capabilities |= {"extendedAgentCard": True} if SETTINGS.get("extended") else {}
    return {**about, "capabilities": capabilities, "skills": skills, **SETTINGS.get("card", {})}


def application(port: int) -> Any:
    found = card(port, SKILLS)
    base = {
        key: value
        for key, value in found.items()
        if key
        in ("name", "description", "version", "skills", "supportedInterfaces", "capabilities")
    }
    here = {
        "url": f"http://127.0.0.1:{port}/a2a",
        "protocolBinding": SETTINGS["transport"],
        "protocolVersion": SETTINGS["version"],
    }
    base["supportedInterfaces"] = [here]
    base["capabilities"] = {
        "streaming": SETTINGS["streaming"],
        "extendedAgentCard": bool(SETTINGS.get("extended")),
    }
    extended = [*SKILLS, {"id": "secret", "description": "Only for some."}]
    handler = DefaultRequestHandler(
        Executor(),
        InMemoryTaskStore(),
        ParseDict(base, AgentCard(), ignore_unknown_fields=True),
        extended_agent_card=ParseDict(
            {**base, "skills": card(port, extended)["skills"]},
            AgentCard(),
            ignore_unknown_fields=True,
        )
        if SETTINGS.get("extended")
        else None,
    )

    async def show(request: Any) -> Any:
        fault = SETTINGS.get("fault")
        if fault == "silent":
            await asyncio.sleep(60)
        if fault == "garbage":
            return JSONResponse(["Hello!"])
        if fault == "flood":
            return JSONResponse({"name": "x" * 70 * 2**20})
        if fault == "redirect":
            return JSONResponse({}, 302, {"Location": SETTINGS["endpoint"]})
        return JSONResponse(found)

    async def release(request: Any) -> Any:
        RELEASED.set()
        return JSONResponse({})

    if SETTINGS["transport"] == "JSONRPC":
        routes = create_jsonrpc_routes(handler, "/a2a", enable_v0_3_compat=True)
    else:
        routes = create_rest_routes(handler, path_prefix="/a2a", enable_v0_3_compat=True)
    app = Starlette(
        routes=[
            Route("/.well-known/agent-card.json", show),
            Route("/release", release, methods=["POST"]),
            *routes,
        ]
    )

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            version = headers.get("a2a-version", "0.3")
            log(
                f"{scope['method']} {scope['path']} version={version} authorization={headers.get('authorization', '')} key={headers.get('x-key', '')}"
            )
            status = int(SETTINGS.get("status", 0)) if scope["path"].startswith("/a2a") else 0
            if SETTINGS["token"] and headers.get("authorization") != f"Bearer {SETTINGS['token']}":
                status = 401
            elif scope["path"].startswith("/a2a") and version != SETTINGS["version"]:
                status = 418
            if status:
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send(
                    {"type": "http.response.body", "body": f"{headers}".encode()}
                )  # an agent that tells what it was sent
                return
        await app(scope, receive, send)

    return guarded


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", SETTINGS["port"]))
    number = listener.getsockname()[1]
    print(number, flush=True)
    uvicorn.Server(
        uvicorn.Config(application(number), log_level="error", timeout_graceful_shutdown=1)
    ).run([listener])
