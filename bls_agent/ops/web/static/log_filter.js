// The filter of a log: read from the inputs, kept in the page's address, and written as a query for the server.

import { byId, plain, toAddress } from "./chrome.js";

const LATE = 300; // ms to wait after the last key
const RANKS = { debug: 0, info: 1, warn: 2, error: 3 };
const FIELDS = { q: "search", level: "level", since: "since", until: "until", replica: "replica", logger: "logger" };

export class LogFilter {
  // changed() is called when the filter has changed.
  constructor(changed) {
    const typed = new URLSearchParams(location.search);
    for (const [name, id] of Object.entries(FIELDS)) {
      const input = byId(id);
      if (typed.get(name)) input.value = typed.get(name);
      input.addEventListener("input", () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.read() && changed(), input.type === "search" ? LATE : 0);
      });
    }
    byId("narrow").open = ["since", "until", "replica", "logger"].some((name) => typed.get(name));
    this.read();
  }

  // Read the inputs; return whether something has changed.
  read() {
    const query = new URLSearchParams();
    for (const [name, id] of Object.entries(FIELDS)) {
      const text = byId(id).value.trim();
      if (text) query.set(name, text);
    }
    const before = this.query;
    this.query = query.toString();
    this.values = Object.fromEntries(query);
    this.needle = (this.values.q ?? "").toLowerCase();
    if (before === undefined || before === this.query) return false;
    toAddress({ ...Object.fromEntries(Object.keys(FIELDS).map((name) => [name, ""])), ...this.values });
    return true;
  }

  // Return whether a new record passes the filter; the server decides about all older records.
  wants(entry) {
    const { level, until, replica, logger } = this.values;
    if (!entry.record) return true; // a gap
    const { metadata = {} } = entry.record;
    if (until || (RANKS[entry.record.level] ?? 1) < (RANKS[level] ?? 0)) return false;
    if (replica && !plain(metadata.agent).startsWith(replica)) return false;
    if (logger && !`${plain(metadata.logger)}.`.startsWith(`${logger}.`)) return false;
    return !this.needle || entry.sought.includes(this.needle);
  }
}
