"""What can be told to be wrong with a mixture at its construction."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t2r_seq import errors
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator

BY_SIZE = "by_size"
Weights = str | Mapping[str, float] | Sequence[float] | None


def check(
  where: str,
  sources: Mapping[str, Any],
  weights: Weights,
  preprocessors: Mapping[str, Any],
) -> None:
  """Checks that sources, weights and preprocessors belong together.

  Args:
    where: the class that was given them.
    sources: input generators by name.
    weights: see `MixtureInputGenerator`.
    preprocessors: by name.
  Raises:
    SpecError: with all that is wrong.
  """
  found = [*_sources(sources), *_weights(sources, weights)]
  found += [
    errors.Mismatch(
      f"preprocessors: {name}",
      "the name of a source",
      f"{name!r}",
      errors.nearest(name, sources),
    )
    for name in preprocessors
    if name not in sources
  ]
  found += [
    errors.Mismatch(
      f"preprocessors: {name}",
      "no preprocessor for a source that comes with specs of its own",
      "one",
    )
    for name in preprocessors
    if name in sources and getattr(sources[name], "has_specifications", False)
  ]
  if found:
    raise errors.mismatch_error(where, found)


def _sources(sources: Mapping[str, Any]) -> Iterator[errors.Mismatch]:
  if not sources:
    yield errors.Mismatch("sources", "at least one", "none")
  for name, source in sources.items():
    if not isinstance(source, AbstractInputGenerator):
      hint = ""
      if isinstance(source, type):
        hint = f"Make one: @{source.__name__}() in gin, with the parentheses."
      got = errors.describe(source)
      yield errors.Mismatch(f"sources: {name}", "an input generator", got, hint)
  twice = {id(source): name for name, source in sources.items()}
  for name, source in sources.items():
    if twice[id(source)] != name:
      expected = "an input generator for each source"
      yield errors.Mismatch(
        f"sources: {name}", expected, f"that of '{twice[id(source)]}'"
      )


def _weights(sources: Mapping[str, Any], weights: Weights) -> Iterator[errors.Mismatch]:
  if weights is None or weights == BY_SIZE:
    return
  if isinstance(weights, Mapping) and set(weights) == set(sources):
    by_name = dict(weights)
  elif isinstance(weights, (list, tuple)) and len(weights) == len(sources):
    by_name = dict(zip(sources, weights, strict=True))
  else:
    expected = f"'{BY_SIZE}', or a weight for each of {errors.listing(sources)}"
    is_list = isinstance(weights, (list, tuple))
    hint = "A source that comes twice is one." if is_list else ""
    yield errors.Mismatch("weights", expected, f"{weights!r}", hint)
    return
  for name, weight in by_name.items():
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight <= 0:
      yield errors.Mismatch(f"weights: {name}", "a number above 0", f"{weight!r}")
