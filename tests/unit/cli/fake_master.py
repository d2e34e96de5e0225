"""A process of a cluster as the command line sees it: scripted answers over HTTP, in threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cachefs.client.http import ALIVE_PATH
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import HEADER, Access
from cachefs.core.admin import API, KEY_HEADER
from cachefs.core.errors import CacheFSError
from tests.unit.cli import fake_admin

Script = Callable[[m.Message], m.Message]


class FakeMaster:
    """Answers each type of call with its script; `asked` has the calls in order. After
    `drop_next`, the next connection is cut instead of answered."""

    def __init__(
        self, scripts: dict[type[m.Message], Script], access: Access | None = None
    ) -> None:
        self.scripts = scripts
        self.access = access or Access()
        self.asked: list[m.Message] = []
        self.drop_next = False
        self.raw: tuple[int, bytes] | None = None
        self.connections = 0
        self.url = ""

    def answer(self, body: m.Message, header: str | None) -> m.Message:
        try:
            self.access.check(header)
            self.asked.append(body)
            return self.scripts[type(body)](body)
        except CacheFSError as err:
            return m.failure_of(err)

    @contextlib.contextmanager
    def listening(self) -> Iterator[FakeMaster]:
        """Serves on a free port until the block ends."""
        master = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # one write: no small packet waits for another one

            def setup(self) -> None:
                super().setup()
                master.connections += 1

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if master.drop_next:
                    master.drop_next = False
                    self.close_connection = True
                    return
                status, reply = master.raw or (200, b"")
                if not reply and self.path.startswith(API):
                    return self.answer_api(data)
                if not reply:
                    answer = master.answer(c.decode_call(data), self.headers.get(HEADER))
                    status = 400 if isinstance(answer, m.Failure) else 200
                    reply = c.encode(answer)
                self.send_response(status)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            do_PATCH = do_DELETE = do_POST

            def answer_api(self, data: bytes) -> None:
                def ask(body: m.Message) -> m.Message:
                    return master.answer(body, self.headers.get(HEADER))

                key = self.headers.get(KEY_HEADER, "")
                page = fake_admin.answer(self.command, self.path, data, key, ask)
                self.send_response(page.status)
                self.send_header("Content-Type", page.kind)
                if page.status != 204:
                    self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                self.wfile.write(page.body)

            def do_GET(self) -> None:
                if self.path.startswith(API):
                    return self.do_POST()
                if self.path != ALIVE_PATH:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("Content-Length", "3")
                self.end_headers()
                self.wfile.write(b"ok\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
