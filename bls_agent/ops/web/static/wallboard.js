// The wallboard: all projects, worst first, kept up to date by one event stream.

import { byId, isTyping, root, say, setText, tellTab } from "./chrome.js";
import { Card, isBad, KINDS } from "./cards.js";
import { follow, showLink } from "./stream.js";

const list = byId("cards");
const search = byId("search");
const chips = [...document.querySelectorAll(".chip")];
const cards = new Map(); // path → Card
const ranks = new Map(KINDS.map((kind, rank) => [kind, rank]));
const seen = new Set(); // cards in the window: only their ages grow
const wanted = { kind: "", text: "" };

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const card = cards.get(entry.target.dataset.path);
      if (!card) continue;
      card.sight(entry.isIntersecting);
      if (entry.isIntersecting) seen.add(card);
      else seen.delete(card);
    }
  },
  { rootMargin: "200px" },
);

function before(one, other) {
  const by = ranks.get(one.kind) - ranks.get(other.kind);
  return by || (one.name < other.name ? -1 : one.name > other.name ? 1 : 0);
}

function isWanted(card) {
  if (wanted.kind && card.kind !== wanted.kind) return false;
  return !wanted.text || `${card.name}\n${card.told?.error ?? ""}`.toLowerCase().includes(wanted.text);
}

function adopt(card) {
  cards.set(card.path, card);
  watcher.observe(card.element);
}

function drop(card) {
  cards.delete(card.path);
  seen.delete(card);
  watcher.unobserve(card.element);
  card.element.remove();
}

// Put the cards into their order, moving only those that are out of it.
function order() {
  const sorted = [...cards.values()].sort(before);
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  let next = list.firstElementChild;
  for (const card of sorted) {
    if (card.element === next) next = next.nextElementSibling;
    else list.insertBefore(card.element, next);
  }
  if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function filter() {
  let shown = 0;
  for (const card of cards.values()) {
    card.element.hidden = !isWanted(card);
    if (!card.element.hidden) shown += 1;
  }
  byId("nothing").hidden = cards.size > 0;
  byId("unmatched").hidden = shown > 0 || cards.size === 0;
}

function count() {
  const counts = { "": cards.size };
  tellTab({ faults: [...cards.values()].filter(isBad).length });
  for (const card of cards.values()) counts[card.kind] = (counts[card.kind] ?? 0) + 1;
  for (const chip of chips) {
    const kind = chip.dataset.chip;
    setText(chip.querySelector("[data-count]"), String(counts[kind] ?? 0));
    chip.hidden = Boolean(kind) && !counts[kind] && wanted.kind !== kind;
  }
}

function take(change) {
  let moved = false;
  const here = change.whole ? new Set(change.cards.map((card) => card.path)) : null;
  for (const told of change.cards) {
    let card = cards.get(told.path);
    if (!card) {
      card = Card.blank(byId("blank"));
      card.fill(told);
      adopt(card);
      moved = true;
    } else {
      moved ||= card.kind !== told.kind;
      card.fill(told);
    }
  }
  const gone = here ? [...cards.keys()].filter((path) => !here.has(path)) : (change.gone ?? []);
  for (const path of gone) if (cards.has(path)) drop(cards.get(path));
  if (moved) order();
  if (moved || gone.length || wanted.text) filter();
  if (moved || gone.length) count();
  const unknown = Boolean(change.away) && cards.size === 0;
  byId("looking").hidden = !unknown;
  if (unknown) setText(byId("looking"), say("not_known"));
  chips[0].parentElement.hidden = unknown;
  byId("nothing").hidden = unknown || cards.size > 0;
  byId("away").hidden = !change.away;
  setText(byId("away-kind"), change.away ?? "");
  showLink(change.away ? "away" : "live");
  list.dataset.changes = String(Number(list.dataset.changes ?? 0) + 1);
}

function choose(kind) {
  wanted.kind = wanted.kind === kind ? "" : kind;
  for (const chip of chips) chip.setAttribute("aria-pressed", String(chip.dataset.chip === wanted.kind));
  count();
  filter();
}

// Give the card that is reached from here by an arrow key.
function neighbour(element, key) {
  const shown = [...list.children].filter((item) => !item.hidden);
  const here = shown.indexOf(element.closest(".card"));
  if (here < 0) return shown[0];
  const columns = getComputedStyle(list).gridTemplateColumns.split(" ").length;
  const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  return shown[here + step];
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const moves = ["j", "k", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight"].includes(event.key);
  const inList = list.contains(event.target);
  const fromSearch = event.target === search && event.key === "ArrowDown";
  if (!moves || (isTyping(event.target) && !fromSearch) || (event.key.startsWith("Arrow") && !inList && !fromSearch)) return;
  const card = neighbour(event.target, event.key);
  if (!card) return;
  event.preventDefault();
  card.querySelector("a").focus();
  card.scrollIntoView({ block: "nearest" });
});

search.addEventListener("input", () => {
  wanted.text = search.value.trim().toLowerCase();
  filter();
});
for (const chip of chips) chip.addEventListener("click", () => choose(chip.dataset.chip));
for (const element of list.children) adopt(new Card(element));
count();
setInterval(() => seen.forEach((card) => card.tick()), 1000);
follow(`${root}/events/fleet`, { fleet: (data) => take(JSON.parse(data)) }, { glances: true });
