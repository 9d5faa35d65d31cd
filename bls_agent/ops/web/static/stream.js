// One event stream that reconnects by itself, and shows the state of the connection.

import { byId, root, say, setText, tellTab } from "./chrome.js";
import { sayMoment } from "./clock.js";

const SILENCE = 30_000; // ms without a message after which the connection counts as lost
const LONGEST = 10_000; // ms between two tries
const PATIENCE = 2; // failed tries after which the page shows a notice
const REFUSED = new Set([400, 403, 404, 409]); // statuses that last until somebody removes the cause
const HIDDEN = 1_000; // ms after which a hidden page closes its stream, because a browser has only six connections for all its tabs
const GLANCE = 30_000; // ms between two short streams of a hidden page with the option glances

export function showLink(state) {
  const link = byId("link");
  if (!link || link.dataset.state === state) return;
  link.dataset.state = state;
  tellTab({ line: ["away", "cut", "forbidden"].includes(state) });
  setText(link, say({ live: "live", reading: "reading", away: "away", forbidden: "forbidden", unreadable: "unreadable", over: "over" }[state] ?? "reconnecting"));
}

// Show since when Redis has not answered; away is the reason, or nothing if Redis answers.
export function showAway(away, since) {
  byId("away").hidden = !away;
  setText(byId("away-kind"), away ?? "");
  setText(byId("away-since"), since ? say("away_since", { time: sayMoment(since) }) : "");
}

// Follow a stream.
// path: the path, or a function that returns the path; handlers: event name → function of the data (text); ask: the path to fetch to learn
// why a stream was refused; refused(reason) is called for a lasting refusal; glances: update a hidden page, too, every half minute;
// opened() is called when a stream has opened.
export function follow(path, handlers, { ask = `${root}/api/changes?limit=1`, refused = () => {}, glances = false, opened = () => showLink("live") } = {}) {
  let source = null;
  let timer = 0;
  let failures = 0;
  let heard = 0;
  let beats = false;
  let stopped = false;
  let away = ""; // "away" or "forbidden" if the console answers, but Redis does not, or refuses
  let resting = false;

  function open() {
    clearTimeout(timer);
    close();
    stopped = resting = false;
    const own = (source = new EventSource(typeof path === "function" ? path() : path));
    source.onopen = () => {
      failures = 0;
      away = "";
      heard = Date.now();
      byId("cut").hidden = true;
      opened();
    };
    source.onerror = () => {
      if (own !== source) return;
      failures += 1;
      close();
      showLink(away || "cut");
      timer = setTimeout(knock, Math.min(300 * 2 ** failures, LONGEST) * (0.5 + Math.random() / 2));
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        heard = Date.now();
        handle(event.data);
      });
    }
    source.addEventListener("beat", () => {
      heard = Date.now();
      beats = true;
    });
  }

  // Fetch the reason of a refusal, because an EventSource has none, and go to the login if the session has ended.
  async function knock() {
    let answer = null;
    try {
      answer = await fetch(ask, { cache: "no-store", redirect: "manual" });
    } catch {
      // no connection; the next try follows
    }
    // The answer contains the kind of the error in parentheses.
    const said = answer?.status === 503 ? await answer.text().catch(() => "") : "";
    if (resting || stopped) return;
    if (answer?.type === "opaqueredirect" || answer?.status === 401) {
      location.assign(`${root}/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    } else if (REFUSED.has(answer?.status)) {
      byId("cut").hidden = true;
      const { error } = await answer.json().catch(() => ({ error: "" }));
      refused(error || String(answer.status));
      timer = setTimeout(open, LONGEST);
    } else {
      away = answer?.status !== 503 ? "" : said.includes("(no_permission)") ? "forbidden" : "away";
      if (away) showLink(away);
      byId("cut").hidden = Boolean(away) || failures < PATIENCE;
      open();
    }
  }

  function close() {
    source?.close();
    source = null;
  }

  setInterval(() => {
    if (source && beats && Date.now() - heard > SILENCE) source.onerror();
  }, 5_000);

  let turn = 0;

  function rest() {
    resting = true;
    clearTimeout(timer);
    close();
    if (glances) turn = setTimeout(glance, GLANCE);
  }

  function glance() {
    open();
    turn = setTimeout(rest, HIDDEN);
  }

  function see() {
    clearTimeout(turn);
    if (stopped) return;
    if (!document.hidden) source || open();
    else if (source || resting) turn = setTimeout(rest, HIDDEN);
    else if (glances) glance();
    else rest();
  }

  document.addEventListener("visibilitychange", see);
  addEventListener("pagehide", () => {
    rest();
    clearTimeout(turn);
  });
  addEventListener("pageshow", (event) => event.persisted && see());
  see();
  return {
    reopen: open,
    stop: () => {
      stopped = true;
      clearTimeout(timer);
      close();
    },
  };
}
