// Puts the page together: the feed on one side, the sections on the other, and what a person may press between.

import { Feed, forgetKey, hasKey, keepKey } from "./feed.js";
import { at, element, named, put } from "./figures.js";
import { classes, engines, flow, pools, queue, refusals, tenants } from "./sections.js";
import { History } from "./spark.js";
import { decisions, Story } from "./story.js";

const FACTS = [
  ["gateway", ["gateway"], "text"],
  ["mode", ["mode"], "text"],
  ["policy", ["policy_version"], "text"],
  ["look", ["version"], "count"],
  ["UTC", ["utc"], "clock"],
];
const THEMES = ["auto", "light", "dark"];
const THEME = "headworks-theme";

const $ = (name) => document.getElementById(name);
const history = new History();
const story = new Story($("story"));
const sections = [
  flow($("flow"), history),
  pools($("pools"), history),
  classes($("classes"), history),
  queue($("queue")),
  tenants($("tenants"), history),
  engines($("engines"), history),
  refusals($("refusals"), history),
  decisions($("decisions"), story),
];
const facts = FACTS.map(([label, place, kind]) => {
  const value = element("dd", { "data-name": "" });
  $("facts").append(element("div", {}, element("dt", {}, label), value));
  return [value, place, kind];
});
let paused = false;
let boot = null;
let newest = null;

const feed = new Feed(onLook, onState);

function onLook(look) {
  if (boot !== look.boot) history.clear();
  boot = look.boot;
  newest = look;
  history.add(look);
  if (!paused) draw(look);
}

function draw(look) {
  $("main").hidden = false;
  $("facts").hidden = $("pause").hidden = false;
  for (const [node, place, kind] of facts) put(node, look, place, kind);
  $("facts").dataset.mode = look.mode;
  notices(look);
  for (const show of sections) show(look);
  document.title = `headworks: ${look.gateway}`;
  document.body.dataset.version = look.version;
}

/** Sentences of the gateway about itself. They are read aloud, so they only change when they do. */
function notices(look) {
  const places = [
    ...look.obstacles.map((_, number) => ["obstacles", number]),
    ...look.troubles.map((_, number) => ["troubles", number]),
  ];
  const said = places.map((place) => at(look, place));
  if (!look.ledger_available) said.unshift("The ledger does not answer.");
  if (look.mode === "observe") said.push("It only observes: it decides and writes down, and refuses nothing.");
  const text = JSON.stringify(said);
  if ($("notices").dataset.said === text) return;
  $("notices").dataset.said = text;
  $("notices").replaceChildren(...said.map((line) => element("li", {}, named(line))));
}

function onState(state, said) {
  $("login").hidden = state !== "locked";
  $("forget").hidden = !hasKey() || state === "locked";
  if (state === "locked") {
    const wrong = hasKey();
    forgetKey();
    $("main").hidden = $("facts").hidden = $("pause").hidden = true;
    $("login-said").textContent = wrong ? said : "";
    $("key").value = "";
    $("key").focus();
  }
  document.body.dataset.state = state;
  $("status").dataset.state = state === "live" && paused ? "paused" : state;
  const text = statusText(state, said);
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
}

function statusText(state, said) {
  if (state === "locked") return "locked";
  if (state === "live") return paused ? "paused" : "live";
  if (!newest) return state === "connecting" ? "connecting" : `not connected: ${said}`;
  return `stale since ${newest.utc.slice(11, 19)} UTC: ${said}`;
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key)) {
    $("login-said").textContent = "A key has no spaces and no letters beyond ASCII.";
    return;
  }
  keepKey(key);
  $("login-said").textContent = "";
  feed.again();
});

$("forget").addEventListener("click", () => {
  forgetKey();
  feed.drop();
  feed.again();
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  onState(document.body.dataset.state, "");
  if (!paused && newest) draw(newest);
});

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("asked").value.trim();
  if (id) story.open(id);
});

function wear(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
}

$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, next);
  wear(next);
});

wear(THEMES.includes(localStorage.getItem(THEME)) ? localStorage.getItem(THEME) : "auto");
feed.run();
