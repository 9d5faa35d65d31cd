// The page of workers: by kind, the worst first, kept up to date by one event stream.

import { arrange, Deck } from "./card_deck.js";
import { sayAge } from "./cards.js";
import { byId, root, say, sayOr, setText, tellTab } from "./chrome.js";
import { follow } from "./stream.js";

const groups = new Map([...document.querySelectorAll(".group")].map((section) => [section.dataset.group, section]));

const deck = new Deck({
  sought: (card) => `${card.name}\n${card.told?.said ?? ""}`,
  shown: (cards) => {
    const counts = {};
    for (const { group } of cards) counts[group] = (counts[group] ?? 0) + 1;
    for (const [group, section] of groups) {
      section.hidden = !counts[group];
      setText(section.querySelector("small"), String(counts[group] ?? 0));
    }
  },
});
const ranks = new Map(deck.chips.map((chip, rank) => [chip.dataset.chip, rank])); // in the order of states

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
    if (deck.seen.has(this)) this.tick();
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

function order(group) {
  const sorted = [...deck.cards.values()].filter((card) => card.group === group).sort(before);
  arrange(groups.get(group).querySelector(".cards"), sorted);
}

function take(change) {
  const touched = new Set();
  const here = change.whole ? new Set(change.workers.map((told) => told.key)) : null;
  for (const told of change.workers) {
    let card = deck.cards.get(told.key);
    const was = card?.state;
    if (!card) {
      card = WorkerCard.blank();
      card.fill(told);
      deck.adopt(card);
    } else card.fill(told);
    if (was !== told.state) touched.add(told.group);
  }
  for (const [key, age] of Object.entries(change.ages ?? {})) deck.cards.get(key)?.refresh(age);
  const gone = here ? [...deck.cards.keys()].filter((key) => !here.has(key)) : (change.gone ?? []);
  gone.forEach((key) => deck.drop(key));
  const turned = deck.away !== Boolean(change.away);
  deck.showAway(change.away);
  touched.forEach(order);
  tellTab({ faults: [...deck.cards.values()].filter((card) => card.state === "error").length });
  if (turned || here || touched.size || gone.length || (deck.text && change.workers.length)) {
    deck.filter();
    deck.count();
  }
}

for (const element of document.querySelectorAll(".group .card")) deck.adopt(new WorkerCard(element));
follow(`${root}/events/workers`, { workers: (data) => take(JSON.parse(data)) }, { glances: true });
