// The page of assets: what cannot be read first, then by id; kept up to date by one event stream.

import "./guard.js";
import { arrange, Deck } from "./card_deck.js";
import { byId, root, setText } from "./chrome.js";
import { follow } from "./stream.js";

const list = byId("cards");
const deck = new Deck({ sought: (card) => card.text, shown: () => {} });

// One asset on the page: texts only, never markup.
class AssetCard {
  constructor(element) {
    this.element = element;
    this.key = element.dataset.key;
    this.state = element.dataset.state;
    this.read();
  }

  static blank() {
    return new AssetCard(byId("blank").content.firstElementChild.cloneNode(true));
  }

  // What is searched and sorted by is what is shown.
  read() {
    this.id = this.element.querySelector(".id").textContent;
    this.text = [...this.element.querySelectorAll("bdi")].map((one) => one.textContent).join("\n");
  }

  fill(told) {
    const { element } = this;
    const find = (selector) => element.querySelector(selector);
    this.key = element.dataset.key = told.key;
    find(".head a").href = `${root}/assets/${told.key}`;
    setText(find(".head bdi"), told.name);
    setText(find(".id"), told.id);
    setText(find(".version"), told.version);
    setText(find(".about bdi"), told.about);
    setText(find(".last bdi"), told.problem);
    if (this.state !== told.state) {
      this.state = element.dataset.state = told.state;
      element.dataset.kind = told.kind;
      find(".badge").replaceWith(byId(`badge-${told.state}`).content.firstElementChild.cloneNode(true));
    }
    this.read();
  }

  tick() {} // nothing on it grows older
}

const isBroken = (card) => card.state === "broken";
const before = (one, other) => isBroken(other) - isBroken(one) || (one.id < other.id ? -1 : one.id > other.id ? 1 : 0);

function take(change) {
  for (const told of change.assets) {
    const card = deck.cards.get(told.key) ?? AssetCard.blank();
    card.fill(told);
    if (!deck.cards.has(told.key)) deck.adopt(card);
  }
  const here = change.whole ? new Set(change.assets.map((told) => told.key)) : null;
  const gone = here ? [...deck.cards.keys()].filter((key) => !here.has(key)) : change.gone;
  if (!change.away) gone.forEach((key) => deck.drop(key));
  deck.showAway(change.away);
  arrange(list, [...deck.cards.values()].sort(before));
  deck.filter();
  deck.count();
}

for (const element of list.children) deck.adopt(new AssetCard(element));
follow(`${root}/events/assets`, { assets: (data) => take(JSON.parse(data)) }, { glances: true });
