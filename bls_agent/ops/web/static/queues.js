// The page of crawl queues, updated by one event stream: the worst queues first.

import { begin, compare, Deck, StateCard } from "./card_deck.js";
import { byId, root, say, sayOr, setText, tellTab } from "./chrome.js";

const list = byId("cards");
const deck = new Deck({ sought: (card) => `${card.project}\n${card.spider}` });

class QueueCard extends StateCard {
  // Search and order use the text that the card shows.
  project = "";
  spider = "";

  fill(told) {
    this.show(told.key, told);
    this.find(".head a").href = `${root}/crawl/${told.key}`;
    setText(this.find(".project"), told.project);
    setText(this.find(".spider"), told.spider);
    setText(this.find(".odd"), told.problem ? sayOr(`problem_${told.problem}`, told.problem) : "");
    this.element.toggleAttribute("data-failing", told.failing);
    const badge = this.find(".badge b");
    badge.dataset.word ??= badge.textContent; // the word for the state
    setText(badge, told.failing ? say("failed_count", { n: told.figures.failed }) : badge.dataset.word);
    for (const pair of this.element.querySelectorAll("[data-figure]")) {
      setText(pair.querySelector("dd"), told.figures[pair.dataset.figure]);
    }
    this.project = told.project;
    this.spider = told.spider;
  }
}

const before = (one, other) =>
  deck.ranks.get(one.state) - deck.ranks.get(other.state) || compare(one.project, other.project) || compare(one.spider, other.spider);

function take(change) {
  deck.take(change, change.queues, QueueCard);
  tellTab({ faults: [...deck.cards.values()].filter((card) => card.state === "broken").length });
  deck.sort(list, before);
}

begin("crawl", "queues", take);
