// Lists with actions: the note about an action stays for a while, although the list is read again.

import { setText } from "./chrome.js";

const SHOWN = 20_000; // ms
const timers = new Map(); // id of a container → timer

document.addEventListener("htmx:after:swap", () => {
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
