// The decisions as they are made, and the story of one of them: what was asked, what decided, what would have helped.

import { element, named, put } from "./figures.js";
import { headers } from "./feed.js";
import { Table } from "./tables.js";

const WRITTEN_AFTER_MS = 700;
const SAID = { admit: "admitted", queue: "waits", refuse: "refused" };
const TONES = { admit: "calm", queue: "wait", refuse: "bad" };

/** A dialog with the story of a request. */
export class Story {
  constructor(dialog) {
    this.dialog = dialog;
    this.text = dialog.querySelector(".story");
    this.asked = null;
  }

  async open(id) {
    this.asked = id;
    this.#say([`Asking for ${id} …`]);
    if (!this.dialog.open) this.dialog.showModal();
    let found = await ask(id);
    if (found.isUnknown) {
      // What has just been decided is in the log within half a second.
      await new Promise((wake) => setTimeout(wake, WRITTEN_AFTER_MS));
      found = await ask(id);
    }
    if (this.asked === id) this.#say(found.lines);
  }

  #say(lines) {
    this.text.replaceChildren(...lines.map((line) => element("p", { "data-name": "" }, line)));
  }
}

async function ask(id) {
  let answer;
  try {
    answer = await fetch(`admin/explain/${encodeURIComponent(id)}`, { headers: headers(), cache: "no-store" });
    const body = await answer.json();
    if (answer.ok) return { lines: body.story };
    if (answer.status !== 404) return { lines: [body.error.message] };
  } catch {
    return { lines: ["The gateway cannot be reached."] };
  }
  return { isUnknown: true, lines: [`Nothing is known of ${id}. The decision log (log.decisions) may not be kept, or not for so long.`] };
}

/** The last decisions, newest first. The list stands still while somebody is in it, so that a row can be taken. */
export function decisions(section, story) {
  const index = new Map();
  const of = (field) => (key) => ["decisions", index.get(key), field];
  const columns = [
    { label: "UTC", kind: "clock", place: of("utc"), align: "word number" },
    { label: "for", align: "word", draw: (cell, key) => asker(cell, key, of) },
    { label: "decided", align: "word", draw: (cell, key) => decided(cell, key, of) },
    { label: "tokens", kind: "count", place: of("tokens") },
    { label: "waited", kind: "waited", place: of("waited_s") },
    { label: "story", align: "word number", draw: (cell, key) => void cell.append(opener(key, story)) },
  ];
  const frame = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The last decisions" });
  section.append(frame);
  const table = new Table(frame, { caption: "The last decisions, newest first", nothing: "None of these yet.", columns });
  const held = section.querySelector(".held");
  const isHeld = () => frame.matches(":hover") || (frame.contains(document.activeElement) && document.activeElement !== frame);
  let wanted = "";
  let newest = null;
  const show = (look) => {
    index.clear();
    look.decisions.forEach((one, number) => {
      if (!wanted || one.outcome === wanted) index.set(JSON.stringify([one.id, one.outcome]), number);
    });
    table.show(look, [...index.keys()].reverse());
  };
  filters(section, (outcome) => {
    wanted = outcome;
    if (newest) show(newest);
  });
  return (look) => {
    held.hidden = !isHeld();
    if (!held.hidden) return;
    newest = look;
    show(look);
  };
}

function asker(cell, key, of) {
  const tenant = named("");
  const service = named("");
  cell.append(element("span", { class: "asker" }, tenant, " ", element("span", { class: "soft" }, service)));
  return (look) => {
    put(tenant, look, of("tenant")(key), "text");
    put(service, look, of("class")(key), "text");
  };
}

function decided(cell, key, of) {
  const [, outcome] = JSON.parse(key);
  const reason = element("span", { class: "reason" });
  const pill = element("span", { class: "pill", "data-tone": TONES[outcome] ?? "bad" }, SAID[outcome] ?? outcome);
  cell.append(element("span", {}, pill, " ", reason));
  return (look) => {
    put(reason, look, of("reason")(key), "words");
    reason.hidden = reason.textContent === "–";
  };
}

function opener(key, story) {
  const [id] = JSON.parse(key);
  const button = element("button", { type: "button", class: "open", "aria-label": `The story of ${id}` }, named(id.slice(-8)));
  button.addEventListener("click", () => story.open(id));
  return button;
}

/** Which decisions are shown. */
function filters(section, choose) {
  const buttons = section.querySelectorAll(".filters button");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
      choose(button.dataset.outcome);
    });
  }
}
