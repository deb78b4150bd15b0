"""Overhead of an LLM over its HTTP pool, on each wire: per call, with a long history, with 200
threads, per delta; imports and cancels.

The floor is `HTTPPool` sending as many bytes and reading the same answer, in turns with the LLM.
With a long history the floor first joins one piece per message, since every client that keeps a
history has to. With threads, the floor is a pool for each of them. CPU and wall are medians of
single calls, client and server on one core as in `bench_http`. Each call is a conversation's: a
`Transcript` that has two new items, and the tools and prompt of its head. A wire whose module does
not exist is left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import bench_http
import harness
from bench_http import canned, one_core, stats
from harness import Goal, Row, compiled, in_child, in_turns

# 630 characters, about 150 tokens
TEXT = "The parser reads one line at a time, and this is what is known of it. " * 9
ARGUMENTS = '{"path":"src/parser.py","limit":200}'
DELTAS = 2000
PACE = 0.0001  # seconds between packets: enough for each delta to be read on its own
THREADS, CALLS, DELAY = 200, 20, 50  # milliseconds per answer of the model
LONG = 1000  # messages

# --- the same answer on each wire: whole; and as a stream of `count` deltas, of text or of a call's arguments ------------


def chat(count: int = 0, kind: str = "") -> Any:
    head = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "mock",
    }
    usage = {
        "prompt_tokens": 1200,
        "completion_tokens": 150,
        "total_tokens": 1350,
        "prompt_tokens_details": {"cached_tokens": 1024},
    }
    if not kind:
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "look_up", "arguments": ARGUMENTS},
        }
        message = {"role": "assistant", "content": TEXT, "tool_calls": [call]}
        return {
            **head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": usage,
        }

    def chunk(delta: Any, finish: Any = None) -> Any:
        return {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            "usage": None,
        }

    if kind == "text":
        deltas = [
            {"role": "assistant", "content": ""},
            *({"content": piece} for piece in pieces(count)),
        ]
    else:
        begin = {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": "look_up", "arguments": ""},
        }
        deltas = [{"role": "assistant", "tool_calls": [begin]}]
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            for piece in arguments(count)
        ]
    return [
        *map(chunk, deltas),
        chunk({}, "stop" if kind == "text" else "tool_calls"),
        {**head, "choices": [], "usage": usage},
    ]


def responses(count: int = 0, kind: str = "") -> Any:
    usage = {
        "input_tokens": 1200,
        "input_tokens_details": {"cached_tokens": 1024},
        "output_tokens": 150,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 1350,
    }

    def message(text: str) -> Any:
        part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
        return {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "content": [part],
            "role": "assistant",
        }

    def call(text: str) -> Any:
        return {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "arguments": text,
            "call_id": "call_1",
            "name": "look_up",
        }

    def response(output: Any, status: str = "completed") -> Any:
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1760000000,
            "status": status,
            "model": "mock",
            "output": output,
            "usage": usage,
        }

    if not kind:
        return response([message(TEXT), call(ARGUMENTS)])
    if kind == "text":
        begin, parts = {**message(""), "content": []}, pieces(count)
        name, end, more = (
            "response.output_text.delta",
            message("".join(parts)),
            {"content_index": 0, "logprobs": []},
        )
    else:
        begin, parts = call(""), arguments(count)
        name, end, more = "response.function_call_arguments.delta", call("".join(parts)), {}
    events: list[Any] = [{"type": "response.created", "response": response([], "in_progress")}]
    events += [{"type": "response.output_item.added", "output_index": 0, "item": begin}]
    events += [
        {"type": name, "item_id": begin["id"], "output_index": 0, **more, "delta": piece}
        for piece in parts
    ]
    events += [{"type": "response.output_item.done", "output_index": 0, "item": end}]
    events += [{"type": "response.completed", "response": response([end])}]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def messages(count: int = 0, kind: str = "") -> Any:
    usage = {
        "input_tokens": 176,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1024,
        "output_tokens": 150,
    }
    answer = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "mock",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
    if not kind:
        content = [{"type": "text", "text": TEXT}, {**call, "input": json.loads(ARGUMENTS)}]
        return {**answer, "content": content, "stop_reason": "tool_use"}
    if kind == "text":
        begin, reason, parts = (
            {"type": "text", "text": ""},
            "end_turn",
            [{"type": "text_delta", "text": piece} for piece in pieces(count)],
        )
    else:
        begin, reason, parts = (
            call,
            "tool_use",
            [{"type": "input_json_delta", "partial_json": piece} for piece in arguments(count)],
        )
    return [
        {"type": "message_start", "message": {**answer, "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": begin},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in parts),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": usage,
        },
        {"type": "message_stop"},
    ]


def gemini(count: int = 0, kind: str = "") -> Any:
    usage = {
        "promptTokenCount": 1200,
        "candidatesTokenCount": 150,
        "totalTokenCount": 1350,
        "cachedContentTokenCount": 1024,
    }
    about = {"usageMetadata": usage, "modelVersion": "mock", "responseId": "response-1"}

    def chunk(parts: Any, more: Any) -> Any:
        return {
            "candidates": [{"content": {"parts": parts, "role": "model"}, **more, "index": 0}],
            **about,
        }

    call = {"functionCall": {"name": "look_up", "args": json.loads(ARGUMENTS)}}
    if not kind:
        return chunk([{"text": TEXT}, call], {"finishReason": "STOP"})
    return [
        *(chunk([{"text": piece}], {}) for piece in pieces(count)),
        chunk([{"text": ""}], {"finishReason": "STOP"}),
    ]


def pieces(count: int) -> list[str]:
    return [f" word{number % 10}" for number in range(count)]


def arguments(count: int) -> list[str]:
    """Return the pieces of one JSON object, `count` of them."""
    return ['{"text":"', *(f"word{number % 10} " for number in range(count - 2)), '"}']


# wire -> (answer, whether its events have names, whether arguments come in pieces)
WIRES: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    "openai_chat": (chat, False, True),
    "openai_responses": (responses, True, True),
    "anthropic_messages": (messages, True, True),
    "gemini": (gemini, False, False),
}


def events(wire: str, count: int, kind: str) -> list[str]:
    """The events of a stream as text."""
    make, has_names, _ = WIRES[wire]
    texts = [
        (f"event: {event['type']}\n" if has_names else "") + f"data: {json.dumps(event)}\n\n"
        for event in make(count, kind)
    ]
    return [*texts, "data: [DONE]\n\n"] if wire == "openai_chat" else texts


def answers(wires: list[str]) -> dict[str, Any]:
    """Return all prepared answers, keyed `WIRE-kind`."""
    prepared: dict[str, Any] = {}
    for wire in wires:
        prepared[f"{wire}-plain"] = bench_http.plain(json.dumps(WIRES[wire][0]()))
        prepared[f"{wire}-streamed"] = bench_http.streamed(events(wire, 50, "text"))
        prepared[f"{wire}-begun"] = bench_http.streamed(events(wire, 20, "text")[:12], whole=False)
        for kind in ("text", "tool"):
            if kind == "text" or WIRES[wire][2]:
                prepared[f"{wire}-{kind}-burst"] = bench_http.streamed(events(wire, DELTAS, kind))
                prepared[f"{wire}-{kind}-paced"] = bench_http.streamed(
                    events(wire, DELTAS, kind), PACE
                )
    return prepared


# --- a client that sends the requests of a conversation ---


class FirstRequestTransport:
    """A transport that records its first request, so that a bare pool can send it again. Later
    requests go to `inner` directly, so that the measured calls pass no further layer."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.post = self._first

    def _first(self, path: str, body: bytes, headers: str, **options: Any) -> Any:
        self.path, self.body, self.headers = path, body, headers
        self.post = self.inner.post
        return self.post(path, body, headers, **options)

    def close(self) -> None:
        self.inner.close()


