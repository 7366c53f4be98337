"""Where an actor's steps go: the face, and the part that waits for whole episodes."""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from t2r_seq import specs, windows
from t2r_seq.actors import features, rollouts
from t2r_seq.training import stopping

StepToFeaturesFn = Callable[[rollouts.Step], Mapping[str, Any]]


class EpisodeSink(abc.ABC):
  """Takes the steps of episodes, one by one; a context manager.

  Several episodes may be in progress at once, one an environment.

  Attributes:
    with_last_observation: whether the observation that the last action led to follows
      as one more step (see `last_observation`). Next observations, and all that looks
      ahead, need it; then an episode of T actions has T + 1 steps.
  """

  with_last_observation = False

  def add(self, step: rollouts.Step, env: int = 0) -> None:
    """Takes the next step of an environment, and ends the episode with its last one."""
    self.append(step, env)
    if rollouts.is_last(step):
      if self.with_last_observation:
        self.append(rollouts.last_observation(step), env)
      self.end_episode(env)

  @abc.abstractmethod
  def append(self, step: rollouts.Step, env: int = 0) -> None:
    """Takes the next step of an environment's episode."""

  @abc.abstractmethod
  def end_episode(self, env: int = 0) -> None:
    """Ends an environment's episode with the step before."""

  def abandon_episode(self, env: int = 0) -> None:
    """Ends, or drops, an episode that will not be finished: the run ended before it.

    Here it ends with the step before. Without steps, nothing has to happen.

    Args:
      env: whose episode; the next step is of another one.
    """
    self.end_episode(env)

  def stop_with(self, stop: stopping.StopCondition) -> None:  # noqa: B027
    """Names what ends the waits of a sink that waits for another process."""

  @abc.abstractmethod
  def close(self) -> None:
    """Ends the writing; what becomes of an episode in progress is the sink's to say."""

  def __enter__(self) -> EpisodeSink:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    # Whole episodes are kept, whatever went wrong after them.
    self.close()


class WholeEpisodeSink(EpisodeSink):
  """Keeps the steps of an episode until it ends; one that never does is dropped."""

  def __init__(
    self,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure],
    step_to_features_fn: StepToFeaturesFn | None = None,
    with_last_observation: bool = False,
  ) -> None:
    """Creates the part that all such sinks share.

    Args:
      spec: what is stored: a spec structure (or a function without arguments that
        returns one); of windowed specs, the flat specs are stored.
      step_to_features_fn: turns a step into values by path; None takes
        `step_to_features`.
      with_last_observation: see `EpisodeSink`.
    """
    self.with_last_observation = with_last_observation
    self.flat_spec = windows.flat_specs(spec() if callable(spec) else spec)
    self._to_features = step_to_features_fn or functools.partial(
      features.step_to_features, spec=self.flat_spec
    )
    self._rows: dict[int, list[Mapping[str, Any]]] = {}

  @abc.abstractmethod
  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Writes a whole episode: [T, ...] for sequence specs."""

  def append(self, step: rollouts.Step, env: int = 0) -> None:
    """Keeps the step."""
    self._rows.setdefault(env, []).append(self._to_features(step))

  def end_episode(self, env: int = 0) -> None:
    """Writes the episode."""
    self.write_episode(features.stack_steps(self._rows.pop(env), self.flat_spec))

  def abandon_episode(self, env: int = 0) -> None:
    """Drops the episode."""
    self._rows.pop(env, None)
