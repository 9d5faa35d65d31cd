// A list of rows that follows the newest row, and pauses and pages back on demand.

import { byId, isPlain, isTyping, say, setText } from "./chrome.js";
import { markDays } from "./clock.js";
import { readJson } from "./records.js";

const MOST = 2000; // rows on the page, and as many waiting rows
const LARGEST = 8_000_000; // characters of these rows
const NEAR = 160; // pixels from an edge within which the edge counts as reached
const LATE = 120; // ms after which rows are shown even if the browser draws no frame

// Count the rows at the beginning that exceed the limits.
export function tooMany(rows) {
  let size = 0;
  let place = rows.length;
  while (place > 0 && rows.length - place < MOST && size <= LARGEST) size += rows[--place].size;
  return size > LARGEST ? Math.min(place + 1, rows.length - 1) : place;
}

// Remove rows from the page.
export function takeOff(rows) {
  for (const row of rows) row.element?.remove();
}

// A subclass adds render(rows), flush(), anew() and isFiltered(), and for older rows older() and adopt().
// A row has a size in characters, a stamp (a timestamp, or nothing), and an element while the row is on the page.
export class Pane {
  // says has the names of texts; list is the id of the element that contains the rows.
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
    this.end = 0; // scroll position of the end when the page last scrolled there
    this.behind = false; // new rows were not kept, so that following has to start anew
    this.cutBelow = false; // newer rows were removed for older ones
    this.cutAbove = false; // older rows were removed for newer ones, and cannot be read again
    this.before = null; // the position before the oldest row, null if there are no older rows
    this.known = false; // whether a first response has arrived
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
    document.addEventListener("keydown", (event) => {
      if (event.key === "p" && isPlain(event) && !isTyping(event.target)) this.button.click();
    });
    this.button.addEventListener("click", () => (this.following ? this.pause(true) : this.resume()));
    this.newer.addEventListener("click", () => this.resume());
    const sizes = new ResizeObserver(() => this.following && this.toEnd());
    sizes.observe(this.box);
    sizes.observe(this.list); // because the browser may only guess the height of rows out of sight
  }

  // Move with j and k between the rows that have details, beginning at the newest.
  step(event) {
    if (!["j", "k"].includes(event.key) || !isPlain(event)) return;
    const stops = [...this.list.querySelectorAll(".row:not([hidden]) .more")];
    const here = stops.indexOf(document.activeElement);
    const next = here < 0 ? stops.at(-1) : stops[here + (event.key === "j" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    if (this.following) this.pause(true);
    next.focus({ preventScroll: true });
    next.closest(".row").scrollIntoView({ block: "nearest" });
  }

  // Forget all rows, because the newest rows come next; before is the position before the oldest of them.
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

  // Show the new rows, once per frame.
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    const once = () => {
      if (!this.drawing) return;
      this.drawing = false;
      const { scrollTop, scrollHeight, clientHeight } = this.box;
      const end = Math.min(this.end, scrollHeight - clientHeight);
      if (this.following && scrollTop < end - NEAR) this.pause(false); // because the scroll event comes later
      if (this.following) this.flush();
      markDays(this.rows);
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
    markDays(this.rows);
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
    const address = this.older();
    const isOurs = () => address === this.older(); // whether the page still shows the same list
    try {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (isOurs()) this.adopt(readJson(text), text);
    } catch {
      if (isOurs()) setText(this.top, say(this.says.failed));
    } finally {
      this.reading = false;
    }
  }

  // Insert older rows at the beginning; before is the position before them, or null; none names the text that is then shown.
  prepend(older, before, none) {
    const height = this.box.scrollHeight;
    const from = this.box.scrollTop;
    this.rows.unshift(...older);
    this.list.prepend(this.render(older));
    markDays(this.rows);
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