def model(
    port: int, wire: str, answer: str, stream: bool, delay: int = 0
) -> tuple[Any, list[FirstRequestTransport]]:
    """Return an LLM whose server answers with `answer`, and its transports."""
    from holdfast.llm import LLM

    transports: list[FirstRequestTransport] = []

    def keep(transport: Any, _: Any) -> Any:
        transports.append(FirstRequestTransport(transport))
        return transports[0]

    llm = LLM(
        "mock",
        "none",
        f"http://127.0.0.1:{port}/{answer}/{delay}",
        wire=wire,
        stream=stream,
        max_retries=0,
    )
    return llm.with_transport(keep), transports


def conversation(llm: Any, messages: int) -> tuple[Any, Any, Callable[[], tuple[Any, Any]]]:
    """Return a transcript, its head, and a function that makes the two items of a further step.
    Each call has an id of its own, as from a provider."""
    import itertools
    from datetime import UTC, datetime

    from holdfast.content import Message, TextContent, ToolCall, ToolResult
    from holdfast.events import AgentConfigured, ToolDefinition
    from holdfast.llm.completion import Completion
    from holdfast.llm.transcript import Transcript

    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    }
    tools = tuple(
        [
            ToolDefinition(
                f"look_up_{n}" if n else "look_up", "Look up what is known of an item.", schema
            )
            for n in range(5)
        ]
    )
    parameters = llm.parameters()
    head = AgentConfigured(
        seq=1,
        id="evt_1",
        timestamp=datetime.now(UTC),
        system_prompt=TEXT * 2,
        tools=tools,
        model="mock",
        parameters=parameters,
    )
    numbers = itertools.count(1)

    def step() -> tuple[Any, Any]:
        id = f"call_{next(numbers)}"
        call = ToolCall(id, "look_up", {"path": "src/parser.py", "limit": 200}, id)
        return Completion(TEXT[:140], calls=(call,)), (call, ToolResult((TextContent(TEXT[:420]),)))

    transcript = Transcript([Message("What is known of these items?")])
    while len(transcript) < messages:
        for item in step():
            transcript.append(item)
    return transcript, head, step


