// Cards of a page, which people search and choose by state. Only the ages of cards in the window are updated.

import { byId, copy, fromAddress, root, say, setText, toAddress } from "./chrome.js";
import { follow, showAway, showLink } from "./stream.js";

// Put cards into the order of sorted, from the element next on; move only the cards that are out of order.
export function arrange(list, sorted, next = list.firstElementChild) {
  for (const card of sorted) {
    if (card.element === next) next = next.nextElementSibling;
    else list.insertBefore(card.element, next);
  }
}

// A card with a key and a state. It inserts texts only, never markup.
export class StateCard {
  static blank = "blank"; // the id of its template
  element = copy(this.constructor.blank);
  key = "";
  state = "";

  find(selector) {
    return this.element.querySelector(selector);
  }

  show(key, { state, kind }) {
    this.key = this.element.dataset.key = key;
    if (this.state === state) return;
    this.state = this.element.dataset.state = state;
    this.element.dataset.kind = kind;
    this.find(".badge").replaceWith(copy(`badge-${state}`));
  }

  tick() {} // a card with an age updates the age here

  sight(inSight) {
    if (inSight) this.tick();
  }

  // Return the key of a card in a message of the server.
  static key(told) {
    return told.key;
  }
}

// Texts are in the order of the page's language, Chinese by pinyin.
const words = new Intl.Collator(document.documentElement.lang, { numeric: true });
export const compare = (one, other) => (typeof one === "string" ? words.compare(one, other) : one - other);

// Take the snapshot that the page contains, then each change from the stream. Only a message of the stream shows the page as live.
export function begin(path, kind, take) {
  take(JSON.parse(byId("picture").dataset.told));
  byId("picture").remove();
  const hear = (data) => {
    take(JSON.parse(data));
    showLink(byId("main").dataset.state);
  };
  follow(`${root}/events/${path}`, { [kind]: hear }, { glances: true, opened: () => {} });
}

export class Deck {
  // sought(card) returns the text to search in; shown(cards) is called with the cards that match.
  constructor({ sought, shown = () => {} }) {
    this.sought = sought;
    this.shown = shown;
    this.cards = new Map(); // key → card
    this.byElement = new WeakMap();
    this.seen = new Set(); // cards in the window
    this.state = ""; // the chosen state; the page's address has it as `state`
    this.text = ""; // the text to search for; the page's address has it as `q`
    this.data = ""; // whether the data is current: "live", "reading", "away", or "forbidden"
    this.chips = [...document.querySelectorAll(".chip")];
    this.ranks = new Map(this.chips.map((chip, rank) => [chip.dataset.chip, rank])); // state → its rank
    this.watcher = new IntersectionObserver((entries) => this.sight(entries), { rootMargin: "200px" });
    this.listen();
    setInterval(() => this.seen.forEach((card) => card.tick()), 1000);
  }

  listen() {
    const search = byId("search");
    const read = () => (this.text = search.value.trim().toLowerCase());
    search.value = fromAddress("q");
    read();
    search.addEventListener("input", () => {
      read();
      toAddress({ q: search.value.trim() });
      this.filter();
    });
    for (const chip of this.chips) chip.addEventListener("click", () => this.choose(chip.dataset.chip));
    const state = fromAddress("state");
    if (this.ranks.has(state)) this.press(state);
  }

  sight(entries) {
    for (const entry of entries) {
      const card = this.byElement.get(entry.target);
      card.sight(entry.isIntersecting);
      if (entry.isIntersecting && this.cards.get(card.key) === card) this.seen.add(card);
      else this.seen.delete(card);
    }
  }

  adopt(card) {
    this.cards.set(card.key, card);
    this.byElement.set(card.element, card);
    this.watcher.observe(card.element);
  }

  drop(key) {
    const card = this.cards.get(key);
    if (!card) return;
    this.cards.delete(key);
    this.seen.delete(card);
    this.watcher.unobserve(card.element);
    card.element.remove();
  }

  // Take a message about cards of a class; return the cards that are new or have another state, and the keys of removed cards.
  take(change, cards, kind) {
    const turned = [];
    for (const told of cards) {
      const known = this.cards.get(kind.key(told));
      const card = known ?? new kind();
      const was = known?.state;
      card.fill(told);
      if (!known) this.adopt(card);
      if (was !== card.state) turned.push(card);
    }
    const here = change.whole ? new Set(cards.map(kind.key)) : null;
    const gone = here ? [...this.cards.keys()].filter((key) => !here.has(key)) : change.gone;
    if (change.state === "live") gone.forEach((key) => this.drop(key));
    this.showData(change);
    return { turned, gone };
  }

  // Put all cards into the order of the function before.
  sort(list, before) {
    arrange(list, [...this.cards.values()].sort(before));
    this.filter();
    this.count();
  }

  // Make all cards anew from another class.
  replace(kind) {
    for (const old of [...this.cards.values()]) {
      this.drop(old.key);
      const card = new kind();
      card.fill(old.told, old.at);
      this.adopt(card);
    }
  }

  press(state) {
    this.state = state;
    for (const chip of this.chips) chip.setAttribute("aria-pressed", String(chip.dataset.chip === state));
  }

  choose(state) {
    this.press(this.state === state ? "" : state);
    toAddress({ state: this.state });
    this.count();
    this.filter();
  }

  isWanted(card) {
    if (this.state && card.state !== this.state) return false;
    return !this.text || this.sought(card).toLowerCase().includes(this.text);
  }

  filter() {
    const shown = [];
    for (const card of this.cards.values()) {
      card.element.hidden = !this.isWanted(card);
      if (!card.element.hidden) shown.push(card);
    }
    byId("nothing").hidden = this.cards.size > 0 || this.data !== "live";
    byId("unmatched").hidden = shown.length > 0 || this.cards.size === 0;
    this.shown(shown);
  }

  count() {
    const counts = { "": this.cards.size };
    for (const card of this.cards.values()) counts[card.state] = (counts[card.state] ?? 0) + 1;
    for (const chip of this.chips) {
      const state = chip.dataset.chip;
      setText(chip.querySelector("[data-count]"), String(counts[state] ?? 0));
      chip.hidden = Boolean(state) && !counts[state] && this.state !== state;
    }
  }

  // Show whether the data is current: Redis answers, was not read yet, does not answer, or lacks a right for this page.
  showData({ state, away, awaySince }) {
    const before = this.data;
    this.data = state;
    byId("forbidden").hidden = this.data !== "forbidden";
    showAway(this.data === "away" ? away : "", awaySince);
    const [looking, main] = [byId("looking"), byId("main")];
    looking.hidden = this.cards.size > 0 || !["away", "reading"].includes(this.data);
    setText(looking, this.data === "away" ? say("not_known") : looking.dataset.reading);
    this.chips[0].parentElement.hidden = this.data !== "live" && this.cards.size === 0;
    main.dataset.state = this.data;
    main.dataset.changes = String(Number(main.dataset.changes ?? 0) + 1);
    if (before !== this.data) this.filter();
  }
}
