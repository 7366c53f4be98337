"""Layers that gin configures, and layers of networks that are written as functions."""

from __future__ import annotations

import collections
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import gin
import tensorflow as tf

_Class = TypeVar("_Class", bound=type)

_Active = tuple["LayerStore", "collections.Counter[str]"]
_active: contextvars.ContextVar[_Active | None] = contextvars.ContextVar(
  "active_layer_store", default=None
)


class LayerStore(dict[str, Any]):
  """Keeps the layers of networks that are written as functions.

  Tensor2Robot's functions, such as `BuildImagesToFeaturesModel(images)`, create their
  layers when called. Inside `with store:` a function finds the layers that it created
  at the first pass: by its `scope` if it has one, otherwise by its name and number of
  calls. Return a store from `create_network`, and call the functions in
  `with self.network:`. Outside of a store, each call creates new layers.
  """

  def __init__(self) -> None:
    super().__init__()
    self._tokens: list[contextvars.Token[_Active | None]] = []

  def __enter__(self) -> LayerStore:
    """Starts a pass, which counts the calls from 1."""
    self._tokens.append(_active.set((self, collections.Counter())))
    return self

  def __exit__(self, *unused: Any) -> None:
    _active.reset(self._tokens.pop())


@tf.autograph.experimental.do_not_convert
def get_layer(name: str, create: Callable[[], Any], scope: str = "") -> Any:
  """Returns the layer of a function's call: from the active store, or a new one.

  Args:
    name: name of the function.
    create: creates the layer.
    scope: names the layer, so that calls with the same scope share it.
  """
  active = _active.get()
  if active is None:
    return create()
  store, counts = active
  counts[name] += 1
  key = f"{scope}/{name}" if scope else f"{name}_{counts[name]}"
  if key not in store:
    store[key] = create()
  return store[key]


def configurable_layer(cls: _Class) -> _Class:
  """Makes a Keras layer or model configurable by gin: a class decorator.

  Keras 3 reads the names of a constructor's arguments, which gin's own decorator hides.
  """
  signature = inspect.signature(cls.__init__)  # type: ignore[misc]
  cls = gin.configurable(cls)
  cls.__init__.__signature__ = signature  # type: ignore[misc]
  return cls


class CompositeLayer(tf.keras.layers.Layer):
  """A layer of layers, whose variables are created at the first call.

  With the default `build`, Keras 3 would trace `call` once more to create them.
  """

  def build(self, input_shape: Any) -> None:
    """Does nothing: see the class."""
    del input_shape
    self.built = True
