"""Build the site of the documents into `site/`: `make docs`.

The pages of `docs/` stay as code hosts show them. This program copies them to
`build/docs/pages`, rewrites their links for the site, writes the pages of the API from
the public lists of the package, runs zensical once for each language, and checks
the links and the addresses of the result. Nothing needs the network.

`BLS_SITE_URL` is the address at which the site will stand. Without the variable the
site is built for the loopback address at which `python -m http.server` serves it.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import unquote

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / "build" / "docs"
PAGES = WORK / "pages"
SITE = ROOT / "site"
LOOPBACK = "http://127.0.0.1:8000/"
CHINESE = ".zh-CN"

# Names of the root, by page. All other names of the root are on the page "values".
ROOT_PAGES = {
    "agent": ("ProjectAgent", ["ProjectAgent", "RedisSource", "RedisOrAgent"]),
    "console": ("Console", ["Console"]),
    "sync-console": ("SyncConsole", ["SyncConsole"]),
    "settings": ("Settings", ["Settings"]),
    "commands": (
        "Commands and outcomes",
        ["Outcome", "OutcomeKind", "Command", "CommandContext", "CallNext", "Reject"],
    ),
}

FENCE = re.compile(r"^ *(```|~~~)")
HEADING = re.compile(r"#+ ")
LINK = re.compile(r"(?P<head>\]\()(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?(?P<tail>\))")
# "([中文](x.zh-CN.md))": the header of each page of the site has the switch.
SWITCH = re.compile(r" ?[(（]\[(?:中文|English)\]\([^)]*\)[)）]")

# The changelog is not searched, because it contains the words of every topic and would
# be the first hit of most searches.
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"

ONLY_DOCSTRING = """\
    options:
      members: false
      show_root_heading: false
"""


@dataclass(frozen=True)
class ApiPage:
    """A page of the API: the names of one public module, or some names of the root."""

    file: str
    title: str
    module: str
    names: list[str]

    def write(self) -> str:
        """Return the page's Markdown, which mkdocstrings fills from the docstrings."""
        objects = "\n\n".join(f"::: {self.module}.{name}" for name in self.names)
        head = f"# {self.title}\n\nImport from `{self.module}`."
        if self.module != "bls_agent":
            head += f"\n\n::: {self.module}\n{ONLY_DOCSTRING}"
        return f"{head}\n\n{objects}\n"


def public_lists() -> dict[str, list[str]]:
    """Return the ``__all__`` of each public module, the root first."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "bls_agent").rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = ".".join(parts).removesuffix(".__init__")
                found[module] = ast.literal_eval(node.value)
    return dict(sorted(found.items()))


def errors_of_the_root() -> list[str]:
    """Return the names that the root takes from the module of the errors."""
    nodes = ast.walk(ast.parse((ROOT / "bls_agent/__init__.py").read_text("utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    errors = next(node for node in imports if node.module == "bls_agent.core.errors")
    return [alias.name for alias in errors.names]


def api_pages() -> list[ApiPage]:
    """Return the pages of the API: each name of each public list on exactly one page."""
    lists = public_lists()
    root = lists.pop("bls_agent")
    # A name that a room offers, too, is documented on the page of the room.
    placed = {name for names in lists.values() for name in names}
    pages = []
    for file, (title, names) in ROOT_PAGES.items():
        pages.append(ApiPage(file, title, "bls_agent", names))
        placed.update(names)
    errors = [name for name in errors_of_the_root() if name not in placed]
    placed.update(errors)
    values = [name for name in root if name not in placed]
    pages.append(ApiPage("errors", "Errors", "bls_agent", errors))
    pages.append(ApiPage("values", "Status, log and figures", "bls_agent", values))
    for module, names in lists.items():
        file = module.removeprefix("bls_agent.").replace(".", "-").replace("_", "-")
        title = module.removeprefix("bls_agent.").removeprefix("integrations.")
        pages.append(ApiPage(file, f"`{title}`", module, names))
    return pages


def api_index(pages: list[ApiPage]) -> str:
    """Return the page that lists all public names."""
    rows = [
        f"| [{page.title}]({page.file}.md) | "
        + " · ".join(f"[`{name}`][{page.module}.{name}]" for name in page.names)
        + " |"
        for page in pages
    ]
    return "\n".join(
        [
            "# API",
            "",
            "Every public name, with the text of its docstring. Other names may change",
            "in any version. `objects.inv` beside the first page of this site lists all",
            "names for the cross-references of other sites.",
            "",
            "| page | names |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def place(source: str) -> str:
    """Return where a file of the repository stands below the pages of the site."""
    match posixpath.split(source):
        case ("", name) if name.startswith("README."):
            return name.replace("README", "index")
        case ("", name):  # docs/security.md and SECURITY.md are two pages
            return f"repository/{name.removesuffix('.md').lower()}.md"
        case ("docs", name):
            return name
        case (folder, "README.md" | "README.zh-CN.md" as name):
            return f"{folder}/{name.replace('README', 'index')}"
        case _ if source.startswith("docs/"):
            return source.removeprefix("docs/")
        case _:
            return source if source.endswith(".md") else f"{source}.md"


def prose(lines: list[str]) -> Iterator[int]:
    """Yield the indices of the lines outside of code blocks."""
    fenced = False
    for number, line in enumerate(lines):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number


def headings(lines: list[str]) -> list[int]:
    """Return the indices of the headings."""
    return [number for number in prose(lines) if HEADING.match(lines[number])]


def anchor(heading: str) -> str:
    """Return the anchor that code hosts and the site make of a heading."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.lstrip("# ").strip())
    return re.sub(r"[^\w\- ]", "", words).lower().replace(" ", "-")


