"""Runs the examples of the package's docstrings, those of a module in one namespace."""

from __future__ import annotations

import doctest
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = sorted(
  str(path.relative_to(ROOT))
  for path in ROOT.glob("t2r_seq/**/*.py")
  if ">>> " in path.read_text(encoding="utf-8")
)
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("module", MODULES)
def test_examples(module, tmp_path, monkeypatch):
  text = (ROOT / module).read_text(encoding="utf-8")
  text = re.sub(r'^ *"""$', "", text, flags=re.MULTILINE)  # An example may be the last.
  monkeypatch.chdir(tmp_path)  # For the files that examples write.
  examples = doctest.DocTestParser().get_doctest(text, {}, module, module, 0)
  assert not doctest.DocTestRunner(optionflags=OPTIONS).run(examples).failed
