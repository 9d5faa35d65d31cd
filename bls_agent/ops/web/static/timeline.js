// The events of a run, which can follow, pause, filter and page back, with a limited number of rows.

import { byId, root, say, setText, visible } from "./chrome.js";
import { markDays, sayMoment } from "./clock.js";
import { EventRow, NoteRow, SpeechRow, speakerOf, spoken } from "./event_rows.js";
import { Pane, takeOff, tooMany } from "./pane.js";
import { readJson } from "./records.js";
import { follow, showLink } from "./stream.js";

const PAGE = 500; // older events that are read at once
const PORTION = 250; // rows that are added to the page at once
const SAYS = {
  empty: "no_events",
  unmatched: "no_event_matches",
  beginning: "run_beginning",
  reading: "loading_events",
  failed: "older_events_failed",
};

export class Timeline extends Pane {
  constructor(run, handlers) {
    super("events", SAYS);
    this.run = run;
    this.handlers = handlers;
    this.bottom = byId("log-end");
    this.speaking = new Map(); // speaker → row in which the speaker's text continues
    this.grown = new Set(); // rows with text that is not on the page yet
    this.count = 0; // events that came while paused
    this.place = ""; // id of the newest event that is known
    this.over = false;
    this.wanted = ""; // the chosen category
    this.needle = "";
    byId("search-on").addEventListener("click", () => this.readOlder());
    byId("search").addEventListener("input", (event) => this.filter(this.wanted, event.target.value.trim().toLowerCase()));
    this.show();
    this.stream = follow(() => this.address(), {
      run: (data) => handlers.head(JSON.parse(data)),
      begin: (data) => this.begin(JSON.parse(data)),
      events: (data) => this.take(data),
      gap: (data) => this.note(sayGap(JSON.parse(data)), JSON.parse(data).after, "gap"),
      lost: (data) => this.note(say("run_lost"), JSON.parse(data).after, "lost"),
      end: (data) => this.finish(JSON.parse(data)),
      unavailable: (data) => this.away(JSON.parse(data)),
      available: () => this.away({ kind: "" }),
    }, { ask: `${root}/api/runs?limit=1` });
  }

  // Return the stream's address; a page with events continues exactly after the last one.
  address() {
    return `${root}/events/runs/${this.run}${this.place ? `?after=${this.place}` : ""}`;
  }

  // Forget all events, because the newest events come next.
  begin({ before }) {
    this.clear(before);
    this.speaking.clear();
    this.grown.clear();
    this.count = 0;
    this.over = false;
    setText(this.bottom, "");
  }

  // Load the newest events again, because events are missing on the page.
  anew() {
    this.place = "";
    this.known = false;
    this.stream.reopen();
  }

  away({ kind, reason }) {
    showLink(kind === "wrong_type" ? "unreadable" : kind ? "away" : "live");
    this.handlers.away(kind);
    if (reason) setText(this.top, visible(reason));
  }

  take(data) {
    const events = readJson(data);
    this.place = events.at(-1).id;
    const box = document.documentElement.dataset;
    box.events = String(Number(box.events ?? 0) + events.length); // number of events so far
    this.known = true;
    this.handlers.seen(events);
    if (this.behind) this.count += events.length;
    else this.absorb(events, data);
    this.draw();
  }

  note(text, after, kind) {
    const last = this.coming.at(-1) ?? this.rows.at(-1);
    if (last instanceof NoteRow && last.kind === kind && last.first === after) return; // repeated after a reconnection
    this.speaking.clear();
    if (!this.behind) this.coming.push(new NoteRow(text, after, kind));
    this.draw();
  }

  finish({ reason }) {
    this.over = true;
    this.stream.stop();
    showLink("over");
    setText(this.bottom, say(`run_end_${reason}`));
    this.speaking.clear();
    this.draw();
  }

  absorb(events, data) {
    const size = data.length / events.length;
    events.forEach((event, place) => {
      const row = addEvent(event, data, place, size, this.coming, this.speaking);
      if (row) this.grown.add(row);
    });
    if (!this.following) this.count += events.length;
    const excess = tooMany(this.coming);
    if (excess > 0 && this.following) this.skip(excess);
    else if (excess > 0) this.behind = true;
    if (this.behind) {
      this.coming = [];
      this.speaking.clear();
    }
  }

