// The live log of a project: follows, pauses, filters, pages back; never more than so many rows.

import { byId, root, say, setText, visible } from "./chrome.js";
import { Entry, gapRow, isOutcome, isSent } from "./records.js";
import { noteOutcome, noteSent } from "./sent.js";
import { follow, showLink } from "./stream.js";

const MOST = 2000; // records on the page, and records that wait
const LARGEST = 8_000_000; // characters of them
const FIRST = 200; // records that a stream begins with
const PAGE = 200; // older records that are read at once
const NEAR = 160; // pixels from an edge that count as there
const RANKS = { all: 0, info: 1, warn: 2, error: 3 };
const LATE = 120; // ms after which records are shown though no frame was drawn

// Count the entries at the beginning that have to go, to stay within the bounds.
function tooMany(entries) {
  let size = 0;
  let place = entries.length;
  while (place > 0 && entries.length - place < MOST && size <= LARGEST) size += entries[--place].size;
  return size > LARGEST ? place + 1 : place;
}

class Gap {
  constructor(text) {
    this.text = text;
    this.size = text.length;
    this.row = null;
  }

  matches() {
    return true;
  }

  render() {
    return (this.row = gapRow(this.text));
  }
}

// The log of the project that a query names.
export class Log {
  constructor(query) {
    this.query = query;
    this.box = byId("log");
    this.list = byId("records");
    this.top = byId("log-top");
    this.button = byId("follow");
    this.newer = byId("newer");
    this.entries = []; // on the page, oldest first
    this.coming = []; // not on the page yet
    this.skipped = 0;
    this.following = true;
    this.end = 0; // where the end was when it was scrolled to
    this.byHand = false; // paused by the button, not by scrolling
    this.behind = false; // the stream began anew while paused: begin anew to follow
    this.cutBelow = false; // newer records had to give way to older ones
    this.cutAbove = false; // older records had to give way to newer ones
    this.before = null; // the place before the oldest record
    this.known = false; // whether there was a first answer
    this.reading = false;
    this.rank = 0;
    this.needle = "";
    this.drawing = false;
    this.listen();
    this.show();
    const handlers = {
      place: (data) => this.begin(JSON.parse(data)),
      log: (data) => this.take(data),
      gap: (data) => this.come([new Gap(sayGap(JSON.parse(data)?.missing))]),
      unavailable: (data) => this.refused(JSON.parse(data)),
      available: () => showLink("live"),
    };
    this.stream = follow(`${root}/api/logs/stream?${query}&limit=${FIRST}`, handlers, {
      ask: `${root}/api/logs?${query}&limit=1`,
      refused: (reason) => this.refused({ reason }),
    });
  }

  listen() {
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.box.addEventListener("unfold", () => this.following && this.pause(false));
    this.box.addEventListener("keydown", (event) => this.step(event));
    this.button.addEventListener("click", () => (this.following ? this.pause(true) : this.resume()));
    this.newer.addEventListener("click", () => this.resume());
    byId("level").addEventListener("change", (event) => this.filter(RANKS[event.target.value], this.needle));
    byId("search").addEventListener("input", (event) => this.filter(this.rank, event.target.value.trim().toLowerCase()));
    new ResizeObserver(() => this.following && this.toEnd()).observe(this.box);
  }

