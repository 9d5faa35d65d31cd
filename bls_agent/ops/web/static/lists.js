// Lists with actions: the note about an action stays for a while, although the list is read again.

import { byId, setText, toAddress } from "./chrome.js";

const SHOWN = 20_000; // ms
const timers = new Map(); // id of a container → timer

byId("search")?.addEventListener("input", ({ target }) => toAddress({ q: target.value.trim() }));

// A list that the page's address names comes into sight when it is read for the first time.
let sought = location.hash.slice(1);

document.addEventListener("htmx:after:swap", () => {
  const list = sought && document.querySelector(`.lists > #${CSS.escape(sought)}`);
  if (list) {
    list.scrollIntoView();
    sought = "";
  }
  for (const note of document.querySelectorAll(".lists > .note")) {
    const { id } = note.parentElement;
    const place = document.querySelector(`[data-notes="${id}"]`);
    place.hidden = false;
    setText(place, note.textContent);
    note.remove();
    clearTimeout(timers.get(id));
    timers.set(id, setTimeout(() => (place.hidden = true), SHOWN));
  }
});
