// The wallboard, updated by one event stream: all projects, the worst first.

import { arrange, begin, compare, Deck } from "./card_deck.js";
import { Card, isBad } from "./cards.js";
import { byId, isTyping, tellTab } from "./chrome.js";

const list = byId("cards");
const search = byId("search");
const deck = new Deck({ sought: (card) => `${card.name}\n${card.told?.reason ?? ""}\n${card.told?.error ?? ""}` });

const before = (one, other) => deck.ranks.get(one.state) - deck.ranks.get(other.state) || compare(one.name, other.name);

function order() {
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  arrange(list, [...deck.cards.values()].sort(before));
  if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function count() {
  deck.count();
  tellTab({ faults: [...deck.cards.values()].filter(isBad).length });
}

function take(change) {
  const wasAway = deck.away;
  const { turned, gone } = deck.take(change, change.cards, Card);
  if (turned.length) order();
  if (turned.length || gone.length) count();
  if (change.whole || turned.length || gone.length || deck.text || wasAway !== deck.away) deck.filter();
}

// Return the card that a key reaches from an element.
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
  if (event.target === search && event.key === "Enter") {
    list.querySelector(".card:not([hidden]) a")?.click();
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

begin("fleet", "fleet", take);
