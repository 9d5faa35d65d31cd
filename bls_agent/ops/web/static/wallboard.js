// The wallboard, updated by one event stream: all projects, the worst first.

import { begin, compare, Deck } from "./card_deck.js";
import { Card, CardRow, isBad, sayBound } from "./cards.js";
import { byId, fromAddress, isPlain, isTyping, recall, remember, say, tellTab, toAddress } from "./chrome.js";
import { Table } from "./table.js";

const board = byId("main");
const search = byId("search");
const views = { cards: [byId("cards"), "group-cards", Card], table: [byId("table"), "group-rows", CardRow] };
let [list, , kind] = views.cards;

const deck = new Deck({
  sought: (card) => `${card.name}\n${card.told?.reason ?? ""}\n${card.told?.error ?? ""}`,
  shown: (cards) => table.head(cards),
});
// The worst first: a bad status, then dead letters or errors in the last minutes, then the other statuses.
const isIll = ({ told }) => told.dead_letters > 0 || told.errors > 0;
const severity = (card) => (isBad(card) || !isIll(card) ? deck.ranks.get(card.state) : deck.ranks.get("error") + 0.5);
const total = (cards, figure) => cards.reduce((sum, { told }) => sum + (told[figure] ?? 0), 0);

const table = new Table({
  columns: {
    state: { value: (card) => deck.ranks.get(card.state) },
    name: { value: (card) => card.name },
    errors: { value: ({ told }) => told.errors, falling: true },
    dead: { value: ({ told }) => told.dead_letters, falling: true },
    queue: { value: ({ told }) => told.queue, falling: true },
    rate: { value: ({ told }) => told.rate, falling: true },
    fresh: { value: ({ told }) => told.age ?? told.last, falling: true },
    last: { value: ({ told }) => told.error_age },
  },
  before: (one, other) =>
    severity(one) - severity(other) ||
    (other.told.dead_letters > 0) - (one.told.dead_letters > 0) ||
    other.told.errors - one.told.errors ||
    (other.told.queue ?? 0) - (one.told.queue ?? 0) ||
    compare(one.name, other.name),
  sum: (cards) => say("group_sum", { n: cards.length, bad: cards.filter(isBad).length, errors: sayBound(String(total(cards, "errors")), cards.some(({ told }) => told.atLeast)), dead: total(cards, "dead_letters"), queue: total(cards, "queue") }),
});

const cards = () => [...deck.cards.values()];

// Show cards or the table.
function show(view) {
  let blank = "";
  [list, blank, kind] = views[view];
  for (const [element] of Object.values(views)) element.hidden = element !== list;
  board.dataset.view = view;
  byId("view").setAttribute("aria-pressed", String(view === "table"));
  table.stand(list, blank, cards);
  deck.replace(kind);
  table.show(cards());
  deck.filter();
}

function take(change) {
  const { turned, gone } = deck.take(change, change.cards, kind);
  table.stale ||= change.cards.length > 0;
  if (turned.length) table.show(cards());
  if (turned.length || gone.length) {
    deck.count();
    tellTab({ faults: cards().filter(isBad).length });
  }
  if (change.whole || turned.length || gone.length || deck.text) deck.filter();
}

// Return the card that a key reaches from an element.
function neighbour(element, key) {
  const shown = [...list.querySelectorAll("[data-path]")].filter((item) => item.checkVisibility());
  const here = shown.indexOf(element.closest("[data-path]"));
  if (here < 0) return shown[0];
  const columns = getComputedStyle(shown[here].parentElement).gridTemplateColumns.split(" ").length;
  const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[key];
  return shown[here + step];
}

document.addEventListener("keydown", (event) => {
  if (!isPlain(event)) return;
  if (event.target === search && event.key === "Enter") {
    list.querySelector("[data-path]:not([hidden]) a")?.click();
    return;
  }
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

byId("view").addEventListener("click", () => {
  const view = board.dataset.view === "table" ? "cards" : "table";
  remember("view", view);
  toAddress({ view });
  show(view);
});

const wanted = fromAddress("view") || recall("view");
show(Object.hasOwn(views, wanted) ? wanted : "cards");
begin("fleet", "fleet", take);
