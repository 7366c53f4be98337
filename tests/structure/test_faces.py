"""Each package's `__init__` is its face: `__all__` says what it exports, exactly.

What is exported has a docstring and is annotated in full.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "t2r_seq"


def package_names(root: pathlib.Path) -> list[str]:
  """Lists the dotted names of the package under `root` and its subpackages."""
  inits = sorted((root / PACKAGE).rglob("__init__.py"))
  return [".".join(path.parent.relative_to(root).parts) for path in inits]


def bound_names(tree: ast.Module) -> Iterator[str]:
  """Yields the names that a module's top level binds, inside `if` and `try` too."""
  pending: list[Any] = list(tree.body)
  while pending:
    node = pending.pop(0)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        continue
      for alias in node.names:
        yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
      targets = node.targets if isinstance(node, ast.Assign) else [node.target]
      yield from (t.id for t in targets if isinstance(t, ast.Name))
    elif isinstance(node, (ast.If, ast.Try, ast.With)):
      pending.extend(child for child in ast.iter_child_nodes(node))
    elif isinstance(node, ast.ExceptHandler):
      pending.extend(node.body)


def sort_key(name: str) -> tuple[int, str]:
  """Orders as ruff's RUF022 does: CONSTANTS, then Classes, then the rest."""
  rank = 0 if name.isupper() else 1 if name[:1].isupper() else 2
  return rank, name


def face_problems(module: types.ModuleType) -> list[str]:
  """Lists what `module.__all__` gets wrong."""
  names = getattr(module, "__all__", None)
  if names is None:
    return [f"{module.__name__}: no __all__"]
  problems = []
  if list(names) != sorted(set(names), key=sort_key):
    want = sorted(set(names), key=sort_key)
    problems.append(f"{module.__name__}.__all__: not sorted; expected {want}")
  for name in names:
    try:
      getattr(module, name)
    except (AttributeError, ImportError) as error:
      problems.append(f"{module.__name__}.__all__: {name}: {error!r}")
  # A face that loads lazily (PEP 562) binds nothing; it may import for itself.
  if not hasattr(module, "__getattr__"):
    tree = ast.parse(pathlib.Path(str(module.__file__)).read_text(encoding="utf-8"))
    public = {name for name in bound_names(tree) if not name.startswith("_")}
    for name in sorted(public - set(names)):
      problems.append(f"{module.__name__}: {name} is public but not in __all__")
    for name in sorted(set(names) - public):
      problems.append(f"{module.__name__}.__all__: {name} is not bound in __init__")
  return problems


def function_problems(place: str, function: Callable[..., Any]) -> list[str]:
  """Lists what a public function's docstring and annotations lack."""
  problems = []
  constructor = place.endswith(".__init__")
  if not constructor and not (inspect.getdoc(function) or "").strip():
    problems.append(f"{place}: no docstring")
  signature = inspect.signature(function)
  for index, parameter in enumerate(signature.parameters.values()):
    bound = index == 0 and parameter.name in ("self", "cls", "_cls")
    if not bound and parameter.annotation is inspect.Parameter.empty:
      problems.append(f"{place}: {parameter.name} has no annotation")
  if not constructor and signature.return_annotation is inspect.Signature.empty:
    problems.append(f"{place}: no return annotation")
  return problems


def own_functions(cls: type) -> Iterator[tuple[str, Callable[..., Any], Any]]:
  """Yields (name, function, what holds the docstring) that a class itself defines."""
  for name, member in vars(cls).items():
    if name.startswith("_") and name != "__init__":
      continue
    if isinstance(member, (classmethod, staticmethod)):
      member = member.__func__
    if isinstance(member, property):
      member = member.fget
    if isinstance(member, types.FunctionType):
      yield name, member, getattr(cls, name)


def export_problems(place: str, value: Any) -> list[str]:
  """Lists what an exported class or function lacks; other values lack nothing."""
  if inspect.isfunction(value):
    return function_problems(place, value)
  if not inspect.isclass(value) or not value.__module__.startswith(PACKAGE):
    return []
  if value.__module__.endswith("_pb2"):
    return []
  problems = []
  if not (value.__doc__ or "").strip():
    problems.append(f"{place}: no docstring")
  for name, function, documented in own_functions(value):
    found = function_problems(f"{place}.{name}", function)
    # A method may leave its docstring to the one that it overrides.
    if inspect.getdoc(documented) or any(
      inspect.getdoc(getattr(base, name, None)) for base in value.__mro__[1:-1]
    ):
      found = [problem for problem in found if not problem.endswith("no docstring")]
    problems.extend(found)
  return problems


@pytest.mark.parametrize("package", package_names(ROOT))
def test_face(package):
  problems = face_problems(importlib.import_module(package))
  assert not problems, "\n".join(["", *problems])


@pytest.mark.parametrize("package", package_names(ROOT))
def test_exports_are_documented_and_annotated(package):
  module = importlib.import_module(package)
  problems = []
  for name in getattr(module, "__all__", ()):
    problems.extend(export_problems(f"{package}.{name}", getattr(module, name)))
  assert not problems, "\n".join(["", *problems])


