// The page of runs, updated by one event stream: running ones first, then the newest.

import { arrange, begin, Deck } from "./card_deck.js";
import { byId, root, say, setText } from "./chrome.js";
import { RunCard } from "./run_cards.js";

const list = byId("cards");
const search = byId("search");
let total = 0;

const deck = new Deck({
  sought: (card) => `#${card.key}\n${card.told.task}`,
  shown: (cards) => {
    byId("more").hidden = total <= deck.cards.size || cards.length === 0;
    setText(byId("more"), say("more_runs", { n: total - deck.cards.size }));
  },
});

const isRunning = (card) => card.state === "running";

// Order running runs by id only, so that they do not move with every event.
function before(one, other) {
  if (isRunning(one) !== isRunning(other)) return isRunning(one) ? -1 : 1;
  const by = isRunning(one) ? 0 : other.told.at - one.told.at;
  return by || other.key.length - one.key.length || (one.key < other.key ? 1 : -1);
}

function take(change) {
  deck.take(change, change.runs, RunCard);
  total = change.total;
  const cards = [...deck.cards.values()];
  if (cards.every((card) => card.told)) arrange(list, cards.sort(before)); // a card without data cannot be ordered
  deck.filter();
  deck.count();
}

search.addEventListener("keydown", (event) => {
  const number = search.value.trim().replace(/^#/, "");
  if (event.key === "Enter" && /^\d{1,19}$/.test(number)) location.assign(`${root}/runs/${BigInt(number)}`);
});
begin("runs", "runs", take);
