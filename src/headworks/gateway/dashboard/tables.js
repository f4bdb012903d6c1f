// Tables whose rows stay the same elements while their figures change, so that focus, selection and a reading screen reader
// stay where they are. On a narrow screen each row becomes a small card (page.css): the roles keep it a table all the same.

import { element, named, NOTHING, put } from "./figures.js";
import { Spark } from "./spark.js";

/**
 * A column: `label`, and one of
 *   kind, place(key)                  a figure
 *   also: { kind, place, before }     a second figure behind it, such as its limit
 *   draw(cell, key)                   made once for each row; may return what is to be done with each look
 *   spark(key)                        what a `Spark` is made of
 */
export class Table {
  #rows = new Map();

  constructor(section, { caption, columns, nothing = "", history = null }) {
    this.columns = columns;
    this.history = history;
    const heads = columns.map((column) =>
      element("th", { role: "columnheader", scope: "col", class: column.align ?? align(column) }, column.label),
    );
    this.body = element("tbody", { role: "rowgroup" });
    this.table = element(
      "table",
      { role: "table" },
      element("caption", {}, caption),
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)),
      this.body,
    );
    this.nothing = element("p", { class: "nothing" }, nothing);
    section.append(this.table, this.nothing);
  }

  /** These rows, in this order, with the figures of this look. */
  show(look, keys) {
    const wanted = new Set(keys);
    for (const [key, row] of this.#rows) {
      if (!wanted.has(key)) {
        for (const spark of row.sparks) spark.remove();
        row.line.remove();
        this.#rows.delete(key);
      }
    }
    let next = this.body.firstElementChild;
    for (const key of keys) {
      const row = this.#rows.get(key) ?? this.#make(key);
      if (row.line === next) next = next.nextElementSibling;
      else this.body.insertBefore(row.line, next);
      for (const update of row.updates) update(look);
    }
    this.nothing.hidden = keys.length > 0;
    this.table.hidden = keys.length === 0;
  }

  #make(key) {
    const row = { line: element("tr", { role: "row" }), updates: [], sparks: [] };
    this.columns.forEach((column, index) => {
      const cell = element(index ? "td" : "th", {
        role: index ? "cell" : "rowheader",
        class: column.align ?? align(column),
        "data-label": column.label,
      });
      if (!index) cell.setAttribute("scope", "row");
      this.#fill(cell, column, key, row);
      row.line.append(cell);
    });
    this.#rows.set(key, row);
    return row;
  }

  #fill(cell, column, key, row) {
    if (column.spark) {
      const spark = new Spark(this.history, column.spark(key));
      cell.append(spark.svg);
      row.sparks.push(spark);
      row.updates.push((look) => spark.draw(look));
    } else if (column.draw) {
      const update = column.draw(cell, key);
      if (update) row.updates.push(update);
    } else {
      row.updates.push(figure(cell, column, key));
    }
  }
}

function align(column) {
  return column.spark ? "picture" : column.draw || column.kind === "words" || column.kind === "list" ? "word" : "number";
}

/** A figure and, where there is one, its limit. */
function figure(cell, column, key) {
  const first = element("span");
  cell.append(first);
  if (!column.also) return (look) => put(first, look, column.place(key), column.kind);
  const { before, place, kind } = column.also;
  const second = element("span");
  const rest = element("span", { class: "soft" }, ` ${before} `, second);
  cell.append(rest);
  return (look) => {
    put(first, look, column.place(key), column.kind);
    put(second, look, place(key), kind);
    rest.hidden = second.textContent === NOTHING;
  };
}

/** A column of names: what a row is called. */
export function nameColumn(label, name = (key) => key) {
  return { label, draw: (cell, key) => void cell.append(named(name(key))) };
}
