"""Folders import only from floors below their own, and no modules form a circle.

The imports are read from the source, lazy ones inside functions and those under
`if TYPE_CHECKING` included, so that nothing has to be importable.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "t2r_seq"

FLOORS = {
  "imports": 0,
  "randomness": 0,
  "errors": 0,
  "files": 0,
  "process": 0,
  "progress": 0,
  "stamps": 0,
  "lite": 1,
  "serving": 2,
  "specs": 1,
  "episodes": 2,
  "windows": 2,
  "records": 3,
  "store": 3,
  "formats": 4,
  "convert": 5,
  "data": 5,
  "statistics": 5,
  "layers": 6,
  "policies": 6,
  "preprocessors": 6,
  "transitions": 6,
  "models": 7,
  "replay": 7,
  "checks": 7,
  "meta_learning": 8,
  "training": 8,
  "verification": 8,
  "viewing": 8,
  "actors": 9,
  "hooks": 9,
  "zoo": 10,
  "cli": 11,
}
# Modules with Tensor2Robot's names: they re-export, and nobody inside uses them.
FACES = ("tensorspec_utils", "tfdata")
FACE_FLOORS = ("errors", "specs", "records")
# Imported by nobody inside: one is for users' tests, the other is the command line.
TOP = ("testing", "__main__")
OUTSIDE = ("benchmarks", "examples", "research", "tests")
VAGUE_NAMES = ("common", "helpers", "misc", "utils")


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
  """Yields (line, dotted name) of everything that a module imports.

  Args:
    tree: the parsed module.
    package: dotted name of the package that it is in, for relative imports.
  """
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from ((node.lineno, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ""
      if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parents, base] if base else parents)
      yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
    elif isinstance(node, ast.Call) and node.args:
      # importlib.import_module("t2r_seq.models") is an import as well.
      name = getattr(node.func, "attr", getattr(node.func, "id", ""))
      argument = node.args[0]
      if (
        name in ("import_module", "__import__")
        and isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
      ):
        yield node.lineno, argument.value


def arrow_problem(source: str, target: str) -> str | None:
  """Says what is wrong with `source` importing `target`, both below t2r_seq."""
  if target in (source, "__version__"):
    return None
  if target in ("", "*"):
    return f"imports {PACKAGE} itself; name the folder that owns what you need"
  if target in FACES or target in TOP:
    return f"imports {target}, which is for users; nobody inside imports it"
  if target not in FLOORS:
    return f"imports {PACKAGE}.{target}, which is no folder of the table of floors"
  if source in TOP:
    return None
  if source in FACES:
    allowed = target in FACE_FLOORS
    return None if allowed else f"a thin face imports {target}"
  if FLOORS[target] < FLOORS[source]:
    return None
  direction = "up to" if FLOORS[target] > FLOORS[source] else "across to"
  return (
    f"{source} (floor {FLOORS[source]}) imports {direction} {target} "
    f"(floor {FLOORS[target]})"
  )


def floor_problems(root: pathlib.Path) -> list[str]:
  """Lists every forbidden import of the package under `root`, with file and line."""
  problems = []
  for path in sorted((root / PACKAGE).rglob("*.py")):
    parts = path.relative_to(root / PACKAGE).with_suffix("").parts
    source = parts[0]
    place = path.relative_to(root).as_posix()
    if source == "__init__":
      continue  # the package's own face: test_faces and test_bare_import hold it
    if source not in FLOORS and source not in FACES and source not in TOP:
      problems.append(f"{place}: {source} has no floor; add it to the table")
      continue
    package = ".".join([PACKAGE, *parts[:-1]])
    for line, name in imports(ast.parse(path.read_text(encoding="utf-8")), package):
      top, _, rest = name.partition(".")
      problem = None
      if top in OUTSIDE:
        problem = f"imports {top}, which imports {PACKAGE}: never the reverse"
      elif top == PACKAGE:
        problem = arrow_problem(source, rest.partition(".")[0])
      if problem:
        problems.append(f"{place}:{line}: {problem}")
  return problems


def module_name(root: pathlib.Path, path: pathlib.Path) -> str:
  parts = path.relative_to(root).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(root: pathlib.Path) -> list[str]:
  """Lists the circles of modules that import each other, each with its members.

  Imports inside functions and for types only count, too. A face that only hands names
  on is no member: who imports a name through it imports the module that has it.
  """
  paths = {module_name(root, p): p for p in (root / PACKAGE).rglob("*.py")}
  trees = {name: ast.parse(p.read_text(encoding="utf-8")) for name, p in paths.items()}
  faces = {name for name, path in paths.items() if path.name == "__init__.py"}

  def package(name: str) -> str:
    return name if name in faces else name.rpartition(".")[0]

  handed_on = {
    f"{face}.{target.rpartition('.')[2]}": target
    for face in faces
    for _, target in imports(trees[face], face)
  }

  def home(target: str) -> str | None:
    """Returns the module that an imported name is in; None outside or in a face."""
    while target in handed_on and handed_on[target] != target:
      target = handed_on[target]
    while target and target not in paths:
      target = target.rpartition(".")[0]
    return None if target in faces or not target else target

  arrows = {
    name: {home(target) for _, target in imports(tree, package(name))} - {None, name}
    for name, tree in trees.items()
    if name not in faces
  }
  while removable := {n for n, to in arrows.items() if not to & set(arrows)}:
    arrows = {name: to for name, to in arrows.items() if name not in removable}
  while removable := set(arrows) - set().union(*arrows.values()):
    arrows = {name: to for name, to in arrows.items() if name not in removable}
  return [
    f"{name} imports {', '.join(sorted(to & set(arrows)))}"
    for name, to in sorted(arrows.items())
  ]


def name_problems(root: pathlib.Path) -> list[str]:
  """Lists the modules of the package that are named after nothing."""
  return [
    f"{path.relative_to(root).as_posix()}: a module named {path.stem!r} says nothing"
    for path in sorted((root / PACKAGE).rglob("*.py"))
    if path.stem in VAGUE_NAMES
  ]


def test_imports_point_down():
  problems = floor_problems(ROOT)
  assert not problems, "\n".join(["", *problems])


def test_no_modules_form_a_circle():
  found = circles(ROOT)
  assert not found, "\n".join(["", *found])


def test_modules_are_named():
  problems = name_problems(ROOT)
  assert not problems, "\n".join(["", *problems])


def test_package_is_found():
  assert (ROOT / PACKAGE / "errors.py").is_file()


def write(root: pathlib.Path, path: str, text: str) -> None:
  (root / path).parent.mkdir(parents=True, exist_ok=True)
  (root / path).write_text(text, encoding="utf-8")


IMPORT_CASES = {
  "down": ("records/parser.py", "from t2r_seq import errors, specs", None),
  "down, two names deep": (
    "data/order.py",
    "from t2r_seq.records.files import a",
    None,
  ),
  "own folder": ("records/parser.py", "from t2r_seq.records import files", None),
  "own folder, relative": ("records/parser.py", "from . import files", None),
  "version": ("training/loop.py", "from t2r_seq import __version__", None),
  "version through the package": (
    "training/loop.py",
    "import t2r_seq",
    "t2r_seq/training/loop.py:1: imports t2r_seq itself",
  ),
  "up": (
    "specs/spec.py",
    "import os\nfrom t2r_seq import records",
    "t2r_seq/specs/spec.py:2: specs (floor 1) imports up to records (floor 3)",
  ),
  "up, plain import": (
    "specs/spec.py",
    "import t2r_seq.models.model",
    "t2r_seq/specs/spec.py:1: specs (floor 1) imports up to models (floor 7)",
  ),
  "across": (
    "records/parser.py",
    "from t2r_seq.store import EpisodeStore",
    "t2r_seq/records/parser.py:1: records (floor 3) imports across to store",
  ),
  "lazy": (
    "data/order.py",
    "def f():\n  from t2r_seq import policies\n  return policies",
    "t2r_seq/data/order.py:2: data (floor 5) imports up to policies (floor 6)",
  ),
  "by a string": (
    "data/order.py",
    "import importlib\nimportlib.import_module('t2r_seq.cli.main')",
    "t2r_seq/data/order.py:2: data (floor 5) imports up to cli (floor 11)",
  ),
  "for types only": (
    "data/order.py",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "  from t2r_seq.models import T2RModel",
    "t2r_seq/data/order.py:3: data (floor 5) imports up to models (floor 7)",
  ),
  "relative": (
    "records/parser.py",
    "from ..models import model",
    "t2r_seq/records/parser.py:1: records (floor 3) imports up to models",
  ),
  "relative, nested folder": (
    "models/heads/mdn.py",
    "from ...training import loop",
    "t2r_seq/models/heads/mdn.py:1: models (floor 7) imports up to training",
  ),
  "relative, from the package": (
    "records/__init__.py",
    "from .. import models",
    "t2r_seq/records/__init__.py:1: records (floor 3) imports up to models",
  ),
  "errors": ("errors.py", "from t2r_seq import specs", "t2r_seq/errors.py:1: errors"),
  "face": ("tfdata.py", "from t2r_seq import records, specs", None),
  "fat face": ("tfdata.py", "from t2r_seq import data", "a thin face imports data"),
  "use of a face": (
    "data/order.py",
    "from t2r_seq import tfdata",
    "t2r_seq/data/order.py:1: imports tfdata, which is for users",
  ),
  "testing": ("testing/fakes.py", "from t2r_seq import cli", None),
  "use of testing": (
    "data/order.py",
    "import t2r_seq.testing",
    "t2r_seq/data/order.py:1: imports testing, which is for users",
  ),
  "name of the top": (
    "data/order.py",
    "from t2r_seq import TensorSpecStruct",
    "imports t2r_seq.TensorSpecStruct, which is no folder",
  ),
  "new folder": ("extras/x.py", "", "t2r_seq/extras/x.py: extras has no floor"),
  "research": (
    "cli/main.py",
    "import research.pose_env",
    "t2r_seq/cli/main.py:1: imports research, which imports t2r_seq",
  ),
  "another library": ("records/parser.py", "import models\nimport tensorflow", None),
}


@pytest.mark.parametrize("name", IMPORT_CASES)
def test_floor_problems(name, tmp_path):
  path, text, want = IMPORT_CASES[name]
  write(tmp_path, f"{PACKAGE}/{path}", text)
  got = floor_problems(tmp_path)
  assert len(got) == (want is not None), got
  assert want is None or want in got[0]


CIRCLES = {
  "none": ({"specs/a": "from t2r_seq.specs import b", "specs/b": ""}, []),
  "two": (
    {
      "specs/a": "from t2r_seq.specs import b",
      "specs/b": "from t2r_seq.specs.a import x",
    },
    ["t2r_seq.specs.a imports t2r_seq.specs.b", "t2r_seq.specs.b imports"],
  ),
  "inside a function": (
    {
      "specs/a": "from t2r_seq.specs import b",
      "specs/b": "def f():\n  from t2r_seq.specs import a",
    },
    ["t2r_seq.specs.a imports", "t2r_seq.specs.b imports"],
  ),
  "for types only": (
    {
      "specs/a": "from t2r_seq.specs import b",
      "specs/b": "if TYPE_CHECKING:\n  from t2r_seq.specs import a",
    },
    ["t2r_seq.specs.a imports", "t2r_seq.specs.b imports"],
  ),
  "through the face": (
    {
      "specs/__init__": "from t2r_seq.specs.a import x",
      "specs/a": "from t2r_seq.specs import b",
      "specs/b": "from t2r_seq.specs import x",
    },
    ["t2r_seq.specs.a imports", "t2r_seq.specs.b imports"],
  ),
  "a tail is no member": (
    {
      "specs/a": "from t2r_seq.specs import b, c",
      "specs/b": "from t2r_seq.specs import a",
      "specs/c": "",
      "specs/d": "from t2r_seq.specs import a",
    },
    ["t2r_seq.specs.a imports t2r_seq.specs.b", "t2r_seq.specs.b imports"],
  ),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_circles(name, tmp_path):
  texts, want = CIRCLES[name]
  write(tmp_path, f"{PACKAGE}/__init__.py", "")
  write(tmp_path, f"{PACKAGE}/specs/__init__.py", "")
  for path, text in texts.items():
    write(tmp_path, f"{PACKAGE}/{path}.py", text)
  got = circles(tmp_path)
  assert len(got) == len(want), got
  assert all(line.startswith(start) for line, start in zip(got, want, strict=True)), got


def test_name_problems(tmp_path):
  write(tmp_path, f"{PACKAGE}/specs/fits.py", "")
  write(tmp_path, f"{PACKAGE}/specs/utils.py", "")
  assert name_problems(tmp_path) == [
    "t2r_seq/specs/utils.py: a module named 'utils' says nothing"
  ]
