"""Reading an HTML report as a strict browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects tags, ids, outside references; checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.note(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.note(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value or "")


def check_page(html: str) -> Page:
    """The page, after what holds for every report: whole, one file without outside references, every figure named for those who hear it."""
    page = Page(html)
    assert all(reference.startswith("#") for reference in page.references)
    assert not re.search(r"url\((?!#)|@import", html)
    assert len(page.ids) == len(set(page.ids)), "ids are unique"
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    named = re.findall(r'<svg[^>]*role="img" aria-labelledby="(\S+) (\S+)"', html)
    assert len(named) == page.tags.count("svg") and {name for pair in named for name in pair} <= set(page.ids)
    assert page.tags.count("script") == 0 and "NaN" not in html
    assert page.tags.count("table") == 0 or html.count('scope="col"') > 0
    return page
