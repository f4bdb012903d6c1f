// How a number becomes text, and where on the page it stands. Every figure is put by `put`, from a place in one look, and
// carries that place (`data-of`) and the way it was written (`data-as`): so a test can hold each of them to /admin/snapshot.

export const NOTHING = "–";

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

const WRITTEN = {
  count: (value) => whole.format(value),
  ratio: (value) => `${(100 * value).toFixed(0)}%`,
  rate: (value) => (value < 100 ? value.toFixed(1) : whole.format(value)),
  times: (value) => value.toFixed(2),
  seconds: (value) => `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} s`,
  waited: (value) => (value < 0.005 ? NOTHING : WRITTEN.seconds(value)),
  milliseconds: (value) => `${(1000 * value).toFixed(1)} ms`,
  clock: (value) => value.slice(11, 19),
  list: (value) => (value.length ? value.join(" ") : NOTHING),
  words: (value) => String(value).replaceAll("_", " ") || NOTHING,
  text: (value) => String(value) || NOTHING,
};

/** The value at a place of a look; undefined where there is none. */
export function at(look, place) {
  let value = look;
  for (const name of place) {
    if (value === null || value === undefined) return undefined;
    value = value[name];
  }
  return value;
}

/** A value as it is written; what nobody knows is a dash, which is not zero. */
export function written(value, kind) {
  return value === null || value === undefined ? NOTHING : WRITTEN[kind](value);
}

/** Write what stands at a place of this look. */
export function put(node, look, place, kind) {
  const text = written(at(look, place), kind);
  const of = JSON.stringify(place);
  if (node.dataset.of !== of) {
    node.dataset.of = of;
    node.dataset.as = kind;
  }
  if (node.textContent !== text) node.textContent = text;
}

/** An element with attributes and children: texts, or elements. Nothing is ever parsed as markup. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A name that somebody else gave: of a tenant, a pool, an engine. */
export function named(name) {
  return element("span", { "data-name": "" }, name);
}
