"""The variables and losses of networks: Keras 2, Keras 3, or tf.Module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors


def as_networks(network: Any) -> list[Any]:
  """Lists the Keras layers and tf.Modules in what `create_network` returned.

  Args:
    network: one of them, or a dict, list or tuple of them.
  Returns:
    A flat list.
  Raises:
    SpecError: anything else, which would hide its variables from the trainer.
  """
  if isinstance(network, (Mapping, list, tuple)):
    parts = network.values() if isinstance(network, Mapping) else network
    return [layer for part in parts for layer in as_networks(part)]
  if isinstance(network, (tf.keras.layers.Layer, tf.Module)):
    return [network]
  raise errors.SpecError(
    "create_network: the network: expected Keras layers or tf.Modules, or a dict or "
    f"list of them, got {type(network).__name__}."
  )


@tf.autograph.experimental.do_not_convert
def trainable_variables(network: Any) -> list[tf.Variable]:
  """Returns the trainable variables of all networks, each once, in a stable order."""
  return _unique(v for n in as_networks(network) for v in n.trainable_variables)


def all_variables(network: Any) -> list[tf.Variable]:
  """Returns all variables, moving averages included, each once."""
  return _unique(v for n in as_networks(network) for v in n.variables)


@tf.autograph.experimental.do_not_convert
def regularization_losses(network: Any) -> list[tf.Tensor]:
  """Returns the losses that the networks' layers added, e.g. weight decay."""
  return [
    loss for layer in as_networks(network) for loss in getattr(layer, "losses", ())
  ]


def layers(network: Any) -> list[Any]:
  """Lists the Keras layers of all networks, those inside of others among them."""
  found = []
  for part in as_networks(network):
    if hasattr(part, "_flatten_layers"):  # Keras' name of it, in both versions.
      found += part._flatten_layers()
    else:
      found += [m for m in part.submodules if isinstance(m, tf.keras.layers.Layer)]
  return list({id(layer): layer for layer in found}.values())


def update_target_network(target: Any, source: Any, rate: float = 1.0) -> None:
  """Moves a target network towards the one that is trained; see `after_train_step`.

  Args:
    target: Keras layers or tf.Modules, built.
    source: of the same architecture.
    rate: of the way; 1 copies.
  Raises:
    SpecError: their variables differ.
  """
  targets, sources = all_variables(target), all_variables(source)
  if [v.shape for v in targets] != [v.shape for v in sources]:
    raise errors.SpecError(
      "update_target_network: target: expected the variables of the source, "
      f"{[tuple(v.shape) for v in sources]}, got {[tuple(v.shape) for v in targets]}."
    )
  for old, new in zip(targets, sources, strict=True):
    if old.dtype.is_floating:  # The states of random generators are not.
      value = tf.convert_to_tensor(old)
      old.assign(value + rate * (tf.convert_to_tensor(new) - value))


def tf_variables(variables: Any) -> list[tf.Variable]:
  """Unwraps Keras 3 variables; `tf.train.Checkpoint` and SavedModel track the inner."""
  return [v if isinstance(v, tf.Variable) else v.value for v in variables]


def _unique(variables: Any) -> list[tf.Variable]:
  return list({id(v): v for v in tf_variables(variables)}.values())
