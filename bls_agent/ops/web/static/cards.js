// Cards of projects, filled from messages of the server, with texts only, never with markup.

import { StateCard } from "./card_deck.js";
import { copy, root, say, setText } from "./chrome.js";

export const isBad = ({ state }) => state === "fault" || state === "error";

export function sayAge(seconds) {
  if (seconds < 1) return say("age_now");
  if (seconds < 60) return say("age_seconds", { n: Math.floor(seconds) });
  if (seconds < 3600) return say("age_minutes", { n: Math.floor(seconds / 60) });
  if (seconds < 86400) return say("age_hours", { n: Math.floor(seconds / 3600) });
  return say("age_days", { n: Math.floor(seconds / 86400) });
}

const OLD = 300; // seconds in which errors are counted
const BEFORE = { untimed: "no_expiry", stale: "expired", never: "only_commands" };

// Write how fresh a status is; since is the number of seconds since the card was made.
function sayFreshness(card, since) {
  const turned = card.turned === null ? "" : sayAge(card.turned + since);
  if (card.presence === "fresh") {
    const about = card.age_known ? "" : "≈";
    const age = card.age === null ? say("will_expire") : say("refreshed", { age: about + sayAge(card.age + since) });
    return turned && ["fault", "error"].includes(card.kind) ? `${say("turned", { age: turned })} · ${age}` : age;
  }
  const last = card.last === null ? say("no_record") : say("last_record", { age: sayAge(card.last + since) });
  const before = turned && card.presence === "stale" ? say("expired_since", { age: turned }) : say(BEFORE[card.presence]);
  return `${before} · ${last}`;
}

// Write a figure of the log; a lower bound has ≥, and one of 0 tells nothing.
export const sayBound = (text, atLeast) => (atLeast ? (Number(text) ? `≥ ${text}` : "?") : text);

const sayRate = (rate) => (rate >= 10 || rate === 0 ? rate.toFixed(0) : rate.toFixed(1));

function drawSpark(rates) {
  const step = 90 / Math.max(rates.length, 1);
  const highest = Math.max(...rates, 1);
  let path = "";
  rates.forEach((rate, place) => {
    if (rate) path += `M${(place * step + 0.4).toFixed(1)} 24v-${Math.max((24 * rate) / highest, 1.5).toFixed(1)}h${(step - 0.8).toFixed(1)}V24z`;
  });
  return path;
}

// Write which processes take no commands, since when and why; since is as above.
function sayIntakes({ intake }, since) {
  const lines = intake.map(({ instance, state, age, inHand, reason }) => {
    const what = say("intake", { state: say(`intake_${state}`), age: sayAge(age + since), count: inHand });
    return [what, reason, intake.length > 1 ? instance : ""].filter(Boolean).join(" · ");
  });
  return lines.join("\n");
}

// The card of one project; the key is the project's path, the state is the kind.
export class Card extends StateCard {
  constructor() {
    super();
    const find = (selector) => this.find(selector);
    this.name = "";
    this.link = find("a");
    this.age = find(".age");
    this.odd = find(".odd");
    this.intake = find(".intake");
    this.intakes = find(".intakes"); // null in a row
    this.queue = find(".queue > :last-child");
    this.errors = find(".errors > :last-child");
    this.dead = find(".dead");
    this.rate = find(".rate > :last-child");
    this.spark = find(".spark path");
    this.last = find(".last bdi");
    this.ago = find(".last .ago");
    this.told = null;
    this.at = 0;
    this.inSight = true;
    this.behind = false; // whether the page does not yet show the last message
  }

  static key(told) {
    return told.path;
  }

  // Take a message of the server; a card outside the window is painted when it comes into sight.
  // at is the time of the message, by the clock of performance.now().
  fill(told, at = performance.now()) {
    this.told = told;
    this.at = at;
    if (this.state !== told.kind || this.key !== told.path || this.inSight) this.paint();
    else this.behind = true;
  }

  sight(inSight) {
    this.inSight = inSight;
    if (!inSight) return;
    if (this.behind) this.paint();
    else this.tick();
  }

  paint() {
    const { element, told } = this;
    this.behind = false;
    if (this.key !== told.path || this.link.textContent !== told.name) {
      this.key = element.dataset.path = told.path;
      this.name = told.name;
      this.link.href = root + told.path;
      this.link.firstElementChild.textContent = this.link.title = told.name;
    }
    if (this.state !== told.kind) {
      this.state = element.dataset.kind = told.kind;
      this.find(".badge").replaceWith(copy(`badge-${told.kind}`));
    }
    element.toggleAttribute("data-waits", Boolean(told.queue));
    element.toggleAttribute("data-errs", told.errors > 0);
    const letters = told.dead_letters > 0;
    if (this.dead.matches("div")) this.dead.hidden = !letters;
    const toLetters = this.dead.querySelector("a");
    toLetters.href = `${root}${told.path}#dead`;
    toLetters.hidden = !letters;
    setText(toLetters, letters ? String(told.dead_letters) : "");
    setText(this.odd, told.odd || told.reason);
    this.odd.title = told.reason;
    const states = [...new Set(told.intake.map(({ state }) => say(`intake_${state}`)))];
    setText(this.intake, states.join(", "));
    setText(this.queue, told.queue === null ? say("wrong_type") : String(told.queue));
    setText(this.errors, sayBound(String(told.errors), told.atLeast));
    setText(this.rate, sayBound(sayRate(told.rate), told.atLeast));
    setText(this.last, told.error);
    this.last.title = told.error;
    const path = drawSpark(told.rates);
    if (this.spark.getAttribute("d") !== path) this.spark.setAttribute("d", path);
    this.tick();
  }

  // Update the ages.
  tick() {
    if (!this.told) return;
    const since = (performance.now() - this.at) / 1000;
    setText(this.age, sayFreshness(this.told, since));
    const intakes = sayIntakes(this.told, since);
    this.intake.title = intakes;
    if (this.intakes) setText(this.intakes, intakes);
    const error = this.told.error_age === null ? null : this.told.error_age + since;
    setText(this.ago, error === null ? "" : sayAge(error));
    const explains = isBad(this) && !this.told.reason; // the likely cause stays red
    this.ago.parentElement.toggleAttribute("data-old", error > OLD && !explains);
  }
}

// The same as a row of the table.
export class CardRow extends Card {
  static blank = "blank-row";
}
