// Cards of runs, filled from messages of the server, with texts only, never with markup.

import { StateCard } from "./card_deck.js";
import { root, say, setText } from "./chrome.js";
import { sayAge } from "./cards.js";
import { sayDuration } from "./sent.js";

function sayKept(ttl) {
  if (ttl === null) return say("for_ever");
  const left = Math.max(ttl, 0);
  if (left < 60) return say("span_seconds", { n: Math.floor(left) });
  if (left < 3600) return say("span_minutes", { n: Math.floor(left / 60) });
  if (left < 172800) return say("span_hours", { n: Math.floor(left / 3600) });
  return say("span_days", { n: Math.floor(left / 86400) });
}

// Write the duration of a run in its two largest units.
function sayTook(seconds) {
  if (seconds < 60) return sayDuration(seconds * 1000);
  const units = [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"]];
  const place = units.findIndex(([unit]) => seconds >= unit);
  const [[large, name], [small, less]] = units.slice(place, place + 2);
  return `${say(`span_${name}`, { n: Math.floor(seconds / large) })} ${say(`span_${less}`, { n: Math.floor((seconds % large) / small) })}`;
}

// One run on the page.
export class RunCard extends StateCard {
  told = null;
  at = 0;

  static key(told) {
    return told.id;
  }

  fill(told) {
    this.told = told;
    this.at = performance.now();
    if (this.key !== told.id) {
      this.find(".head a").href = `${root}${told.path}`;
      this.find(".head a").lastChild.data = told.id;
    }
    this.show(told.id, told);
    setText(this.find(".task bdi"), told.task);
    this.find(".task").title = told.task;
    setText(this.find(".events dd"), String(told.length));
    setText(this.find(".last bdi"), told.error);
    this.find(".last").title = told.error;
    this.find(".took").hidden = told.took === null;
    setText(this.find(".took dd"), told.took === null ? "" : sayTook(told.took));
    this.tick();
  }

  // Update the ages and the remaining time.
  tick() {
    const { told } = this;
    if (!told) return;
    const since = (performance.now() - this.at) / 1000;
    const last = told.age === null ? say("no_event") : say("last_event", { age: sayAge(told.age + since) });
    setText(this.find(".age"), [last, told.last, told.source].filter((text) => text).join(" · "));
    setText(this.find(".since dd"), told.started === null ? "—" : sayAge(told.started + since));
    const passed = told.state === "running" ? 0 : since; // a writer extends the TTL, also without an event
    setText(this.find(".kept dd"), sayKept(told.ttl === null ? null : told.ttl - passed));
  }
}
