"""TensorFlow, and what needs it, loaded when something of them is asked for.

Importing TensorFlow takes seconds, and what only looks at the bytes of a store has no
use for it. Modules that such code enters take `tf` from here, and packages that it
enters export what they have when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Deferred(types.ModuleType):
  """Stands for a module until one of its names is asked for."""

  def __getattr__(self, name: str) -> Any:
    return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
  import tensorflow as tf
else:
  tf = _Deferred("tensorflow")


def is_tensor(value: Any) -> bool:
  """`tf.is_tensor`; without TensorFlow there is no tensor, and an array is none."""
  # Of an array `tf.is_tensor` takes microseconds to say so: it looks for a protocol.
  if isinstance(value, np.ndarray):
    return False
  return "tensorflow" in sys.modules and tf.is_tensor(value)


def do_not_convert(function: _Function) -> _Function:
  """`tf.autograph.experimental.do_not_convert`, where a module is being loaded."""

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)(*args, **kwargs)

  return call  # type: ignore[return-value]


def exports(
  package: str, *modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Makes a package load its modules when the first of their names is asked for.

  Args:
    package: `__name__`; its `__all__` says what it exports.
    modules: of the package: attributes of it, in which its names are looked for.
  Returns:
    The package's `__getattr__` and `__dir__`.
  """
  face = sys.modules[package]

  def get(name: str) -> Any:
    if name in modules:
      return importlib.import_module(f"{package}.{name}")
    if name in face.__all__:
      for module in modules:
        found = vars(importlib.import_module(f"{package}.{module}"))
        if name in found:
          setattr(face, name, found[name])
          return found[name]
    raise AttributeError(f"module '{package}' has no attribute '{name}'")

  return get, lambda: sorted({*vars(face), *face.__all__})