  // Go from record to record that has details: j and k, from the newest one on the page.
  step(event) {
    if (!["j", "k"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    const stops = [...this.list.querySelectorAll(".more")];
    const here = stops.indexOf(document.activeElement);
    const next = here < 0 ? stops.at(-1) : stops[here + (event.key === "j" ? 1 : -1)];
    if (!next) return;
    event.preventDefault();
    if (this.following) this.pause(true);
    next.focus({ preventScroll: true });
    next.closest(".row").scrollIntoView({ block: "nearest" });
  }

  // A stream has begun, or has begun again.
  begin(place) {
    if (!this.following) {
      this.behind = true;
      return;
    }
    this.entries = [];
    this.coming = [];
    this.skipped = 0;
    this.behind = this.cutBelow = this.cutAbove = false;
    this.before = place.before;
    this.known = true;
    this.list.replaceChildren();
    this.end = 0;
    setText(this.top, "");
    setTimeout(() => this.sayEmpty(), 400);
  }

  // Redis does not answer, or the key holds something else for good.
  refused({ kind = "wrong_type", reason }) {
    showLink(kind === "wrong_type" ? "unreadable" : "away");
    if (reason) setText(this.top, visible(reason));
  }

  take(data) {
    const records = JSON.parse(data);
    for (const { metadata } of records) {
      if (!metadata) continue;
      if (isOutcome(metadata)) noteOutcome(metadata);
      else if (isSent(metadata) && metadata.command !== "help" && metadata.sent === undefined) {
        noteSent({ id: metadata.commandId, command: metadata.command, args: metadata.args, by: metadata.sentBy, timestamp: records.find((one) => one.metadata === metadata).timestamp });
      }
    }
    this.come(records.map((record, place) => new Entry(record, data, place, data.length / records.length)));
  }

  come(entries) {
    if (this.behind) {
      this.skipped += entries.length;
    } else {
      this.coming.push(...entries);
      const excess = tooMany(this.coming);
      this.skipped += excess;
      this.coming.splice(0, excess);
    }
    this.draw();
  }

  // Show what has come, once per frame.
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    const once = () => {
      if (!this.drawing) return;
      this.drawing = false;
      if (this.following && this.box.scrollTop < this.end - NEAR) this.pause(false); // the event comes later
      if (this.following) this.flush();
      this.show();
    };
    requestAnimationFrame(once);
    setTimeout(once, LATE);
  }

  flush() {
    const coming = this.coming;
    this.coming = [];
    if (this.skipped) coming.unshift(new Gap(say("skipped", { n: this.skipped })));
    this.skipped = 0;
    this.entries.push(...coming);
    const excess = tooMany(this.entries);
    if (excess > 0) {
      for (const entry of this.entries.splice(0, excess)) entry.row?.remove();
      this.before = null;
      this.cutAbove = true;
    }
    this.list.append(this.render(coming.slice(-this.entries.length)));
    this.toEnd();
    this.sayEmpty();
  }

  render(entries) {
    const rows = document.createDocumentFragment();
    for (const entry of entries) {
      if (entry.matches(this.rank, this.needle)) rows.append(entry.render(this.needle));
      else entry.row = null;
    }
    return rows;
  }

  filter(rank, needle) {
    this.rank = rank;
    this.needle = needle;
    this.end = 0;
    this.list.replaceChildren(this.render(this.entries));
    this.sayEmpty();
    if (this.following) this.toEnd();
    else this.readIfNear();
  }

  sayEmpty() {
    if (this.list.childElementCount || !this.known || this.reading) {
      if (this.top.dataset.empty !== undefined) setText(this.top, "");
      delete this.top.dataset.empty;
    } else {
      this.top.dataset.empty = "";
      setText(this.top, say(this.entries.length ? "none_match" : "empty_log"));
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
    if (this.behind || this.cutBelow) {
      this.stream.reopen();
    } else this.flush();
    this.toEnd();
    this.show();
  }

  show() {
    setText(this.button, say(this.following ? "pause" : "follow"));
    this.button.setAttribute("aria-pressed", String(this.following));
    const waiting = this.following ? 0 : this.coming.length + this.skipped;
    this.newer.hidden = !waiting && !(this.behind || this.cutBelow);
    setText(this.newer, waiting ? `↓ ${say("new_records", { n: waiting })}` : `↓ ${say("follow")}`);
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

  // Read the page before the oldest record on the page.
  async readOlder() {
    if (this.reading || !this.known) return;
    if (this.before === null) {
      if (!this.cutAbove && this.entries.length) setText(this.top, say("beginning"));
      return;
    }
    this.reading = true;
    setText(this.top, say("loading"));
    try {
      const answer = await fetch(`${root}/api/logs?${this.query}&limit=${PAGE}&before=${encodeURIComponent(this.before)}`);
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      this.prepend(JSON.parse(text), text);
    } catch {
      setText(this.top, say("older_failed"));
    } finally {
      this.reading = false;
    }
  }

  prepend(page, text) {
    const older = page.logs.map((record, place) => new Entry(record, text, place, text.length / page.logs.length));
    const height = this.box.scrollHeight;
    const from = this.box.scrollTop;
    this.entries.unshift(...older);
    this.list.prepend(this.render(older));
    this.box.scrollTop = from + this.box.scrollHeight - height;
    this.before = page.before;
    setText(this.top, page.before !== null ? "" : say(page.trimmed ? "trimmed" : "beginning"));
    const excess = tooMany(this.entries.toReversed());
    if (excess > 0) {
      for (const entry of this.entries.splice(-excess)) entry.row?.remove();
      this.cutBelow = true;
      this.show();
    }
  }
}

const sayGap = (missing) => (missing ? say("gap", { n: missing }) : say("gap_some"));
