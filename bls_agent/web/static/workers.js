// The page of workers: by kind, the worst first, kept up to date by one event stream.

import { byId, root, say, sayOr, setText } from "./chrome.js";
import { sayAge } from "./cards.js";
import { follow, showLink } from "./stream.js";

const groups = new Map([...document.querySelectorAll(".group")].map((section) => [section.dataset.group, section]));
const search = byId("search");
const chips = [...document.querySelectorAll(".chip")];
const ranks = new Map(chips.map((chip, rank) => [chip.dataset.chip, rank])); // in the order of states
const cards = new Map(); // key → WorkerCard
const seen = new Set(); // cards in the window: only their ages grow
const wanted = { state: "", text: "" };
let away = false;

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const card = cards.get(entry.target.dataset.key);
      if (!card) continue;
      if (entry.isIntersecting) {
        seen.add(card);
        card.tick();
      } else seen.delete(card);
    }
  },
  { rootMargin: "200px" },
);

// One worker on the page: texts only, never markup.
class WorkerCard {
  constructor(element) {
    this.element = element;
    this.key = element.dataset.key;
    this.state = element.dataset.state;
    this.group = element.closest(".group")?.dataset.group ?? "";
    this.name = element.querySelector(".name").textContent;
    this.told = null;
    this.at = 0;
  }

  static blank() {
    return new WorkerCard(byId("blank").content.firstElementChild.cloneNode(true));
  }

  fill(told) {
    const { element } = this;
    const find = (selector) => element.querySelector(selector);
    this.told = told;
    this.at = performance.now();
    this.key = element.dataset.key = told.key;
    this.name = told.id;
    this.group = told.group;
    setText(find(".name"), told.id);
    find(".name").title = told.id;
    if (this.state !== told.state) {
      this.state = element.dataset.state = told.state;
      element.dataset.kind = told.kind;
      const badge = byId(`badge-${told.state}`).content.firstElementChild.cloneNode(true);
      find(".badge").replaceWith(badge);
    }
    setText(find(".odd"), told.problem ? sayOr(`problem_${told.problem}`, told.problem) : "");
    setText(find(".said bdi"), told.said);
    find(".facts").replaceChildren(...told.figures.map(([name, text]) => fact(sayOr(`figure_${name}`, name), text)));
    this.tick();
  }

  refresh(age) {
    if (!this.told) return;
    this.told.age = age;
    this.at = performance.now();
    if (seen.has(this)) this.tick();
  }

  // Let the age grow.
  tick() {
    if (this.told) setText(this.element.querySelector(".age"), sayBeat(this.told, (performance.now() - this.at) / 1000));
  }
}

function sayBeat(told, since) {
  if (told.age !== null) return say("beat", { age: sayAge(told.age + since) });
  return told.ttl === null ? say("no_expiry") : say("will_expire");
}

function fact(name, text) {
  const [pair, term, value] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
  for (const [element, said] of [[term, name], [value, text]]) {
    const isolated = document.createElement("bdi");
    isolated.textContent = said;
    element.append(isolated);
  }
  pair.append(term, value);
  return pair;
}

const before = (one, other) =>
  ranks.get(one.state) - ranks.get(other.state) || (one.name < other.name ? -1 : one.name > other.name ? 1 : 0);

// Put the cards of a group into their order, moving only those that are out of it.
function order(group) {
  const list = groups.get(group).querySelector(".cards");
  const sorted = [...cards.values()].filter((card) => card.group === group).sort(before);
  let next = list.firstElementChild;
  for (const card of sorted) {
    if (card.element === next) next = next.nextElementSibling;
    else list.insertBefore(card.element, next);
  }
}

function isWanted(card) {
  if (wanted.state && card.state !== wanted.state) return false;
  return !wanted.text || `${card.name}\n${card.told?.said ?? ""}`.toLowerCase().includes(wanted.text);
}

function filter() {
  const shown = new Map();
  for (const card of cards.values()) {
    card.element.hidden = !isWanted(card);
    if (!card.element.hidden) shown.set(card.group, (shown.get(card.group) ?? 0) + 1);
  }
  for (const [group, section] of groups) {
    section.hidden = !shown.get(group);
    setText(section.querySelector("small"), String(shown.get(group) ?? 0));
  }
  byId("nothing").hidden = cards.size > 0 || away || !byId("looking").hidden;
  byId("unmatched").hidden = shown.size > 0 || cards.size === 0;
}

function count() {
  const counts = { "": cards.size };
  for (const card of cards.values()) counts[card.state] = (counts[card.state] ?? 0) + 1;
  for (const chip of chips) {
    const state = chip.dataset.chip;
    setText(chip.querySelector("[data-count]"), String(counts[state] ?? 0));
    chip.hidden = Boolean(state) && !counts[state] && wanted.state !== state;
  }
}

function adopt(card) {
  cards.set(card.key, card);
  watcher.observe(card.element);
}

function drop(key) {
  const card = cards.get(key);
  if (!card) return;
  cards.delete(key);
  seen.delete(card);
  watcher.unobserve(card.element);
  card.element.remove();
}

function take(change) {
  const touched = new Set();
  const here = change.whole ? new Set(change.workers.map((told) => told.key)) : null;
  for (const told of change.workers) {
    let card = cards.get(told.key);
    const was = card?.state;
    if (!card) {
      card = WorkerCard.blank();
      card.fill(told);
      adopt(card);
    } else card.fill(told);
    if (was !== told.state) touched.add(told.group);
  }
  for (const [key, age] of Object.entries(change.ages ?? {})) cards.get(key)?.refresh(age);
  const gone = here ? [...cards.keys()].filter((key) => !here.has(key)) : (change.gone ?? []);
  gone.forEach(drop);
  const turned = away !== Boolean(change.away);
  away = Boolean(change.away);
  if (!away) byId("looking").hidden = true;
  touched.forEach(order);
  if (turned || here || touched.size || gone.length || (wanted.text && change.workers.length)) {
    filter();
    count();
  }
  const forbidden = change.away === "no_permission";
  byId("forbidden").hidden = !forbidden;
  byId("away").hidden = !away || forbidden;
  setText(byId("away-kind"), change.away ?? "");
  showLink(away && !forbidden ? "away" : "live");
  const main = byId("main");
  main.dataset.changes = String(Number(main.dataset.changes ?? 0) + 1);
}

search.addEventListener("input", () => {
  wanted.text = search.value.trim().toLowerCase();
  filter();
});
for (const chip of chips) {
  chip.addEventListener("click", () => {
    wanted.state = wanted.state === chip.dataset.chip ? "" : chip.dataset.chip;
    for (const other of chips) other.setAttribute("aria-pressed", String(other.dataset.chip === wanted.state));
    count();
    filter();
  });
}
for (const element of document.querySelectorAll(".group .card")) adopt(new WorkerCard(element));
setInterval(() => seen.forEach((card) => card.tick()), 1000);
follow(`${root}/events/workers`, { workers: (data) => take(JSON.parse(data)) });
