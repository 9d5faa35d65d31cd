// The live log of a project: follows, pauses, filters, pages back; never more than so many rows.

import { byId, root, say, setText, visible } from "./chrome.js";
import { Pane, takeOff, tooMany } from "./pane.js";
import { Entry, gapRow, isOutcome, isSent } from "./records.js";
import { noteOutcome, noteSent } from "./sent.js";
import { follow, showLink } from "./stream.js";

const FIRST = 200; // records that a stream begins with
const PAGE = 200; // older records that are read at once
const RANKS = { all: 0, info: 1, warn: 2, error: 3 };
const SAYS = {
  empty: "empty_log",
  unmatched: "none_match",
  beginning: "beginning",
  reading: "loading",
  failed: "older_failed",
};

class Gap {
  constructor(text) {
    this.text = text;
    this.size = text.length;
    this.element = null;
  }

  matches() {
    return true;
  }

  render() {
    return (this.element = gapRow(this.text));
  }
}

// The log of the project that a query names.
export class Log extends Pane {
  constructor(query) {
    super("records", SAYS);
    this.query = query;
    this.skipped = 0;
    this.wanted = 0; // rank of a level
    byId("level").addEventListener("change", (event) => this.filter(RANKS[event.target.value], this.needle));
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

  // A stream has begun, or has begun again.
  begin(place) {
    setText(byId("nothing-sent"), say("nothing_sent"));
    if (!this.following) {
      this.behind = true;
      return;
    }
    this.clear(place.before);
    this.skipped = 0;
  }

  anew() {
    this.stream.reopen();
  }

  // Redis does not answer, or the key holds something else for good.
  refused({ kind = "wrong_type", reason }) {
    showLink(kind === "wrong_type" ? "unreadable" : "away");
    if (kind !== "wrong_type" && !this.known) setText(byId("nothing-sent"), say("not_known"));
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

  flush() {
    const coming = this.coming;
    this.coming = [];
    if (this.skipped) coming.unshift(new Gap(say("skipped", { n: this.skipped })));
    this.skipped = 0;
    this.rows.push(...coming);
    const excess = tooMany(this.rows);
    if (excess > 0) {
      takeOff(this.rows.splice(0, excess));
      this.before = null;
      this.cutAbove = true;
    }
    this.list.append(this.render(coming.slice(-this.rows.length)));
    this.toEnd();
    this.sayEmpty();
  }

  render(entries) {
    const found = document.createDocumentFragment();
    for (const entry of entries) {
      if (entry.matches(this.wanted, this.needle)) found.append(entry.render(this.needle));
      else entry.element = null;
    }
    return found;
  }

  sift() {
    this.list.replaceChildren(this.render(this.rows)); // rows are made anew: the needle is marked in them
  }

  show() {
    super.show();
    const waiting = this.following ? 0 : this.coming.length + this.skipped;
    this.newer.hidden = !waiting && !(this.behind || this.cutBelow);
    setText(this.newer, waiting ? `↓ ${say("new_records", { n: waiting })}` : `↓ ${say("follow")}`);
  }

  older() {
    return `${root}/api/logs?${this.query}&limit=${PAGE}&before=${encodeURIComponent(this.before)}`;
  }

  adopt(page, text) {
    const older = page.logs.map((record, place) => new Entry(record, text, place, text.length / page.logs.length));
    this.prepend(older, page.before, page.trimmed ? "trimmed" : SAYS.beginning);
  }
}

const sayGap = (missing) => (missing ? say("gap", { n: missing }) : say("gap_some"));
