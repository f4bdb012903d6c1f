"""What one writes on an afternoon: FastAPI in front, httpx behind, everything passed on as it comes. `ENGINE` is its URL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

PASSED_ON = ("content-type", "authorization")
unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=2048)
engine = httpx.AsyncClient(base_url=os.environ["ENGINE"], timeout=httpx.Timeout(300), limits=unlimited)


@asynccontextmanager
async def living(app: FastAPI) -> AsyncIterator[None]:
    yield
    await engine.aclose()


app = FastAPI(lifespan=living)


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


@app.post("/v1/chat/completions")
async def chat(request: Request) -> StreamingResponse:
    headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
    asked = engine.build_request("POST", request.url.path, content=await request.body(), headers=headers)
    answer = await engine.send(asked, stream=True)

    async def body() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    return StreamingResponse(body(), answer.status_code, {"content-type": answer.headers["content-type"]})
