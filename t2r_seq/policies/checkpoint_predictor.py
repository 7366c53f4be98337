"""Predictors that use the model's code: from checkpoints, or from a model in memory."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.policies.loaded_export import LoadedPolicy
from t2r_seq.policies.policy_model import PolicyModel
from t2r_seq.policies.policy_module import PolicyFunctions, stored_feature_specs
from t2r_seq.policies.predictors import LoadingPredictor, RestoreOptions
from t2r_seq.specs import ModeKeys

_INDEX = re.compile(r"(model\.ckpt-(\d+))\.index")

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""Suffix of the keys of variables in TensorFlow's checkpoints."""


@gin.configurable
class CheckpointPredictor(LoadingPredictor):
  """Predicts with a model's code and the newest checkpoint of a training run.

  Its outputs, those of `step` included, equal those of the run's exports.
  `init_randomly` needs no checkpoint. The predictor overwrites its model's weights: do
  not give it a model in training.
  """

  _noun = "checkpoint"

  def __init__(
    self,
    t2r_model: PolicyModel = gin.REQUIRED,
    checkpoint_dir: str | None = None,
    timeout: float = 600.0,
    poll_interval: float = 1.0,
    restore_model_option: RestoreOptions = RestoreOptions.DO_NOT_RESTORE,
    use_gpu: bool = True,
    allow_nan: bool = False,
  ) -> None:
    """Creates the predictor; the model is built at the first restore.

    Args:
      t2r_model: a model with the configuration of the training.
      checkpoint_dir: the run's `model_dir`, or the prefix of one checkpoint,
        `.../model.ckpt-100`; None to call `init_randomly` only.
      timeout: how long `restore` waits for a first checkpoint, seconds; 0 checks once.
      poll_interval: seconds between two checks.
      restore_model_option: whether to restore now, and in which thread.
      use_gpu: False places the model's variables on the CPU.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
    Raises:
      SpecError: it restores now, and there is no `checkpoint_dir`.
    """
    self._t2r_model: Any = t2r_model
    self._device = None if use_gpu else "/CPU:0"
    self._signatures: dict[str, Any] | None = None
    # By checkpoint: weights that are read, and assigned when the policy uses them.
    self._values: dict[str, list[tuple[tf.Variable, Any]]] = {}
    place = "" if checkpoint_dir is None else str(checkpoint_dir)
    super().__init__(place, timeout, poll_interval, restore_model_option, allow_nan)

  def restore(self, is_async: bool | None = None) -> bool:
    """See the base class; a checkpoint of another model counts as broken.

    Raises:
      SpecError: there is no `checkpoint_dir`.
    """
    if not self._place:
      raise errors.SpecError(
        "CheckpointPredictor: checkpoint_dir: expected a folder to restore from, got "
        "None. Set it, or call init_randomly()."
      )
    return super().restore(is_async)

  def init_randomly(self) -> None:
    """Acts with the current weights, random before a restore; `global_step` is 0."""
    self._finish_loading()
    self._use(self._policy("", 0))

  @property
  def model_version(self) -> int:
    """The training step of the model in use; -1 before there is one."""
    return self.global_step

  def _find_newest(
    self, current: LoadedPolicy | None
  ) -> tuple[LoadedPolicy | None, bool]:
    newest_first = _checkpoints(self._place)
    newer = {}
    for prefix, step in newest_first.items():
      if current is not None and current.path == prefix:
        break
      newer[prefix] = functools.partial(self._load, prefix, step)
    newest = self._load_first(newer) or current
    if not newest_first:
      return newest, True
    return newest, newest is not None and newest.path == next(iter(newest_first))

  def _kind_of(self, path: str) -> str:
    return "prefix" if _prefix(path) else "folder"

  def _load(self, prefix: str, step: int) -> LoadedPolicy:
    policy = self._policy(prefix, step)
    model = self._t2r_model
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    keys = weight_keys(shapes)
    values = []
    for name, variable in model.named_variables.items():
      key = keys.get(name, "")
      if shapes.get(key) != variable.shape:
        raise errors.SpecError(
          f"restore: {prefix}: expected a checkpoint of {type(model).__name__}, got "
          f"one with {shapes.get(key, 'nothing')} for the shape "
          f"{tuple(variable.shape)} of {variable.name}. Configure the model as it "
          "was trained."
        )
      values.append((variable, reader.get_tensor(key)))
    self._values[prefix] = values
    return policy

  def _use(self, loaded: LoadedPolicy | None) -> None:
    # A loading thread must not change the weights: an episode may be running.
    values = self._values.pop(loaded.path, []) if loaded is not None else []
    for variable, value in values:
      variable.assign(value)
    super()._use(loaded)

  def _policy(self, path: str, step: int) -> LoadedPolicy:
    model = self._t2r_model
    if self._signatures is None:
      with tf.device(self._device):
        model.build()
        functions = PolicyFunctions(model)
        self._signatures = {
          name: function.get_concrete_function()
          for name, function in functions.signatures().items()
        }
      # Concrete functions hold the variables of `functions.module` only weakly.
      self._functions = functions
    label_spec = model.preprocessor.get_in_label_specification(ModeKeys.TRAIN)
    return LoadedPolicy(
      path,
      step,
      step,
      stored_feature_specs(model),
      specs.flatten_spec_structure(label_spec),
      self._signatures,
      self._functions.record,
      self._allow_nan,
    )


