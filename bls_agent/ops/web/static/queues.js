// The page of crawl queues: the worst first, kept up to date by one event stream.

import { arrange, Deck } from "./card_deck.js";
import { byId, root, sayOr, setText, tellTab } from "./chrome.js";
import { follow } from "./stream.js";

const list = byId("cards");
const deck = new Deck({ sought: (card) => `${card.project}\n${card.spider}`, shown: () => {} });
const ranks = new Map(deck.chips.map((chip, rank) => [chip.dataset.chip, rank])); // in the order of states

// One queue on the page: texts only, never markup.
class QueueCard {
  constructor(element) {
    this.element = element;
    this.key = element.dataset.key;
    this.state = element.dataset.state;
    this.read();
  }

  static blank() {
    return new QueueCard(byId("blank").content.firstElementChild.cloneNode(true));
  }

  // What is searched and sorted by is what is shown.
  read() {
    this.project = this.element.querySelector(".project").textContent;
    this.spider = this.element.querySelector(".spider").textContent;
  }

  fill(told) {
    const { element } = this;
    const find = (selector) => element.querySelector(selector);
    this.key = element.dataset.key = told.key;
    find(".head a").href = `${root}/crawl/${told.key}`;
    setText(find(".project"), told.project);
    setText(find(".spider"), told.spider);
    setText(find(".odd"), told.problem ? sayOr(`problem_${told.problem}`, told.problem) : "");
    element.toggleAttribute("data-failing", told.failing);
    for (const pair of element.querySelectorAll("[data-figure]")) {
      setText(pair.querySelector("dd"), told.figures[pair.dataset.figure]);
    }
    if (this.state !== told.state) {
      this.state = element.dataset.state = told.state;
      element.dataset.kind = told.kind;
      find(".badge").replaceWith(byId(`badge-${told.state}`).content.firstElementChild.cloneNode(true));
    }
    this.read();
  }

  tick() {} // nothing on it grows older
}

const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
const before = (one, other) =>
  ranks.get(one.state) - ranks.get(other.state) || compare(one.project, other.project) || compare(one.spider, other.spider);

function take(change) {
  for (const told of change.queues) {
    const card = deck.cards.get(told.key) ?? QueueCard.blank();
    card.fill(told);
    if (!deck.cards.has(told.key)) deck.adopt(card);
  }
  const here = change.whole ? new Set(change.queues.map((told) => told.key)) : null;
  const gone = here ? [...deck.cards.keys()].filter((key) => !here.has(key)) : change.gone;
  if (!change.away) gone.forEach((key) => deck.drop(key));
  deck.showAway(change.away);
  tellTab({ faults: [...deck.cards.values()].filter((card) => card.state === "broken").length });
  arrange(list, [...deck.cards.values()].sort(before));
  deck.filter();
  deck.count();
}

for (const element of list.children) deck.adopt(new QueueCard(element));
follow(`${root}/events/crawl`, { queues: (data) => take(JSON.parse(data)) }, { glances: true });
