"""Policies over models that predict the action."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np

from t2r_seq import errors
from t2r_seq.policies import abstract_predictor, packing, policy


@gin.configurable
class RegressionPolicy(policy.Policy):
  """Acts as the model says, from single observations.

  The frames that the model stacks are kept by the exported model itself, so the policy
  is the same for a stack of 1 and of 16: it says only where an episode starts.
  """

  def __init__(
    self,
    predictor: abstract_predictor.AbstractPredictor = gin.REQUIRED,
    action_key: str = "inference_output",
  ) -> None:
    """Creates the policy; nothing is loaded yet.

    Args:
      predictor: has `step`.
      action_key: the model's output that is the action.
    """
    super().__init__(predictor)
    self._steps: abstract_predictor.AbstractPredictor = predictor
    self._action_key = action_key
    self._is_first = True
    self._num_envs = 1

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._is_first = True

  def restore(self) -> bool:
    """Loads the newest model there is; the next observation starts an episode.

    Returns:
      Whether the newest model is in use now. False with a model in use means that the
      newest is broken.
    Raises:
      NoModelError: there is no model at all.
    """
    is_newest = self._steps.restore()
    self._steps.assert_is_loaded()
    self._is_first = True
    return is_newest

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> Any:
    """Selects the action for one observation.

    Args:
      state: the observation: a dictionary by path, or one array for one feature.
        Lists, and arrays of another dtype of the same kind, are converted.
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
    features = packing.pack_observation(observations, spec)
    return self._act_all(features, np.asarray(is_first))

  def start_episode(self, env: int = 0) -> None:
    """Forgets what exploration remembers of an environment; here there is nothing."""

  def explore(self, action: np.ndarray, env: int = 0) -> np.ndarray:
    """Changes the model's action in one environment; here not at all."""
    del env
    return action

  def _act(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps the model with one environment."""
    spec = self._steps.get_step_specification()
    features = packing.pack_observation(state, spec, context)
    batched = {path: value[np.newaxis] for path, value in features.items()}
    is_first = np.array([self._is_first or timestep == 0])
    actions, outputs = self._act_all(batched, is_first)
    self._is_first = False
    return actions[0], outputs[0]

  def _act_all(
    self, features: Any, is_first: np.ndarray
  ) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Steps the model with all environments."""
    num_envs = len(is_first)
    if num_envs != self._num_envs:
      self._steps.reset(num_envs)
      self._num_envs = num_envs
    outputs = self._steps.step(features, is_first)
    if self._action_key not in outputs:
      raise errors.SpecError(
        f"select action: the model has no output '{self._action_key}', only "
        f"{errors.listing(outputs)}. Set action_key."
      )
    for env in np.flatnonzero(is_first):
      self.start_episode(int(env))
    actions = [
      self.explore(action, env) for env, action in enumerate(outputs[self._action_key])
    ]
    kept = [
      {name: value[env] for name, value in outputs.items()} for env in range(num_envs)
    ]
    return actions, kept
