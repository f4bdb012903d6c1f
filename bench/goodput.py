"""How much of an engine's peak is delivered on time when far more is asked for than it can do, by way of admitting.

Virtual time; the engine is `continuous_batching` (default preset: an 8B model on an A100). Arrivals are those of a
recorded trace, stretched to a rate; traces without tenants get 20, drawn by Zipf(1.1); each request is of a class,
drawn 70 % interactive, 20 % batch, 10 % bulk, promised its first token within 1, 5 and 15 times what the trace's row
in `goodput_world.PROMISES` says, and a pace. Clients lose patience at twice their promise, 2 % leave on a whim, and
all retry as the stock SDK does, at most twice. `headworks` is the product's own gate and ledger book with a
configuration that states promises, classes, tenants and how much memory is kept free, and nothing else about the engine
(`headworks_default_gate`: not that either); the baselines are those of
`sim/baseline_*.py`, tuned with what was measured at saturation; `oracle` knows every output (`sim/oracle.py`). Nobody
else sees an output before it is made, and gauges are 0.2 to 2 s old.

*Saturation*: the largest rate at which at least 99 % of requests meet their promises on the engine alone, all sent as
they come, over all seeds. *k*: the rate offered ÷ saturation. *Peak*: what `no_control` delivers at k = 1 with the
same seeds. Counted is the run after its warm-up:

- `goodput_of_peak`: tokens (prompt and output) per second of requests that ended in it, met every promise of their
  class, counted from their own attempt, and were still wanted ÷ the same at the peak; `requests_of_peak`: of
  requests;
- `success_ratio`: of unique wishes, those that got such an answer in any attempt before the traffic ended;
  `attempts`: per wish;
- `wasted_ratio`: of the tokens the engine worked on, those of answers nobody got in full;
- `false_refusal_ratio`: of the attempts that were turned away (in two stretches), those that together could have
  been inserted into the actual run, on time, making nobody late: how is said in `sim/insertion.py`;
  `false_refusal_unpreempting_ratio`: without the engine taking memory back from another for it, which a promise of less
  than one preemption in a thousand rules out;
- `late_ratio`: of those sent to the engine and not left on a whim, those whose promise was not kept, or whose answer
  was cut;
- `reserved_over_used`: output tokens reserved at the end ÷ made, where the policy reserves any;
- `preemptions_per_1000` of requests sent; `ttft_p99_s` of those that got a first token, by class, from the attempt.

`intervals` are those of the mean over the seeds, 95 %.

    python bench/goodput.py --json [--quick] [--trace NAME,…] [--policy NAME,…] [--k 2,3,5] [--seeds 5] [--stress]

`--quick`: one trace, one seed, k = 3, a shorter run, within 50 s on two cores that nobody else uses. `--stress`:
headworks, the oracle and the best baselines with every step-time coefficient 25 % too high, too low, and now this now
that; with lengths off by up to 60 %; and with an engine at half speed for a minute. Peaks are those of the engine without
the stress. Exit 1 where headworks misses a target. `--out DIRECTORY` writes goodput.md and goodput.json there; with
`--more` beside what is in that goodput.json already, measured in the same way: other traces, and of the same traces other
policies and multiples. So a long table can be made in parts, and one policy anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from goodput_figures import Window, figures, over_seeds
from goodput_page import missed, page, picture
from goodput_saturation import Saturation, measured
from goodput_world import (
    DEFAULT_GATE,
    MEASURED_S_MIN,
    MEASURED_S_QUICK,
    PROMISES,
    Ground,
    Variation,
    ground,
    setup,
    traffic,
)
from headworks.sim.baseline_published import RULES
from headworks.sim.simulation import Simulation

POLICIES = ("headworks", "oracle", *RULES, DEFAULT_GATE)
QUICK_TRACE = "servegen_mlarge_1h"
REQUESTS_MEASURED, REQUESTS_QUICK = 1500, 300
"""So many come at saturation in the part of a run that is counted."""
REFUSALS_TRIED, REFUSALS_QUICK = 300, 60
SETTINGS = ("engine", "seeds", "requests", "seconds", "refusals")
PLACES_TRIED = (0.5, 1.0, 1.5, 2.0, 3.0, 4.5)
STRESS_POLICIES = ("headworks", "oracle", "queue_by_rate", "codel_lifo", "gradient2", "utilisation_gate")
STRESSES = (
    Variation("coefficients_high", cost_ratios=(1.25, 1.25, 1.25, 1.25, 1.25)),
    Variation("coefficients_low", cost_ratios=(0.75, 0.75, 0.75, 0.75, 0.75)),
    Variation("coefficients_mixed", cost_ratios=(1.25, 0.75, 1.25, 0.75, 1.25)),
    Variation("length_noise", length_noise_ratio=0.6),
    Variation("half_speed", slow_factor=2.0, slow_for_s=60.0),
)


def main() -> int:
    options = parsed()
    started_s = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as processes:
        run = processes.map if options.processes > 1 else map
        report = measure(options, run)
    report["took_s"] = round(time.perf_counter() - started_s, 1)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "goodput.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "goodput.md").write_text(page(report))
        picture(report, options.out / "goodput.png")
    print(json.dumps(report, indent=1) if options.json else page(report))
    return 1 if missed(report) else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="goodput past saturation, by way of admitting")
    parser.add_argument("--trace", default=",".join(PROMISES))
    parser.add_argument("--policy", default=",".join(one for one in POLICIES if one != DEFAULT_GATE))
    parser.add_argument("--k", default="2,3,5")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=REQUESTS_MEASURED, help="at saturation, in what is counted")
    parser.add_argument("--seconds", type=float, default=MEASURED_S_MIN, help="counted at least, longer than answers take")
    parser.add_argument("--refusals", type=int, default=REFUSALS_TRIED, help="refused attempts tried again, a run")
    parser.add_argument("--engine", default="a100_8b", help="a preset of sim/presets.py")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stress", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--more", action="store_true", help="keep the other traces of --out's goodput.json")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.k, options.refusals = 1, "3", min(options.refusals, REFUSALS_QUICK)
        options.requests, options.seconds = min(options.requests, REQUESTS_QUICK), MEASURED_S_QUICK
        options.trace = options.trace if options.trace != parser.get_default("trace") else QUICK_TRACE
    options.traces, options.policies = options.trace.split(","), options.policy.split(",")
    for name, known in [*((one, PROMISES) for one in options.traces), *((one, POLICIES) for one in options.policies)]:
        if name not in known:
            parser.error(f"{name!r} is not one of {', '.join(known)}")
    options.multiples = [float(one) for one in options.k.split(",")]
    return options


Run = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]


def measure(options: argparse.Namespace, run: Run) -> dict[str, Any]:
    """Saturation of every trace, its peak, then every policy at every multiple."""
    report: dict[str, Any] = {name: getattr(options, name) for name in SETTINGS}
    report |= {"saturation": {}, "traces": {}, "variations": {}}
    if options.more and options.out is not None:
        report |= _already(options.out / "goodput.json", report)
    for name in options.traces:
        plain = ground(name, options.engine, Variation(), options.seconds)
        found = measured(plain, list(range(1, options.seeds + 1)), options.requests)
        tune(options, plain, found)
        say(f"{name}: saturation {found.rate_per_s:.2f} requests/s, {found.places} places")
        peaks = list(run(one_run, [_task(options, plain, found, "no_control", 1.0, s) for s in range(1, options.seeds + 1)]))
        told_before = report["traces"].get(name, {})
        places_before = report["saturation"].get(name, {}).get("places_tuned", 0)
        report["saturation"][name] = found.shown(over_seeds(peaks)) | ({} if found.places else {"places_tuned": places_before})
        report["traces"][name] = beside(told_before, compared(options, plain, found, peaks, run, options.policies))
        for variation in STRESSES if options.stress else ():
            stressed = ground(name, options.engine, variation, options.seconds)
            chosen = [one for one in options.policies if one in STRESS_POLICIES]
            told = report["variations"].setdefault(variation.name, {})
            told[name] = compared(options, stressed, found, peaks, run, chosen)
    return report


def _already(path: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """What was measured before in the same way."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found if all(found.get(name) == wanted[name] for name in SETTINGS) else {}


