// The commands that were sent since this page was opened, each with its outcome.

import { byId, part, plain, say, sayOr, setText, visible, visibleLines } from "./chrome.js";
import { sayMoment, sayUtc } from "./clock.js";

const MOST = 100; // commands on the page
const EARLY = 500; // outcomes that are kept until their commands are known

const LONGEST = 4000; // characters of a result or error
const SHORT = 90; // characters of a result or error on one line

const list = byId("sent");
const rows = new Map(); // command id → element
const early = new Map(); // command id → outcome

export function sayDuration(ms) {
  return ms < 1000 ? say("milliseconds", { n: ms < 10 ? ms.toFixed(1) : ms.toFixed(0) }) : say("seconds", { n: (ms / 1000).toFixed(1) });
}

// Show a sent command: {id, timestamp, command, args, by}.
export function noteSent(sent) {
  if (typeof sent.id !== "string" || !sent.id || rows.has(sent.id)) return;
  const row = document.createElement("li");
  const hasArgs = sent.args && Object.keys(sent.args).length > 0;
  row.append(
    part("bdi", "name", visible(plain(sent.command))),
    part("span", "end", say("outcome_pending")),
    part("bdi", "args", hasArgs ? visible(JSON.stringify(sent.args)) : ""),
    part("bdi", "answer", ""),
    part("bdi", "when", visible([sayMoment(sent.timestamp), sent.by && say("sent_by", { user: sent.by })].filter(Boolean).join(" · "))),
  );
  row.querySelector(".when").title = sayUtc(sent.timestamp);
  row.dataset.command = sent.id;
  row.querySelector(".end").dataset.open = "";
  rows.set(sent.id, row);
  list.prepend(row);
  byId("nothing-sent").hidden = true;
  while (list.children.length > MOST) {
    rows.delete(list.lastElementChild.dataset.command);
    list.lastElementChild.remove();
  }
  if (early.has(sent.id)) noteOutcome(early.get(sent.id));
}

// Show the outcome of a command, from the metadata of the record.
export function noteOutcome(metadata) {
  const row = rows.get(metadata.commandId);
  if (!row) {
    early.set(metadata.commandId, metadata);
    if (early.size > EARLY) early.delete(early.keys().next().value);
    return;
  }
  const good = metadata.outcome === "succeeded";
  const end = row.querySelector(".end");
  delete end.dataset.open;
  end.toggleAttribute("data-good", good);
  end.toggleAttribute("data-bad", !good);
  setText(end, `${good ? "✓" : "✗"} ${sayOr(`outcome_${metadata.outcome}`, metadata.outcome)} · ${sayDuration(metadata.durationMs)}`);
  const answer = good ? metadata.result : metadata.error;
  const told = answer === null || answer === undefined ? "" : clip(sayAnswer(answer, good));
  const cut = metadata.truncated ? `\n(${say("cut_from", { n: metadata.truncated.toLocaleString(document.documentElement.lang) })})` : "";
  setText(row.querySelector(".answer"), visibleLines(told + cut));
}

const clip = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

function sayAnswer(answer, good) {
  if (!good && typeof answer === "object" && !Array.isArray(answer)) {
    const said = [answer.type, answer.message ?? answer.reason].filter((text) => typeof text === "string").join(": ");
    if (said) return said;
  }
  if (typeof answer === "string") return answer;
  const short = JSON.stringify(answer);
  return short.length < SHORT ? short : JSON.stringify(answer, null, 1);
}
