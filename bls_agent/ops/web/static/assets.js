// The page of assets, updated by one event stream: unreadable entries first, then by id.

import "./guard.js";
import { begin, compare, Deck, StateCard } from "./card_deck.js";
import { byId, root, setText } from "./chrome.js";

const list = byId("cards");
const deck = new Deck({ sought: (card) => card.text });

class AssetCard extends StateCard {
  // Search and order use the text that the card shows.
  id = "";
  text = "";

  fill(told) {
    this.show(told.key, told);
    this.find(".head a").href = `${root}/assets/${told.key}`;
    setText(this.find(".head bdi"), told.name);
    setText(this.find(".id"), told.id);
    setText(this.find(".version"), told.version);
    setText(this.find(".about bdi"), told.about);
    setText(this.find(".last bdi"), told.problem);
    this.id = told.id;
    this.text = [told.name, told.id, told.version, told.about, told.problem].join("\n");
  }
}

const isBroken = (card) => card.state === "broken";
const before = (one, other) => isBroken(other) - isBroken(one) || compare(one.id, other.id);

function take(change) {
  deck.take(change, change.assets, AssetCard);
  deck.sort(list, before);
}

begin("assets", "assets", take);
