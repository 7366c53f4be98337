"""The site has every page, public name and version, in the order of README.md."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import t2r_seq

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_every_page_and_every_public_name(tmp_path):
  spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs/make_site.py")
  make_site = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(make_site)
  for earlier in ("0.0.9", "0.0.10"):
    (tmp_path / "site/site" / earlier).mkdir(parents=True)
  make_site.main(str(tmp_path / "site"), "Cut  (import t2r_seq.windows)\n  Says.")
  config = (tmp_path / "site/mkdocs.yml").read_text()
  pages = tmp_path / "site/pages"
  for page in sorted(ROOT.glob("docs/*.md")):
    assert f'"docs/{page.name}"' in config, f"README.md does not link to {page.name}"
  for name in t2r_seq.__all__:
    text = (pages / f"reference/t2r_seq.{name}.md").read_text()
    assert f"\n::: t2r_seq.{name}" in text
  assert "## Cut\n" in (pages / "reference/gin.md").read_text()
  versions = json.loads((tmp_path / "site/site/versions.json").read_text())
  assert [each["version"] for each in versions] == [
    t2r_seq.__version__,
    "0.0.10",
    "0.0.9",
  ]
  assert [each["aliases"] for each in versions] == [["latest"], [], []]
