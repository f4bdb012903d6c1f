// What is shown, and from which place of a look. There is no arithmetic here: a figure that is wanted is made by the gateway.

import { at, element, named, put } from "./figures.js";
import { Spark } from "./spark.js";
import { nameColumn, Table } from "./tables.js";

const TENANTS_SHOWN = 12;
const TONES = { ready: "calm", closed: "calm", half_open: "wait", draining: "wait" };

/** A figure with its picture: what it is, how much, of how much, and a second thing worth knowing. */
class Vital {
  constructor(history, { label, place, kind = "count", unit = "", of = null, beside = [], ...picture }) {
    this.figures = [];
    const big = element("p", { class: "big" }, this.#figure(place, kind));
    if (unit) big.append(element("span", { class: "soft" }, ` ${unit}`));
    if (of) big.append(element("span", { class: "soft" }, " of ", this.#figure(of, kind)));
    const small = element("p", { class: "beside" });
    for (const [before, its, how, after] of beside) {
      small.append(element("span", {}, before, this.#figure(its, how), after));
    }
    this.spark = new Spark(history, { line: place, limit: of, ...picture });
    this.node = element("div", { class: "vital" }, element("h3", {}, label), big, small, this.spark.svg);
  }

  #figure(place, kind) {
    const node = element("span");
    this.figures.push([node, place, kind]);
    return node;
  }

  show(look) {
    for (const [node, place, kind] of this.figures) put(node, look, place, kind);
    this.spark.draw(look);
  }
}

const FLOW = [
  { label: "Admitted", place: ["decided", "admit", "per_s"], kind: "rate", unit: "/s" },
  { label: "Had to wait first", place: ["decided", "queue", "per_s"], kind: "rate", unit: "/s", tone: "wait" },
  { label: "Refused", place: ["decided", "refuse", "per_s"], kind: "rate", unit: "/s", tone: "bad" },
  { label: "Tokens written", place: ["tokens", "output_per_s"], kind: "rate", unit: "/s" },
  {
    label: "Written for nobody",
    place: ["tokens", "wasted_per_s"],
    kind: "rate",
    unit: "/s",
    tone: "bad",
    beside: [["", ["tokens", "wasted_ratio"], "ratio", " of what was written"]],
  },
];

function poolVitals(name) {
  const of = (...place) => ["pools", name, ...place];
  return [
    {
      label: "Sequences",
      place: of("requests"),
      of: of("requests_limit"),
      beside: [["", of("engines", "running"), "count", " inside,"], [" ", of("engines", "waiting"), "count", " waiting there"]],
    },
    { label: "Tokens reserved", place: of("tokens"), of: of("tokens_limit") },
    {
      label: "Memory in use",
      place: of("engines", "kv_used_ratio"),
      kind: "ratio",
      most: 1,
      beside: [["pressure ", of("pressure", "utilisation_ratio"), "ratio", ""]],
    },
    {
      label: "Waiting",
      place: of("queued_requests"),
      tone: "wait",
      beside: [["", of("queued_tokens"), "count", " tokens"]],
    },
    {
      label: "Drains",
      place: of("drain_tokens_per_s"),
      kind: "rate",
      unit: "tokens/s",
      beside: [["known to ±", of("drain_error_ratio"), "ratio", ""]],
    },
    {
      label: "Orphans",
      place: of("orphans", "requests"),
      tone: "bad",
      beside: [["", of("orphans", "tokens"), "count", " tokens,"], [" oldest ", of("orphans", "oldest_s"), "seconds", ""]],
    },
  ];
}

/** What comes and goes, over all pools. */
export function flow(section, history) {
  const vitals = FLOW.map((one) => new Vital(history, one));
  section.querySelector(".vitals").append(...vitals.map((one) => one.node));
  const span = section.querySelector("#span");
  return (look) => {
    put(span, look, ["span_s"], "seconds");
    for (const one of vitals) one.show(look);
  };
}

/** Load against capacity: a band for each pool. */
export function pools(container, history) {
  const bands = new Map();
  return (look) => {
    for (const name of Object.keys(look.pools)) {
      if (bands.has(name)) continue;
      const title = element("h2", {}, "Pool ", named(name));
      const vitals = poolVitals(name).map((one) => new Vital(history, one));
      const band = element("div", { class: "vitals" }, ...vitals.map((one) => one.node));
      const section = element("section", { "aria-label": `Pool ${name}` }, title, band);
      bands.set(name, { section, vitals });
      container.append(section);
    }
    for (const [name, { section, vitals }] of bands) {
      section.hidden = !(name in look.pools);
      if (!section.hidden) for (const one of vitals) one.show(look);
    }
  };
}

export function classes(section, history) {
  const of = (field) => (name) => ["classes", name, field];
  const table = new Table(section, {
    caption: "Classes of service, and how their promises are kept",
    history,
    columns: [
      nameColumn("class"),
      {
        label: "first token p95",
        kind: "seconds",
        place: of("ttft_p95_s"),
        also: { before: "of", kind: "seconds", place: (name) => ["classes", name, "promises", "ttft_s"] },
      },
      { label: "arrivals/s", kind: "rate", place: of("arrivals_per_s") },
      { label: "good/s", kind: "rate", place: of("good_per_s") },
      { label: "good", kind: "ratio", place: of("good_lately_ratio") },
      { label: "refused/s", kind: "rate", place: of("refused_per_s") },
      { label: "waiting", kind: "count", place: of("queued_requests") },
      {
        label: "good of arrivals",
        spark: (name) => ({ line: of("good_per_s")(name), behind: of("arrivals_per_s")(name), tone: "good" }),
      },
    ],
  });
  return (look) => table.show(look, Object.keys(look.classes));
}

/** What waits, longest lines first. A row is a pool's flow. */
export function queue(section) {
  const places = new Map();
  const of = (field) => (key) => [...places.get(key), field];
  const part = (number) => (key) => places.get(key)[3].split("/")[number];
  const table = new Table(section, {
    caption: "Requests that wait, by class and tenant",
    nothing: "Nobody waits.",
    columns: [
      nameColumn("class", part(0)),
      nameColumn("tenant", (key) => places.get(key)[3].slice(part(0)(key).length + 1)),
      nameColumn("pool", (key) => places.get(key)[1]),
      { label: "waiting", kind: "count", place: of("requests") },
      { label: "tokens", kind: "count", place: of("tokens") },
      { label: "head has waited", kind: "seconds", place: of("head_waited_s") },
      { label: "a newcomer would wait", kind: "seconds", place: of("wait_s") },
    ],
  });
  return (look) => {
    const found = [];
    for (const [pool, its] of Object.entries(look.pools)) {
      for (const [line, waiting] of Object.entries(its.queue)) {
        const key = JSON.stringify([pool, line]);
        places.set(key, ["pools", pool, "queue", line]);
        found.push([waiting.tokens, key]);
      }
    }
    found.sort((one, other) => other[0] - one[0] || (one[1] < other[1] ? -1 : 1));
    table.show(look, found.map((one) => one[1]));
    const kept = new Set(found.map((one) => one[1]));
    for (const key of places.keys()) if (!kept.has(key)) places.delete(key);
  };
}

export function tenants(section, history) {
  const of = (field) => (name) => ["tenants", name, field];
  const table = new Table(section, {
    caption: "Tenants: what they use of their limits, and what was decided for them",
    history,
    columns: [
      nameColumn("tenant"),
      { label: "tokens", kind: "count", place: of("tokens"), also: { before: "of", kind: "count", place: of("tokens_max") } },
      { label: "running", kind: "count", place: of("requests"), also: { before: "of", kind: "count", place: of("requests_max") } },
      { label: "waiting", kind: "count", place: of("queued_requests") },
      { label: "admitted/s", kind: "rate", place: of("admitted_per_s") },
      { label: "refused/s", kind: "rate", place: of("refused_per_s") },
      { label: "reserved ÷ used", kind: "times", place: of("reserved_over_used_ratio") },
      { label: "tokens held", spark: (name) => ({ line: of("tokens")(name), limit: of("tokens_max")(name) }) },
    ],
  });
  const more = element("button", { type: "button", class: "more", "aria-expanded": "false" }, "Show all");
  section.append(more);
  let all = false;
  more.addEventListener("click", () => {
    all = !all;
    more.setAttribute("aria-expanded", String(all));
    more.textContent = all ? "Show fewer" : "Show all";
  });
  return (look) => {
    let names = Object.keys(look.tenants);
    more.hidden = names.length <= TENANTS_SHOWN;
    if (!more.hidden && !all) {
      const held = (name) => look.tenants[name].tokens + look.tenants[name].queued_tokens;
      names = names.sort((one, other) => held(other) - held(one) || (one < other ? -1 : 1)).slice(0, TENANTS_SHOWN);
    }
    table.show(look, names);
  };
}

/** A row is an engine of a pool. */
export function engines(section, history) {
  const of = (...fields) => (key) => ["pools", JSON.parse(key)[0], "replicas", JSON.parse(key)[1], ...fields];
  const table = new Table(section, {
    caption: "Engines: whether they serve, what proves that their work has stopped, and what they hold",
    history,
    columns: [
      nameColumn("engine", (key) => JSON.parse(key)[1]),
      { label: "state", align: "word", draw: (cell, key) => pill(cell, of("state")(key)) },
      { label: "breaker", align: "word", draw: (cell, key) => pill(cell, of("breaker")(key)) },
      { label: "stop evidence", kind: "list", align: "word number", place: of("evidence") },
      { label: "unproved", kind: "count", place: of("unproved") },
      { label: "running", kind: "count", place: of("running"), also: { before: "of", kind: "count", place: of("limit_running") } },
      { label: "waiting inside", kind: "count", place: of("waiting") },
      { label: "memory", kind: "ratio", place: of("kv_used_ratio") },
      { label: "step", kind: "milliseconds", place: of("step_s") },
      { label: "seen", kind: "seconds", place: of("sample_age_s") },
      { label: "memory lately", spark: (key) => ({ line: of("kv_used_ratio")(key), most: 1 }) },
    ],
  });
  return (look) => {
    const keys = [];
    for (const [pool, its] of Object.entries(look.pools)) {
      for (const name of Object.keys(its.replicas)) keys.push(JSON.stringify([pool, name]));
    }
    table.show(look, keys);
  };
}

/** A state in words, with a colour that says nothing beside them. */
function pill(cell, place) {
  const word = element("span");
  const shown = element("span", { class: "pill" }, word);
  cell.append(shown);
  return (look) => {
    put(word, look, place, "words");
    shown.dataset.tone = TONES[at(look, place)] ?? "bad";
  };
}

export function refusals(section, history) {
  const of = (field) => (reason) => ["refusals", reason, field];
  const table = new Table(section, {
    caption: "Refused requests by reason",
    nothing: "Nothing has been refused since this gateway began.",
    history,
    columns: [
      nameColumn("reason"),
      { label: "/s", kind: "rate", place: of("per_s") },
      { label: "so far", kind: "count", place: of("total") },
      { label: "refused/s", spark: (reason) => ({ line: of("per_s")(reason), tone: "bad" }) },
    ],
  });
  return (look) => table.show(look, Object.keys(look.refusals));
}
