"""Imports on demand: TensorFlow, the modules of a package, and optional packages.

Importing TensorFlow takes seconds, and code that only reads the bytes of a store does
not need it. The modules of such code import `tf` from here, and their packages load a
module when one of its names is used.
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

_WITHOUT_TENSORFLOW = {
  "lite": ", or without TensorFlow, in a clone: pip install ./lite",
  "serve": ", or without TensorFlow, in a clone: pip install './lite[serve]'",
}


class _Deferred(types.ModuleType):
  """Stands for a module until one of its names is read."""

  def __getattr__(self, name: str) -> Any:
    return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
  import tensorflow as tf
else:
  tf = _Deferred("tensorflow")


def is_tensor(value: Any) -> bool:
  """`tf.is_tensor`; False for arrays, and if TensorFlow is not imported."""
  # `tf.is_tensor` takes microseconds for an array: it looks for a protocol.
  if isinstance(value, np.ndarray):
    return False
  return "tensorflow" in sys.modules and tf.is_tensor(value)


def do_not_convert(function: _Function) -> _Function:
  """`tf.autograph.experimental.do_not_convert`; a call imports TensorFlow."""

  @functools.wraps(function)
  def call(*args: Any, **kwargs: Any) -> Any:
    return tf.autograph.experimental.do_not_convert(function)(*args, **kwargs)

  return call  # type: ignore[return-value]


def exports(
  package: str, *modules: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
  """Makes a package import its modules lazily, when an exported name is read (PEP 562).

  Args:
    package: `__name__`; its `__all__` lists the exports.
    modules: names of its modules, which are attributes, too. They are imported in this
      order until one has the exported name.
  Returns:
    The package's `__getattr__` and `__dir__`.
  """
  module_object = sys.modules[package]

  def get(name: str) -> Any:
    if name in modules:
      return importlib.import_module(f"{package}.{name}")
    if name in module_object.__all__:
      for module in modules:
        names = vars(importlib.import_module(f"{package}.{module}"))
        if name in names:
          setattr(module_object, name, names[name])
          return names[name]
    raise AttributeError(f"module '{package}' has no attribute '{name}'")

  return get, lambda: sorted({*vars(module_object), *module_object.__all__})


def missing_extra(package: str, extra: str) -> ImportError:
  """Builds the error for an optional package that is not installed.

  Args:
    package: the package's import name.
    extra: the extra of t2r_seq that installs it.
  """
  return ImportError(
    f"{package} is not installed. It comes with an extra: "
    f"pip install 't2r_seq[{extra}]'{_WITHOUT_TENSORFLOW.get(extra, '')}"
  )


def load_extra(name: str, extra: str) -> Any:
  """Imports an optional package.

  Args:
    name: name of the module.
    extra: the extra of t2r_seq that installs it.
  Raises:
    ImportError: the package is not installed; names the extra.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise missing_extra(name.partition(".")[0], extra) from error