def unheard(delta: object) -> None:
    pass


def ask(
    llm: Any, transcript: Any, head: Any, on_delta: Any = unheard, cancelled: Any = None
) -> None:
    llm.completion(transcript, head=head, on_delta=on_delta, cancelled=cancelled)


def drain(pool: Any, transports: list[FirstRequestTransport], pieces: Sequence[bytes] = ()) -> int:
    """Measure the floor: send the same request, joined from `pieces` if there are any, and read the
    answer as it arrives. Returns the number of its bytes."""
    request = transports[0]
    response = pool.post(
        request.path, b"".join(pieces) if pieces else request.body, request.headers, stream=True
    )
    return sum([len(chunk) for chunk in response])


# --- the measurements, each in a fresh process ---


def calls(port: int, wire: str, number: int) -> dict[str, list[float]]:
    """Return the microseconds of the median call: CPU and wall of the LLM, CPU and wall of the bare
    pool."""
    from holdfast.llm.http import HTTPPool

    pool = HTTPPool(f"http://127.0.0.1:{port}")
    medians: dict[str, list[float]] = {}
    for what, stream, size in (
        ("plain", False, 10),
        ("streamed", True, 10),
        ("plain, long", False, LONG),
    ):
        llm, transports = model(port, wire, f"{wire}-{'streamed' if stream else 'plain'}", stream)
        times: list[list[float]] = [[], [], [], []]
        pieces: list[bytes] = []
        for round in range(number):
            if round % 20 == 0:  # keeps the short history short
                transcript, head, step = conversation(llm, size)
                llm.completion(transcript, head=head)
                drain(pool, transports)
                width = len(transports[0].body) // size + 1
                pieces = (
                    [
                        transports[0].body[at : at + width]
                        for at in range(0, len(transports[0].body), width)
                    ]
                    if size == LONG
                    else []
                )
            for item in step():
                transcript.append(item)
            for index, (work, arguments) in enumerate(
                ((ask, (llm, transcript, head)), (drain, (pool, transports, pieces)))
            ):
                began, cpu_began = time.perf_counter(), time.thread_time()
                work(*arguments)
                times[index * 2].append(time.thread_time() - cpu_began)
                times[index * 2 + 1].append(time.perf_counter() - began)
        medians[what] = [statistics.median(each) * 1e6 for each in times]
    return medians


