// The page of crawl queues: the worst first, kept up to date by one event stream.

import { compare, Deck, StateCard } from "./card_deck.js";
import { byId, root, sayOr, setText, tellTab } from "./chrome.js";
import { follow } from "./stream.js";

const list = byId("cards");
const deck = new Deck({ sought: (card) => `${card.project}\n${card.spider}` });

class QueueCard extends StateCard {
  constructor(element) {
    super(element);
    this.read();
  }

  // What is searched and sorted by is what is shown.
  read() {
    this.project = this.find(".project").textContent;
    this.spider = this.find(".spider").textContent;
  }

  fill(told) {
    this.show(told.key, told);
    this.find(".head a").href = `${root}/crawl/${told.key}`;
    setText(this.find(".project"), told.project);
    setText(this.find(".spider"), told.spider);
    setText(this.find(".odd"), told.problem ? sayOr(`problem_${told.problem}`, told.problem) : "");
    this.element.toggleAttribute("data-failing", told.failing);
    for (const pair of this.element.querySelectorAll("[data-figure]")) {
      setText(pair.querySelector("dd"), told.figures[pair.dataset.figure]);
    }
    this.read();
  }
}

const before = (one, other) =>
  deck.ranks.get(one.state) - deck.ranks.get(other.state) || compare(one.project, other.project) || compare(one.spider, other.spider);

function take(change) {
  deck.take(change, change.queues, QueueCard);
  tellTab({ faults: [...deck.cards.values()].filter((card) => card.state === "broken").length });
  deck.sort(list, before);
}

for (const element of list.children) deck.adopt(new QueueCard(element));
follow(`${root}/events/crawl`, { queues: (data) => take(JSON.parse(data)) }, { glances: true });
