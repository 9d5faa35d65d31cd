// The changes of statuses since the console began, the newest first, for one project or for all projects.

import { byId, root, say, setText, visible } from "./chrome.js";
import { sayMoment } from "./clock.js";
import { showAway } from "./stream.js";

const INTERVAL = 2_000; // ms between two requests
const MOST = 500; // changes on the page

const list = byId("history");
const { query } = list.dataset;
let since = "";
let last = 0; // id of the newest change on the page

function badge(kind) {
  const element = byId(`badge-${kind}`).content.firstElementChild.cloneNode(true);
  const held = document.createElement("span");
  held.dataset.kind = kind; // the kind sets the colour
  held.append(element);
  return held;
}

function row(change) {
  const item = document.createElement("li");
  const time = document.createElement("time");
  time.dateTime = change.timestamp;
  time.textContent = sayMoment(change.timestamp);
  item.append(time);
  if (change.since) {
    const unknown = document.createElement("span");
    unknown.className = "unknown";
    unknown.textContent = say("change_unknown", { since: sayMoment(change.since), to: sayMoment(change.timestamp) });
    item.append(unknown);
    return item;
  }
  if (!query) {
    const link = document.createElement("a");
    link.href = root + change.path;
    const name = document.createElement("bdi");
    name.textContent = visible(change.projectName);
    link.append(name);
    item.append(link);
  }
  const turn = document.createElement("span");
  turn.className = "turn";
  turn.append(change.from ? badge(change.from) : say("change_new"), " → ", badge(change.to));
  item.append(turn);
  if (change.reason) {
    const why = document.createElement("bdi");
    why.className = "why";
    why.textContent = visible(change.reason);
    item.append(why);
  }
  return item;
}

function take(told) {
  if (told.since !== since) {
    list.replaceChildren(); // the console was restarted and counts from 1 again
    if (since && last) {
      [since, last] = [told.since, 0];
      return look();
    }
    since = told.since;
  }
  for (const change of told.changes.filter(({ id }) => id > last)) {
    list.prepend(row(change));
    last = change.id;
  }
  while (list.children.length > MOST) list.lastElementChild.remove();
  const none = byId("unchanged");
  none.hidden = list.children.length > 0;
  setText(none, say("no_changes", { time: sayMoment(since) }));
  if (query) return;
  showAway(told.unavailable, told.unavailableSince);
}

async function look() {
  if (document.hidden) return;
  let answered = true;
  try {
    const address = `${root}/api/changes?after=${last}&limit=${MOST}&${query ?? ""}`;
    const answer = await fetch(address, { signal: AbortSignal.timeout(8000) });
    if (answer.ok) await take(await answer.json());
    else if (answer.status === 401) location.reload();
  } catch {
    answered = false;
  }
  if (!query) byId("cut").hidden = answered;
}

async function keepLooking() {
  await look();
  setTimeout(keepLooking, INTERVAL);
}

document.addEventListener("visibilitychange", look);
keepLooking();
