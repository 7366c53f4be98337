"""Relative links of the pages point to files that exist in the repository."""

from __future__ import annotations

import pathlib
import re
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATTERNS = (
  "README.md",
  "docs/**/*.md",
  "research/**/README.md",
  "benchmarks/README.md",
  "configs/README.md",
)
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))

FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1[`~]* *$", re.MULTILINE | re.DOTALL)
# A span may go over the end of a line, but not over that of a paragraph.
SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
LINKS = (
  re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'(][^)]*)?\s*\)"
  ),  # [text](target "title")
  re.compile(r"^ *\[[^\]]+\]: +<?([^\s>]+)", re.MULTILINE),  # [name]: target
  re.compile(r"\b(?:src|href)=[\"']([^\"']+)[\"']"),  # <img src="target">
)
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//|#")


def relative_links(text: str) -> list[str]:
  """Lists the targets of a Markdown text that are neither URLs nor on the page."""
  prose = SPAN.sub("", FENCED.sub("", text))
  targets = [match[1] for link in LINKS for match in link.finditer(prose)]
  return [target for target in targets if not ELSEWHERE.match(target)]


def broken_links(page: pathlib.Path, root: pathlib.Path) -> list[str]:
  """Lists the relative links of a page to what is not below `root`."""
  broken = []
  for target in relative_links(page.read_text(encoding="utf-8")):
    name = urllib.parse.unquote(target.partition("#")[0])
    path = (page.parent / name).resolve()
    # On GitHub a leading / is the repository, in most other places it is not.
    if name.startswith("/") or not path.is_relative_to(root) or not path.exists():
      broken.append(target)
  return broken


def test_pages_exist():
  names = {str(page.relative_to(ROOT)) for page in PAGES}
  assert names >= {"README.md", "benchmarks/README.md", "configs/README.md"}
  assert "research/pose_env/README.md" in names
  assert "docs/windows.md" in names


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_links(page):
  assert broken_links(ROOT / page, ROOT) == []


# name: (text of docs/page.md, its broken links)
CASES = {
  "none": ("no link", []),
  "beside": ("[a](other.md)", []),
  "above": ("[a](../README.md) and [b](../src)", []),
  "image": ("![a](images/a.png) ![b](images/b.png)", ["images/b.png"]),
  "missing": ("[a](no.md)\n[b](other.md)\n[c](no/way.md)", ["no.md", "no/way.md"]),
  "heading": ("[a](other.md#there) [b](no.md#there)", ["no.md#there"]),
  "of the page": ("[a](#there)", []),
  "url": ("[a](https://a.b/c.md) [b](mailto:a@b.c) [c](//a.b)", []),
  "over two lines": ("[a\nb](no.md)", ["no.md"]),
  "image in a link": ("[![a](images/a.png)](no.md)", ["no.md"]),
  "title": ('[a](other.md "Title") [b](no.md "Title")', ["no.md"]),
  "space": ("[a](with%20space.md) [b](<other.md>)", []),
  "outside": (
    "[a](../../outside.md) [b](/README.md)",
    ["../../outside.md", "/README.md"],
  ),
  "reference": ("[a][1]\n\n[1]: no.md\n[2]: other.md\n", ["no.md"]),
  "html": ('<img src="images/b.png"> <a href="other.md">', ["images/b.png"]),
  "code": ("```python\nx[0](no)\n```\n`y[0](no)` [a](no.md)", ["no.md"]),
  "lone backtick": ("a ` b [a](no.md)\n\nc ` d", ["no.md"]),
}


@pytest.mark.parametrize("name", CASES)
def test_broken_links(name, tmp_path):
  text, want = CASES[name]
  root = tmp_path / "repository"
  for file in ("README.md", "docs/other.md", "docs/with space.md", "docs/images/a.png"):
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).touch()
  (root / "src").mkdir()
  (tmp_path / "outside.md").touch()
  page = root / "docs" / "page.md"
  page.write_text(text, encoding="utf-8")
  assert broken_links(page, root) == want


def test_contributing_page_names_existing_files():
  text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
  named = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*(?:\.py|/))`", text))
  places = (ROOT / "t2r_seq", ROOT)
  gone = [n for n in sorted(named) if not any((p / n).exists() for p in places)]
  assert len(named) > 40 and not gone
  folders = {path.parent.name for path in (ROOT / "t2r_seq").glob("*/__init__.py")}
  assert {f"{folder}/" for folder in folders} <= named
