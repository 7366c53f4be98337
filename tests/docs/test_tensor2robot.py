"""The page for Tensor2Robot's users has all of its names; ours in it exist."""

from __future__ import annotations

import functools
import importlib
import pathlib
import re

import gin
import pytest

import t2r_seq

HERE = pathlib.Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "tensor2robot.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (`.*`) \| (.*) \|$", re.MULTILINE)
SECTION = re.compile(r"^### (\w+)$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def sections():
  """Yields (module, the names of Tensor2Robot in a row, where they went)."""
  for folder, text in SECTION.findall(PAGE):
    for module, names, here in ROW.findall(text):
      yield f"{folder}/{module}.py", re.findall(r"`(\w+)`", names), here


def test_every_public_name_has_a_row():
  want = dict(
    line.split(": ")
    for line in (HERE / "tensor2robot_names.txt").read_text().splitlines()
  )
  got: dict[str, list[str]] = {}
  for module, names, _ in sections():
    got.setdefault(module, []).extend(names)
  assert {m: sorted(n) for m, n in got.items()} == {
    m: sorted(n.split()) for m, n in want.items()
  }


def mentioned():
  """Lists names below `t2r_seq` that rows speak of."""
  packages = "|".join([*t2r_seq.__all__, "tensorspec_utils", "tfdata"])
  found = re.compile(rf"`((?:{packages})(?:\.\w+)*)`")
  names = {name for _, _, here in sections() for name in found.findall(here)}
  same = re.compile(rf"the same, in `((?:{packages})(?:\.\w+)*)`")
  for _, ours, here in sections():
    for place in same.findall(here):
      names.update(f"{place}.{name}" for name in ours)
  return sorted(names)


@pytest.mark.parametrize("name", mentioned())
def test_listed_names_can_be_imported(name):
  package, *rest = name.split(".")
  found = importlib.import_module(f"t2r_seq.{package}")
  assert functools.reduce(getattr, rest, found) is not None


BINDINGS = PAGE.split("## Bindings of Tensor2Robot's gin files")[1].split("##")[0]


def bindings():
  """Lists the bindings that the page names for this library."""
  rows = re.findall(r"^\| (`.*) \| (.*) \|$", BINDINGS, re.MULTILINE)
  ours = (theirs if here.startswith("the same") else here for theirs, here in rows)
  return sorted({name for cell in ours for name in re.findall(r"`(\w+\.\w+)", cell)})


@pytest.mark.parametrize("binding", bindings())
def test_bindings_of_the_page_parse(binding):
  for package in t2r_seq.__all__:
    importlib.import_module(f"t2r_seq.{package}")
  gin.bind_parameter(binding, None)