def crowd(port: int, wire: str, who: str) -> tuple[float, float]:
    """Return the seconds and seconds of CPU of threads that share one LLM, or have a bare pool or a
    bare socket each."""
    from holdfast.llm.http import HTTPPool

    warm, _ = model(port, wire, f"{wire}-plain", False)
    transcript, head, _ = conversation(warm, 10)
    warm.completion(transcript, head=head)
    llm, transports = model(port, wire, f"{wire}-plain", False, DELAY)
    llm.completion(transcript, head=head)
    request = transports[0]
    llm.close()
    prepared = bench_http.plain(json.dumps(WIRES[wire][0]()))
    size = len(prepared["head"]) + len(prepared["pieces"][0])
    together = threading.Barrier(THREADS + 1)

    def with_llm() -> Callable[[], object]:
        own, head, _ = conversation(llm, 10)
        return lambda: llm.completion(own, head=head)

    def with_pool() -> Callable[[], object]:
        pool = HTTPPool(f"http://127.0.0.1:{port}")
        return lambda: drain(pool, transports)

    def with_socket() -> Callable[[], object]:
        import socket

        text = (
            f"POST {request.path} HTTP/1.1\r\n{request.headers}Content-Length:"
            f" {len(request.body)}\r\n\r\n".encode()
            + request.body
        )
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call() -> None:
            sock.sendall(text)
            remaining = size
            while remaining > 0:
                remaining -= len(sock.recv(65536))

        return call

    def work() -> None:
        call = {"llm": with_llm, "pool": with_pool, "socket": with_socket}[who]()
        together.wait()
        for _ in range(CALLS):
            call()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    together.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, time.process_time() - cpu


def deltas(port: int, wire: str) -> dict[str, tuple[float, float]]:
    """Return the microseconds of CPU per delta: of the LLM, of the bare pool."""
    from holdfast.llm.http import HTTPPool

    pool = HTTPPool(f"http://127.0.0.1:{port}")
    microseconds: dict[str, tuple[float, float]] = {}
    for kind in ("text", "tool") if WIRES[wire][2] else ("text",):
        for pace in ("burst", "paced"):
            llm, transports = model(port, wire, f"{wire}-{kind}-{pace}", True)
            transcript, head, _ = conversation(llm, 10)
            if pace == "burst":
                deltas: list[Any] = []
                ask(llm, transcript, head, deltas.append)
                assert len(deltas) >= DELTAS - 2, (wire, kind, len(deltas))
                assert {delta.kind for delta in deltas} == {kind}, (wire, kind)
            cpu_times: list[float] = []
            for work, arguments in ((ask, (llm, transcript, head)), (drain, (pool, transports))):
                before = time.thread_time()
                work(*arguments)
                cpu_times.append((time.thread_time() - before) / DELTAS * 1e6)
            microseconds[f"{kind}, {pace}"] = (cpu_times[0], cpu_times[1])
    return microseconds


def until_cancelled(
    request: tuple[Any, Any, Any],
    first_delta: threading.Event,
    cancelled: Any,
    returned: list[float],
) -> None:
    from holdfast.errors import Cancelled

    with contextlib.suppress(Cancelled):
        ask(*request, lambda _: first_delta.set(), cancelled)
    returned.append(time.perf_counter())


def cancels(port: int, wire: str, number: int) -> dict[str, Any]:
    """Return the milliseconds from cancel to return, half of them before the first byte, and the
    number of connections that stay open."""
    from holdfast.tools.context import Cancellation

    milliseconds: dict[str, Any] = {"before the first byte": [], "in mid-stream": []}
    sockets_before, open_before = open_sockets(), stats(port)["open"]
    for which, answer in (("before the first byte", "silence"), ("in mid-stream", f"{wire}-begun")):
        llm, _ = model(port, wire, answer, True)
        transcript, head, _ = conversation(llm, 10)
        for round in range(number):
            cancelled = Cancellation()
            first_delta = threading.Event()
            returned: list[float] = []
            thread = threading.Thread(
                target=until_cancelled,
                args=((llm, transcript, head), first_delta, cancelled, returned),
            )
            thread.start()
            if answer != "silence":
                first_delta.wait(10)
            time.sleep(0.002 + 0.001 * round)
            began = time.perf_counter()
            cancelled.cancel()
            thread.join(10)
            milliseconds[which].append((returned[0] - began) * 1000 if returned else 10000.0)
    until = time.monotonic() + 1
    while stats(port)["open"] > open_before and time.monotonic() < until:
        time.sleep(0.005)
    return {
        **milliseconds,
        "open": stats(port)["open"] - open_before,
        "sockets": open_sockets() - sockets_before,
    }


def open_sockets() -> int:
    links = [
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    ]
    return sum(link.startswith("socket:") for link in links)


