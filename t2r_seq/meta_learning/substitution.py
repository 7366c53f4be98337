"""Reading other values in the place of variables, without a change to any layer."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


class _Active(threading.local):
  """What is read in the place of which variables, by their ids, in this thread."""

  def __init__(self) -> None:
    self.values: dict[int, tf.Tensor] = {}


_active = _Active()


@functools.cache
def _substitutable(cls: Any) -> Any:
  """Makes the class of a variable one that looks for a substitute when it is read.

  Keras 3 has a scope for that, Keras 2 and tf.Module have none, and replicas have
  variables of their own; all of them read a `tf.Variable` in the end.
  """

  class Substitutable(cls):  # type: ignore[valid-type, misc]
    is_substitutable = True

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
      value = _active.values.get(id(self))
      return super()._read_variable_op(no_copy) if value is None else value

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
      value = _active.values.get(id(self))
      if value is None:
        return super().sparse_read(indices, name)
      return tf.gather(value, indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
      value = _active.values.get(id(self))
      if value is None:
        return super().gather_nd(indices, name)
      return tf.gather_nd(value, indices, name=name)

  Substitutable.__name__, Substitutable.__qualname__ = cls.__name__, cls.__qualname__
  Substitutable.__module__ = cls.__module__
  return Substitutable


def parts(variable: Any) -> list[tf.Variable]:
  """Returns what is read of a variable: itself, or that of each replica."""
  inner = getattr(variable, "_variable", variable)  # Keras 2, mixed precision.
  return list(getattr(inner, "values", [inner]))


@tf.autograph.experimental.do_not_convert
@contextlib.contextmanager
def substituted(
  variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> Iterator[None]:
  """Has every read of some variables give a tensor instead.

  For this thread, and for what it traces: gradients flow to the tensors. Whoever
  assigns to the variables still means themselves.

  Args:
    variables: of Keras layers or tf.Modules.
    values: one for each, of its shape and dtype.
  Raises:
    RuntimeError: outside of a `tf.function`, where ops read variables past Python.
  """
  if tf.executing_eagerly():
    raise RuntimeError("substituted: expected to be inside of a tf.function.")
  found = {}
  for variable, value in zip(variables, values, strict=True):
    for part in parts(variable):
      if not getattr(part, "is_substitutable", False):
        cls: Any = type(part)
        part.__class__ = _substitutable(cls)
      found[id(part)] = value
  before = _active.values
  _active.values = {**before, **found}
  try:
    yield
  finally:
    _active.values = before