def beside(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was measured before and is not measured anew stays."""
    return before | {policy: before.get(policy, {}) | by_k for policy, by_k in new.items()}


def tune(options: argparse.Namespace, place: Ground, found: Saturation) -> None:
    """The number of places is what most depends on, so a few multiples of what ran at saturation are tried at k = 3."""
    if not any(name in RULES and name != "no_control" for name in options.policies):
        return
    tried: dict[int, float] = {}
    for ratio in PLACES_TRIED:
        places = max(1, round(ratio * found.inside_mean))
        if places not in tried:
            made = dataclasses.replace(found, places=places)
            tried[places] = one_run((place, made, "tail_drop", 3.0, 0, options.requests, 0))["goodput_tokens_per_s"]
    found.places = max(tried, key=tried.__getitem__)


def compared(
    options: argparse.Namespace, place: Ground, found: Saturation, peaks: list[dict[str, Any]], run: Run, policies: list[str]
) -> dict[str, Any]:
    """The figures of each policy at each multiple, over the seeds."""
    cases = [(name, k) for name in policies for k in options.multiples]
    tasks = [_task(options, place, found, name, k, seed) for name, k in cases for seed in range(1, options.seeds + 1)]
    runs = list(run(one_run, tasks))
    told: dict[str, Any] = {}
    for number, (name, k) in enumerate(cases):
        ours = runs[number * options.seeds : (number + 1) * options.seeds]
        told.setdefault(name, {})[f"{k:g}"] = over_seeds([_of_peak(one, peaks) for one in ours])
    return told


def _of_peak(run: dict[str, Any], peaks: list[dict[str, Any]]) -> dict[str, Any]:
    """Against the mean peak: the seeds of one rate and of another are different stretches of the trace."""
    shown = dict(run)
    for of_peak, rate in (("goodput_of_peak", "goodput_tokens_per_s"), ("requests_of_peak", "goodput_requests_per_s")):
        shown[of_peak] = shown.pop(rate) / max(1e-9, sum(peak[rate] for peak in peaks) / len(peaks))
    return shown


Task = tuple[Ground, Saturation, str, float, int, int, int]


def _task(options: argparse.Namespace, place: Ground, found: Saturation, name: str, k: float, seed: int) -> Task:
    return place, found, name, k, seed, options.requests, options.refusals if k > 1 else 0


def one_run(task: Task) -> dict[str, Any]:
    """One policy, one multiple, one seed."""
    place, found, name, k, seed, requests, refusals_max = task
    started_s = time.perf_counter()
    warm_s, measured_s = place.lengths_s(found.rate_per_s, requests)
    offered = traffic(place, k * found.rate_per_s, warm_s + measured_s, seed)
    made, engine = setup(place, offered, name, found.tuning(), warm_s + measured_s, seed)
    simulation = Simulation(made)
    simulation.run()
    ran_s = time.perf_counter() - started_s
    reserves = name in ("headworks", DEFAULT_GATE) or (name in RULES and RULES[name].reserves)
    shown = figures(Window(place, simulation, engine, warm_s), reserves=reserves, refusals_max=refusals_max)
    say(
        f"  {place.trace.name} {name} k={k:g} seed {seed}: {shown['goodput_tokens_per_s']:.0f} tokens/s good, "
        f"late {shown['late_ratio']:.1%}, {ran_s:.1f} s + {time.perf_counter() - started_s - ran_s:.1f} s"
    )
    return shown


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
