// Rows in the order of a column that people choose, in groups that they can fold; the page's address has order and groups.
// A row is an object with an element and a name, such as a card of a deck. The same rows may stand in a table or as cards.

import { arrange, compare } from "./card_deck.js";
import { byId, copy, fromAddress, say, setText, toAddress } from "./chrome.js";

const CALM = 5_000; // ms without a hand on the rows after which their order may follow their figures
const PARTS = /(?<=[-_/.:])/; // a name is cut behind these

// Return a function from a name to its group: order-* for order-1, batch/ for batch/import, "" if no other name shares its beginning.
// What all names begin with alike separates none of them, so the next part counts.
export function groupByPrefix(names) {
  const parts = names.map((name) => name.split(PARTS));
  let depth = 0;
  while (parts.length && parts.every((one) => one.length > depth + 1 && one[depth] === parts[0][depth])) depth += 1;
  const labels = new Map();
  const counts = new Map();
  names.forEach((name, place) => {
    const part = parts[place].slice(0, depth + 1).join("");
    const begin = parts[place].length > depth + 1 ? part : name.replace(/\d+$/, "");
    const label = begin.endsWith("/") || begin === name ? begin : `${begin}*`;
    labels.set(name, label);
    counts.set(label, (counts.get(label) ?? 0) + 1);
  });
  return (name) => (counts.get(labels.get(name)) > 1 ? labels.get(name) : "");
}

// Sort by a column: falling is the order of most use (the largest first), values that are not known come last.
function rank(column, falls, one, other) {
  const [value, next] = [column(one), column(other)];
  if (value === null || next === null) return (value === null) - (next === null);
  return falls ? compare(next, value) : compare(value, next);
}

export class Table {
  // columns: name → { value: row → number, text or null, falling: whether the first click sorts the largest first }.
  // before(one, other): the order until a column is chosen, and of equal rows. sum(rows): the text beside a group's name.
  constructor({ columns, before, sum }) {
    Object.assign(this, { columns, before, sum });
    this.place = null; // the element that holds the groups
    this.blank = ""; // the id of the template of a group
    this.groups = new Map(); // label → element
    this.folded = new Set(); // labels
    this.stale = false; // whether figures have changed since the rows were sorted
    this.touched = -CALM;
    const sort = fromAddress("sort");
    this.sort = Object.hasOwn(columns, sort.replace(/^-/, "")) ? sort : ""; // a column, with "-" before it if it falls
    this.grouped = fromAddress("group") === "prefix";
    this.listen();
  }

  listen() {
    this.heads = [...document.querySelectorAll("[data-column]")];
    for (const head of this.heads) head.querySelector("button").addEventListener("click", () => this.choose(this.next(head.dataset.column)));
    byId("sort")?.addEventListener("change", ({ target }) => this.choose(target.value && this.first(target.value)));
    byId("group")?.addEventListener("click", () => this.group(!this.grouped));
    this.showChoice();
    const touch = () => (this.touched = performance.now());
    for (const kind of ["pointermove", "keydown", "focusin"]) byId("main").addEventListener(kind, touch, { passive: true });
    addEventListener("scroll", touch, { passive: true });
    setInterval(() => this.stale && performance.now() - this.touched > CALM && this.show(this.rows()), CALM);
  }

  // Stand in an element of the page, without rows; rows() returns all rows.
  stand(place, blank, rows) {
    for (const group of this.groups.values()) group.remove();
    this.groups.clear();
    Object.assign(this, { place, blank, rows });
  }

  // Return what a click on the head of a column chooses: the order of most use, the opposite, then none.
  next(column) {
    const first = this.first(column);
    const second = first.startsWith("-") ? column : `-${column}`;
    return { [first]: second, [second]: "" }[this.sort] ?? first;
  }

  first = (column) => `${this.columns[column].falling ? "-" : ""}${column}`;

  choose(sort) {
    this.sort = sort;
    toAddress({ sort });
    this.showChoice();
    this.show(this.rows());
  }

  group(grouped) {
    this.grouped = grouped;
    toAddress({ group: grouped ? "prefix" : "" });
    this.showChoice();
    this.show(this.rows());
  }

  showChoice() {
    const column = this.sort.replace(/^-/, "");
    const order = this.sort.startsWith("-") ? "descending" : "ascending";
    for (const head of this.heads) head.setAttribute("aria-sort", head.dataset.column === column ? order : "none");
    if (byId("sort")) byId("sort").value = column;
    byId("group")?.setAttribute("aria-pressed", String(this.grouped));
  }

  // Put the rows into groups and order; move only rows that are out of order, and keep the focus.
  show(rows) {
    this.stale = false;
    const focused = this.place.contains(document.activeElement) ? document.activeElement : null;
    const column = this.columns[this.sort.replace(/^-/, "")]?.value;
    const falls = this.sort.startsWith("-");
    const order = (one, other) => (column && rank(column, falls, one, other)) || this.before(one, other);
    const labelOf = this.grouped ? groupByPrefix(rows.map(({ name }) => name)) : () => "";
    const parts = new Map(); // label → rows; a group stands where its first row would
    for (const row of [...rows].sort(order)) {
      const label = labelOf(row.name);
      if (!parts.has(label)) parts.set(label, []);
      parts.get(label).push(row);
    }
    const alone = parts.get("");
    if (parts.delete("")) parts.set("", alone); // rows of no group come last
    for (const [label, part] of parts) {
      const group = this.groups.get(label) ?? this.open(label);
      arrange(group, part, group.firstElementChild.nextElementSibling);
    }
    for (const [label, group] of this.groups) {
      if (parts.has(label)) continue;
      group.remove();
      this.groups.delete(label);
    }
    arrange(this.place, [...parts.keys()].map((label) => ({ element: this.groups.get(label) })), this.place.querySelector("[data-group]"));
    this.head(rows.filter(({ element }) => !element.hidden));
    if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
  }

  open(label) {
    const group = copy(this.blank);
    group.dataset.group = label;
    const button = group.querySelector("button");
    setText(button.querySelector("bdi"), label || say("group_others"));
    button.setAttribute("aria-expanded", String(!this.folded.has(label)));
    button.addEventListener("click", () => {
      const folded = group.toggleAttribute("data-folded");
      if (folded) this.folded.add(label);
      else this.folded.delete(label);
      button.setAttribute("aria-expanded", String(!folded));
    });
    this.groups.set(label, group);
    this.place.append(group);
    return group;
  }

  // Write the heads of the groups, from the rows that the filter shows.
  head(shown) {
    const parts = new Map([...this.groups.values()].map((group) => [group, []]));
    for (const row of shown) parts.get(row.element.parentElement)?.push(row);
    for (const [group, rows] of parts) {
      group.hidden = rows.length === 0;
      group.firstElementChild.hidden = !this.grouped;
      group.toggleAttribute("data-folded", this.grouped && this.folded.has(group.dataset.group));
      if (this.grouped) setText(group.querySelector("small"), this.sum(rows));
    }
  }
}
