// The page of one run: its state, and its events.

import { byId, tellTab } from "./chrome.js";
import { categoryOf } from "./event_rows.js";
import { RunCard } from "./run_cards.js";
import { showAway } from "./stream.js";
import { Timeline } from "./timeline.js";

const list = byId("cards");
const card = new RunCard();
list.append(card.element);
card.fill(JSON.parse(list.dataset.told));
const chips = [...document.querySelectorAll("#categories .chip")];
const hidden = new Map(chips.filter((chip) => chip.hidden).map((chip) => [chip.dataset.chip, chip]));

// Show the chip of each category that occurs.
function offer(events) {
  if (!hidden.size) return;
  for (const event of events) {
    const category = categoryOf(event);
    const chip = hidden.get(category);
    if (chip) {
      chip.hidden = false;
      hidden.delete(category);
    }
  }
}

const timeline = new Timeline(list.dataset.run, {
  head: (told) => {
    if (told) card.fill(told);
    tellTab({ faults: Number(told?.state === "failed") });
    if (told) list.hidden = false;
    byId("absent").hidden = !list.hidden;
  },
  away: (kind) => showAway(kind, kind && new Date()),
  seen: offer,
});

for (const chip of chips) {
  chip.addEventListener("click", () => {
    const category = timeline.wanted === chip.dataset.chip ? "" : chip.dataset.chip;
    for (const other of chips) other.setAttribute("aria-pressed", String(other.dataset.chip === category));
    timeline.filter(category, timeline.needle);
  });
}

setInterval(() => card.tick(), 1000);
