"""The description of a release: README.md, whose links point to the repository."""

from __future__ import annotations

import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = "https://host/t2r_seq"
LINKS = {
  "page": ("[guide](docs/guide.md#a)", "[guide]({blob}/docs/guide.md#a)"),
  "picture": ("![a b](a.png)", "![a b]({raw}/a.png)"),
  "linked picture": ("[![a](a.png)](a.md)", "[![a]({raw}/a.png)]({blob}/a.md)"),
  "other site": ("[![a](https://b/c.png)](http://d)",) * 2,
  "part of the page": ("[start](#start)",) * 2,
}


@pytest.fixture(name="setup")
def fixture_setup(monkeypatch):
  """The names of setup.py, as a release runs it, without building."""
  setuptools = pytest.importorskip("setuptools")
  monkeypatch.setattr(setuptools, "setup", lambda **options: None)
  monkeypatch.setenv("T2R_SEQ_REPOSITORY", f"{PLACE}/")
  return runpy.run_path(str(ROOT / "setup.py"))


@pytest.mark.parametrize("name", LINKS)
def test_links_become_absolute(name, setup, tmp_path):
  text, want = LINKS[name]
  (tmp_path / "README.md").write_text(text)
  init = tmp_path / "t2r_seq/__init__.py"
  init.parent.mkdir()
  init.write_text('__version__ = "1.2.3"\n')
  setup["read_description"].__globals__["ROOT"] = tmp_path
  places = {kind: f"{PLACE}/{kind}/v1.2.3" for kind in ("blob", "raw")}
  assert setup["read_description"]() == want.format(**places)


def test_readme_has_no_relative_link_in_a_release(setup):
  text = setup["read_description"]()
  links = re.findall(r"(!\[[^\[\]]*|)\]\(([^)]+)\)", text)
  assert len(links) > 20
  for picture, link in links:
    assert re.match(r"https?://|#", link), link
    assert not picture or "/raw/" in link or not link.startswith(PLACE), link
