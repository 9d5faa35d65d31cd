// Cards of a page: searched, chosen by state, and counted; only those in the window grow older.

import { byId, say, setText } from "./chrome.js";
import { showLink } from "./stream.js";

// Put cards into their order, moving only those that are out of it.
export function arrange(list, sorted) {
  let next = list.firstElementChild;
  for (const card of sorted) {
    if (card.element === next) next = next.nextElementSibling;
    else list.insertBefore(card.element, next);
  }
}

// A card has an element, a key, a state and tick(), which lets its age grow.
export class Deck {
  // sought(card): the text that is searched; shown(cards): what else depends on which are shown.
  constructor({ sought, shown }) {
    this.sought = sought;
    this.shown = shown;
    this.cards = new Map(); // key → card
    this.seen = new Set(); // cards in the window
    this.state = ""; // that is chosen
    this.text = ""; // that is searched for
    this.away = false;
    this.chips = [...document.querySelectorAll(".chip")];
    this.watcher = new IntersectionObserver((entries) => this.sight(entries), { rootMargin: "200px" });
    this.listen();
    setInterval(() => this.seen.forEach((card) => card.tick()), 1000);
  }

  listen() {
    const search = byId("search");
    search.addEventListener("input", () => {
      this.text = search.value.trim().toLowerCase();
      this.filter();
    });
    for (const chip of this.chips) chip.addEventListener("click", () => this.choose(chip.dataset.chip));
  }

  sight(entries) {
    for (const entry of entries) {
      const card = this.cards.get(entry.target.dataset.key);
      if (!card) continue;
      if (entry.isIntersecting) {
        this.seen.add(card);
        card.tick();
      } else this.seen.delete(card);
    }
  }

  adopt(card) {
    this.cards.set(card.key, card);
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

  choose(state) {
    this.state = this.state === state ? "" : state;
    for (const chip of this.chips) chip.setAttribute("aria-pressed", String(chip.dataset.chip === this.state));
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
    byId("nothing").hidden = this.cards.size > 0 || this.away || !byId("looking").hidden;
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

  // Show whether Redis answers; away: why it does not, or nothing.
  showAway(away) {
    this.away = Boolean(away);
    const forbidden = away === "no_permission";
    if (!away || forbidden) byId("looking").hidden = true;
    else setText(byId("looking"), say("not_known"));
    this.chips[0].parentElement.hidden = this.away && this.cards.size === 0;
    byId("forbidden").hidden = !forbidden;
    byId("away").hidden = !away || forbidden;
    setText(byId("away-kind"), away ?? "");
    showLink(away && !forbidden ? "away" : "live");
    const main = byId("main");
    main.dataset.changes = String(Number(main.dataset.changes ?? 0) + 1);
  }
}
