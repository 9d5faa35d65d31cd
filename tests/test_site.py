"""The configuration of the site: what can be checked without building it."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from docs.site import build
from docs.site.build import Stage, broken_links, foreign_requests, headings

DOCS = build.ROOT / "docs"
CHINESE = sorted(DOCS.glob("*.zh-CN.md"))


def test_the_navigation_names_each_page_once() -> None:
    """A page of docs/ that the navigation leaves out would be found by nobody."""
    project = tomllib.loads((build.HERE / "zensical.toml").read_text("utf-8"))[
        "project"
    ]
    named = Counter(build.flatten(project["nav"]))
    pages = {page.name for page in DOCS.glob("*.md")} - {page.name for page in CHINESE}
    others = {"index.md", "examples/index.md", "api"}
    others |= {"repository/contributing.md", "repository/changelog.md"}
    assert named == Counter(pages | others)
    english, chinese = project["plugins"]["i18n"]["languages"]
    titles = {title for section in project["nav"] for title in section}
    assert set(chinese["nav_translations"]) == titles
    assert english["default"]


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_chinese_page_has_the_headings_of_the_english_page(page: Path) -> None:
    """The switch of language finds the same place, and English anchors work in both."""

    def levels(path: Path) -> list[int]:
        lines = path.read_text("utf-8").split("\n")
        return [len(lines[number].split()[0]) for number in headings(lines)]

    assert levels(page) == levels(page.with_name(page.name.replace(".zh-CN", "")))


def test_every_public_name_has_a_place_in_the_reference() -> None:
    """Each name of each public list stands on exactly one page."""
    pages = build.api_pages()
    placed = Counter(name for page in pages for name in page.names)
    lists = build.public_lists().values()
    assert placed == Counter({name for names in lists for name in names})
    assert len({page.file for page in pages}) == len(pages)


def test_links_lead_to_the_page_in_the_same_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links are written for a code host, and rewritten for the site, not in code."""
    pages = {
        "README.md": "[a](docs/a.md#x)\n",
        "docs/a.md": "# A\n## X y\n[home](../README.md) ([中文](a.zh-CN.md))\n",
        "docs/a.zh-CN.md": "# 甲\n## 乙\n[源](../x.py) [甲](a.zh-CN.md#乙)\n```\n[a](a.md)\n```",
        "x.py": "x = 1\n",
    }
    for name, text in pages.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "PAGES", tmp_path / "pages")
    Stage().copy_all(["README.md", "docs/a.zh-CN.md"])
    staged = {
        path.relative_to(tmp_path / "pages").as_posix(): path.read_text("utf-8")
        for path in (tmp_path / "pages").rglob("*.md")
    }
    assert staged == {
        "index.md": "[a](a.md#x)\n",
        "a.md": "# A\n## X y\n[home](index.md)\n",
        "a.zh-CN.md": '# 甲\n## 乙 <a id="x-y"></a>\n'
        "[源](repository/x.py.md) [甲](a.md#乙)\n```\n[a](a.md)\n```",
        "repository/x.py.md": "# x.py\n\n`x.py` in the repository:\n\n````python\nx = 1\n````\n",
    }


def test_broken_links_and_foreign_requests_are_found(tmp_path: Path) -> None:
    """What zensical does not check is checked in the pages that it wrote."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b/index.html").write_text('<h2 id="x">', "utf-8")
    (tmp_path / "index.html").write_text(
        '<a href="b/#x"><a href=https://example.org><a href="b/#y"><a href="c/">'
        '<link rel="stylesheet" href="https://fonts.example/a.css">'
        '<script src="//cdn.example/a.js"></script><img src="b/a.png">'
    )
    (tmp_path / "a.css").write_text("a{background:url(https://cdn.example/a.png)}")
    assert sorted(broken_links(tmp_path)) == [
        "index.html: no anchor at b/#y",
        "index.html: no page at c/",
    ]
    assert sorted(foreign_requests(tmp_path)) == [
        "a.css: asks for https://cdn.example/a.png",
        "index.html: asks for //cdn.example/a.js",
        "index.html: asks for https://fonts.example/a.css",
    ]
