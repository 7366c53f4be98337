"""Each exported name has a line that a test runs: a user sees how it is typed.

Lines are those of examples, of gin files, and of the snippets of pages and docstrings.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.docs import snippet_runner

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "t2r_seq"
GIN_NAME = re.compile(r"@(?:[\w./]+/)?(\w+)|^\s*(?:\w+/)*(\w+)\.\w+ *=", re.MULTILINE)


def gin_names(text: str) -> set[str]:
  """Returns the configurables that gin bindings name."""
  return {found[1] or found[2] for found in GIN_NAME.finditer(text)}


def python_names(code: str) -> Iterator[str]:
  """Yields the dotted names that code imports or reads, and gin's in its strings."""
  bound = {}
  nodes = [*ast.walk(ast.parse(code))]
  for node in nodes:
    if isinstance(node, ast.ImportFrom):
      for alias in node.names:
        bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
  yield from bound.values()
  for node in nodes:
    if isinstance(node, ast.Attribute):
      root, *rest = ast.unparse(node).split(".")
      yield ".".join([bound.get(root, root), *rest])
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      yield from gin_names(node.value)


def runnable_names() -> set[str]:
  """Returns the dotted names, and those of gin, in all code that a test runs."""
  codes = [path.read_text(encoding="utf-8") for path in ROOT.glob("examples/*.py")]
  for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
    snippets = snippet_runner.find_snippets(path.read_text(encoding="utf-8"))
    codes.append("".join(s.code for s in snippets if s.language == "python"))
  parser = doctest.DocTestParser()
  for path in ROOT.glob(f"{PACKAGE}/**/*.py"):
    examples = parser.get_examples(path.read_text(encoding="utf-8"))
    codes.append("".join(example.source for example in examples))
  names = {name for code in codes for name in python_names(code)}
  for folder in ("configs", "research"):
    for path in ROOT.glob(f"{folder}/**/*.gin"):
      names |= gin_names(path.read_text(encoding="utf-8"))
  return names


def test_every_exported_name_has_a_runnable_line():
  names = runnable_names()
  missing = []
  for path in sorted(ROOT.glob(f"{PACKAGE}/**/__init__.py")):
    package = ".".join(path.parent.relative_to(ROOT).parts)
    for name in importlib.import_module(package).__all__:
      dotted = f"{package}.{name}"
      if not any(n in (name, dotted) or n.startswith(f"{dotted}.") for n in names):
        missing.append(dotted)
  assert not missing, (
    f"show these in a page or a docstring, or do not export: {missing}"
  )


CASES = {
  "module": ("from t2r_seq import specs\nspecs.Seconds(1)", "t2r_seq.specs.Seconds"),
  "name": ("from t2r_seq.specs import Seconds as S", "t2r_seq.specs.Seconds"),
  "alias": (
    "from t2r_seq import store as s\ns.EpisodeStore",
    "t2r_seq.store.EpisodeStore",
  ),
  "whole": ("import t2r_seq\nt2r_seq.specs.Seconds", "t2r_seq.specs.Seconds"),
  "submodule": ("import t2r_seq.hooks\nt2r_seq.hooks.X", "t2r_seq.hooks.X"),
  "gin reference": ("gin.parse_config('a.b = @scope/Seconds()')", "Seconds"),
  "gin binding": ("bindings = ['NUM = 1', 'scope/Seconds.x = 2']", "Seconds"),
}


@pytest.mark.parametrize("name", CASES)
def test_python_names(name):
  code, want = CASES[name]
  assert want in set(python_names(code))


def test_prose_is_no_use():
  assert not {*python_names("x = 'Seconds are times.'")} - {"x"}
