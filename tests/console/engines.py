"""Servers that are no vLLM, as far as somebody who asks what they are can see: each path has one JSON answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LLAMA_CPP = {
    "/v1/models": {"object": "list", "data": [{"id": "tiny", "object": "model", "meta": {"n_ctx_train": 4096}}]},
    "/props": {"default_generation_settings": {"n_ctx": 2048, "speculative": False}, "total_slots": 4, "build_info": "b6100"},
}
OTHER = {"/v1/models": {"object": "list", "data": [{"id": "org/Some-Model.v2", "object": "model"}]}}


@asynccontextmanager
async def answering(answers: dict[str, object]) -> AsyncIterator[str]:
    """A server of these paths; anything else is 404 without a body. Yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                found = answers.get(head.split(" ")[1])
                body = b"" if found is None else json.dumps(found).encode()
                status = b"404 Not Found" if found is None else b"200 OK"
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
