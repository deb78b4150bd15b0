"""`GET /ready` of a worker, for supervisors such as Kubernetes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_BODIES = {200: b"ready\n", 503: b"not ready\n", 404: b"not found\n"}


class ReadyServer:
    """Answers `GET /ready` with 200 while `is_ready()`, else with 503; any other path with 404.

    Raises `OSError` if the address cannot be used.
    """

    def __init__(self, host: str, port: int, is_ready: Callable[[], bool]) -> None:
        class Answers(BaseHTTPRequestHandler):
            timeout = 5  # seconds that a silent client may keep a thread

            def do_GET(self) -> None:
                code = (200 if is_ready() else 503) if self.path == "/ready" else 404
                self.send_response(code)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(_BODIES[code])))
                self.end_headers()
                self.wfile.write(_BODIES[code])

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host, port), Answers)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="holdfast-fleet-ready", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()
