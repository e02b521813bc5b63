"""A proxy between router and engine that stalls one call: before the engine gets it, or before its answer
is seen. It remembers what the engine got.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field


@dataclass
class StallingProxy:
    """Relays TCP; a request whose head begins with `stalled` goes no further (or is answered to nobody)."""

    engine_port: int
    stalled: bytes = b""
    engine_gets_it: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    passed: list[str] = field(default_factory=list)
    """The first lines of the POST requests that the engine got, in order."""
    _listener: socket.socket = field(default_factory=socket.socket)

    def start(self) -> StallingProxy:
        """Listen on a free port."""
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stall(self, request: bytes, engine_gets_it: bool) -> None:
        """From now on stall this request."""
        self.reached.clear()
        self.engine_gets_it = engine_gets_it
        self.stalled = request

    def stop(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                engine = socket.create_connection(("127.0.0.1", self.engine_port))
            except OSError:
                return
            mute = threading.Event()
            for source, drain, requests in ((client, engine, True), (engine, client, False)):
                threading.Thread(target=self._pump, args=(source, drain, requests, mute), daemon=True).start()

    def _pump(
        self, source: socket.socket, drain: socket.socket, requests: bool, mute: threading.Event
    ) -> None:
        try:
            while data := source.recv(65536):
                if requests and self.stalled and data.startswith(self.stalled):
                    self.reached.set()
                    mute.set()
                    if not self.engine_gets_it:
                        continue
                if requests and data.startswith(b"POST "):
                    self.passed.append(data.split(b" HTTP/")[0].decode())
                if requests or not mute.is_set():
                    drain.sendall(data)
        except OSError:
            return
        finally:
            for end in (source, drain):
                end.close()
