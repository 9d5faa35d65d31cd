// The events of a run as rows, with texts only; details are unfolded on demand.

import { part, plain, say, visible, visibleLines } from "./chrome.js";
import { block, exactly, exactTime, textsOfLines, unfolder } from "./records.js";

export const CATEGORIES = new Set(["lifecycle", "llm", "dispatch", "system", "agent"]);
const BAD = new Set(["failed", "error"]);
const SPOKEN = ["content", "delta", "text", "token", "chunk"]; // fields that hold streamed text
const LONGEST_DATA = 220; // characters of data beside a name
const LONGEST_SPEECH = 8000; // characters of a row; longer text continues in the next row

export const categoryOf = (event) => (CATEGORIES.has(event.event.category) ? event.event.category : "other");

// Return the text that a language model has streamed, or null for any other event.
export function spoken({ event, data }) {
  if (event.category !== "llm" || event.action !== "stream") return null;
  for (const name of SPOKEN) if (Object.hasOwn(data, name) && typeof data[name] === "string") return data[name];
  return null;
}

export const speakerOf = ({ source }) =>
  source ? JSON.stringify([source.agent_id, source.agent_type, source.agent_name, source.team_name]) : "";

function sayName(source) {
  if (!source) return "";
  return source.agent_name || source.agent_id || source.agent_type || source.team_name || "";
}

function sayData(data) {
  let told = "";
  for (const [name, value] of Object.entries(data)) {
    told += `${told && "  "}${name}=${plain(value)}`;
    if (told.length > LONGEST_DATA) return visible(`${told.slice(0, LONGEST_DATA)}…`);
  }
  return visible(told);
}

// The row of one event, or of a note between events.
class Row {
  constructor(first, category, size) {
    this.first = this.last = first; // ids of events
    this.category = category;
    this.size = size; // approximate number of characters
    this.element = null;
    this.sought = null;
  }

  matches(category, needle) {
    if (category && this.category !== "" && this.category !== category) return false;
    if (!needle) return true;
    this.sought ??= this.seek().toLowerCase();
    return this.sought.includes(needle);
  }

  get stamp() {
    return this.event?.timestamp; // a note has no event
  }

  base(name) {
    const row = part("li", `row event ${name}`);
    row.dataset.category = this.category;
    return row;
  }
}

export class EventRow extends Row {
  // batch is the JSON text in which the event came, place is the event's index there.
  constructor(event, batch, place, size) {
    super(event.id, categoryOf(event), size);
    this.event = event;
    this.batch = batch;
    this.place = place;
  }

  seek() {
    const { event } = this;
    return `${event.event.category}.${event.event.action}\n${sayName(event.source)}\n${JSON.stringify(event.data)}`;
  }

  render() {
    const { event } = this;
    const row = this.base("");
    if (BAD.has(event.event.action)) row.dataset.bad = "";
    const time = exactTime(event.timestamp);
    const from = part("bdi", "from", visible(sayName(event.source)));
    from.title = from.textContent;
    const text = part("bdi", "text");
    text.append(part("span", "name", visible(`${event.event.category}.${event.event.action}`)), part("span", "fields", sayData(event.data)));
    const notes = part("span", "notes");
    if (event.faults) notes.append(part("span", "from", say("faults", { fields: event.faults.join(", ") })));
    if (event.cut) notes.append(part("span", "from", say("cut_record")));
    notes.append(unfolder(row, () => this.details()));
    row.append(time, part("span", "number", event.sequence ? String(event.sequence) : "—"), from, text, notes);
    return (this.element = row);
  }

  details() {
    const read = exactly(this.batch);
    const event = read ? (read.events ?? read)[this.place] : this.event;
    const shown = textsOfLines(event.data).map(([name, text]) => block(name, text));
    shown.push(block("data", JSON.stringify(event.data, null, 2)));
    if (event.raw) shown.push(block("raw", JSON.stringify(event.raw, null, 2)));
    const { id, timestamp, sequence, source } = event;
    shown.push(block("event", JSON.stringify({ id, timestamp, sequence, source })));
    return shown;
  }
}

// Streamed text of one source, which grows with each event.
export class SpeechRow extends Row {
  constructor(event, text, size, continued = false) {
    super(event.id, "llm", size);
    this.speaker = speakerOf(event);
    this.event = event;
    this.text = text;
    this.pending = "";
    this.pieces = 1;
    this.sequence = event.sequence;
    this.continued = continued;
  }

  get full() {
    return this.text.length >= LONGEST_SPEECH;
  }

  add(event, text, size) {
    this.last = event.id;
    this.sequence = event.sequence;
    this.text += text;
    this.pending += text;
    this.size += size;
    this.pieces += 1;
    this.sought = null;
  }

  seek() {
    return `llm.stream\n${sayName(this.event.source)}\n${this.text}`;
  }

  render() {
    const { event } = this;
    const row = this.base("speech");
    const time = exactTime(event.timestamp);
    const from = part("bdi", "from", visible(sayName(event.source)));
    from.title = from.textContent;
    this.number = part("span", "number", "");
    this.words = part("bdi", "text", visibleLines(this.text));
    this.notes = part("span", "notes");
    row.append(time, this.number, from, this.words, this.notes);
    this.element = row;
    this.pending = "";
    this.head();
    return row;
  }

  head() {
    const { event, sequence } = this;
    this.element.classList.toggle("continued", this.continued);
    this.number.textContent = event.sequence && sequence > event.sequence ? `${event.sequence}–${sequence}` : String(event.sequence || "—");
    this.notes.title = say("pieces", { n: this.pieces });
  }

  // Write the text that was added since the last call.
  grow() {
    if (!this.element || !this.pending) return;
    this.words.append(visibleLines(this.pending));
    this.pending = "";
    this.head();
  }
}

export class NoteRow extends Row {
  constructor(text, after, kind) {
    super(after, "", text.length);
    this.text = text;
    this.kind = kind;
  }

  seek() {
    return "";
  }

  matches() {
    return true;
  }

  render() {
    const row = part("li", "row gap", this.text);
    row.dataset.note = this.kind;
    return (this.element = row);
  }
}
