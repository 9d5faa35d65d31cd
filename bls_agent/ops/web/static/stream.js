// One event stream that comes back by itself, and says how the line is.

import { byId, root, say, setText, tellTab } from "./chrome.js";

const SILENCE = 30_000; // ms without a beat after which the line counts as cut
const LONGEST = 10_000; // ms between two tries
const PATIENCE = 2; // tries without success after which it is said aloud
const REFUSED = new Set([400, 403, 404, 409]); // statuses that stay until somebody changes something
const HIDDEN = 1_000; // ms after which a hidden page lets its stream go: a browser has six connections for all its tabs
const GLANCE = 30_000; // ms after which a hidden page that glances looks again

export function showLink(state) {
  const link = byId("link");
  if (!link || link.dataset.state === state) return;
  link.dataset.state = state;
  tellTab({ line: state === "away" || state === "cut" });
  setText(link, say({ live: "live", away: "away", unreadable: "unreadable", over: "over" }[state] ?? "reconnecting"));
}

// Follow a stream.
// path: where, or a function that gives it; handlers: event name → function of its data (text); ask: what to fetch to learn why a
// stream was refused; refused(reason): it is refused for good, for now; glances: also a hidden page is kept up to date, every half minute.
export function follow(path, handlers, { ask = `${root}/fragments/card`, refused = () => {}, glances = false } = {}) {
  let source = null;
  let timer = 0;
  let failures = 0;
  let heard = 0;
  let beats = false;
  let stopped = false;
  let away = false;
  let resting = false;

  function open() {
    clearTimeout(timer);
    close();
    stopped = resting = false;
    const own = (source = new EventSource(typeof path === "function" ? path() : path));
    source.onopen = () => {
      failures = 0;
      away = false;
      heard = Date.now();
      byId("cut").hidden = true;
      showLink("live");
    };
    source.onerror = () => {
      if (own !== source) return;
      failures += 1;
      close();
      showLink(away ? "away" : "cut");
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

  // An EventSource does not tell why it was refused: ask, and log in again if that is it.
  async function knock() {
    let answer = null;
    try {
      answer = await fetch(ask, { cache: "no-store", redirect: "manual" });
    } catch {
      // nobody there: the next try will tell
    }
    if (resting || stopped) return;
    if (answer?.type === "opaqueredirect" || answer?.status === 401) {
      location.assign(`${root}/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    } else if (REFUSED.has(answer?.status)) {
      byId("cut").hidden = true;
      const { error } = await answer.json().catch(() => ({ error: "" }));
      refused(error || String(answer.status));
      timer = setTimeout(open, LONGEST);
    } else {
      away = answer?.status === 503; // the console answers, Redis does not
      if (away) showLink("away");
      byId("cut").hidden = away || failures < PATIENCE;
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