def add_anchors(chinese: str, english: str) -> str:
    """Give the headings of a Chinese page the anchors of the English page, too.

    English pages that stand in for missing Chinese ones use these anchors in their links.
    """
    lines, originals = chinese.split("\n"), english.split("\n")
    for number, original in zip(headings(lines), headings(originals), strict=True):
        if not lines[number].startswith("# "):
            lines[number] += f' <a id="{anchor(originals[original])}"></a>'
    return "\n".join(lines)


class Stage:
    """Copies pages and what they link to, each file once."""

    def __init__(self) -> None:
        self.placed: set[str] = set()
        self.waiting: list[str] = []

    def copy_all(self, sources: list[str]) -> None:
        """Copy these files of the repository, and all files that they link to."""
        self.waiting = list(sources)
        while self.waiting:
            source = self.waiting.pop()
            if source not in self.placed:
                self.placed.add(source)
                self._copy(source)

    def _copy(self, source: str) -> None:
        origin, target = ROOT / source, PAGES / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.suffix == ".md":
            text = origin.read_text("utf-8")
            english = ROOT / source.replace(f"{CHINESE}.md", ".md")
            if english != origin:
                text = add_anchors(text, english.read_text("utf-8"))
            head = UNSEARCHED if source == "CHANGELOG.md" else ""
            target.write_text(head + self._rewrite(source, text), "utf-8")
        elif target.suffix == ".md":
            kind = "python" if origin.suffix == ".py" else "text"
            text = origin.read_text("utf-8")
            head = f"# {origin.name}\n\n`{source}` in the repository:\n\n"
            target.write_text(f"{head}````{kind}\n{text}````\n", "utf-8")
        else:
            shutil.copyfile(origin, target)

    def _rewrite(self, source: str, text: str) -> str:
        def rewrite(link: re.Match[str]) -> str:
            path = self._rewrite_link(source, link["path"])
            return f"{link['head']}{path}{link['anchor'] or ''}{link['tail']}"

        lines = text.split("\n")
        for number in prose(lines):
            lines[number] = LINK.sub(rewrite, SWITCH.sub("", lines[number]))
        return "\n".join(lines)

    def _rewrite_link(self, source: str, path: str) -> str:
        if not path or "://" in path or path.startswith("mailto:"):
            return path
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / linked).is_file():
            return path  # zensical reports the broken link
        self.waiting.append(linked)
        here = posixpath.dirname(place(source)) or "."
        return posixpath.relpath(place(linked), here).replace(f"{CHINESE}.md", ".md")


def write_config(api: list[ApiPage]) -> None:
    """Write the configuration with the pages of the API, the address and llms.txt."""
    text = (HERE / "zensical.toml").read_text("utf-8")
    files = ", ".join(f'"api/{page.file}.md"' for page in api)
    text = text.replace('"API" = "api"', f'"API" = ["api/index.md", {files}]')
    project = tomllib.loads(text)["project"]
    url = os.environ.get("BLS_SITE_URL") or LOOPBACK
    head = f'[project]\nsite_url = "{url}"\n'
    text = text.replace("[project]\n", head, 1)
    lines = ["", "[project.plugins.llmstxt]", 'full_output = "llms-full.txt"']
    lines += ["[project.plugins.llmstxt.sections]"]
    for section in project["nav"]:
        for title, entries in section.items():
            # A code generator that reads no further has read its own page.
            ordered = sorted(flatten(entries), key=lambda file: file != "for-ai.md")
            files = ", ".join(f'"{file}"' for file in ordered)
            lines.append(f'"{title}" = [{files}]')
    (WORK / "zensical.toml").write_text(text + "\n".join(lines) + "\n", "utf-8")
    shutil.copyfile(HERE / "extension.py", WORK / "extension.py")


def flatten(entries: object) -> Iterator[str]:
    """Yield the files of a part of the navigation."""
    match entries:
        case str():
            yield entries
        case list():
            for entry in entries:
                yield from flatten(entry)
        case dict():
            for entry in entries.values():
                yield from flatten(entry)
        case _:
            message = f"no page of the navigation: {entries!r}"
            raise TypeError(message)


