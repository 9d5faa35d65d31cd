// One clock for all pages: the local time of this browser. The header names its zone, and a tooltip has each time in UTC.

import { byId, say, visible } from "./chrome.js";

const STAMP = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

const WITHOUT_ZONE = /[T ]\d\d:\d\d(:\d\d(\.\d+)?)?$/;

const pad = (number, digits = 2) => String(number).padStart(digits, "0");

// Read a timestamp of a record, or milliseconds; return null if it is no time. Without a zone it is UTC, as on the server.
function read(stamp) {
  const when = new Date(WITHOUT_ZONE.test(stamp) ? `${stamp}Z` : stamp);
  return stamp && !Number.isNaN(when.valueOf()) ? when : null;
}

// Write the local day, as 2026-01-31; an empty text if the timestamp is no time.
export function dayOf(stamp) {
  const when = read(stamp);
  return when ? `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())}` : "";
}

// Write the local time of day, with milliseconds on demand.
export function sayTime(stamp, { exact = false } = {}) {
  const when = read(stamp);
  if (!when) return stamp ? visible(String(stamp).slice(0, 12)) : "—";
  const time = `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
  return exact ? `${time}.${pad(when.getMilliseconds(), 3)}` : time;
}

// Write the local time, after the day unless the day is today.
export function sayMoment(stamp) {
  const day = dayOf(stamp);
  return day && day !== dayOf(Date.now()) ? `${day} ${sayTime(stamp)}` : sayTime(stamp);
}

// Write the time in UTC; a timestamp that is no time stays as it is.
export const sayUtc = (stamp) => read(stamp)?.toISOString().replace("T", " ").replace("Z", " UTC") ?? visible(String(stamp ?? ""));

// Make the element of a time, whose tooltip is the time in UTC.
export function timeOf(stamp, say = sayMoment) {
  const element = document.createElement("time");
  element.textContent = say(stamp);
  element.title = sayUtc(stamp);
  return element;
}

// Mark each row of a list that begins another day than the row before it, and the first row if its day is not today.
// A row has a stamp (a timestamp, or nothing) and an element.
export function markDays(rows) {
  let before = dayOf(Date.now());
  for (const row of rows) {
    row.day ??= dayOf(row.stamp);
    const counts = row.day && !row.element.hidden;
    const begins = counts && row.day !== before ? row.day : "";
    if (counts) before = row.day;
    if (begins === (row.begins ?? "")) continue;
    row.begins = begins;
    if (begins) row.element.dataset.day = begins;
    else delete row.element.dataset.day;
  }
}

// Write the timestamps that the server wrote into elements with data-clock as local times.
function translate() {
  for (const element of document.querySelectorAll("[data-clock]")) {
    const text = element.textContent;
    const parts = text.split(STAMP);
    if (parts.length < 2) continue;
    const stamps = text.match(STAMP);
    element.replaceChildren(...parts.flatMap((part, place) => (place ? [timeOf(stamps[place - 1]), part] : [part])));
  }
}

function sayZone() {
  const east = -new Date().getTimezoneOffset();
  const minutes = Math.abs(east) % 60;
  const hours = Math.floor(Math.abs(east) / 60);
  const shown = `UTC${east < 0 ? "−" : "+"}${hours}${minutes ? `:${pad(minutes)}` : ""}`;
  const zone = byId("zone");
  zone.textContent = east ? shown : "UTC";
  zone.title = say("zone", { name: Intl.DateTimeFormat().resolvedOptions().timeZone, zone: zone.textContent });
}

sayZone();
translate();
document.addEventListener("htmx:after:swap", translate);
