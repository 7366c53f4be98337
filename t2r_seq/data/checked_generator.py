"""A Python generator whose elements are checked against specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import emptiness, joint

GeneratorFn = Callable[[], Iterable[Any]]


class CheckedGenerator:
  """Iterates over a Python generator, each element checked, as tuples of leaves.

  The first element is taken at construction: what does not fit fails before training
  starts, and it tells which of the optional specs are given. It is not lost, the
  first pass begins with it. Every further pass calls `generator_fn` again.

  Attributes:
    paths: of the leaves, in the order of the tuples.
    failure: what stopped the newest of the passes that did not come to their end;
      tf.data may have begun another before anybody asks.
  """

  def __init__(
    self,
    generator_fn: GeneratorFn,
    joined_spec: Any,
    name: str,
    min_steps: int | None = None,
  ) -> None:
    """Takes the first element.

    Args:
      generator_fn: without arguments, returns an iterable of (features, labels).
      joined_spec: the specs of an element, as from `joint.join`.
      name: of the input generator, for errors.
      min_steps: a pass must have a sequence of that length; None: no such demand.
    Raises:
      SpecError: there is no first element, or it does not fit.
    """
    self._generator_fn = generator_fn
    self._spec = specs.flatten_spec_structure(joined_spec)
    self._masks = windows.mask_paths(self._spec)
    self._name = name
    self._min_steps = min_steps
    self.failure: Exception | None = None
    elements = iter(generator_fn())
    first = next(elements, None)
    if first is None:
      raise self._empty()
    leaves = self._check(first, 0)
    self.paths = [path for path in self._spec if path in leaves]
    self._started: tuple[Any, Iterator[Any]] | None = (first, elements)

  def signature(self, sequence_length: int | None) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of the tuples.

    Args:
      sequence_length: steps of the sequence specs; None if it varies.
    Returns:
      One spec a path, sequences with a leading time axis.
    """
    return tuple(
      tf.TensorSpec(
        [sequence_length] * spec.is_sequence + spec.shape.as_list(), spec.dtype
      )
      for spec in (self._spec[path] for path in self.paths)
    )

  def __call__(self) -> Iterator[tuple[Any, ...]]:
    """Starts a pass.

    Yields:
      Leaves in the order of `paths`.
    Raises:
      SpecError: an element does not fit, there is none, or all are too short.
    """
    try:
      count = longest = 0
      for count, element in enumerate(self._pass(), start=1):
        leaves = self._check(element, count - 1)
        if set(leaves) != set(self.paths):
          raise self._uneven(set(leaves), count - 1)
        longest = max(longest, self._num_steps(leaves))
        yield tuple(leaves[path] for path in self.paths)
      if not count:
        raise self._empty()
      if self._min_steps is not None and longest < self._min_steps:
        raise emptiness.too_short_error(self._name, self._min_steps, count, longest)
    except Exception as e:
      # tf.data keeps only the text of what a generator raises.
      self.failure = e
      raise

  def _pass(self) -> Iterator[Any]:
    if self._started is None:
      yield from self._generator_fn()
      return
    first, elements = self._started
    self._started = None
    yield first
    yield from elements

  def _num_steps(self, leaves: specs.TensorSpecStruct) -> int:
    for path, leaf in leaves.items():
      if self._spec[path].is_sequence:
        return int(leaf.shape[0])
    return 0

  def _check(self, element: Any, index: int) -> specs.TensorSpecStruct:
    where = f"{self._name}: element {index}"
    if not isinstance(element, (tuple, list)) or len(element) != 2:
      raise errors.SpecError(
        f"{where}: expected a pair (features, labels), got {errors.describe(element)}. "
        "Yield (features, None) where there are no labels."
      )
    try:
      leaves = specs.validate_and_flatten(self._spec, joint.join(*element))
    except errors.SpecError as e:
      raise errors.SpecError(f"{where}: {e}{self._mask_hint(str(e))}") from e
    return specs.TensorSpecStruct(
      (path, leaf) for path, leaf in leaves.items() if path in self._spec
    )

  def _mask_hint(self, message: str) -> str:
    """Says how masks come about, if one is missing; episodes are not asked for them."""
    if not any(f"{path}: expected" in message for path in self._masks):
      return ""
    return (
      " Masks are made where episodes are cut into windows: yield whole episodes, with "
      "yields_episodes=True, or yield the masks, too."
    )

  def _uneven(self, given: set[str], index: int) -> errors.SpecError:
    first = set(self.paths)
    mismatches = [
      errors.Mismatch(
        path,
        errors.describe(self._spec[path]) if path in first else "nothing",
        "nothing" if path in first else errors.describe(self._spec[path]),
        "Give an optional feature in every element or in none.",
      )
      for path in first ^ given
    ]
    where = f"{self._name}: element {index}, unlike the first"
    return errors.mismatch_error(where, mismatches)

  def _empty(self) -> errors.SpecError:
    return errors.SpecError(
      f"{self._name}: generator_fn: expected at least one element, got none."
    )
