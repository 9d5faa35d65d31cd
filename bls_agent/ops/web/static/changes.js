// The changes of statuses, the newest first: for one project, or for all projects with a filter and older pages.

import { byId, copy, fromAddress, part, root, say, setText, toAddress, visible } from "./chrome.js";
import { markDays, sayMoment, sayTime, timeOf } from "./clock.js";
import { showAway } from "./stream.js";

const INTERVAL = 2_000; // ms between two requests
const PAGE = 200; // changes in one response
const MOST = 2_000; // changes that come by themselves to a page, after which the oldest leave
const LATE = 300; // ms to wait after the last key
const FIELDS = { projectName: "project", kind: "kind", q: "search" }; // of the query → id of an input

const list = byId("history");
const { query } = list.dataset; // of one project; without it, the inputs choose
let rows = []; // newest first
let since = "";
let last = 0; // id of the newest change on the page
let before = null; // id before which older changes are read, null if there are none

function badge(kind) {
  const held = part("span", "");
  held.dataset.kind = kind; // the kind sets the colour
  held.append(copy(`badge-${kind}`));
  return held;
}

function makeRow(change) {
  const item = part("li", "");
  item.append(timeOf(change.timestamp, sayTime));
  if (change.since) {
    item.append(part("span", "unknown", say("change_unknown", { since: sayMoment(change.since), to: sayMoment(change.timestamp) })));
    return { id: change.id, element: item, stamp: change.timestamp };
  }
  if (!query) {
    const link = part("a", "");
    link.href = root + change.path;
    link.title = visible(change.projectName);
    link.append(part("bdi", "", link.title));
    item.append(link);
  }
  const turn = part("span", "turn");
  turn.append(change.from ? badge(change.from) : say("change_new"), " → ", badge(change.to));
  item.append(turn);
  if (change.reason) item.append(part("bdi", "why", visible(change.reason)));
  return { id: change.id, element: item, stamp: change.timestamp };
}

function filter() {
  if (query) return query;
  const chosen = Object.entries(FIELDS).map(([name, id]) => [name, byId(id).value.trim()]);
  return new URLSearchParams(chosen.filter(([, text]) => text)).toString();
}

async function read(more) {
  const asked = filter();
  const answer = await fetch(`${root}/api/changes?limit=${PAGE}&${more}&${asked}`, { signal: AbortSignal.timeout(8000) });
  if (answer.status === 401) location.reload();
  return answer.ok && asked === filter() ? answer.json() : null; // null, too, if the filter has changed meanwhile
}

function clear() {
  rows = [];
  last = 0;
  before = null;
  list.replaceChildren();
}

function show(told) {
  markDays(rows);
  const none = byId("unchanged");
  none.hidden = rows.length > 0;
  setText(none, !query && filter() ? say("none_of_changes") : say("no_changes", { time: sayMoment(since) }));
  if (query) return;
  byId("older").hidden = before === null;
  showAway(told.unavailable, told.unavailableSince);
  const names = new Set([...byId("projects").children].map(({ value }) => value));
  for (const { projectName } of told.changes) {
    if (projectName && !names.has(projectName)) byId("projects").append(new Option("", projectName));
    names.add(projectName);
  }
}

function take(told) {
  if (told.since !== since) {
    const again = since && last; // the console was restarted, and ids count anew
    since = told.since;
    clear();
    if (again) return look();
  }
  if (last && told.before !== null) clear(); // more have come than one response holds
  if (!last) ({ before } = told);
  for (const change of told.changes.filter(({ id }) => id > last)) {
    const row = makeRow(change);
    rows.unshift(row);
    list.prepend(row.element);
    last = change.id;
    if (rows.length > MOST) {
      rows.pop().element.remove();
      before = rows.at(-1).id;
    }
  }
  show(told);
}

async function look() {
  if (document.hidden) return;
  let answered = true;
  try {
    const told = await read(`after=${last}`);
    if (told) await take(told);
  } catch {
    answered = false;
  }
  if (!query) byId("cut").hidden = answered;
}

async function readOlder() {
  const told = await read(`before=${before}`).catch(() => null);
  if (!told || told.since !== since) return;
  const oldest = rows.at(-1)?.id; // a second response to the same request adds nothing
  const older = told.changes.filter(({ id }) => id < oldest).map(makeRow).reverse();
  rows.push(...older);
  list.append(...older.map(({ element }) => element));
  ({ before } = told);
  show(told);
}

async function keepLooking() {
  await look();
  setTimeout(keepLooking, INTERVAL);
}

if (!query) {
  let timer = 0;
  for (const [name, id] of Object.entries(FIELDS)) {
    byId(id).value = fromAddress(name);
    byId(id).addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        toAddress(Object.fromEntries(Object.entries(FIELDS).map(([each, field]) => [each, byId(field).value.trim()])));
        clear();
        look();
      }, LATE);
    });
  }
  byId("older").addEventListener("click", readOlder);
}
document.addEventListener("visibilitychange", look);
keepLooking();
