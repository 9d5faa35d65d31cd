// The live log of a project, which can follow, pause and page back, with a limited number of rows. If a
// filter is set, the server searches the whole log, and the page filters the records that arrive later.

import { byId, root, say, setText, visible } from "./chrome.js";
import { sayMoment } from "./clock.js";
import { LogFilter } from "./log_filter.js";
import { Pane, takeOff, tooMany } from "./pane.js";
import { Entry, gapRow, isOutcome, isSent, readJson } from "./records.js";
import { noteOutcome, noteSent } from "./sent.js";
import { follow, showLink } from "./stream.js";

const FIRST = 200; // records at the start of a stream
const PAGE = 200; // older records that are read at once
const FILE = 1000; // records of a file
const SAYS = {
  empty: "empty_log",
  unmatched: "none_match",
  beginning: "beginning",
  reading: "loading",
  failed: "older_failed",
};

class Gap {
  constructor(text) {
    this.text = this.line = text;
    this.size = text.length;
    this.element = null;
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
    this.first = 0; // records of the stream's first page that have not arrived yet
    this.wanted = new LogFilter(() => this.filter());
    this.search = null; // the current search; coming has the records that arrive during the request
    byId("search-on").addEventListener("click", () => this.readOlder());
    byId("copy-found").addEventListener("click", () => navigator.clipboard.writeText(this.rows.map((row) => row.line).join("\n")));
    byId("copy-found").hidden = !navigator.clipboard; // exists only on a secure page
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

  // A stream has begun, perhaps after a lost connection.
  begin(place) {
    this.first = place.records;
    setText(byId("nothing-sent"), say("nothing_sent"));
    if (!this.following && !this.search?.coming) {
      this.behind = true;
      this.show();
      return;
    }
    if (this.wanted.query) {
      this.seek();
      return;
    }
    this.clear(place.before);
    this.skipped = 0;
  }

  // The filter has changed: ask the server, or go back to the newest records.
  filter() {
    if (!this.known) return; // the stream has not begun
    this.following = true;
    this.byHand = false;
    if (this.wanted.query) {
      this.seek();
      return;
    }
    this.search = null;
    this.showFound();
    this.anew();
  }

  // Search the whole log. A response to an earlier search is ignored.
  async seek() {
    const search = (this.search = { query: this.wanted.query, searched: 0, backTo: "", coming: [] });
    this.known = true;
    this.reading = false;
    setText(this.top, say("searching"));
    try {
      const answer = await fetch(`${root}/api/logs?${this.query}&limit=${PAGE}&${search.query}`);
      const text = await answer.text();
      if (search !== this.search) return;
      if (!answer.ok) throw new Error(Object.values(JSON.parse(text).fields ?? {}).join("; ") || String(answer.status));
      const page = readJson(text);
      const { coming } = search;
      search.coming = null;
      this.clear(page.before);
      this.skipped = 0;
      this.note(page);
      const found = new Set(page.logs.map((record) => JSON.stringify(record)));
      this.come([...this.entries(page, text), ...coming.filter((entry) => !found.has(JSON.stringify(entry.record)))]);
    } catch (error) {
      if (search !== this.search) return;
      const { coming } = search;
      search.coming = null; // from now on, records that the filter wants are shown when they arrive
      if (coming) this.come(coming);
      setText(this.top, `${say("search_failed")} ${visible(error.message)}`);
    }
  }

  entries(page, text) {
    return page.logs.map((record, place) => new Entry(record, text, place, text.length / page.logs.length));
  }

  // Note how many records were searched, and back to which time.
  note(page) {
    this.search.searched += page.searched;
    this.search.backTo = page.backTo || this.search.backTo;
  }

  showFound() {
    const { search } = this;
    byId("found").hidden = !search?.searched;
    if (!search) return;
    const time = sayMoment(search.backTo);
    setText(byId("found-text"), say("found", { n: this.rows.length, searched: search.searched.toLocaleString(), time }));
    byId("search-on").hidden = this.before === null;
    byId("save-found").href = `${root}/api/logs?${this.query}&limit=${FILE}&${search.query}&format=ndjson`;
  }

  anew() {
    this.stream.reopen();
  }

  // Redis does not answer, a right is missing, or the key is no log.
  refused({ kind = "wrong_type", reason }) {
    const state = { wrong_type: "unreadable", no_permission: "forbidden" }[kind] ?? "away";
    showLink(state);
    if (state === "away" && !this.known) setText(byId("nothing-sent"), say("not_known"));
    if (reason) setText(this.top, visible(reason));
  }

  take(data) {
    const records = readJson(data);
    for (const { metadata } of records) {
      if (!metadata) continue;
      if (isOutcome(metadata)) noteOutcome(metadata);
      else if (isSent(metadata) && metadata.command !== "help" && metadata.sent === undefined) {
        noteSent({ id: metadata.commandId, command: metadata.command, args: metadata.args, by: metadata.sentBy, timestamp: records.find((one) => one.metadata === metadata).timestamp });
      }
    }
    const isFirst = this.first > 0;
    if (isFirst) this.first -= records.length;
    if (isFirst && (this.search || this.behind)) return; // the search reads these records, or the next stream does
    this.come(records.map((record, place) => new Entry(record, data, place, data.length / records.length)));
  }

  come(entries) {
    if (this.search) {
      entries = entries.filter((entry) => this.wanted.wants(entry));
      if (this.search.coming) {
        this.search.coming.push(...entries);
        return;
      }
    }
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
    for (const entry of entries) found.append(entry.render(this.wanted.needle));
    return found;
  }

  isFiltered() {
    return this.search !== null;
  }

  show() {
    super.show();
    this.showFound();
    const waiting = this.following ? 0 : this.coming.length + this.skipped;
    this.newer.hidden = !waiting && !(this.behind || this.cutBelow);
    setText(this.newer, waiting ? `↓ ${say("new_records", { n: waiting })}` : `↓ ${say("follow")}`);
  }

  older() {
    const sought = this.search ? `&${this.search.query}` : "";
    return `${root}/api/logs?${this.query}&limit=${PAGE}${sought}&before=${encodeURIComponent(this.before)}`;
  }

  adopt(page, text) {
    if (this.search) this.note(page);
    this.prepend(this.entries(page, text), page.before, page.trimmed ? "trimmed" : SAYS.beginning);
    this.show();
  }
}

const sayGap = (missing) => (missing ? say("gap", { n: missing }) : say("gap_some"));
