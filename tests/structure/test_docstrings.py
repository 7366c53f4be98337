"""Docstrings of exported names fit their signatures.

Arguments and errors exist, defaults are those of the signature, and a docstring with a
section says what is returned.
"""

from __future__ import annotations

import ast
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

# A default that is stated as a literal: "by default 2", "'global', the default".
LITERAL = r"('[^']*'|-?\d[\d._]*|True|False)"
DEFAULT = re.compile(
  rf"by default {LITERAL}(?=[,;)\s]|\.(?:\s|$))|{LITERAL},? (?:the|by) default\b"
)
RETURNS = re.compile(r"^(?:Returns|Yields):|\b(?:[Rr]eturn|[Yy]ield)s\b", re.MULTILINE)


def sections(docstring: str) -> dict[str, list[str]]:
  """Returns the names of each section of a docstring."""
  return {
    title: [name for entry in ENTRY.findall(body) for name in entry.split(", ")]
    for title, body in SECTION.findall(docstring)
  }


def entries(docstring: str) -> dict[str, str]:
  """Returns the text of each argument, on one line."""
  body = dict(SECTION.findall(docstring)).get("Args", "")
  names, texts = ENTRY.findall(body), ENTRY.split(body)[2::2]
  return {n: " ".join(text.split()) for n, text in zip(names, texts, strict=True)}


def wrong_defaults(place: str, docstring: str, parameters: Any) -> list[str]:
  """Lists arguments whose docstring states a default that the signature has not."""
  problems = []
  for name, text in entries(docstring).items():
    parameter = parameters.get(name)
    if parameter is None or parameter.kind is parameter.VAR_KEYWORD:
      continue
    if re.search(r"\b[Bb]y default\b", text) and parameter.default is parameter.empty:
      problems.append(f"{place}: {name} has no default")
    for match in DEFAULT.finditer(text):
      stated = ast.literal_eval(match[1] or match[2])
      if stated != parameter.default:
        problems.append(f"{place}: {name} is {parameter.default!r} by default")
  return problems


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
  problems += wrong_defaults(place, inspect.getdoc(value) or "", parameters)
  returned = signature.return_annotation
  is_silent = returned in (signature.empty, None, "None", "NoReturn")
  if "Args" in found and not is_silent and not RETURNS.search(value.__doc__ or ""):
    problems.append(f"{place}: it does not say that it returns {returned}")
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


def good(first: int = 2, *rest: int, **others: int) -> None:
  """Does nothing.

  Args:
    first: one,
      two: lines; by default 2.
    *rest, others: the others.
  Raises:
    ValueError: never.
    errors.SpecError, policies.predictors.NoModelError: never.
  """


def bad(first: int, second: int, fourth: str = "x") -> int:
  """Does nothing.

  Args:
    first: one; by default the last.
    fourth: 'y', the default; or 'x'.
    third: not an argument.
  Raises:
    NoModelError: not an exception of this module.
  """


def test_docstrings_that_depart_from_signatures_are_named():
  assert problems_of("good", good, inspect.signature(good)) == []
  assert problems_of("bad", bad, inspect.signature(bad)) == [
    "bad: no argument third",
    "bad: second is undocumented",
    "bad: first has no default",
    "bad: fourth is 'x' by default",
    "bad: it does not say that it returns int",
    "bad: no exception NoModelError",
  ]
