"""Policies: what chooses actions, over models that predict them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.lite import policy_io
from t2r_seq.policies import predictors


class Policy(abc.ABC):
  """Chooses actions, with a predictor or without one.

  `SelectAction` keeps the name that it has in Tensor2Robot; the loops of
  `t2r_seq.actors` call `sample_action`.
  """

  def __init__(self, predictor: predictors.AbstractPredictor | None = None) -> None:
    """Creates the policy.

    Args:
      predictor: what it asks; None for a policy that needs no model.
    """
    self._predictor = predictor

  @abc.abstractmethod
  def SelectAction(self, state: Any, context: Any, timestep: int | None) -> Any:
    """Selects an action; changes neither the state nor the context.

    Args:
      state: the observation.
      context: further features that hold for the episode, or None.
      timestep: the number of the step in its episode, from 0, or None.
    Returns:
      The action.
    """

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    """Selects an action, as the loops of `t2r_seq.actors` ask for it.

    Args:
      obs: the observation.
      explore_prob: the probability of an exploring action; a policy that doesn't
        explore, or does so by its own schedule, ignores it.
    Returns:
      The action, and anything worth keeping beside it (or None).
    """
    del explore_prob
    return self.SelectAction(obs, None, None), None

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Selects an action in each of N environments that are stepped together.

    Args:
      observations: the batch of observations of a `gymnasium.vector` environment.
      is_first: bool `[N]`; where an episode starts, which takes the place of `reset`.
      explore_prob: as for `sample_action`.
    Returns:
      N actions, and N objects worth keeping beside them (or None).
    Raises:
      NotImplementedError: this policy acts in one environment at a time.
    """
    del observations, is_first, explore_prob
    raise NotImplementedError(
      f"{type(self).__name__} acts in one environment at a time. Give it "
      "sample_actions(observations, is_first, explore_prob) to act in several at once, "
      "or run a single environment."
    )

  def reset(self) -> None:  # noqa: B027
    """Forgets the episode before."""

  def seed(self, seed: int, env: int = 0) -> None:  # noqa: B027
    """Makes the policy's own randomness in an environment repeatable from here on."""

  def restore(self) -> bool:
    """Loads the newest model there is; called between episodes.

    The loops of `t2r_seq.actors` ask for no more than this, of policies of any class:
    where there is no model to act with yet, `restore` raises `NoModelError`, and an
    initial policy acts, if there is one.

    Returns:
      Whether the newest model is in use; True without a predictor. False with a model
      in use means that the newest is broken.
    Raises:
      NoModelError: there is no model at all.
    """
    if self._predictor is None:
      return True
    is_newest = self._predictor.restore()
    self._predictor.assert_is_loaded()
    return is_newest

  def init_randomly(self) -> None:
    """Gives the model random weights, where the predictor can."""
    if self._predictor is not None:
      self._predictor.init_randomly()

  @property
  def global_step(self) -> int:
    """The training step of the model in use; -1 before it is there, 0 without one."""
    return 0 if self._predictor is None else self._predictor.global_step

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return "" if self._predictor is None else self._predictor.model_path

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if that is known."""
    return None if self._predictor is None else self._predictor.control_period


def pack_observation(
  observation: Any,
  spec: specs.TensorSpecStruct,
  context: Mapping[str, Any] | None = None,
) -> specs.TensorSpecStruct:
  """Finds the value of every feature in an observation, see `policy_io.pack`."""
  packed = policy_io.pack(observation, spec, context)
  return specs.TensorSpecStruct(packed.items())


@gin.configurable
class RegressionPolicy(Policy):
  """Acts as the model says, from single observations.

  The frames that the model stacks are kept by the exported model itself, so the policy
  is the same for a stack of 1 and of 16: it says only where an episode starts.
  """

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str | Mapping[str, str] = "inference_output",
  ) -> None:
    """Creates the policy; nothing is loaded yet.

    Args:
      predictor: has `step`.
      action_key: the model's output that is the action; of an action of several parts,
        the output of each by the name of the part.
    """
    super().__init__(predictor)
    self._steps: predictors.AbstractPredictor = predictor
    self._action_key = action_key
    self._is_first = True
    self._num_envs = 1

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._is_first = True

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what the model draws in an environment repeatable from here on."""
    self._steps.seed(seed, env)

  def restore(self) -> bool:
    """See the base class; the next observation starts an episode."""
    is_newest = super().restore()
    self._is_first = True
    return is_newest

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> Any:
    """Selects the action for one observation.

    Args:
      state: the observation: a dictionary by path, or one array for one feature.
        Lists, and arrays of another dtype of the same kind, are converted. Has it a
        `timestamp`, in seconds, there is a warning where observations come at another
        rate than the steps of training did.
      context: further features by path, or None.
      timestep: 0 starts an episode, as `reset` does; else not used.
    Returns:
      The action, without a batch axis.
    """
    return self._act(state, context, timestep)[0]

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[Any, dict[str, np.ndarray]]:
    """Selects the action, and returns all outputs of the model beside it."""
    del explore_prob
    return self._act(obs, None, None)

  def sample_actions(
    self, observations: Any, is_first: np.ndarray, explore_prob: float = 0.0
  ) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Selects the actions of N environments with one call of the model.

    Args:
      observations: a dictionary by path of arrays `[N, *frame_shape]`, or one array
        for one feature.
      is_first: bool `[N]`; where an episode starts.
      explore_prob: not used.
    Returns:
      N actions, and all outputs of the model for each.
    """
    del explore_prob
    spec = self._steps.get_step_specification()
    features = pack_observation(observations, spec)
    timestamp = policy_io.timestamp_of(observations, spec)
    return self._act_all(features, np.asarray(is_first), timestamp)

  def start_episode(self, env: int = 0) -> None:
    """Forgets what exploration remembers of an environment; here there is nothing."""

  def explore(self, action: Any, env: int = 0) -> Any:
    """Changes the model's action in one environment; here not at all."""
    del env
    return action

  def _act(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps the model with one environment."""
    spec = self._steps.get_step_specification()
    features = pack_observation(state, spec, context)
    batched = {path: value[np.newaxis] for path, value in features.items()}
    is_first = np.array([self._is_first or timestep == 0])
    timestamp = policy_io.timestamp_of(state, spec)
    actions, outputs = self._act_all(batched, is_first, timestamp)
    self._is_first = False
    return actions[0], outputs[0]

  def _act_all(
    self, features: Any, is_first: np.ndarray, timestamp: Any
  ) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    """Steps the model with all environments."""
    num_envs = len(is_first)
    if num_envs != self._num_envs:
      self._steps.reset(num_envs)
      self._num_envs = num_envs
    # Predictors of a project's own need not know of times.
    timed = {} if timestamp is None else {policy_io.TIMESTAMP: timestamp}
    outputs = self._steps.step(features, is_first, **timed)
    key = self._action_key
    keys = key if isinstance(key, Mapping) else {"": key}
    for each in keys.values():
      if each not in outputs:
        raise errors.SpecError(
          f"select action: the model has no output '{each}', only "
          f"{errors.listing(outputs)}. Set action_key."
        )
    for first in np.flatnonzero(is_first):
      self.start_episode(int(first))
    actions = []
    for env in range(num_envs):
      parts = {name: outputs[each][env] for name, each in keys.items()}
      action = parts if isinstance(key, Mapping) else parts[""]
      actions.append(self.explore(action, env))
    kept = [
      {name: value[env] for name, value in outputs.items()} for env in range(num_envs)
    ]
    return actions, kept
