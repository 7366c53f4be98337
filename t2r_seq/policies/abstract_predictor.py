"""The face of everything that turns features into a model's outputs."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from t2r_seq import specs


class NoModelError(ValueError):
  """A prediction was asked for, and no model has been loaded."""


class AbstractPredictor(abc.ABC):
  """Loads a model and predicts with it, whatever form the model has on disk.

  As in Tensor2Robot, with `step`, `reset` and `last_window` for models that look at
  more than one step: the predictor is then handed one observation at a time, and the
  frames that the model stacks are kept on its side.
  """

  @abc.abstractmethod
  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Predicts from stacked features.

    Args:
      features: numpy, hierarchical or by path, batched, `[B, ...]`.
    Returns:
      The model's outputs by name, `[B, ...]`.
    """

  @abc.abstractmethod
  def step(self, features: Any, is_first: Any = None) -> dict[str, np.ndarray]:
    """Predicts from one observation per environment and the history before it.

    Args:
      features: numpy, hierarchical or by path, one frame an environment,
        `[N, *frame_shape]`.
      is_first: bool `[N]`; True where an episode starts, which forgets that
        environment's history. None: True at the first step after `reset`.
    Returns:
      The model's outputs by name, `[N, ...]`.
    """

  @abc.abstractmethod
  def reset(self, num_envs: int = 1) -> None:
    """Forgets all history.

    Args:
      num_envs: how many environments the following steps are for.
    """

  @abc.abstractmethod
  def last_window(self) -> dict[str, np.ndarray]:
    """Returns the stacked features, by path, that the last `step` saw."""

  @abc.abstractmethod
  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns what `predict` takes, without the batch axis."""

  @abc.abstractmethod
  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes, without the axis of environments."""

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the labels that the model was trained on, if they are known."""
    return None

  @abc.abstractmethod
  def restore(self) -> bool:
    """Loads the newest model there is.

    Returns:
      Whether the newest model is the one in use now.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Lets go of the model."""

  @abc.abstractmethod
  def assert_is_loaded(self) -> None:
    """Checks that there is a model to predict with.

    Raises:
      NoModelError: no model has been restored yet.
    """

  @property
  def model_version(self) -> int:
    """The version of the model in use."""
    return 0

  @property
  def global_step(self) -> int:
    """The training step of the model in use."""
    return 0

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return ""
