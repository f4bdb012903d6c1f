"""`headworks check FILE`: every problem and warning of a configuration file, or what it will enforce."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headworks.cli.jwt_notes import jwt_notes
from headworks.cli.key_notes import key_notes
from headworks.cli.tokenizer_notes import tokenizer_notes
from headworks.config.build import policy, settings
from headworks.config.checks_pools import replica_evidence
from headworks.config.load import Loaded, load
from headworks.config.problem import Problem
from headworks.config.schema import Config
from headworks.core.buckets import size
from headworks.core.policy import ClassPolicy, PoolPolicy, TenantPolicy
from headworks.core.quota import NANO


def check(
    file: Annotated[str, typer.Argument(help="The configuration file.")] = "headworks.yaml",
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Listening off loopback without TLS or keys is meant: something else protects it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print problems, warnings and what will be enforced as JSON.")] = False,
) -> None:
    """Read a configuration file: every problem with its line, or what will be enforced.

    Nothing is started and no engine is asked. Exit: 0 the file can be used, 1 it cannot, 2 it could not be read.
    """
    loaded = load(file, os.environ, exposed_ok=exposed)
    warnings, stored_keys = key_notes(loaded, os.environ, time.time())
    loaded = replace(loaded, warnings=(*warnings, *tokenizer_notes(loaded), *jwt_notes(loaded)))
    enforced = enforcement(loaded.config, os.environ, stored_keys) if loaded.config else None
    if json:
        _print_json(loaded, enforced)
    else:
        _print(loaded, enforced)
    if not loaded.is_readable:
        raise typer.Exit(2)
    if loaded.problems:
        raise typer.Exit(1)


def enforcement(config: Config, environment: Any, stored_keys: Mapping[str, int]) -> dict[str, Any]:
    """What a gateway started with this file would do, in plain values. No secret is among them."""
    rules, edges = policy(config, number=1), settings(config, environment)
    key_counts = {name: sum(key.tenant == name for key in edges.keys) + stored_keys.get(name, 0) for name in rules.tenants}
    return {
        "policy_version": rules.version,
        "mode": "observe" if rules.observe else "enforce",
        "listen": str(edges.listen),
        "admin": str(edges.admin),
        "admin_key": edges.admin_key is not None,
        "jwt": None if config.jwt is None else {"issuer": config.jwt.issuer, "audience": config.jwt.audience},
        "ledger": edges.ledger_url.partition("//")[0],
        "durability": edges.durability if edges.ledger_url.startswith("sqlite:") else None,
        "decision_log": edges.decision_log.directory,
        "usage_journal": edges.usage.directory,
        "classes": {name: _class(section) for name, section in rules.classes.items()},
        "tenants": {name: _tenant(section, key_counts[name]) for name, section in rules.tenants.items()},
        "pools": {name: _pool(section, config) for name, section in rules.pools.items()},
    }


def _class(section: ClassPolicy) -> dict[str, Any]:
    return {
        "share": section.share,
        "floor_ratio": section.floor_ratio,
        "ttft_s": section.ttft_slo_s,
        "tpot_s": section.tpot_slo_s,
        "e2e_s": section.e2e_slo_s,
        "wait_s_max": section.wait_s_max,
        "queue_requests_max": section.queue_requests_max,
        "queue_bytes_max": section.queue_bytes_max,
        "first_byte_s": section.first_byte_s,
        "idle_s": section.idle_s,
        "gateway_s": section.gateway_s,
        "on_tenant_full": section.on_tenant_full,
        "mode": "observe" if section.observe else "enforce",
    }


def _tenant(section: TenantPolicy, keys: int) -> dict[str, Any]:
    return {
        "keys": keys,
        "class": section.service_class,
        "classes": list(section.classes),
        "models": None if section.models is None else list(section.models),
        "active_tokens_max": section.active_tokens_max,
        "active_requests_max": section.active_requests_max,
        "queue_requests_max": section.queue_requests_max,
        "queue_bytes_max": section.queue_bytes_max,
        "share": section.share,
        "rate": None if section.rate is None else asdict(section.rate),
        "client_rate": None if section.client_rate is None else asdict(section.client_rate),
        "retry_ratio": section.retry_ratio,
        "quota": None if section.quota is None else asdict(section.quota),
        "mode": "observe" if section.observe else "enforce",
    }


def _pool(section: PoolPolicy, config: Config) -> dict[str, Any]:
    replicas = config.pools[section.name].replicas
    return {
        "models": list(section.models) or None,
        "active_tokens_max": section.active_tokens_max,
        "active_requests_max": section.active_requests_max,
        "kv_ratio_max": section.kv_ratio_max,
        "over_commit": section.over_commit,
        "prefill": {
            "heavy_tokens": section.heavy_tokens,
            "heavy_max": section.heavy_prefills_max,
            "tokens_in_flight_max": section.prefill_tokens_max,
        },
        "discipline": asdict(section.discipline),
        "evidence_min": section.evidence_min,
        "replicas": {
            named.name: {"url": replica.url, "engine": replica.engine, "evidence": list(replica_evidence(replica))}
            for named, replica in zip(section.replicas, replicas, strict=True)
        },
    }


def _print_json(loaded: Loaded, enforced: dict[str, Any] | None) -> None:
    found = {
        "file": loaded.file,
        "holds": loaded.config is not None,
        "problems": [asdict(problem) for problem in loaded.problems],
        "warnings": [asdict(warning) for warning in loaded.warnings],
        "enforced": enforced,
    }
    typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _print(loaded: Loaded, enforced: dict[str, Any] | None) -> None:
    console = Console(highlight=False)
    for warning in loaded.warnings:
        _print_problem(console, warning, "warning", "yellow")
    for problem in loaded.problems:
        _print_problem(console, problem, "problem", "bold red")
    if enforced is None:
        outcome = f"{loaded.file} cannot be used: {_counted(len(loaded.problems), 'problem')}."
    else:
        console.print(_table(enforced))
        outcome = f"{loaded.file} can be used; {_counted(len(loaded.warnings), 'warning')}."
    console.print(outcome, markup=False, soft_wrap=True)


def _print_problem(console: Console, problem: Problem, word: str, style: str) -> None:
    """One line each, never wrapped, so that an editor can jump to `file:line`."""
    console.print(Text.assemble((f"{word} ", style), str(problem)), soft_wrap=True)


def _counted(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _table(enforced: dict[str, Any]) -> Table:
    """Two columns, so that it reads at any width."""
    table = Table("What will be enforced", f"policy {enforced['policy_version']}", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("gateway", Text(_gateway_line(enforced)))
    for name, section in enforced["classes"].items():
        table.add_row(Text(f"class {name}"), Text(_class_line(section)))
    for name, section in enforced["tenants"].items():
        table.add_row(Text(f"tenant {name}"), Text(_tenant_line(section)))
    for name, section in enforced["pools"].items():
        table.add_row(Text(f"pool {name}"), Text(_pool_line(section)))
        for replica_name, replica in section["replicas"].items():
            proof = ", ".join(replica["evidence"])
            table.add_row(
                Text(f"replica {replica_name}"), Text(f"{replica['engine']} at {replica['url']}; proves a stop by {proof}")
            )
    return table


def _gateway_line(enforced: dict[str, Any]) -> str:
    mode = "decides and records, refuses nothing" if enforced["mode"] == "observe" else "enforces"
    key = "with a key" if enforced["admin_key"] else "without a key"
    log = f"decisions in {enforced['decision_log']}" if enforced["decision_log"] else "no decision log"
    power = ", synced with every batch" if enforced["durability"] == "power" else ""
    usage = f"usage in {enforced['usage_journal']}" if enforced["usage_journal"] else "no usage journal"
    ports = f"{mode} on {enforced['listen']}; admin on {enforced['admin']} {key}"
    tokens = f"; tokens of {enforced['jwt']['issuer']} for {enforced['jwt']['audience']}" if enforced["jwt"] else ""
    return f"{ports}{tokens}; ledger {enforced['ledger']}{power}; {log}; {usage}"


def _class_line(section: dict[str, Any]) -> str:
    promise = f"first token ≤ {section['ttft_s']:g} s" if section["ttft_s"] else "no promise of a first token"
    waits = f"waits ≤ {section['wait_s_max']:g} s, {section['queue_requests_max']} in queue"
    times = f"engine silent ≤ {section['first_byte_s']:g} s, then {section['idle_s']:g} s; in all ≤ {section['gateway_s']:g} s"
    full = "refuses at once" if section["on_tenant_full"] == "refuse" else "waits"
    share = f"share {section['share']:g}" + (f", at least {section['floor_ratio']:.0%}" if section["floor_ratio"] else "")
    return f"{share}; {promise}; {waits}; {times}; {full} when its tenant is full{_observed(section)}"


def _tenant_line(section: dict[str, Any]) -> str:
    classes = f"{section['class']} unless it asks for one of {', '.join(section['classes'])}"
    models = "any model" if section["models"] is None else ", ".join(section["models"])
    limits = [
        f"≤ {section[key]} {unit}"
        for key, unit in (
            ("active_tokens_max", "tokens"),
            ("active_requests_max", "sequences"),
            ("queue_requests_max", "in queue"),
            ("queue_bytes_max", "bytes in queue"),
        )
        if section[key] is not None
    ]
    limits += [*_rate_words(section["rate"], ""), *_rate_words(section["client_rate"], " by each key")]
    if section["retry_ratio"] is not None:
        limits.append(f"retries ≤ {section['retry_ratio']:.0%} of first attempts")
    limits += _quota_words(section["quota"])
    who = f"{_counted(section['keys'], 'key')}; share {section['share']:g}; {classes}"
    return f"{who}; {models}; {', '.join(limits) or 'no limit'}{_observed(section)}"


def _rate_words(rate: dict[str, Any] | None, whose: str) -> list[str]:
    """The sizes are those in force, also where the file does not state them."""
    if rate is None:
        return []
    found = []
    for unit, debt in (("tokens", rate["debt_tokens_max"]), ("requests", 0)):
        per_s = rate[f"{unit}_per_s"]
        if per_s is not None:
            borrowed = f" and {debt} borrowed" if debt else ""
            found.append(f"{per_s:g} {unit}/s{whose}, {size(per_s, rate[f'burst_{unit}'])} at once{borrowed}")
    return found


def _quota_words(quota: dict[str, Any] | None) -> list[str]:
    if quota is None:
        return []
    money = None if quota["nanomoney"] is None else quota["nanomoney"] / NANO
    amounts = ((quota["tokens"], "tokens"), (money, "money"))
    return [f"≤ {amount:,.10g} {unit} a {quota['period']}" for amount, unit in amounts if amount is not None]


def _observed(section: dict[str, Any]) -> str:
    return "; observed only, nothing is refused" if section["mode"] == "observe" else ""


def _pool_line(section: dict[str, Any]) -> str:
    models = ", ".join(section["models"]) if section["models"] else "the engines' models"
    amounts = ((section["active_tokens_max"], "tokens"), (section["active_requests_max"], "sequences"))
    limits = ", ".join(f"≤ {limit} {unit}" if limit else f"{unit} as the engines say" for limit, unit in amounts)
    order = f"next by {section['discipline']['kind']}"
    return f"{models}; {limits}; KV ≤ {section['kv_ratio_max']:g}; {order}; frees on evidence of {section['evidence_min']}"