  // Drop the older rows, because more have come than the page may hold; they can be read again on demand.
  skip(excess) {
    this.coming.splice(0, excess);
    takeOff(this.rows);
    this.rows = [];
    this.end = 0;
    this.before = firstEvent(this.coming);
    setText(this.top, "");
  }

  flush() {
    const rows = this.coming.splice(0, PORTION);
    this.rows.push(...rows);
    this.list.append(this.render(rows));
    for (const row of this.grown) {
      row.grow();
      if (row.element) row.element.hidden = !row.matches(this.wanted, this.needle);
    }
    this.grown.clear();
    this.mark();
    const excess = tooMany(this.rows);
    if (excess > 0) {
      takeOff(this.rows.splice(0, excess));
      this.before = firstEvent(this.rows);
    }
    this.count = this.coming.length;
    this.toEnd();
    this.sayEmpty();
    if (this.coming.length) this.draw();
  }

  // Show a cursor after the last word of each speaker.
  mark() {
    const speaking = new Set([...this.speaking.values()].map((row) => row.element));
    for (const element of this.list.querySelectorAll(".writing")) if (!speaking.has(element)) element.classList.remove("writing");
    if (!this.over) for (const element of speaking) element?.classList.add("writing");
  }

  render(rows) {
    const found = document.createDocumentFragment();
    for (const row of rows) {
      const element = row.element ?? row.render();
      element.hidden = !row.matches(this.wanted, this.needle);
      found.append(element);
    }
    return found;
  }

  // Hide the rows of other categories, and the rows without the searched text.
  filter(wanted, needle) {
    this.wanted = wanted;
    this.needle = needle;
    this.end = 0;
    for (const row of this.rows) if (row.element) row.element.hidden = !row.matches(this.wanted, this.needle);
    markDays(this.rows);
    this.sayEmpty();
    this.show();
    if (this.following) this.toEnd();
    else this.readIfNear();
  }

  // Show how many of the page's rows match, and back to which time, because the filter sees no other events.
  showFound() {
    byId("found").hidden = !this.wanted && !this.needle;
    const n = this.list.querySelectorAll(":scope > :not([hidden])").length;
    const time = sayMoment(this.rows.find((row) => row.stamp)?.stamp);
    setText(byId("found-text"), say("found_rows", { n, searched: this.rows.length.toLocaleString(), time }));
    byId("search-on").hidden = this.before === null;
  }

  isFiltered() {
    return this.rows.length > 0;
  }

  show() {
    super.show();
    this.showFound();
    this.newer.hidden = this.following || !(this.count || this.cutBelow);
    setText(this.newer, this.count ? `↓ ${say("new_events", { n: this.count })}` : "↓");
  }

  older() {
    return `${root}/api/runs/${this.run}/events?limit=${PAGE}&before=${this.before}`;
  }

  adopt(page, data) {
    const older = oldRows(page.events, data);
    const [next] = this.rows;
    const last = older.at(-1);
    if (last instanceof SpeechRow && next instanceof SpeechRow && last.speaker === next.speaker) {
      next.continued = true;
      if (next.element) next.head();
    }
    this.prepend(older, page.next, SAYS.beginning);
    if (this.cutBelow) this.speaking.clear();
    this.showFound();
  }
}

// Return the id of the first event in rows; a note has the id of the event before the note.
const firstEvent = (rows) => (rows.find((row) => !(row instanceof NoteRow)) ?? rows[0]).first;

// Make the rows of a page of older events.
function oldRows(events, data) {
  const rows = [];
  const speaking = new Map();
  const size = data.length / events.length;
  events.forEach((event, place) => addEvent(event, data, place, size, rows, speaking));
  return rows;
}

// Add a row for an event, or let a row that is there continue with the event's text, and return this row.
function addEvent(event, data, place, size, rows, speaking) {
  const text = spoken(event);
  if (text === null) {
    speaking.clear();
    rows.push(new EventRow(event, data, place, size));
    return null;
  }
  const row = speaking.get(speakerOf(event));
  if (row && !row.full) {
    row.add(event, text, text.length);
    return row;
  }
  const begun = new SpeechRow(event, text, text.length, Boolean(row));
  speaking.set(begun.speaker, begun);
  rows.push(begun);
  return null;
}

function sayGap({ missing, reason }) {
  const why = say(`run_gap_${reason}`);
  return missing ? say("run_gap_counted", { n: missing, why }) : say("run_gap", { why });
}
