// One record of a log as a row, with texts only; details are unfolded on demand.

import { part, plain, say, sayOr, visible, visibleLines } from "./chrome.js";
import { sayTime, timeOf } from "./clock.js";
import { sayDuration } from "./sent.js";

const NOT_TOLD = new Set(["agent"]);
const NOT_BESIDE = new Set([...NOT_TOLD, "commandId", "statusReason", "trace_id", "span_id"]); // useful only to programs
const TRACE_ID = /^[0-9a-f]{32}$/;
const FRAME = /^  File ".*?([/\\]bls_agent[/\\][^"]*)?", line /;
const LONGEST_ANSWER = 110; // characters of a result or of arguments beside their command
const LONGEST_FIELDS = 160; // characters of metadata beside a message

// The time of a record or an event, with milliseconds.
export const exactTime = (stamp) => timeOf(stamp, (one) => sayTime(one, { exact: true }));

export const isOutcome = (metadata) =>
  typeof metadata.outcome === "string" && "command" in metadata && typeof metadata.durationMs === "number";
export const isSent = (metadata) => typeof metadata.sentBy === "string" && typeof metadata.commandId === "string";

// A record on the page; batch is the JSON text in which the record came, place is the record's index there.
export class Entry {
  constructor(record, batch, place, size) {
    this.record = record;
    this.batch = batch;
    this.place = place;
    this.size = size; // approximate number of characters
    this.element = null;
  }

  get stamp() {
    return this.record.timestamp;
  }

  // The text that is searched, with all that the server's search reads.
  get sought() {
    const { message, metadata } = this.record;
    const fields = Object.entries(metadata ?? {}).map(([name, value]) => `${name}=${plain(value)}`);
    return [message, ...fields, JSON.stringify(metadata)].join("\n").toLowerCase();
  }

  // The record as a line of text, to be copied.
  get line() {
    const { timestamp, level, message, metadata } = this.record;
    return [timestamp || "-", level, message, JSON.stringify(metadata)].join("  ");
  }

  // Build the row; needle is the searched text, which is marked in the row.
  render(needle) {
    const { record } = this;
    const metadata = record.metadata ?? {};
    const row = part("li", "row");
    row.dataset.level = record.level;
    const time = exactTime(record.timestamp);
    const text = part("bdi", "text");
    writeText(text, record, needle);
    const notes = part("span", "notes");
    if (record.valid === false) notes.append(part("span", "from", say("not_contract")));
    if (Number.isInteger(metadata.truncated)) notes.append(part("span", "from", say("cut_from", { n: metadata.truncated.toLocaleString(document.documentElement.lang) })));
    else if (record.cut) notes.append(part("span", "from", say("cut_record")));
    const id = metadata.trace_id;
    if (traceUrl() && typeof id === "string" && TRACE_ID.test(id)) notes.append(traceLink(row, id));
    if (hasDetails(record)) notes.append(unfolder(row, () => details(this.exactly())));
    row.append(time, part("span", "level", record.level), text, notes);
    return (this.element = row);
  }

  exactly() {
    const read = exactly(this.batch);
    return read ? (read.logs ?? read)[this.place] : this.record;
  }
}

const traceUrl = () => document.querySelector("#log")?.dataset.traceUrl;

// Make the link to a record's trace; Tab reaches the link when the record is unfolded.
function traceLink(row, id) {
  const link = part("a", "trace", say("trace"));
  link.href = traceUrl().replaceAll("{trace_id}", id);
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.tabIndex = -1;
  row.addEventListener("unfold", () => (link.tabIndex = 0));
  return link;
}

// Make the button that unfolds the details of a row.
export function unfolder(row, details) {
  const button = part("button", "more", "{…}");
  button.type = "button";
  button.tabIndex = -1; // because Tab would stop thousands of times; j and k reach the button
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-label", say("unfold"));
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    if (open) row.append(...details());
    else row.querySelectorAll("pre").forEach((pre) => pre.remove());
    row.dispatchEvent(new CustomEvent("unfold", { bubbles: true }));
  });
  return button;
}

// Read JSON; integers that a double cannot hold become BigInt, which JSON.stringify() writes as they were.
export const readJson = (text) => JSON.parse(text, JSON.rawJSON && /\d{16}/.test(text) ? keepInteger : undefined);

function keepInteger(_, value, context) {
  const isLossy = typeof value === "number" && context && !Number.isSafeInteger(value);
  return isLossy && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value;
}

BigInt.prototype.toJSON = function () {
  return JSON.rawJSON(String(this));
};

// Read JSON and keep numbers as they were written; return null if doubles can hold all numbers.
export function exactly(text) {
  if (!JSON.rawJSON || !/\d{16}/.test(text)) return null;
  const keep = (_, value, context) =>
    typeof value === "number" && context && String(value) !== context.source ? JSON.rawJSON(context.source) : value;
  return JSON.parse(text, keep);
}

