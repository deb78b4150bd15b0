"""A TCP proxy whose network can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Network:
    """A proxy to a port of the loopback address.

    While it is cut, nothing passes and no connection ends, as with a cable that was pulled. The
    data sent in the meantime arrives when it is healed.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.held_bytes = 0  # bytes that a cut holds back
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._whole.wait()
        with suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()
            self._pump(server, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._whole.is_set():
                    self.held_bytes += len(data)
                    self._whole.wait()
                target.sendall(data)
        self._whole.wait()  # the end of a connection does not pass either
        _end(source, target)

    def close(self) -> None:
        self.heal()
        _end(self._listener, *self._sockets)


def _end(*ended: socket.socket) -> None:
    for one in ended:
        with suppress(OSError):  # a close alone does not wake a thread that reads
            one.shutdown(socket.SHUT_RDWR)
        one.close()
