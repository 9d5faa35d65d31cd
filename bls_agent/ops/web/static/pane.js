// A list of rows that follows its newest end, pauses and pages back on demand.

import { byId, say, setText } from "./chrome.js";

const MOST = 2000; // rows on the page, and rows that wait
const LARGEST = 8_000_000; // characters of them
const NEAR = 160; // pixels from an edge that count as there
const LATE = 120; // ms after which rows are shown though no frame was drawn

// Count the rows at the beginning that have to go, to stay within the bounds.
export function tooMany(rows) {
  let size = 0;
  let place = rows.length;
  while (place > 0 && rows.length - place < MOST && size <= LARGEST) size += rows[--place].size;
  return size > LARGEST ? Math.min(place + 1, rows.length - 1) : place;
}

// Take rows off the page.
export function takeOff(rows) {
  for (const row of rows) row.element?.remove();
}

// What a page adds: render(rows), flush(), anew(), isFiltered(), and for older rows older() and adopt().
// A row has a size in characters, and an element while it is on the page.
export class Pane {
  // says: the names of texts; list: the id of the element that rows stand in.
  constructor(list, says) {
    this.says = says;
    this.box = byId("log");
    this.list = byId(list);
    this.top = byId("log-top");
    this.button = byId("follow");
    this.newer = byId("newer");
    this.rows = []; // on the page, oldest first
    this.coming = []; // not on the page yet
    this.following = true;
    this.byHand = false; // paused by the button, not by scrolling
    this.end = 0; // where the end was when it was scrolled to
    this.behind = false; // what came is not kept: begin anew to follow
    this.cutBelow = false; // newer rows had to give way to older ones
    this.cutAbove = false; // older rows had to give way to newer ones, and cannot be read again
    this.before = null; // the place before the oldest row
    this.known = false; // whether there was a first answer
    this.reading = false;
    this.drawing = false;
    this.listen();
  }

  listen() {
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.box.addEventListener("unfold", ({ target }) => {
      if (this.following) this.pause(false);
      target.scrollIntoView({ block: "nearest" });
    });
    this.box.addEventListener("keydown", (event) => this.step(event));
    this.button.addEventListener("click", () => (this.following ? this.pause(true) : this.resume()));
    this.newer.addEventListener("click", () => this.resume());
    const sizes = new ResizeObserver(() => this.following && this.toEnd());
    sizes.observe(this.box);
    sizes.observe(this.list); // rows out of sight may have a height that is guessed
  }

  // Go from row to row that has details: j and k, from the newest one on the page.
  step(event) {
    if (!["j", "k"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    const stops = [...this.list.querySelectorAll(".row:not([hidden]) .more")];
    const here = stops.indexOf(document.activeElement);
    const next = here < 0 ? stops.at(-1) : stops[here + (event.key === "j" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    if (this.following) this.pause(true);
    next.focus({ preventScroll: true });
    next.closest(".row").scrollIntoView({ block: "nearest" });
  }

  // The newest rows come now: forget all others; before: the place before the oldest of them.
  clear(before) {
    this.rows = [];
    this.coming = [];
    this.behind = this.cutBelow = this.cutAbove = false;
    this.before = before;
    this.known = true;
    this.end = 0;
    this.list.replaceChildren();
    setText(this.top, "");
    setTimeout(() => this.sayEmpty(), 400);
  }

  // Show what has come, once per frame.
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    const once = () => {
      if (!this.drawing) return;
      this.drawing = false;
      const { scrollTop, scrollHeight, clientHeight } = this.box;
      const end = Math.min(this.end, scrollHeight - clientHeight);
      if (this.following && scrollTop < end - NEAR) this.pause(false); // the event comes later
      if (this.following) this.flush();
      this.show();
    };
    requestAnimationFrame(once);
    setTimeout(once, LATE);
  }

  sayEmpty() {
    const shown = this.list.querySelector(":scope > :not([hidden])");
    if (shown || !this.known || this.reading) {
      if (this.top.dataset.empty !== undefined) setText(this.top, "");
      delete this.top.dataset.empty;
    } else {
      this.top.dataset.empty = "";
      setText(this.top, say(this.isFiltered() ? this.says.unmatched : this.says.empty));
    }
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.end = this.box.scrollTop;
  }

  pause(byHand) {
    this.following = false;
    this.byHand = byHand;
    this.show();
  }

  resume() {
    this.following = true;
    this.byHand = false;
    if (this.behind || this.cutBelow) this.anew();
    else this.flush();
    this.toEnd();
    this.show();
  }

  show() {
    setText(this.button, say(this.following ? "pause" : "follow"));
    this.button.setAttribute("aria-pressed", String(this.following));
    this.box.dataset.following = String(this.following);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const left = scrollHeight - scrollTop - clientHeight;
    if (this.following && left > NEAR) this.pause(false);
    else if (!this.following && !this.byHand && left < 4 && !this.cutBelow) this.resume();
    this.readIfNear();
  }

  readIfNear() {
    if (this.box.scrollTop < NEAR && !this.following) this.readOlder();
  }

  // Read the page before the oldest row.
  async readOlder() {
    if (this.reading || !this.known) return;
    if (this.before === null) {
      if (!this.cutAbove && this.rows.length) setText(this.top, say(this.says.beginning));
      return;
    }
    this.reading = true;
    setText(this.top, say(this.says.reading));
    try {
      const answer = await fetch(this.older());
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      this.adopt(JSON.parse(text), text);
    } catch {
      setText(this.top, say(this.says.failed));
    } finally {
      this.reading = false;
    }
  }

  // Put older rows before all others; before: the place before them, none: the name of a text.
  prepend(older, before, none) {
    const height = this.box.scrollHeight;
    const from = this.box.scrollTop;
    this.rows.unshift(...older);
    this.list.prepend(this.render(older));
    this.box.scrollTop = from + this.box.scrollHeight - height;
    this.before = before;
    setText(this.top, before !== null ? "" : say(none));
    const excess = tooMany(this.rows.toReversed());
    if (excess > 0) {
      takeOff(this.rows.splice(-excess));
      this.cutBelow = true;
      this.show();
    }
  }
}
