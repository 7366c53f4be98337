"""Steps that go to a replay, as they are taken."""

from __future__ import annotations

import contextlib
import functools

import gin
from absl import logging

from t2r_seq import errors, policies
from t2r_seq import replay as replay_lib
from t2r_seq.actors import features, rollouts, sinks
from t2r_seq.training import stopping


@gin.configurable
class ReplaySink(sinks.EpisodeSink):
  """Appends each step to a replay, where windows can be sampled while an episode runs.

  An episode in progress when it is abandoned, or at `close`, ends with the step before.
  """

  def __init__(
    self,
    replay: replay_lib.Replay = gin.REQUIRED,
    step_to_features_fn: sinks.StepToFeaturesFn | None = None,
    with_last_observation: bool = False,
  ) -> None:
    """Creates the sink; each environment gets a writer with its first step.

    Args:
      replay: is left open.
      step_to_features_fn: turns a step into values by path, as the replay's flat specs
        have it; None takes `step_to_features`.
      with_last_observation: see `EpisodeSink`.
    """
    self.with_last_observation = with_last_observation
    self._replay = replay
    self._to_features = step_to_features_fn or functools.partial(
      features.step_to_features, spec=replay.flat_spec
    )
    self._context_paths = frozenset(
      path for path, leaf in replay.flat_spec.items() if not leaf.is_sequence
    )
    self._writers: dict[int, replay_lib.ReplayWriter] = {}
    self._running: set[int] = set()
    self._stop: stopping.StopCondition | None = None

  def append(self, step: rollouts.Step, env: int = 0) -> None:
    """Appends the step; of context features, the first step's values count.

    Raises:
      SpecError: it does not fit the replay's specs; all paths are named.
      ReplayTimeoutError: the replay takes nothing for longer than was allowed, or
        until it is told to stop.
    """
    if env not in self._writers:
      should_stop = None if self._stop is None else self._stop.is_set
      self._writers[env] = self._replay.writer(should_stop)
    values = policies.flatten_observation(self._to_features(step))
    if env in self._running:
      values = {p: v for p, v in values.items() if p not in self._context_paths}
    self._writers[env].append(values)
    self._running.add(env)

  def end_episode(self, env: int = 0) -> None:
    """Ends an environment's episode."""
    self._writers[env].end_episode()
    self._running.discard(env)

  def abandon_episode(self, env: int = 0) -> None:
    """Ends the episode with the step before: what was taken is experience."""
    if env not in self._running:
      return
    try:
      self.end_episode(env)
    except errors.ReplayError as error:  # Not in place of what ended the run.
      logging.warning("The last windows of an episode may be lost: %s", error)
    finally:
      self._running.discard(env)

  def stop_with(self, stop: stopping.StopCondition) -> None:
    """Names what ends the wait for a replay that takes nothing; set it first."""
    self._stop = stop

  def close(self) -> None:
    """Closes the writers.

    Raises:
      ReplayTimeoutError: the replay does not take the last steps.
    """
    with contextlib.ExitStack() as stack:
      for writer in self._writers.values():
        stack.callback(writer.close)
    self._writers.clear()
    self._running.clear()
