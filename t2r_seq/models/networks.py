"""The variables and losses of networks: Keras 2, Keras 3, or tf.Module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors


def as_networks(network: Any) -> list[Any]:
  """Lists the Keras layers and tf.Modules in the result of `create_network`.

  Args:
    network: Keras layer or tf.Module, or a dict, list or tuple of them, also nested.
  Returns:
    A flat list.
  Raises:
    SpecError: `network` is or contains anything else, whose variables the trainer
      would not find.
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


def check_dtype_policy(operation: str, name: str | None) -> str | None:
  """Returns `name`, the name of a Keras dtype policy or None, after a check.

  Raises:
    SpecError: Keras has no such policy.
  """
  try:
    if name is not None:
      tf.keras.mixed_precision.Policy(name)
  except (TypeError, ValueError) as e:
    raise errors.SpecError(
      f"{operation}: dtype_policy: expected the name of a Keras policy, such as "
      f"'mixed_bfloat16', 'mixed_float16' or 'float32', got {name!r}."
    ) from e
  return name


@contextlib.contextmanager
def dtype_policy(name: str | None) -> Iterator[None]:
  """Sets Keras' global dtype policy for layers created inside; None changes nothing."""
  if name is None:
    yield
    return
  precision = tf.keras.mixed_precision
  before = precision.global_policy()
  precision.set_global_policy(name)
  try:
    yield
  finally:
    precision.set_global_policy(before)


@tf.autograph.experimental.do_not_convert
def trainable_variables(network: Any) -> list[tf.Variable]:
  """Returns the trainable variables of all networks, each once, in a stable order."""
  return _unique(v for n in as_networks(network) for v in n.trainable_variables)


def all_variables(network: Any) -> list[tf.Variable]:
  """Returns all variables, moving averages included, each once."""
  return _unique(v for n in as_networks(network) for v in n.variables)


def named_variables(network: Any) -> dict[str, tf.Variable]:
  """Returns all variables by name, such as 'tower/dense/kernel'.

  Names consist of keys, layer names and attributes inside the result of
  `create_network`. They do not depend on other objects of the process: layers without
  a given name are numbered within their parent.
  """
  by_name: dict[str, tf.Variable] = {}
  for scope, variables in _scopes(network, ""):
    for name, variable in variables:
      path, number = f"{scope}{name}", 0
      while path in by_name:
        number += 1
        path = f"{scope}{name}_{number}"
      by_name[path] = variable
  named = {id(variable) for variable in by_name.values()}
  rest = [v for v in all_variables(network) if id(v) not in named]
  return {**by_name, **{f"variables/{i}": v for i, v in enumerate(rest)}}


_Named = list[tuple[str, tf.Variable]]


def _scopes(network: Any, scope: str) -> Iterator[tuple[str, _Named]]:
  """Yields the scopes inside of networks, each with its direct variables."""
  seen: set[int] = set()

  def walk(part: Any, scope: str) -> Iterator[tuple[str, _Named]]:
    if isinstance(part, (Mapping, list, tuple)):
      items = part.items() if isinstance(part, Mapping) else enumerate(part)
      for key, child in items:
        yield from walk(child, f"{scope}{_plain(key)}/")
      return
    if id(part) in seen:
      return
    seen.add(id(part))
    if not hasattr(part, "_flatten_layers"):
      flat = part._flatten(
        predicate=lambda value: isinstance(value, tf.Variable), with_path=True
      )
      scope_variables = [("/".join(map(_plain, path)), v) for path, v in flat]
      yield scope, [(name, v) for name, v in scope_variables if id(v) not in seen]
      seen.update(id(v) for _, v in scope_variables)
      return
    children = list(part._flatten_layers(recursive=False, include_self=False))
    names = _child_names(children)
    for child, name in zip(children, names, strict=True):
      yield from walk(child, f"{scope}{name}/")
    scope_variables = []
    for variable in part.variables:
      (inner,) = tf_variables([variable])
      if id(inner) not in seen:
        seen.add(id(inner))
        name = _plain(variable.name.partition(":")[0].rpartition("/")[2])
        scope_variables.append((f"{name}_variable" if name in names else name, inner))
    yield scope, scope_variables

  yield from walk(network, scope)


def _child_names(layers: Sequence[Any]) -> list[str]:
  """Returns names of layers; numbers that Keras counts per process start again."""
  names: list[str] = []
  for layer in layers:
    name = _plain(layer.name)
    # Keras' default name: the class in snake case and, from the second on, a number.
    default_name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    default_name = re.sub(r"([a-z])([A-Z])", r"\1_\2", default_name).lower()
    if re.fullmatch(rf"{re.escape(default_name)}(_\d+)?", name):
      name = default_name
    first, number = name, 0
    while name in names:
      number += 1
      name = f"{first}_{number}"
    names.append(name)
  return names


def _plain(name: Any) -> str:
  return re.sub(r"[./]", "_", str(name))


@tf.autograph.experimental.do_not_convert
def regularization_losses(network: Any) -> list[tf.Tensor]:
  """Returns the losses that the networks' layers added, e.g. weight decay."""
  return [
    loss for layer in as_networks(network) for loss in getattr(layer, "losses", ())
  ]


def layers(network: Any) -> list[Any]:
  """Lists the Keras layers of all networks, inner layers included."""
  parts = []
  for part in as_networks(network):
    if hasattr(part, "_flatten_layers"):  # Of Keras layers, in both versions.
      parts += part._flatten_layers()
    else:
      parts += [m for m in part.submodules if isinstance(m, tf.keras.layers.Layer)]
  return list({id(layer): layer for layer in parts}.values())


def update_target_network(target: Any, source: Any, rate: float = 1.0) -> None:
  """Moves a target network towards the trained network; see `after_train_step`.

  Args:
    target: Keras layers or tf.Modules, built.
    source: network of the same architecture.
    rate: step size towards the source; 1 copies. Only floating-point variables change.
  Raises:
    SpecError: their variables differ in number or shape.
  """
  targets, sources = all_variables(target), all_variables(source)
  if [v.shape for v in targets] != [v.shape for v in sources]:
    raise errors.SpecError(
      "update_target_network: target: expected the variables of the source, "
      f"{[tuple(v.shape) for v in sources]}, got {[tuple(v.shape) for v in targets]}."
    )
  for old, new in zip(targets, sources, strict=True):
    if old.dtype.is_floating:  # States of random generators are integers.
      value, source_value = map(tf.convert_to_tensor, (old, new))
      # 0 * NaN is NaN: a copy must not depend on what the target was.
      is_copy = isinstance(rate, (int, float)) and rate == 1
      mixed = source_value if is_copy else (1.0 - rate) * value + rate * source_value
      old.assign(mixed)


def tf_variables(variables: Any) -> list[tf.Variable]:
  """Unwraps Keras 3 variables; `tf.train.Checkpoint` and SavedModel track the inner."""
  return [v if isinstance(v, tf.Variable) else v.value for v in variables]


def _unique(variables: Any) -> list[tf.Variable]:
  return list({id(v): v for v in tf_variables(variables)}.values())
