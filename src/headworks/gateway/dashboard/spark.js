// The last three minutes of a figure as a line: small, without axes, beside the number it belongs to. A limit is a dashed line.
// Time goes by the gateway's clock, so minutes in which nobody looked are a gap and not a slope.

import { at } from "./figures.js";

const SPAN_S = 180;
const SPAN_S_MIN = 45;
const POINTS_MAX = 400;
const GAP_S = 4;
const WIDTH = 120;
const HEIGHT = 32;
const SVG = "http://www.w3.org/2000/svg";

/** What was seen of the places that are drawn, by place. */
export class History {
  #points = new Map();
  #began_s = null;

  /** From now on this place is remembered. */
  follow(place) {
    const key = JSON.stringify(place);
    if (!this.#points.has(key)) this.#points.set(key, { place, points: [] });
    return key;
  }

  forget(key) {
    this.#points.delete(key);
  }

  add(look) {
    this.#began_s ??= look.at_s;
    for (const { place, points } of this.#points.values()) {
      const value = at(look, place);
      points.push([look.at_s, typeof value === "number" ? value : null]);
      while (points.length > POINTS_MAX || points[0][0] < look.at_s - SPAN_S) points.shift();
    }
  }

  points(key) {
    return this.#points.get(key)?.points ?? [];
  }

  /** The width of all pictures: as long as has been looked, and three minutes at most. */
  span_s(look) {
    return Math.min(SPAN_S, Math.max(SPAN_S_MIN, look.at_s - this.#began_s));
  }

  /** Another process of the gateway counts time from elsewhere. */
  clear() {
    this.#began_s = null;
    for (const one of this.#points.values()) one.points = [];
  }
}

/** One small picture. `line`: the figure; `behind`: what it is compared with; `limit`: what it may come to. */
export class Spark {
  constructor(history, { line, behind = null, limit = null, most = null, tone = "load" }) {
    this.history = history;
    this.limit = limit;
    this.most = most;
    this.line = history.follow(line);
    this.behind = behind ? history.follow(behind) : null;
    this.svg = shape("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      class: `spark ${tone}`,
      "aria-hidden": "true",
      focusable: "false",
    });
    this.parts = {};
    for (const name of ["area", "behind", "limit", "curve", "now"]) {
      this.parts[name] = shape("path", { class: name });
      this.svg.append(this.parts[name]);
    }
  }

  remove() {
    this.history.forget(this.line);
    if (this.behind) this.history.forget(this.behind);
  }

  draw(look) {
    const points = this.history.points(this.line);
    const behind = this.behind ? this.history.points(this.behind) : [];
    const limit = this.limit ? at(look, this.limit) : this.most;
    const all = [...points, ...behind].map((point) => point[1] ?? 0);
    const top = Math.max(limit ?? 0, ...all) * 1.06 || 1;
    const scale = { end_s: look.at_s, top, span_s: this.history.span_s(look) };
    this.svg.classList.toggle("still", !points.some((point) => point[1]));
    this.parts.curve.setAttribute("d", runs(points, scale).map(curve).join(""));
    this.parts.area.setAttribute("d", runs(points, scale).map(area).join(""));
    this.parts.behind.setAttribute("d", runs(behind, scale).map(curve).join(""));
    const level = limit === null || limit === undefined ? "" : `M0 ${y(limit, top)}H${WIDTH}`;
    this.parts.limit.setAttribute("d", this.limit || this.most !== null ? level : "");
    const last = points.at(-1);
    this.parts.now.setAttribute("d", last && last[1] !== null ? `M${WIDTH - 1.5} ${y(last[1], top)}h0` : "");
  }
}

/** Points in places, cut where nobody looked or nobody knew. */
function runs(points, { end_s, top, span_s }) {
  const found = [];
  let run = [];
  let before = null;
  for (const [at_s, value] of points) {
    if (before !== null && at_s - before > GAP_S) run = [];
    before = at_s;
    if (value === null) {
      run = [];
      continue;
    }
    if (!run.length) found.push(run);
    run.push([x(end_s - at_s, span_s), y(value, top)]);
  }
  return found;
}

function x(ago_s, span_s) {
  return round((WIDTH - 1.5) * (1 - ago_s / span_s));
}

function y(value, top) {
  return round(HEIGHT - 1.5 - (value / top) * (HEIGHT - 3));
}

function round(value) {
  return Math.round(value * 10) / 10;
}

function curve(run) {
  return `M${run.map((point) => point.join(" ")).join("L")}`;
}

function area(run) {
  return `${curve(run)}L${run.at(-1)[0]} ${HEIGHT}L${run[0][0]} ${HEIGHT}Z`;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
