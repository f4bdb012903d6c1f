"""The exporter of compute use: which gauge is believed, and what is said of a page that has none (B4)."""

from __future__ import annotations

import pytest
from wire import LOOPS, Clock, Peer, Server, answer, run_on

from headworks.engines.base import EngineError
from headworks.engines.exporter import Exporter

UTILISED = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 93\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 12\n'
ENGINE = b'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.81\n'
PIPES = b'DCGM_FI_PROF_SM_ACTIVE{gpu="0"} 0.42\nDCGM_FI_PROF_SM_ACTIVE{gpu="1"} 0.57\n'


def read(page: bytes, path: str = "/metrics", status: bytes = b"200 OK", loop: str = "asyncio") -> tuple[float, str]:
    """What it says, and the path that was asked for."""
    asked: list[str] = []
    found: list[float] = []

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        asked.append(head.split(b" ", 2)[1].decode())
        await peer.say(answer(page, status))

    async def test() -> None:
        async with Server(script) as server:
            exporter = Exporter(server.url + path, Clock())
            try:
                found.append(await exporter.compute_used_ratio())
            finally:
                await exporter.close()

    run_on(loop, test())
    return found[0], asked[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_B4_the_best_gauge_of_the_page_counts_and_the_fullest_accelerator(loop: str) -> None:
    assert read(UTILISED + ENGINE + PIPES, loop=loop) == (0.57, "/metrics")
    assert read(UTILISED + ENGINE)[0] == 0.81
    assert read(UTILISED)[0] == 0.93


def test_B4_the_page_is_asked_for_where_the_url_says() -> None:
    assert read(UTILISED, path="/gpu/3/metrics")[1] == "/gpu/3/metrics"
    assert read(UTILISED, path="")[1] == "/"


def test_B4_what_is_not_a_share_is_cut_to_one_and_what_is_no_number_is_passed_over() -> None:
    assert read(b"DCGM_FI_DEV_GPU_UTIL 250\n")[0] == 1.0
    assert read(b"DCGM_FI_PROF_SM_ACTIVE NaN\nDCGM_FI_DEV_GPU_UTIL 40\n")[0] == 0.4


@pytest.mark.parametrize(
    ("page", "status", "said"),
    [(b"up 1\n", b"200 OK", "none of DCGM_FI_PROF_SM_ACTIVE"), (UTILISED, b"500 Oops", "status 500, expected 200")],
)
def test_B4_a_page_without_it_is_said_to_have_none(page: bytes, status: bytes, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        read(page, status=status)