def strange_names(path: pathlib.Path) -> Iterator[str]:
  """Yields what a file reads of a package of t2r_seq that has no such name."""
  tree = ast.parse(path.read_text(encoding="utf-8"))
  packages, others = {}, set()
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module, node.level) == (PACKAGE, 0):
      packages |= {alias.asname or alias.name: alias.name for alias in node.names}
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
      others |= {alias.asname or alias.name for alias in node.names}
    elif isinstance(node, ast.arg):
      others.add(node.arg)
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
      others.add(node.id)
  for node in ast.walk(tree):
    root = getattr(node, "value", None) if isinstance(node, ast.Attribute) else None
    if not isinstance(root, ast.Name) or root.id in others or root.id not in packages:
      continue
    package = packages[root.id]
    if not hasattr(importlib.import_module(f"{PACKAGE}.{package}"), node.attr):
      yield f"{path}:{node.lineno}: {package}.{node.attr}"


@pytest.mark.parametrize("folder", (PACKAGE, "tests", "benchmarks", "research"))
def test_code_reads_names_that_packages_have(folder):
  paths = sorted((ROOT / folder).rglob("*.py"))
  assert [found for path in paths for found in strange_names(path)] == []


def test_strange_names(tmp_path):
  code = "from t2r_seq import specs, store as s\nspecs.Seconds\ns.Absent\nx = s.open"
  (tmp_path / "a.py").write_text(code, encoding="utf-8")
  found = [*strange_names(tmp_path / "a.py")]
  assert [each.rpartition(": ")[2] for each in found] == ["store.Absent", "store.open"]


@pytest.fixture
def load(tmp_path, monkeypatch):
  """Returns a function that imports a module with the given text."""
  monkeypatch.syspath_prepend(tmp_path)

  def load_text(text: str) -> types.ModuleType:
    name = f"{PACKAGE}_face_of_a_test"
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)

  return load_text


FACE_CASES = {
  "right": ("from os import A, b\n__all__ = ['A', 'b']", []),
  "constants first": ("from os import A, B_C, b\n__all__ = ['B_C', 'Ab', 'b']", []),
  "missing": ("x = 1", ["no __all__"]),
  "unsorted": ("from os import a, b\n__all__ = ['b', 'a']", ["not sorted"]),
  "leaked": ("import os\nfrom os import a\n__all__ = ['a']", ["os is public but not"]),
  "forgotten": ("from os import a, b\n__all__ = ['b']", ["a is public but not"]),
  "absent": ("__all__ = ['z']", ["z: AttributeError", "z is not bound"]),
  "private": ("import os as _os\n__all__ = []", []),
  "lazy": (
    "import os\n__all__ = ['a']\ndef __getattr__(name):\n"
    "  if name == 'a': return 1\n  raise AttributeError(name)",
    [],
  ),
  "lazy, absent": (
    "__all__ = ['a']\ndef __getattr__(name):\n  raise AttributeError(name)",
    ["a: AttributeError"],
  ),
}


@pytest.mark.parametrize("name", FACE_CASES)
def test_face_problems(name, load, monkeypatch):
  text, want = FACE_CASES[name]
  source = types.ModuleType("os_of_a_test")
  vars(source).update(a=1, b=2, A=3, B_C=4, Ab=5)
  monkeypatch.setitem(sys.modules, "os_of_a_test", source)
  text = text.replace("from os import A, B_C, b", "from os import Ab, B_C, b")
  got = face_problems(load(text.replace("from os ", "from os_of_a_test ")))
  assert len(got) == len(want), got
  assert all(part in problem for part, problem in zip(want, got, strict=True)), got


EXPORT_CASES = {
  "function": ("def f(x: int) -> int:\n  '''Does.'''\n  return x", []),
  "no docstring": ("def f(x: int) -> int:\n  return x", ["f: no docstring"]),
  "no annotations": (
    "def f(x, *y):\n  '''Does.'''",
    ["f: x has no annotation", "f: y has no annotation", "f: no return annotation"],
  ),
  "class": (
    "class f:\n  '''Is.'''\n  def __init__(self, x: int): pass\n"
    "  def _private(self, y): pass",
    [],
  ),
  "bare class": ("class f:\n  def __init__(self, x): pass", ["f: no doc", "__init__"]),
  "method": (
    "class f:\n  '''Is.'''\n  def m(self, x: int): pass",
    ["f.m: no docstring", "f.m: no return annotation"],
  ),
  "property": (
    "class f:\n  '''Is.'''\n  @property\n  def m(self): return 1",
    ["f.m: no docstring", "f.m: no return annotation"],
  ),
  "overriding method": (
    "class g:\n  def m(self) -> int:\n    '''Does.'''\n    return 1\n"
    "class f(g):\n  '''Is.'''\n  def m(self) -> int: return 2",
    [],
  ),
  "value": ("f = 3", []),
}


@pytest.mark.parametrize("name", EXPORT_CASES)
def test_export_problems(name, load):
  text, want = EXPORT_CASES[name]
  got = export_problems("f", load(text).f)
  assert len(got) == len(want), got
  assert all(part in problem for part, problem in zip(want, got, strict=True)), got


def test_makefile_and_workflows_name_tests_that_exist():
  paths = [ROOT / "Makefile", *(ROOT / ".github/workflows").glob("*.yml")]
  text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
  names = re.findall(r"\btests/[\w/]+(?:\.py)?", text)
  assert len(names) > 40
  assert [name for name in names if not (ROOT / name).exists()] == []
