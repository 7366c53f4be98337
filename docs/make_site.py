"""Lays out the site of the pages and of a reference: `make docs`.

    python docs/make_site.py FOLDER GIN_TEXT

The pages are copied as they are, so that their links hold; the reference has a page for
each package, with what its `__all__` lists, and one of what gin can configure. The
order is that of README.md's last section.

Each version has a separate folder in FOLDER/site, and a menu leads from one to the
others. To publish, put the folders of earlier versions there first: the release
workflow keeps them on the branch gh-pages.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = (
  *("README.md", "CHANGELOG.md", "LICENSE", "docs/**/*", "benchmarks/README.md"),
  *("benchmarks/images/*", "research/**/*.md", "research/**/*.png"),
  *("research/**/*.gin", "configs/*", "examples/**/*"),
)
_SECTION = re.compile(r"^- (.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")


def copy_pages(source: pathlib.Path) -> None:
  """Copies the pages, and what they show and link to."""
  for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
    if path.is_file() and "__pycache__" not in path.parts:
      target = source / path.relative_to(ROOT)
      target.parent.mkdir(parents=True, exist_ok=True)
      shutil.copyfile(path, target)


def faces() -> dict[str, list[str]]:
  """Returns the names of each package, as its source lists them; of a module: none."""
  top = ROOT / "t2r_seq"
  shown = _names_of(top / "__init__.py")
  modules = {top / f"{name}.py" for name in shown}
  # A package without exported names, such as the formats, has its docstring alone.
  modules |= {top / name / "__init__.py" for name in shown}
  found = {}
  for path in sorted([*top.glob("*/**/__init__.py"), *modules]):
    module = path.relative_to(ROOT).with_suffix("").parts
    names = _names_of(path) if path.exists() else []
    if (path in modules and path.exists()) or names:
      found[".".join(part for part in module if part != "__init__")] = names
  return {name: names for name, names in found.items() if name != "t2r_seq.cli"}


def _names_of(path: pathlib.Path) -> list[str]:
  for node in ast.parse(path.read_text(encoding="utf-8")).body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
      return ast.literal_eval(node.value)
  return []


def write_reference(source: pathlib.Path, gin_text: str) -> list[dict[str, str]]:
  """Writes the pages of the reference; returns them in their order."""
  folder = source / "reference"
  folder.mkdir()
  entries = []
  for name, names in faces().items():
    shown = [f"{name}.{each}" for each in names] or [name]
    lines = [f"# {name}", *(f"::: {each}" for each in shown)]
    (folder / f"{name}.md").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    entries.append({name.removeprefix("t2r_seq."): f"reference/{name}.md"})
  parts = ["# What gin can configure"]
  for configurable in gin_text.strip().split("\n\n"):
    parts += [f"## {configurable.split()[0]}", f"```text\n{configurable}\n```"]
  (folder / "gin.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
  return [*entries, {"gin": "reference/gin.md"}]


def navigation() -> list[dict[str, object]]:
  """Reads the order of the pages from README.md."""
  text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Read on\n")[2]
  sections: list[dict[str, object]] = [{"t2r_seq": "README.md"}]
  for found in _SECTION.finditer(text.partition("\n## ")[0]):
    title, colon, _ = found[1].partition(":")
    links: list[dict[str, object]] = [
      {" ".join(name.split()): target} for name, target in _LINK.findall(found[1])
    ]
    is_titled = colon and "[" not in title
    sections.extend([{title: links}] if is_titled else links)
  return sections


def read_version() -> str:
  """Reads `__version__` from the package without importing it."""
  text = (ROOT / "t2r_seq/__init__.py").read_text(encoding="utf-8")
  return re.findall(r'^__version__ = "([^"]+)"', text, re.MULTILINE)[0]


def write_versions(site: pathlib.Path, version: str) -> None:
  """Lists the versions of the site, the newest first, and makes that one its start."""
  (site / version).mkdir(parents=True, exist_ok=True)
  folders = [path.name for path in site.iterdir() if re.match(r"\d+\.\d", path.name)]
  folders.sort(key=lambda name: [*map(int, re.findall(r"\d+", name))], reverse=True)
  versions = [
    {"version": name, "title": name, "aliases": ["latest"] if not number else []}
    for number, name in enumerate(folders)
  ]
  (site / "versions.json").write_text(json.dumps(versions, indent=2), encoding="utf-8")
  start = f'<meta http-equiv="refresh" content="0; url={folders[0]}/">\n'
  (site / "index.html").write_text(start, encoding="utf-8")


def main(folder: str, gin_text: str) -> None:
  """Writes FOLDER/pages, FOLDER/mkdocs.yml and the list of versions in FOLDER/site."""
  out, version = pathlib.Path(folder).resolve(), read_version()
  source = out / "pages"
  for old in (source, out / "site" / version):
    shutil.rmtree(old, ignore_errors=True)
  source.mkdir(parents=True)
  write_versions(out / "site", version)
  copy_pages(source)
  reference = write_reference(source, gin_text)
  options = {
    "docstring_style": "google",
    "heading_level": 2,
    "show_root_heading": True,
    "show_root_full_path": False,
    "show_source": False,
    "members_order": "source",
    "separate_signature": True,
    "docstring_options": {"warn_unknown_params": False, "warnings": False},
    "extensions": [str(ROOT / "docs/docstring_examples.py")],
  }
  # Zensical reads MkDocs' configuration; mkdocs-material is maintained until 2027 only.
  config = {
    "site_name": "t2r_seq",
    # Absolute paths make it panic.
    "docs_dir": "pages",
    "site_dir": f"site/{version}",
    # The theme's menu of versions reads the versions.json that `mike` would write.
    "extra": {"version": {"provider": "mike", "default": "latest"}},
    "theme": {"features": ["navigation.indexes", "search.highlight"], "font": False},
    "plugins": [
      "search",
      {
        "mkdocstrings": {
          "handlers": {"python": {"paths": [str(ROOT)], "options": options}}
        }
      },
    ],
    "markdown_extensions": ["tables", "attr_list", "pymdownx.superfences", "toc"],
    "nav": [*navigation(), {"Reference": reference}],
  }
  # YAML reads JSON.
  text = json.dumps(config, indent=2)
  (out / "mkdocs.yml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
  main(sys.argv[1], pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))