def documents() -> list[str]:
    """Return the pages that the site has of the repository."""
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("README*.md"), ROOT / "CHANGELOG.md"]
    return [page.relative_to(ROOT).as_posix() for page in pages]


def stage() -> None:
    """Write everything that zensical reads."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    Stage().copy_all(documents())
    api = api_pages()
    (PAGES / "api").mkdir()
    (PAGES / "api" / "index.md").write_text(api_index(api), "utf-8")
    for page in api:
        (PAGES / "api" / f"{page.file}.md").write_text(page.write(), "utf-8")
    write_config(api)


def build() -> Iterator[str]:
    """Run zensical for each language; yield what is wrong."""
    command = [sys.executable, "-m", "zensical_i18n", "build", "--strict", "--clean"]
    done = subprocess.run(  # noqa: S603 - the words are ours
        [*command, "-f", str(WORK / "zensical.toml")],
        check=False,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output = COLOUR.sub("", done.stdout)
    for warning in WARNING.finditer(output):
        place = int(warning["column"]) - 1
        text = warning["text"][place : place + 60]
        yield f"{warning['file']}:{warning['line']}: {warning['fault']}: {text}"
    if done.returncode and not WARNING.search(output):
        yield output
    # Faults of docstrings, such as a section that cannot be read, are no warnings of zensical.
    yield from re.findall("^griffe: .*", output, re.MULTILINE)


def finish(site: Path) -> None:
    """Translate the sections of llms.txt; remove the address if there is none."""
    project = tomllib.loads((WORK / "zensical.toml").read_text("utf-8"))["project"]
    for language in project["plugins"]["i18n"]["languages"]:
        listing = site / language["locale"] / "llms.txt"
        if not language.get("default"):
            text = listing.read_text("utf-8")
            for title, translation in language["nav_translations"].items():
                text = text.replace(f"## {title}\n", f"## {translation}\n")
            listing.write_text(text, "utf-8")
    if project["site_url"] == LOOPBACK:
        for page in site.rglob("*.html"):
            page.write_text(CANONICAL.sub("", page.read_text("utf-8")), "utf-8")


def main() -> int:
    """Build the site; return the exit code."""
    began = time.monotonic()
    stage()
    built = WORK / "site"
    faults = [*build(), *broken_links(built), *foreign_requests(built)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        return 1
    finish(built)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(built, SITE)
    pages = sum(1 for _ in SITE.rglob("*.html"))
    print(f"{pages} pages in {SITE}, {time.monotonic() - began:.0f} s")
    return 0


COLOUR = re.compile(r"\x1b\[[\d;]*m")
# zensical prints a picture of each warning: where it is, and the line of the page.
WARNING = re.compile(
    r"^Warning: (?P<fault>.*)\n.*\[ (?P<file>\S+):(?P<line>\d+):(?P<column>\d+) \]\n"
    r".*\n *\d+ │ (?P<text>.*)",
    re.MULTILINE,
)
CANONICAL = re.compile(r'<link rel="canonical"[^>]*>')
ID = re.compile(r'\s(?:id|name)="?([^"\s>]+)')
HREF = re.compile(r'<a\b[^>]*?\shref="?([^"\s>]+)')


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links between pages that lead to no file or to no anchor."""
    texts = {page: page.read_text("utf-8") for page in site.rglob("*.html")}
    anchors = {
        page: set(map(unescape, ID.findall(text))) for page, text in texts.items()
    }
    for page, text in texts.items():
        if page.name == "404.html":
            continue  # the server shows it at any address
        for link in {unescape(href) for href in HREF.findall(text)}:
            path, _, anchor = link.partition("#")
            if ":" in path:
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{page.relative_to(site)}: no page at {link}"
            elif (
                anchor and target in anchors and unquote(anchor) not in anchors[target]
            ):
                yield f"{page.relative_to(site)}: no anchor at {link}"


REQUEST = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?"
    r"\s(?:src|srcset|data)=\"?((?:https?:)?//[^\"\s>]+)"
    r"|<link\b(?=[^>]*\srel=\"?(?:stylesheet|icon|pre|dns|module|manifest))[^>]*?"
    r"\shref=\"?((?:https?:)?//[^\"\s>]+)"
)
CSS_REQUEST = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')\s]+)")


def foreign_requests(site: Path) -> Iterator[str]:
    """Yield the addresses elsewhere that a browser would ask for when it shows a page."""
    for page in (*site.rglob("*.html"), *site.rglob("*.css")):
        text = page.read_text("utf-8")
        patterns = (CSS_REQUEST,) if page.suffix == ".css" else (REQUEST, CSS_REQUEST)
        for pattern in patterns:
            for found in pattern.finditer(text):
                address = next(filter(None, found.groups()))
                yield f"{page.relative_to(site)}: asks for {address}"


if __name__ == "__main__":
    sys.exit(main())
