"""The feed of looks: what is sent to whom, what a slow viewer costs, and that nobody looks when nobody watches (F9)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from app_scene import Scene, run, scene
from http_port import until
from key_scene import added, at_admin, bearer, keyed

from headworks.gateway.admin_server import UNTAKEN_MS_MAX, admin_socket
from headworks.gateway.feed import END, VIEWERS_MAX, Feed

ALWAYS: Callable[[], bool] = lambda: True  # noqa: E731


class Looked:
    """Counts its looks."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    def __call__(self) -> tuple[int, bytes]:
        if self.fails:
            raise ValueError("nothing can be seen")
        self.count += 1
        return self.count, b'{"version":%d}' % self.count


class Viewer:
    """One that takes what he is sent when he likes to."""

    def __init__(self, *, takes: bool = True) -> None:
        self.messages: list[dict[str, Any]] = []
        self.takes = asyncio.Event()
        self.left = asyncio.Event()
        if takes:
            self.takes.set()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body":
            await self.takes.wait()

    def versions(self) -> list[int]:
        bodies = [message["body"] for message in self.messages[1:] if message["body"] != END]
        return [json.loads(body.split(b"data: ")[1])["version"] for body in bodies]


def test_F9_all_viewers_share_each_look_and_nobody_looks_when_nobody_watches() -> None:
    async def steps() -> None:
        looked = Looked()
        feed = Feed(looked, every_s=0.005)
        one, other = Viewer(), Viewer()
        watching = [asyncio.create_task(feed.watch(viewer.receive, viewer.send, ALWAYS)) for viewer in (one, other)]
        await until(lambda: len(one.versions()) >= 5 and len(other.versions()) >= 5)
        for viewer in (one, other):
            assert viewer.versions()[0] == 1 and viewer.versions() == sorted(set(viewer.versions()))
        assert one.messages[1]["body"] == b'id: 1\ndata: {"version":1}\n\n'
        assert looked.count <= max(one.versions() + other.versions()) + 1, "each look is for both; one may be on its way"
        one.left.set()
        other.left.set()
        await asyncio.gather(*watching)
        assert feed.viewers == 0 and feed._looking is None
        seen = looked.count
        await asyncio.sleep(0.03)
        assert looked.count == seen
        late = Viewer()
        task = asyncio.create_task(feed.watch(late.receive, late.send, ALWAYS))
        await until(lambda: bool(late.versions()))
        assert late.versions()[0] == seen + 1, "a look of now, not the last one of another viewer"
        late.left.set()
        await task

    run("asyncio", steps())


def test_F9_a_slow_viewer_misses_looks_and_delays_nobody() -> None:
    async def steps() -> None:
        feed = Feed(Looked(), every_s=0.005)
        slow, quick = Viewer(takes=False), Viewer()
        watching = [asyncio.create_task(feed.watch(viewer.receive, viewer.send, ALWAYS)) for viewer in (slow, quick)]
        await until(lambda: len(quick.versions()) >= 10)
        assert slow.versions() == [1], "one is on its way to him, and nothing is kept for him beside"
        slow.takes.set()
        await until(lambda: len(slow.versions()) >= 4)
        assert slow.versions()[1] >= 10
        assert slow.versions() == sorted(set(slow.versions())), "none is sent twice"
        for viewer in (slow, quick):
            viewer.left.set()
        await asyncio.gather(*watching)

    run("asyncio", steps())


def test_F9_a_viewer_that_takes_nothing_is_let_go() -> None:
    async def steps() -> None:
        feed = Feed(Looked(), every_s=0.005, stuck_s=0.02)
        stuck = Viewer(takes=False)
        await feed.watch(stuck.receive, stuck.send, ALWAYS)
        assert feed.viewers == 0
        assert stuck.messages[-1]["more_body"], "without its end: so he knows that something is missing"

    run("asyncio", steps())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_F9_the_system_closes_a_connection_whose_other_side_takes_nothing() -> None:
    with admin_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNTAKEN_MS_MAX == 30_000


def test_F9_when_the_gateway_ends_or_cannot_be_looked_at_viewers_are_told() -> None:
    async def steps() -> None:
        looked = Looked()
        feed = Feed(looked, every_s=0.005)
        viewer = Viewer()
        task = asyncio.create_task(feed.watch(viewer.receive, viewer.send, ALWAYS))
        await until(lambda: bool(viewer.versions()))
        looked.fails = True
        await task
        assert viewer.messages[-1] == {"type": "http.response.body", "body": END, "more_body": False}
        looked.fails = False
        again = Viewer()
        task = asyncio.create_task(feed.watch(again.receive, again.send, ALWAYS))
        await until(lambda: bool(again.versions()))
        assert feed.has_room
        feed.close()
        await task
        assert again.messages[-1]["body"] == END and not feed.has_room

    run("asyncio", steps())


async def opened(s: Scene, *fields: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A raw viewer: its connection, and the head of what it was answered."""
    reader, writer = await asyncio.open_connection(*s.app.admin_address[:2])
    writer.write("\r\n".join(["GET /admin/feed HTTP/1.1", "Host: admin", *fields, "", ""]).encode())
    return reader, writer, await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)


def test_F9_the_feed_sends_what_the_snapshot_of_that_version_says_and_so_many_may_watch() -> None:
    async def steps() -> None:
        async with scene() as s:
            opened_here = [await opened(s) for _ in range(VIEWERS_MAX)]
            reader, _, head = opened_here[0]
            assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head and b"cache-control: no-store" in head
            event = await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)
            version = int(event.split(b"id: ")[1].split(b"\n")[0])
            kept = await s.admin(f"/admin/snapshot?version={version}")
            assert event.split(b"data: ")[1].removesuffix(b"\n\n") == kept.content
            assert kept.json()["version"] == version
            refused = await s.admin("/admin/feed")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_overloaded")
            assert refused.headers["retry-after"] == "5"
            for _, writer, _ in opened_here:
                writer.close()
            await s.until(lambda: s.app.feed.viewers == 0)

    run("uvloop", steps())


def test_H2_a_viewer_whose_key_is_revoked_sees_nothing_more(tmp_path: Path) -> None:
    async def steps() -> None:
        async with keyed(tmp_path) as s:
            assert (await s.admin("/admin/feed")).status_code == 401
            issued = await added(s, admin=True)
            reader, writer, head = await opened(s, bearer(issued["key"]))
            assert head.startswith(b"HTTP/1.1 200")
            await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)
            assert (await at_admin(s, "POST", f"/admin/keys/{issued['id']}/revoke", {})).status_code == 200
            rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)
            assert rest.endswith(END + b"\r\n0\r\n\r\n")
            writer.close()

    run("uvloop", steps())


def test_F9_a_gateway_that_stops_ends_the_feed() -> None:
    async def steps() -> None:
        async with scene() as s:
            reader, writer, _ = await opened(s)
            await asyncio.wait_for(reader.readuntil(b"\n\n"), 10)
            await s.app.stop()
            rest = await asyncio.wait_for(reader.read(), 10)
            assert END in rest
            writer.close()
            await s.app.start()

    run("asyncio", steps())
