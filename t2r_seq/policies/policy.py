"""The face of everything that chooses actions."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from t2r_seq.policies import abstract_predictor


class Policy(abc.ABC):
  """Chooses actions, with a predictor or without one.

  `SelectAction` keeps the name that it has in Tensor2Robot; the loops of
  `t2r_seq.actors` call `sample_action`.
  """

  def __init__(
    self, predictor: abstract_predictor.AbstractPredictor | None = None
  ) -> None:
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
    """Loads the newest model there is; call it between episodes.

    Returns:
      Whether the newest model is in use; True without a predictor.
    """
    return True if self._predictor is None else self._predictor.restore()

  @property
  def global_step(self) -> int:
    """The training step of the model in use; 0 without one."""
    return 0 if self._predictor is None else self._predictor.global_step

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return "" if self._predictor is None else self._predictor.model_path
