"""Initial weights from checkpoints (also of TensorFlow 1) and from Keras files."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.models import networks
from t2r_seq.policies.checkpoint_predictor import VALUE, weight_keys

NameFilter = Callable[[str], bool]
"""Returns whether a variable is selected, by its name such as 'tower/dense/kernel'."""

# TensorFlow 1's and TF-Slim's names for the same variables.
_OTHER_NAMES = {"kernel": "weights", "bias": "biases"}


class NamedModel(Protocol):
  """The model to initialize: a built `T2RModel`."""

  @property
  def named_variables(self) -> dict[str, tf.Variable]:
    """All variables by name."""

  @property
  def network(self) -> Any:
    """The result of `create_network`."""


@gin.configurable
def create_name_filter(
  include: Sequence[str] = ("*",), exclude: Sequence[str] = ()
) -> NameFilter:
  """Returns a function that selects variables by shell patterns of their names.

  Args:
    include: patterns, such as 'head/*'; by default every name matches.
    exclude: patterns of exceptions.
  """

  def is_selected(name: str) -> bool:
    return _matches(name, include) and not _matches(name, exclude)

  return is_selected


def _matches(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@gin.configurable
def default_init_from_checkpoint_fn(
  model: NamedModel,
  checkpoint: str = gin.REQUIRED,
  allow_partial_restore: bool = False,
  filter_restorables_fn: NameFilter | None = None,
  assignment_map: Mapping[str, str] | None = None,
) -> None:
  """Initializes a model's variables from a checkpoint, by their names.

  The log names the variables that are not in the checkpoint, and its unused values.

  Args:
    model: a built model.
    checkpoint: prefix of a checkpoint, or a folder whose newest checkpoint is read. It
      may be of this library (averages are preferred), of TensorFlow 1 (whose 'weights'
      and 'biases' match kernels and biases), or of any `tf.train.Checkpoint`.
    allow_partial_restore: whether variables that the checkpoint lacks keep their
      values; otherwise they are an error.
    filter_restorables_fn: selects variables by name, such as the result of
      `create_name_filter`; others keep their values. None selects all.
    assignment_map: scopes of the checkpoint to scopes of the model, '' for all of it:
      {'resnet': 'tower/backbone'}. Variables outside of these scopes keep their values.
      None: names are the same in both.
  Raises:
    SpecError: there is no readable checkpoint, nothing matches, variables are missing,
      or shapes differ; all are named.
  """
  where = f"init_from_checkpoint: {checkpoint}"
  try:
    reader = tf.train.load_checkpoint(checkpoint)
  except (ValueError, tf.errors.OpError) as e:
    reason = str(e).split("\n")[0].rstrip(".")
    raise errors.SpecError(f"{where}: expected a checkpoint, got: {reason}.") from e
  keys = _keys_by_name(reader.get_variable_to_shape_map())
  matched: dict[str, str] = {}
  missing: list[str] = []
  problems: list[errors.Mismatch] = []
  variables = model.named_variables
  for name, variable in variables.items():
    if filter_restorables_fn is not None and not filter_restorables_fn(name):
      continue
    others = _other_names(name, assignment_map or {"": ""})
    stored_name = next((other for other in others if other in keys), None)
    if stored_name is not None:
      shape = tuple(reader.get_variable_to_shape_map()[keys[stored_name]])
      if shape == tuple(variable.shape):
        matched[name] = stored_name
      else:
        got = f"{shape} at '{stored_name}'"
        problems.append(errors.Mismatch(name, str(tuple(variable.shape)), got))
    elif others:
      missing.append(name)
      if not allow_partial_restore:
        hint = errors.nearest(others[0], keys).strip()
        hint = hint or "Set allow_partial_restore to begin without."
        problems.append(errors.Mismatch(name, f"'{others[0]}'", "nothing", hint))
  if not matched and not problems:
    hint = "Names are those of model.named_variables; map scopes by assignment_map."
    got = f"one of {errors.listing(keys)}"
    want = f"variables of the model: {errors.listing(variables)}"
    problems.append(errors.Mismatch("names", want, got, hint))
  if problems:
    raise errors.mismatch_error(where, problems)
  for name, other in matched.items():
    variables[name].assign(
      reader.get_tensor(keys[other]).astype(_dtype(variables[name]))
    )
  unused = set(keys) - set(matched.values())
  logging.info(
    "Initialized %d of %d variables from %s. Missing there: %s. Unused values: %s.",
    len(matched),
    len(variables),
    checkpoint,
    errors.listing(missing),
    errors.listing(unused),
  )


def _dtype(variable: tf.Variable) -> np.dtype:
  return variable.dtype.base_dtype.as_numpy_dtype


def _keys_by_name(shapes: Mapping[str, Any]) -> dict[str, str]:
  """Returns the keys of a checkpoint by the names of their variables."""
  if ours := weight_keys(shapes):
    return ours
  objects = {key.removesuffix(VALUE): key for key in shapes if key.endswith(VALUE)}
  return objects or {key: key for key in shapes}


def _other_names(name: str, scopes: Mapping[str, str]) -> list[str]:
  """Returns a variable's possible names in the checkpoint, the best one first."""
  names = []
  for theirs, ours in scopes.items():
    theirs, ours = theirs.strip("/"), ours.strip("/")
    if ours and name != ours and not name.startswith(f"{ours}/"):
      continue
    rest = name[len(ours) :].strip("/")
    other = "/".join(part for part in (theirs, rest) if part)
    scope, _, leaf = other.rpartition("/")
    names.append(other)
    if leaf in _OTHER_NAMES:
      names.append("/".join(part for part in (scope, _OTHER_NAMES[leaf]) if part))
  return names


@gin.configurable
def init_from_keras_weights_fn(
  model: NamedModel, filepath: str = gin.REQUIRED, part: str | None = None
) -> None:
  """Initializes a model, or a part of it, from a file of Keras weights.

  Args:
    model: a built model.
    filepath: .h5 or .keras file with weights of a model of the same architecture.
    part: key of `create_network`'s dict; None for the whole network.
  Raises:
    SpecError: `part` is unknown or no Keras model, or the file has another suffix.
    OSError: the file is missing; raised by Keras.
    ValueError: the weights do not fit; raised by Keras.
  """
  network = model.network
  if part is not None:
    by_name = network if isinstance(network, Mapping) else {}
    if part not in by_name:
      raise errors.SpecError(
        f"init_from_keras_weights_fn: part: expected one of {errors.listing(by_name)}, "
        f"got '{part}'.{errors.nearest(part, by_name)}"
      )
    network = by_name[part]
  if not hasattr(network, "load_weights"):
    raise errors.SpecError(
      f"init_from_keras_weights_fn: {part or 'the network'}: expected a Keras model, "
      f"got {type(network).__name__}. Name the part that is one."
    )
  # Keras 2 reads other names as TensorFlow checkpoints, and ignores missing variables.
  if not str(filepath).endswith((".h5", ".keras")):
    raise errors.SpecError(
      f"init_from_keras_weights_fn: {filepath}: expected an .h5 or .keras file, got "
      "another suffix. Save it by save_weights('NAME.weights.h5')."
    )
  network.load_weights(filepath)
  logging.info(
    "Initialized all %d variables of %s from %s.",
    len(networks.all_variables(network)),
    part or "the network",
    filepath,
  )