@gin.configurable
class ModelPredictor(CheckpointPredictor):
  """Predicts with a model in memory that is being trained: needs no export.

  `restore` copies the current weights, or their averages if the model averages them, to
  a second network, so that the policy does not change during an episode.
  """

  def __init__(
    self,
    t2r_model: PolicyModel = gin.REQUIRED,
    use_gpu: bool = True,
    allow_nan: bool = False,
    copies_weights: bool = True,
  ) -> None:
    """Creates the predictor; nothing is built yet.

    Args:
      t2r_model: a `T2RModel`.
      use_gpu: False places the second network's variables on the CPU.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
      copies_weights: False predicts with the model's own variables, so that each step
        has the newest weights: for one thread that acts and trains.
    """
    self._source: Any = t2r_model
    self._copies_weights = copies_weights
    self._is_made = False
    super().__init__(t2r_model, use_gpu=use_gpu, allow_nan=allow_nan)
    self._place = f"{type(t2r_model).__name__} in memory"

  def restore(self, is_async: bool | None = None) -> bool:
    """Copies the weights if `copies_weights`; returns True. Ignores `is_async`."""
    del is_async
    if not self._copies_weights:
      self._source.build()
      self._use(self._policy(self._place, int(self._source.global_step)))
      return True
    if not self._is_made:
      self._source.build()
      with tf.device(self._device):
        self._t2r_model = self._source.twin()
      self._is_made = True
    step = int(self._source.global_step)
    self._t2r_model.take_weights(self._source.policy_weights, step)
    self._use(self._policy(self._place, step))
    return True

  def init_randomly(self) -> None:
    """Equals `restore`: the model's weights are random before it is trained."""
    self.restore()


def weight_keys(keys: Collection[str]) -> dict[str, str]:
  """Returns the checkpoint key of each weight: that of its average, if there is one."""
  by_name = {}
  for key in keys:
    if key.startswith("model/") and key.endswith(VALUE):
      rest = key.removeprefix("model/")
      average = f"averages/{rest}"
      by_name[rest.removesuffix(VALUE)] = average if average in keys else key
  return by_name


def _prefix(place: str) -> re.Match[str] | None:
  """Matches the path prefix of a checkpoint, such as `model.ckpt-100`."""
  return _INDEX.fullmatch(f"{os.path.basename(place)}.index")


def _checkpoints(place: str) -> dict[str, int]:
  """Returns training steps by checkpoint of a folder or prefix, the newest first."""
  if prefix := _prefix(place):
    exists = tf.io.gfile.exists(f"{place}.index")
    return {place: int(prefix[2])} if exists else {}
  if not tf.io.gfile.isdir(place):
    return {}
  matches = filter(None, map(_INDEX.fullmatch, tf.io.gfile.listdir(place)))
  steps = {os.path.join(place, match[1]): int(match[2]) for match in matches}
  return dict(sorted(steps.items(), key=lambda item: -item[1]))
