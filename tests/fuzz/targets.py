"""Every target by its name, and words that a fuzzer may put together. `scripts/fuzz NAME --seconds N` runs one."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import edge_targets, engine_targets, store_targets

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {
    one.__name__: one
    for one in (
        edge_targets.body,
        edge_targets.head,
        edge_targets.key,
        edge_targets.image,
        engine_targets.stream,
        engine_targets.noise,
        engine_targets.answer,
        engine_targets.metrics,
        engine_targets.pages,
        store_targets.config,
        store_targets.journal,
        store_targets.row,
        store_targets.file,
        store_targets.lines,
        store_targets.lua,
    )
}
NEEDS_A_STORE = frozenset({"lua"})
"""Left out where no server is to be had."""
WORDS: dict[str, tuple[str, ...]] = {
    "body": (
        *('"model":"tiny"', '"messages":[', '{"role":"user","content":', '"prompt":', '"input":', '"max_tokens":', '"n":'),
        *('"tools":[', '"type":"function"', '"function":{"name":"f","parameters":{}}', '"stream":true', '"stop":', "\\\\u0041"),
        *('"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":', '"image_url":{"url":"data:image/png;'),
        *('"min_tokens":', '"ignore_eos":true', '"truncate_prompt_tokens":', '"best_of":', '"api_base":', '"chat_template":'),
        *('"thinking":{"type":"enabled","budget_tokens":', '"system":', '"tool_choice":', '"$ref":', '"anyOf":[', '"user":'),
        *('"max_completion_tokens":', '"stream_options":{"include_usage":true}', '"tokens":[', '"@~secret~of~a~prompt~@"'),
    ),
    "head": (
        *("GET ", "POST ", " HTTP/1.1\\x0d\\x0a", " HTTP/1.0\\x0d\\x0a", "Host: edge\\x0d\\x0a", "Content-Length: ", "chunked"),
        *("Transfer-Encoding: ", "Connection: ", "keep-alive", "close", "Expect: 100-continue", "Upgrade: ", "http://edge/"),
        *("%2e", "%2f", "%00", "\\x0d\\x0a", "\\x0a", "\\x09", "Authorization: Bearer ", "TE: trailers", "Cookie: a=1"),
    ),
    "key": ("Bearer ", "bearer ", "a-secret-of-the-fuzzer-0123456789", "\\x00", "\\x0b", "\\x85"),
    "image": (
        "\\x89PNG\\x0d\\x0a\\x1a\\x0a",
        "IHDR",
        "\\xff\\xd8\\xff",
        "\\xff\\xc0",
        "GIF89a",
        "RIFF",
        "WEBP",
        "VP8X",
        "VP8L",
        "VP8 ",
    ),
    "answer": (
        *("HTTP/1.1 200 OK\\x0d\\x0a", "HTTP/1.0 200 OK\\x0d\\x0a", "Content-Length: ", "Transfer-Encoding: chunked\\x0d\\x0a"),
        *(
            "\\x0d\\x0a\\x0d\\x0a",
            "0\\x0d\\x0a\\x0d\\x0a",
            "5\\x0d\\x0ahello\\x0d\\x0a",
            "Connection: close\\x0d\\x0a",
            "HTTP/1.1 100 ",
        ),
    ),
    "metrics": (
        "vllm:num_requests_running",
        "process_start_time_seconds",
        '{engine="0"}',
        " 1\\x0a",
        "# TYPE ",
        " gauge\\x0a",
        "+Inf",
    ),
    "noise": (
        "data: ",
        "\\x0a\\x0a",
        '{"choices":[',
        '"finish_reason":null',
        '"finish_reason":"stop"',
        '"usage":',
        "[DONE]",
        '"error"',
    ),
    "config": (
        *(
            "pools:",
            "\\x0a  ",
            "replicas: [",
            "{url: ",
            "http://127.0.0.1:8000",
            "engine: vllm",
            "tenants:",
            "classes:",
            "&a",
            "*a",
        ),
        *(
            "<<: ",
            "keys: ",
            "env:ACME_KEY",
            "ledger: {url: ",
            "valkey://",
            "sqlite:",
            "share: ",
            "weight: ",
            "wait_s_max: ",
            "!!",
        ),
    ),
    "lines": (
        *(
            '{"kind":"form","record":{',
            '{"kind":"fields","record":{',
            '"names":[',
            '"otherwise":{',
            '"number":',
            '["decision",',
            "\\x0a",
        ),
        *(
            '{"rates":{"p":{"replicas":["p/0"],"nanomoney_per_h":',
            '"at_utc_s":',
            '"tenant":"acme"',
            '"charged_utc_s":',
            '"execution":',
        ),
        *('"sent_utc_s":', '"ended_utc_s":', '"replica":"p/0"', '"pool":"p"', "1796083200", "1796090000.5"),
    ),
}

if __name__ == "__main__":
    print("\n".join(TARGETS))
