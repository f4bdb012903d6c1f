"""What clients of one gateway process are told, and what it counts: the same from compiled code and from Python.

python tests/compiled/exchanges.py

An engine and `headworks serve` are started, asked, and ended. What differs from run to run (names, times) is not printed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

ENGINE = ("headworks.testing.fake_engine", "--preset", "vllm_cpu_tiny", "--max-model-len", "4096", "--port", "0")
SERVE = ("headworks.cli.main", "serve", "--json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAYS = [{"role": "user", "content": "one two three"}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "in one piece": (CHAT, {"messages": SAYS, "max_tokens": 4}),
    "streamed": (CHAT, {"messages": SAYS, "max_tokens": 4, "stream": True}),
    "streamed with its usage": (
        CHAT,
        {"messages": SAYS, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "two samples": (CHAT, {"messages": SAYS, "max_tokens": 2, "n": 2}),
    "a completion": (COMPLETIONS, {"prompt": "one two three", "max_tokens": 4}),
    "token ids": (COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True}),
    "an unknown field": (CHAT, {"messages": SAYS, "maximum": 4}),
    "a field of another type": (CHAT, {"messages": SAYS, "max_tokens": "4"}),
    "too long for the engine": (COMPLETIONS, {"prompt": [1] * 4090, "max_tokens": 4000, "min_tokens": 4000}),
    "another model": (CHAT, {"messages": SAYS, "model": "other"}),
}
RUNS_ON = re.compile(r"[0-9a-f]{8,}|\d+\.\d+|\"created\": ?\d+")
"""Names, times, forecasts."""
READY_S = 20.0


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A module as a process, and the first line it says."""
    with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


def main() -> None:
    with process(*ENGINE) as (_, engine), process(*SERVE, engine.removeprefix("listening on ")) as (_, said):
        told = json.loads(said)
        print(told["runs_as"])
        wait_for(told["admin"] + "/readyz")
        with httpx.Client(base_url=told["listening"].removesuffix("/v1"), timeout=30) as client:
            for name, (path, body) in ASKED.items():
                answer = client.post(path, json={"model": "tiny", **body})
                print(name, answer.status_code, sorted(answer.headers), RUNS_ON.sub("…", answer.text), sep="\n")
            print(RUNS_ON.sub("…", client.get("/v1/models").text))
        page = httpx.get(told["admin"] + "/metrics").text
        print(
            *sorted(line for line in page.splitlines() if re.match(r"headworks_(requests|decisions|tokens)_total", line)),
            sep="\n",
        )
        print(httpx.get(told["admin"] + "/admin/ledger/audit").json()["differences"])


def wait_for(url: str) -> None:
    end_s = time.monotonic() + READY_S
    while httpx.get(url).status_code != 200:
        assert time.monotonic() < end_s, "it never was ready"
        time.sleep(0.05)


if __name__ == "__main__":
    main()
