// One event stream that comes back by itself, and says how the line is.

import { byId, root, say, setText } from "./chrome.js";

const SILENCE = 30_000; // ms without a beat after which the line counts as cut
const LONGEST = 10_000; // ms between two tries
const PATIENCE = 2; // tries without success after which it is said aloud
const HIDDEN = 300_000; // ms after which a hidden page lets its stream go

export function showLink(state) {
  const link = byId("link");
  if (!link || link.dataset.state === state) return;
  link.dataset.state = state;
  setText(link, say({ live: "live", away: "away" }[state] ?? "reconnecting"));
}

// Follow a stream; handlers: event name → function of its data (text).
// begin() is called before each connection.
export function follow(path, handlers, begin = () => {}) {
  let source = null;
  let timer = 0;
  let failures = 0;
  let heard = 0;
  let beats = false;

  function open() {
    clearTimeout(timer);
    close();
    begin();
    const own = (source = new EventSource(typeof path === "function" ? path() : path));
    source.onopen = () => {
      failures = 0;
      heard = Date.now();
      byId("cut").hidden = true;
      showLink("live");
    };
    source.onerror = () => {
      if (own !== source) return;
      failures += 1;
      close();
      showLink("cut");
      byId("cut").hidden = failures < PATIENCE;
      timer = setTimeout(failures === 1 ? open : knock, Math.min(300 * 2 ** failures, LONGEST) * (0.5 + Math.random() / 2));
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

  // An EventSource does not tell why it was refused: ask once, and log in again if that is it.
  async function knock() {
    try {
      const answer = await fetch(`${root}/fragments/card`, { cache: "no-store", redirect: "manual" });
      if (answer.type === "opaqueredirect") {
        location.assign(`${root}/login?next=${encodeURIComponent(location.pathname + location.search)}`);
        return;
      }
    } catch {
      // nobody there: the next try will tell
    }
    open();
  }

  function close() {
    source?.close();
    source = null;
  }

  setInterval(() => {
    if (source && beats && Date.now() - heard > SILENCE) source.onerror();
  }, 5_000);

  let letGo = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(letGo);
    if (document.hidden) letGo = setTimeout(() => { clearTimeout(timer); close(); }, HIDDEN);
    else if (!source) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
  return { reopen: open };
}