function writeText(element, record, needle) {
  const metadata = record.metadata ?? {};
  if (isOutcome(metadata)) {
    const good = metadata.outcome === "succeeded";
    const known = `outcome_${metadata.outcome}`;
    const end = part("span", "end", `${good ? "✓" : "✗"} ${visible(plain(metadata.command))} ${sayOr(known, metadata.outcome)}`);
    end.toggleAttribute(good ? "data-good" : "data-bad", true);
    element.append(end);
    const answer = good ? metadata.result : (metadata.error?.message ?? metadata.error?.reason ?? metadata.error);
    const told = metadata.command === "help" ? "" : sayBeside(answer);
    write(element, `${sayDuration(metadata.durationMs)}${told}`, needle);
    return;
  }
  if (isSent(metadata) && metadata.sent === undefined) {
    element.append(part("span", "end", `→ ${visible(plain(metadata.command))}`));
    const args = metadata.args && Object.keys(metadata.args).length ? sayBeside(metadata.args) : "";
    write(element, `${say("sent_by", { user: visible(metadata.sentBy) })}${args}`, needle);
    return;
  }
  write(element, visible(record.message), needle);
  const fields = sayFields(metadata);
  if (fields) {
    const beside = part("span", "fields");
    write(beside, fields, needle);
    element.append(beside);
  }
}

// Write the plain fields of metadata beside a message, up to LONGEST_FIELDS characters.
function sayFields(metadata) {
  let told = "";
  for (const [name, value] of Object.entries(metadata)) {
    if (NOT_BESIDE.has(name)) continue;
    const error = name === "exception" && value && typeof value === "object" ? [value.type, value.message].filter(Boolean).map(plain).join(": ") : value;
    if (error === null || (typeof error === "object" && error)) continue;
    told += `${told && "  "}${name}=${String(error)}`;
    if (told.length > LONGEST_FIELDS) return visible(`${told.slice(0, LONGEST_FIELDS)}…`);
  }
  return visible(told);
}

function sayBeside(value) {
  if (value === null || value === undefined) return "";
  const told = typeof value === "string" ? value : JSON.stringify(value);
  return `  ${visible(told.length > LONGEST_ANSWER ? `${told.slice(0, LONGEST_ANSWER)}…` : told)}`;
}

// Write a text, and mark each occurrence of the searched text.
function write(element, text, needle) {
  const lower = needle ? text.toLowerCase() : "";
  let from = 0;
  if (needle && lower.length === text.length) {
    for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
      element.append(text.slice(from, at), part("mark", "", text.slice(at, at + needle.length)));
      from = at + needle.length;
    }
  }
  element.append(text.slice(from));
}

function hasDetails(record) {
  return record.message.includes("\n") || Object.keys(record.metadata ?? {}).some((name) => !NOT_TOLD.has(name));
}

function details(record) {
  const shown = [];
  if (record.message.includes("\n")) shown.push(block("message", record.message));
  for (const [name, text] of textsOfLines(record.metadata, "")) shown.push(block(name, text));
  const json = JSON.stringify(record.metadata, null, 2);
  if (json && json !== "{}") shown.push(block("metadata", json));
  return shown;
}

export function block(name, text) {
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  pre.append(part("span", "field-name", visible(name)), visibleLines(foldFrames(text)));
  return pre;
}

// Replace the frames of this package in a traceback by their number, as the command line does.
function foldFrames(text) {
  const kept = [];
  let [ours, count] = [false, 0];
  const close = () => {
    if (count) kept.push(say("frames_folded", { count }));
    count = 0;
  };
  for (const line of text.split("\n")) {
    const frame = FRAME.exec(line);
    if (frame) ours = frame[1] !== undefined;
    else if (!line.startsWith("    ")) ours = false; // the frame has ended
    if (frame && ours) count += 1;
    if (ours) continue;
    close();
    kept.push(line);
  }
  close();
  return kept.join("\n");
}

// Find texts of several lines in metadata, such as tracebacks.
export function textsOfLines(value, path = "", found = []) {
  if (found.length > 4 || path.length > 200) return found;
  if (typeof value === "string") {
    if (value.includes("\n")) found.push([path, value]);
  } else if (value && typeof value === "object" && !JSON.isRawJSON?.(value)) {
    for (const [name, inner] of Object.entries(value).slice(0, 100)) textsOfLines(inner, path ? `${path}.${name}` : name, found);
  }
  return found;
}

export function gapRow(text) {
  const row = part("li", "row gap", text);
  row.dataset.level = "warn";
  return row;
}
