// The page of one project: its card, log, commands and the history of its status.

import "./guard.js";
import { byId, isPlain, root, say, setText, tellTab } from "./chrome.js";
import { Card, isBad } from "./cards.js";
import "./changes.js";
import "./lists.js";
import { Log } from "./log.js";
import { noteSent } from "./sent.js";
import { showAway, showLink } from "./stream.js";

const INTERVAL = 1000; // ms between two reads of the card
const GLANCE = 30_000; // ms between two reads while the page is hidden, because the tab shows faults

const list = byId("cards");
const { query } = list.dataset;
const card = new Card();
list.append(card.element);
const log = new Log(query);
let state = "live";
let left = false;

// Take the card; on a page that was opened before the first read of Redis, the card comes later.
function take(told) {
  const [now] = told.cards;
  const before = state;
  state = told.state;
  if (now) {
    card.fill(now);
    list.hidden = false;
    tellTab({ faults: Number(isBad(card)) });
  } else if (state === "live" && !left) {
    left = true;
    location.reload(); // there is no such project, or no longer
  }
  const looking = byId("looking");
  looking.hidden = !list.hidden || state === "forbidden";
  if (state === "away") setText(looking, say("not_known"));
  byId("forbidden").hidden = state !== "forbidden";
  showAway(state === "forbidden" ? "" : told.away, told.awaySince);
  byId("main").dataset.state = state;
  if (state !== before || state === "reading") showLink(state);
}

let looked = 0;

async function look() {
  if (document.hidden && performance.now() - looked < GLANCE) return;
  looked = performance.now();
  try {
    const answer = await fetch(`${root}/fragments/card?${query}`, { signal: AbortSignal.timeout(8000) });
    if (answer.ok && !answer.redirected) take(await answer.json());
  } catch {
    card.tick();
  }
}

async function keepLooking() {
  await look();
  setTimeout(keepLooking, INTERVAL);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isPlain(event) && byId("review").firstElementChild) closeReview();
});

function closeReview() {
  byId("review").replaceChildren();
  byId("command").querySelector("button.check")?.focus();
}

byId("command").addEventListener("click", (event) => {
  if (event.target.closest("[data-rows]")) byId("review").replaceChildren();
});

byId("review").addEventListener("click", (event) => {
  if (event.target.closest("[data-cancel]")) closeReview();
});

// A time is typed in this browser's zone. Its UTC offset, which depends on the date, is sent beside it.
function noteOffsets() {
  for (const input of document.querySelectorAll("#command input[type=datetime-local]")) {
    const minutes = -(input.value ? new Date(input.value) : new Date()).getTimezoneOffset();
    const digits = (number) => String(Math.trunc(Math.abs(number))).padStart(2, "0");
    input.nextElementSibling.value = `${minutes < 0 ? "-" : "+"}${digits(minutes / 60)}:${digits(minutes % 60)}`;
  }
}

// Each input removes the review and the field's complaint, because both are outdated.
byId("command").addEventListener("input", ({ target }) => {
  byId("review").replaceChildren();
  noteOffsets();
  const field = target.closest(".field");
  field?.querySelector(".complaint")?.remove();
  for (const name of ["aria-invalid", "aria-describedby"]) field?.querySelector(`[${name}]`)?.removeAttribute(name);
});

// In a field for text, Enter checks and Shift+Enter begins a line; in a field for JSON, Ctrl+Enter checks and Enter begins a line.
byId("command").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing || !event.target.matches("textarea")) return;
  const checks = event.target.matches(".line") ? !event.shiftKey : event.ctrlKey || event.metaKey;
  if (!checks) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

// When htmx has inserted a response that names a sent command, the page waits for the outcome of this command.
document.addEventListener("htmx:after:swap", () => {
  noteOffsets();
  const told = document.querySelector("[data-sent]");
  if (!told) return;
  noteSent(JSON.parse(told.dataset.sent));
  delete told.dataset.sent;
});

take(JSON.parse(list.dataset.told));
keepLooking();
