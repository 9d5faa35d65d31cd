// Parts of every page: texts, theme, the key for the search, and the reload of pages without Redis.

const page = document.documentElement;
export const root = page.dataset.root;
export const texts = JSON.parse(document.body.dataset.texts);

// Write a value of a record as text, without toString, which hostile JSON may define.
export const plain = (value) => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""));

// Return a text of the catalogue with its {fields} filled.
export function say(name, values = {}) {
  return texts[name].replace(/\{(\w+)\}/g, (_, field) => plain(values[field]));
}

// Return a text of the catalogue, or the fallback if the catalogue has no such text.
export const sayOr = (name, fallback) => (Object.hasOwn(texts, name) ? say(name) : visible(fallback));

export const byId = (id) => document.getElementById(id);

// Make an element from one of the page's templates.
export const copy = (id) => byId(id).content.firstElementChild.cloneNode(true);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Make an element of a class with a text.
export function part(kind, name, text) {
  const element = document.createElement(kind);
  element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

const OBEYED = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// Write characters that a page would obey or hide (control and bidi characters) as escapes.
export function visible(text) {
  return text.replace(OBEYED, (letter) => {
    if (SHORT[letter]) return SHORT[letter];
    const code = letter.codePointAt(0).toString(16);
    if (code.length < 3) return `\\x${code.padStart(2, "0")}`;
    return code.length < 5 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
  });
}

// Escape each line of a text, and keep the line ends.
export const visibleLines = (text) => text.replace(/\r\n/g, "\n").split("\n").map(visible).join("\n");

const icon = document.querySelector("link[rel=icon]");
const [calm, title] = [icon.getAttribute("href"), document.title];
const trouble = { faults: 0, line: false };

// Show faults and a lost connection in the tab, because nobody sees a page in the background.
export function tellTab(news) {
  const { faults, line } = Object.assign(trouble, news);
  const bad = faults > 0 || line;
  document.title = bad ? `⚠ ${faults > 1 ? `${faults} · ` : ""}${title}` : title;
  const href = bad ? icon.dataset.fault : calm;
  if (icon.getAttribute("href") !== href) icon.setAttribute("href", href);
}

// Remember a choice in this browser; recall it, or return an empty text.
export function remember(name, value) {
  document.cookie = `${name}=${value}; path=${root || "/"}; max-age=31536000; samesite=strict`;
}
export const recall = (name) => document.cookie.match(`(?:^|; )${name}=(\\w+)`)?.[1] ?? "";

// Read a field of the page's address, and write fields there, without the empty ones.
export const fromAddress = (name) => new URLSearchParams(location.search).get(name) ?? "";
export function toAddress(fields) {
  const address = new URL(location.href);
  for (const [name, text] of Object.entries(fields)) {
    if (text) address.searchParams.set(name, text);
    else address.searchParams.delete(name);
  }
  history.replaceState(null, "", address);
}

// The other language shows the page as it is now, with what was written into its address.
document.querySelector("a[hreflang]").addEventListener("click", ({ currentTarget: link }) => {
  const fields = new URLSearchParams(location.search);
  fields.set("lang", link.hreflang);
  link.search = fields;
});

function applyTheme(theme) {
  if (theme) page.dataset.theme = theme;
  else delete page.dataset.theme;
  remember("theme", theme);
}

byId("theme").addEventListener("change", (event) => applyTheme(event.target.value));

export const isTyping = (element) => element.matches("input, textarea, select, [contenteditable]");

// Return whether a key was pressed alone, so that no shortcut of the browser or input method is meant.
export const isPlain = (event) => !(event.ctrlKey || event.metaKey || event.altKey || event.isComposing);

document.addEventListener("keydown", (event) => {
  if (!isPlain(event)) return;
  const search = byId("search");
  if (!search) return;
  if (event.key === "/" && !isTyping(event.target)) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "Escape" && event.target === search) {
    if (search.value) {
      search.value = "";
      search.dispatchEvent(new Event("input"));
    } else search.blur();
  }
});

const again = document.querySelector("[data-again]");
if (again) setTimeout(() => location.reload(), Number(again.dataset.again) * 1000);
