"""What is ordered of all workers of a host reaches each of them, whatever another says (F13)."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headworks.cli.main import run as headworks

TRIES = 50
NOT_FROZEN = {"error": {"message": "acme is not frozen.", "code": "invalid_request"}}
THAWED: dict[str, Any] = {
    "mode": "enforce",
    "mode_order": None,
    "frozen": {},
    "holds": "this gateway, until it ends",
    "declared": [],
}


@contextlib.contextmanager
def workers(*answers: tuple[int, dict[str, Any]]) -> Iterator[tuple[int, list[int]]]:
    """Admin ports one after another that say this. Gives the first one's port, and which were asked."""
    asked: list[int] = []

    def handler(number: int) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(number)
                status, body = answers[number]
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing of it."""

        return Handler

    with contextlib.ExitStack() as ends:
        for _ in range(TRIES):
            found = [HTTPServer(("127.0.0.1", 0), handler(0))]
            with contextlib.suppress(OSError):  # the next port is somebody else's
                for number in range(1, len(answers)):
                    found.append(HTTPServer(("127.0.0.1", found[0].server_port + number), handler(number)))
            if len(found) == len(answers):
                break
            found[0].server_close()
        for server in found:
            ends.callback(server.server_close)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            ends.callback(server.shutdown)
        yield found[0].server_port, asked


def test_F13_a_worker_that_was_not_frozen_keeps_no_other_from_being_thawed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was started again has forgotten the order; those beside it have not."""
    config = tmp_path / "h.yaml"
    with workers((409, NOT_FROZEN), (200, THAWED)) as (port, asked):
        config.write_text(
            f"server: {{admin: '127.0.0.1:{port}', workers: 2}}\n"
            "ledger: {url: 'valkey://127.0.0.1:1/0'}\n"
            "tenants: {acme: {}}\n"
            "pools: {llama: {replicas: [{url: 'http://127.0.0.1:1', engine: vllm}]}}\n"
        )
        words = ["tenant", "thaw", "acme", "--reason", "it is sorry", "--config", str(config)]
        assert headworks(words) == 2
    assert asked == [0, 1]
    assert f"http://127.0.0.1:{port} answered 409: acme is not frozen." in capsys.readouterr().err
