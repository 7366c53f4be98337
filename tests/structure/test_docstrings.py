"""Docstrings of exported names fit their signatures: arguments and errors exist."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import inspect
import re
from typing import Any

import pytest

import t2r_seq
from tests.structure.test_faces import PACKAGE, ROOT, own_functions, package_names

SECTION = re.compile(r"^(Args|Raises|Attributes):\n((?:\n?^ +\S.*\n?)+)", re.MULTILINE)
# An entry starts at the section's own indentation; what is deeper continues it.
ENTRY = re.compile(r"^  ([*\w.]+(?:, \*?[\w.]+)*):", re.MULTILINE)


def sections(docstring: str) -> dict[str, list[str]]:
  """Returns the names of each section of a docstring."""
  return {
    title: [name for entry in ENTRY.findall(body) for name in entry.split(", ")]
    for title, body in SECTION.findall(docstring)
  }


def problems_of(place: str, value: Any, signature: Any) -> list[str]:
  """Lists where the docstring of `value` departs from its signature."""
  found = sections(inspect.getdoc(value) or "")
  parameters = {
    name: parameter
    for name, parameter in signature.parameters.items()
    if name not in ("self", "cls") and not name.startswith("_")
  }
  problems = []
  if "Args" in found:
    names = {name.lstrip("*") for name in found["Args"]}
    # `**kwargs` may be documented as what they are passed to.
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    required = {n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    if not open_ended:
      problems += [f"{place}: no argument {n}" for n in sorted(names - {*parameters})]
    problems += [f"{place}: {n} is undocumented" for n in sorted(required - names)]
  if "Attributes" in found and dataclasses.is_dataclass(value):
    fields = {field.name for field in dataclasses.fields(value)}
    names = set(found["Attributes"])
    problems += [
      f"{place}: no field {n}" for n in sorted(names - {*dir(value), *fields})
    ]
    # A base class documents the fields that it declares.
    own = {name for name in inspect.get_annotations(value) if name in fields}
    problems += [
      f"{place}: {n} is undocumented"
      for n in sorted(own - names)
      if not n.startswith("_")
    ]
  for name in found.get("Raises", ()):
    if not is_exception(value, name):
      problems.append(f"{place}: no exception {name}")
  return problems


def is_exception(value: Any, name: str) -> bool:
  """Returns whether `name` is an exception for a reader of `value`'s module."""
  module = importlib.import_module(value.__module__)
  package = importlib.import_module(module.__name__.rpartition(".")[0])
  # What is neither of the module nor of its package is named from `t2r_seq`.
  for found in (module, package, t2r_seq, t2r_seq.errors, builtins):
    for attribute in name.split("."):
      found = getattr(found, attribute, None)
    if inspect.isclass(found) and issubclass(found, BaseException):
      return True
  return False


@pytest.mark.parametrize("package", package_names(ROOT))
def test_docstrings_fit_signatures(package):
  module = importlib.import_module(package)
  problems = []
  for name in getattr(module, "__all__", ()):
    value = getattr(module, name)
    place = f"{package}.{name}"
    if inspect.isfunction(value):
      problems += problems_of(place, value, inspect.signature(value))
    elif inspect.isclass(value) and value.__module__.startswith(PACKAGE):
      if value.__doc__ and not issubclass(value, BaseException):
        problems += problems_of(place, value, inspect.signature(value))
      for method, function, _ in own_functions(value):
        if function.__doc__:
          at = f"{place}.{method}"
          problems += problems_of(at, function, inspect.signature(function))
  assert not problems, "\n".join(["", *problems])


def good(first: int, *rest: int, **others: int) -> None:
  """Does nothing.

  Args:
    first: one,
      two: lines.
    *rest, others: the others.
  Raises:
    ValueError: never.
    errors.SpecError, policies.predictors.NoModelError: never.
  """


def bad(first: int, second: int) -> None:
  """Does nothing.

  Args:
    first: one.
    third: not an argument.
  Raises:
    NoModelError: not an exception of this module.
  """


def test_docstrings_that_depart_from_signatures_are_named():
  assert problems_of("good", good, inspect.signature(good)) == []
  assert problems_of("bad", bad, inspect.signature(bad)) == [
    "bad: no argument third",
    "bad: second is undocumented",
    "bad: no exception NoModelError",
  ]
