"""A decision log of ten million records: what writing, looking up, deleting a tenant and expiring cost (F2).

- *records*: a decision and an outcome for each request, of ten tenants, written by the gateway's own log in files that rotate
  as they do by default. The bytes are those of an ordinary admitted chat; a refusal has more verdicts.
- *look-up*: `find` by id, by key and by execution, of requests at random over all files; the first is made with files that the
  system may have forgotten, the others as they come. In each file beyond the last it is an index and a few lines.
- *index*: made per full file by a process of its own with the lowest priority, here one after the other.
- *delete*: one of the ten tenants out of everything, and the indexes anew.

    python bench/decision_log.py --records 10000000

Takes about 3.5 GB of disk for ten million, and twice a file while a tenant is deleted; and gives it back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from headworks.core.effects import Outcome
from headworks.core.types import Decision, Forecast, Request, RequestKey, Usage, Work
from headworks.gateway import log_index
from headworks.gateway.decisions import DecisionLog, find
from headworks.gateway.log_files import paths

TENANTS = 10
EACH_S = 0.001
"""Between two arrivals, by the log's clock."""
FLUSHED_EVERY = 20_000
"""Requests after which the log is put on the disk: it is written faster here than anybody asks."""
LOOKUPS = 40
WORK = Work(340, 84, 1, 0.0, 352, 256)
ROWS = (
    ("memory", "pool:llama", 40_960, 419_328, "tokens", "queue_timeout"),
    ("memory", "pool:llama", 0.3125, 0.85, "kv_ratio", "kv_saturation"),
    ("compute", "pool:llama", 17, 64, "requests", "queue_timeout"),
    ("time", "pool:llama", 0.0425, 1.0, "s to first token", "queue_delay_exceeded"),
)


def name_of(number: int) -> str:
    return f"req_5f0c9e1d7a42{number:x}"


def records_of(number: int) -> tuple[Decision, Outcome]:
    """One request from its arrival to its end."""
    name, arrived_s = name_of(number), 1_000.0 + number * EACH_S
    key = RequestKey(f"tenant-{number % TENANTS}", f"key-{number}")
    about = ("interactive", "llama-3.1-8b", "llama")
    forecast = Forecast(0.0, 0.0425, 0.055, 2.5, 21_000.0, 1.3, "room", 0.0, 0.008, 0.05)
    decision = Decision(
        name, key, "admit", "", ROWS, forecast, WORK, None, 0, "", arrived_s, 0.0, "gateway", "fdbb7bb094e0", *about, True
    )
    asked = (f"{key.tenant}/1", *about, 1_032, None, 256, 1, True, (), None, 0, arrived_s, float("inf"), arrived_s + 55.0)
    request = Request(name, key, True, "print", *asked, route="/v1/chat/completions")
    outcome = Outcome(
        id=name,
        key=key,
        execution=f"{number:032x}",
        outcome="completed",
        reason="",
        service_class=about[0],
        model=about[1],
        pool=about[2],
        client=asked[0],
        retry=False,
        arrived_s=arrived_s,
        admitted_s=arrived_s + 0.0003,
        sent_s=arrived_s + 0.0004,
        first_byte_s=arrived_s + 0.046,
        ended_s=arrived_s + 2.1234,
        work=WORK,
        usage=Usage(71, 0, 143, 2.12, "stop", True),
        evidence="E1",
        unconfirmed_s=None,
        in_slo=True,
        predicted_ttft_s=0.055,
        request=request,
        replica="llama/0",
    )
    return decision, outcome


def written(directory: Path, requests: int) -> float:
    """Write them all; how long that took."""
    log = DecisionLog(directory, clock_s=time.monotonic, wall_s=time.time, flush_s=3_600.0)
    begun_s = time.monotonic()
    for number in range(requests):
        for record in records_of(number):
            log.write(record)
        if number % FLUSHED_EVERY == FLUSHED_EVERY - 1:
            log.flush()
    log.close()
    assert log.dropped == 0
    return time.monotonic() - begun_s


def timed(steps: Callable[[], Any]) -> tuple[float, Any]:
    begun_s = time.monotonic()
    found = steps()
    return time.monotonic() - begun_s, found


def looked_up(directory: Path, requests: int) -> dict[str, Any]:
    """By each of the names a request has, of requests at random: each finds its decision and its outcome."""
    random, shown = Random(7), {}
    names: dict[str, Callable[[int], str]] = {
        "id": name_of,
        "key": lambda number: f"key-{number}",
        "execution": lambda number: f"{number:032x}",
    }
    for kind, name in names.items():
        took_s = []
        for _ in range(LOOKUPS):
            number = random.randrange(requests)
            seconds, found = timed(partial(find, directory, name(number)))
            assert len(found) == (1 if kind == "execution" else 2), (kind, number, len(found))
            took_s.append(seconds)
        shown[kind] = {"median_s": round(statistics.median(took_s), 4), "most_s": round(max(took_s), 4)}
    return shown


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=10_000_000)
    arguments.add_argument("--under", type=Path, help="A directory on the disk to be used.")
    given = arguments.parse_args()
    requests = given.records // 2
    with tempfile.TemporaryDirectory(dir=given.under) as made:
        directory = Path(made)
        write_s = written(directory, requests)
        files = paths(directory)
        size_bytes = sum(path.stat().st_size for path in files)
        index_s, _ = timed(lambda: [log_index.make(path) for path in files])
        shown: dict[str, Any] = {
            "records": 2 * requests,
            "files": len(files),
            "bytes_a_request": round(size_bytes / requests, 1),
            "gigabytes": round(size_bytes / 1e9, 3),
            "index_gigabytes": round(sum(log_index.index_of(path).stat().st_size for path in files) / 1e9, 3),
            "write_s": round(write_s, 1),
            "index_s": round(index_s, 1),
            "look_up": looked_up(directory, requests),
        }
        log = DecisionLog(directory, clock_s=time.monotonic, wall_s=time.time, keep_days=30)
        delete_s, deleted = timed(lambda: log.delete("tenant-3"))
        log.close()
        assert deleted.lines >= requests // TENANTS * 2 and not deleted.busy
        assert find(directory, name_of(3)) == [] and len(find(directory, name_of(4))) == 2
        expire_s, _ = timed(
            lambda: DecisionLog(
                directory, clock_s=time.monotonic, wall_s=lambda: time.time() + 31 * 86_400, keep_days=30
            ).close()
        )
        shown |= {"delete_s": round(delete_s, 1), "expire_s": round(expire_s, 3), "files_left": len(paths(directory))}
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
