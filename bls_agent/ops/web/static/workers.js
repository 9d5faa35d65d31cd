// The page of workers, updated by one event stream: by kind, the worst first.

import { arrange, begin, compare, Deck, StateCard } from "./card_deck.js";
import { sayAge } from "./cards.js";
import { root, say, sayOr, setText, tellTab } from "./chrome.js";

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

class WorkerCard extends StateCard {
  told = null;
  at = 0;
  tasksAt = 0;
  group = "";
  name = "";

  fill(told) {
    this.told = told;
    this.at = performance.now();
    this.name = told.id;
    this.group = told.group;
    this.show(told.key, told);
    setText(this.find(".name"), told.id);
    this.find(".name").title = told.id;
    setText(this.find(".odd"), told.problem ? sayOr(`problem_${told.problem}`, told.problem) : "");
    setText(this.find(".said bdi"), told.said);
    this.showTasks(told.tasks);
    this.find(".facts").replaceChildren(...told.figures.map(([name, text]) => fact(sayOr(`figure_${name}`, name), text)));
    this.tick();
  }

  refresh(age) {
    if (!this.told) return;
    this.told.age = age;
    this.at = performance.now();
    if (deck.seen.has(this)) this.tick();
  }

  // Update the ages.
  tick() {
    if (!this.told) return;
    const since = (performance.now() - this.at) / 1000;
    setText(this.find(".age"), sayBeat(this.told, since));
    const tasksSince = (performance.now() - this.tasksAt) / 1000;
    this.element.querySelectorAll(".bar small").forEach((text, place) => setText(text, sayTask(this.told.tasks.bars[place], tasksSince)));
  }

  // Show the tasks of the worker: their counts, and a bar for each of the first running ones.
  showTasks(tasks) {
    const link = this.find(".tasks");
    this.tasksAt = performance.now();
    link.hidden = !tasks;
    if (!tasks) {
      link.replaceChildren(link.firstElementChild);
      return;
    }
    link.href = `${root}/tasks?worker=${tasks.worker}`;
    const counts = ORDER.filter((state) => tasks.counts[state]).map((state) => `${say(`task_${state}`)} ${tasks.counts[state]}`);
    setText(link.firstElementChild, counts.join(" · "));
    link.replaceChildren(link.firstElementChild, ...tasks.bars.map(bar));
  }
}

const ORDER = ["broken", "failed", "running", "waiting", "other", "done"];

const sayTask = ({ part, age }, since) => [part === null ? "" : `${Math.round(part * 100)} %`, age === null ? "" : sayAge(age + since)].filter(Boolean).join(" · ");

// Make the bar of a running task; without a known progress it has no value.
function bar(told) {
  const [line, name, progress, text] = ["span", "bdi", "progress", "small"].map((tag) => document.createElement(tag));
  line.className = "bar";
  name.textContent = told.id;
  progress.max = 1;
  if (told.part !== null) progress.value = told.part;
  line.append(name, progress, text);
  return line;
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

const before = (one, other) => deck.ranks.get(one.state) - deck.ranks.get(other.state) || compare(one.name, other.name);

function order(group) {
  const sorted = [...deck.cards.values()].filter((card) => card.group === group).sort(before);
  arrange(groups.get(group).querySelector(".cards"), sorted);
}

function take(change) {
  const { turned, gone } = deck.take(change, change.workers, WorkerCard);
  for (const [key, age] of Object.entries(change.ages ?? {})) deck.cards.get(key)?.refresh(age);
  new Set(turned.map((card) => card.group)).forEach(order);
  tellTab({ faults: [...deck.cards.values()].filter((card) => card.state === "error").length });
  if (change.whole || turned.length || gone.length || (deck.text && change.workers.length)) {
    deck.filter();
    deck.count();
  }
}

begin("workers", "workers", take);