def imports(wire: str, *first: str) -> float:
    """Return the milliseconds of CPU that importing a wire and its streams takes after the imports
    in `first`."""
    module = f"holdfast.llm.wires.{wire}"
    program = (
        f"import time, {', '.join(first)}\nbegan = time.process_time()\nimport"
        f" {module}\nprint(time.process_time() - began)"
    )
    return float(harness.run([sys.executable, "-c", program])) * 1000


def rows(quick: bool) -> list[Row]:
    wires = [name for name in WIRES if importlib.util.find_spec(f"holdfast.llm.wires.{name}")]
    table: list[Row] = []
    repeats = 1 if quick else 3
    with one_core(), canned(answers(wires)) as (port, _, _):
        single = in_turns(
            repeats,
            {wire: lambda w=wire: in_child(calls, port, w, 20 if quick else 80) for wire in wires},
        )
        delta = in_turns(
            repeats, {wire: lambda w=wire: in_child(deltas, port, w) for wire in wires}
        )
    with canned(answers(wires)) as (port, _, _):
        many = in_turns(
            repeats,
            {
                who: lambda w=who: in_child(crowd, port, wires[0], w)
                for who in ("socket", "pool", "llm")
            },
        )
        woken = {wire: in_child(cancels, port, wire, 3 if quick else 15) for wire in wires}
    shared = ("holdfast.llm.client", "holdfast.llm.http", "holdfast.llm.wires.failures")
    figures: dict[str, Callable[[], float]] = {}
    for wire in wires:
        figures[f"{wire}, over the HTTP client"] = lambda w=wire: imports(w, "holdfast.llm.http")
        figures[f"{wire}, over what all wires share"] = lambda w=wire: imports(w, *shared)
    with compiled():
        for measure in figures.values():
            measure()
        cost = in_turns(2 if quick else 5, figures)

    for wire in wires:
        for what in single[wire][0]:
            for index, (title, unit) in enumerate((("CPU", "us"), ("wall", "us"))):
                of_llm, floor = (
                    [one[what][at] for one in single[wire]] for at in (index, index + 2)
                )
                kind = what.replace("long", f"{LONG:,} messages").replace(
                    "streamed", "streamed (50 deltas)"
                )
                table.append(
                    Row(f"{wire}, a call, {kind}, {title}", unit, of_llm, floor, Goal(2, "ratio"))
                )
        added = [
            [one[what][0] - one[what][2] for one in single[wire]]
            for what in ("plain, long", "plain")
        ]
        table.append(
            Row(
                f"{wire}, CPU beside the floor's, {LONG:,} messages; floor: 10",
                "us",
                *added,
                Goal(2, "ratio"),
            )
        )
    wall, cpu = ({who: [one[index] for one in many[who]] for who in many} for index in (0, 1))
    title = f"{THREADS} threads, {CALLS} calls of {DELAY} ms each"
    table.append(
        Row(
            f"{title}, one LLM; floor: a pool each",
            "s",
            wall["llm"],
            wall["pool"],
            Goal(1.1, "ratio"),
        )
    )
    table.append(Row("  floor: a bare socket each", "s", wall["llm"], wall["socket"]))
    table.append(Row("  CPU of this; floor: a pool each", "s", cpu["llm"], cpu["pool"]))
    table += [
        Row(f"import {name}, CPU", "ms", values, (), Goal(10)) for name, values in cost.items()
    ]
    for wire in wires:
        for which in ("before the first byte", "in mid-stream"):
            table.append(
                Row(f"{wire}, cancel to return, {which}", "ms", woken[wire][which], (), Goal(100))
            )
            table.append(Row("  the slowest", "ms", [max(woken[wire][which])], (), Goal(100)))
        table.append(
            Row("  connections that the server still has", "", [woken[wire]["open"]], (), Goal(0))
        )
        table.append(Row("  sockets left open", "", [woken[wire]["sockets"]], (), Goal(0)))
    for wire in wires:
        for what in delta[wire][0]:
            of_llm, floor = ([one[what][at] for one in delta[wire]] for at in (0, 1))
            title = (
                what.replace("tool", "arguments")
                .replace("paced", "in packets of their own")
                .replace("burst", "at once")
            )
            table.append(Row(f"{wire}, a delta of {title}, CPU", "us", of_llm, floor, Goal(30)))
        if not WIRES[wire][2]:
            table.append(
                Row(f"{wire}, a delta of arguments", "us", skipped="the wire sends them whole")
            )
    return table
