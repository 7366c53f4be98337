"""Sinks for an actor's steps: record files, a store, a replay."""

from __future__ import annotations

import abc
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, files, records, specs, windows
from t2r_seq import replay as replay_lib
from t2r_seq import store as store_lib
from t2r_seq.actors import rollouts
from t2r_seq.lite import policy_io
from t2r_seq.records.files import token_path
from t2r_seq.store.layout import Videos
from t2r_seq.training import stopping
from t2r_seq.windows.cut import appended_specs, time_span


def flatten_step(step: rollouts.EpisodeStep) -> dict[str, Any]:
  """Flattens a step into one value per path.

  Returns:
    'observation', or for a dictionary a path for each leaf, 'a/b' if nested; 'action',
    or for a dictionary 'action/a' and so on; 'reward', 'terminated' and 'truncated'.
  """
  observation, action = step["observation"], step["action"]
  is_tree, is_action_tree = (
    isinstance(observation, Mapping),
    isinstance(action, Mapping),
  )
  flat = policy_io.flatten_observation
  return {
    **(flat(observation) if is_tree else {"observation": observation}),
    **(flat(action, "action/") if is_action_tree else {"action": action}),
    "reward": np.float32(step["reward"]),
    "terminated": np.bool_(step["terminated"]),
    "truncated": np.bool_(step["truncated"]),
  }


StepToFeaturesFn = Callable[[rollouts.EpisodeStep], Mapping[str, Any]]


def make_step_to_features(spec: specs.SpecStructure) -> StepToFeaturesFn:
  """Makes the default `step_to_features_fn` of the sinks.

  Each path of the spec is looked up among those of `flatten_step`. Numbers are
  converted as in policies, so that the stored values are those that the policy saw.

  Args:
    spec: specs of an episode, flat or windowed.
  Returns:
    A function of a step that returns numpy arrays by path, without a time axis. It
    leaves out optional paths that the step lacks. If required ones are missing, it
    raises a SpecError that lists them.
  """
  leaves = dict(windows.flat_specs(spec).items())
  # Records often store a scalar, such as the reward, with the shape (1,).
  vectors = {
    path
    for path, leaf in leaves.items()
    if leaf.shape.rank == 1 and leaf.shape.is_compatible_with([1])
  }

  def step_to_features(step: rollouts.EpisodeStep) -> dict[str, Any]:
    values = flatten_step(step)
    features = {}
    for path, leaf in leaves.items():
      if path in values:
        value = policy_io.to_spec_dtype(path, values[path], leaf)
        features[path] = (
          value.reshape(1) if path in vectors and not value.ndim else value
        )
      elif not leaf.is_optional:
        raise errors.mismatch_error("step to features", _missing(leaves, values))
    return features

  return step_to_features


def _missing(
  leaves: Mapping[str, specs.ExtendedTensorSpec], values: Mapping[str, Any]
) -> list[errors.Mismatch]:
  return [
    errors.Mismatch(
      path, errors.describe(leaf), "nothing", errors.nearest(path, values)
    )
    for path, leaf in leaves.items()
    if path not in values and not leaf.is_optional
  ]


def stack_steps(rows: Sequence[Mapping[str, Any]], spec: Any) -> specs.TensorSpecStruct:
  """Stacks the steps of an episode.

  Args:
    rows: T >= 1 structures of one step each, with the same paths.
    spec: the flat specs of the episode.
  Returns:
    Numpy arrays by path: [T, ...] for sequence specs, the first step's value for the
    others.
  """
  flat = [policy_io.flatten_observation(row) for row in rows]
  return specs.TensorSpecStruct(
    (path, np.stack([row[path] for row in flat]) if leaf.is_sequence else flat[0][path])
    for path, leaf in spec.items()
    if path in flat[0]
  )


def make_episode_to_features(spec: Any) -> Callable[[rollouts.Episode], Any]:
  """Returns a function that turns the steps of an episode into a record's contents."""
  flat_spec = windows.flat_specs(spec)
  to_features = make_step_to_features(flat_spec)
  return lambda steps: stack_steps([to_features(step) for step in steps], flat_spec)


class EpisodeSink(files.Closing):
  """Takes the steps of episodes, one by one; a context manager.

  Several episodes may be in progress at once, one per environment.

  Attributes:
    with_last_observation: whether the observation after the last action follows as one
      more step (see `last_observation`), so that an episode of T actions has T + 1
      steps. Next observations, and other time offsets above 0, need it. Without it
      `n_step` keeps a terminal transition and leaves out a truncated one.
  """

  with_last_observation = False

  def add(self, step: rollouts.EpisodeStep, env: int = 0) -> None:
    """Takes the next step of an environment, and ends the episode with its last one."""
    self.append(step, env)
    if rollouts.is_last(step):
      if self.with_last_observation:
        self.append(rollouts.last_observation(step), env)
      self.end_episode(env)

  @abc.abstractmethod
  def append(self, step: rollouts.EpisodeStep, env: int = 0) -> None:
    """Takes the next step of an environment's episode."""

  @abc.abstractmethod
  def end_episode(self, env: int = 0) -> None:
    """Ends an environment's episode with its latest step."""

  def abandon_episode(self, env: int = 0) -> None:
    """Ends the episode of a run that stops: by default with its latest step.

    The next step of the environment begins another episode.
    """
    self.end_episode(env)

  def stop_with(self, stop: stopping.StopCondition) -> None:
    """Sets the condition that ends a wait for another process."""

  @abc.abstractmethod
  def close(self) -> None:
    """Ends the writing; whole episodes stay, even after an error."""


class WholeEpisodeSink(EpisodeSink):
  """Keeps the steps of an episode until it ends; drops unfinished episodes."""

  def __init__(
    self,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure],
    step_to_features_fn: StepToFeaturesFn | None = None,
    with_last_observation: bool = False,
  ) -> None:
    """Initializes the sink.

    Args:
      spec: spec structure of the stored episode, or a function without arguments that
        returns it, such as `models.training_specification`. Each step is stored once. A
        spec whose `name` is another path is not stored: it reads that path.
      step_to_features_fn: maps a step to values by path; None: `make_step_to_features`.
      with_last_observation: see `EpisodeSink`.
    """
    self.with_last_observation = with_last_observation
    self.flat_spec = appended_specs(spec() if callable(spec) else spec)
    self._to_features = step_to_features_fn or make_step_to_features(self.flat_spec)
    self._rows: dict[int, list[Mapping[str, Any]]] = {}

  @abc.abstractmethod
  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Writes a whole episode: [T, ...] for sequence specs."""

  def append(self, step: rollouts.EpisodeStep, env: int = 0) -> None:
    """Keeps the step."""
    self._rows.setdefault(env, []).append(self._to_features(step))

  def end_episode(self, env: int = 0) -> None:
    """Writes the episode."""
    self.write_episode(stack_steps(self._rows.pop(env), self.flat_spec))

  def abandon_episode(self, env: int = 0) -> None:
    """Drops the episode."""
    self._rows.pop(env, None)


@gin.configurable
class RecordSink(WholeEpisodeSink):
  """Writes each episode as a record, a few records per file.

  A file appears when it is complete: it has all its episodes, or the sink is closed.
  Its name has the time and a random token, so that no file of another actor or an
  earlier run is overwritten: 'a/collect.tfrecord.gz' becomes
  'a/collect-20261120T193000-3fa9c21b-00000.tfrecord.gz' and so on.

  Attributes:
    files: the paths written.
  """

  def __init__(
    self,
    output_path: str = gin.REQUIRED,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure] = gin.REQUIRED,
    episodes_per_file: int = 1,
    step_to_features_fn: StepToFeaturesFn | None = None,
    with_last_observation: bool = False,
  ) -> None:
    """Creates the sink; the first file begins with the first episode.

    Args:
      output_path: the name of the files before the token. A suffix '.gz' compresses.
      spec: spec of the stored episode; see `WholeEpisodeSink`.
      episodes_per_file: number of records per file, >= 1; the last one may have fewer.
      step_to_features_fn: see `WholeEpisodeSink`.
      with_last_observation: see `EpisodeSink`.
    Raises:
      ValueError: episodes_per_file is below 1.
    """
    super().__init__(spec, step_to_features_fn, with_last_observation)
    if episodes_per_file < 1:
      raise ValueError(
        f"RecordSink: episodes_per_file must be >= 1, got {episodes_per_file}."
      )
    self._output_path = output_path
    self._episodes_per_file = episodes_per_file
    self._token = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
    self._writer: records.RecordWriter | None = None
    self._path = ""
    self.files: list[str] = []

  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Writes the episode, into a new file if the previous one is full."""
    if self._writer is None:
      token = f"{self._token}-{len(self.files):05d}"
      self._path = token_path(self._output_path, token)
      self._writer = records.RecordWriter(self._path, self.flat_spec)
    self._writer.write(structure)
    if self._writer.num_records == self._episodes_per_file:
      self._finish_file()

  def close(self) -> None:
    """Finishes the file in progress."""
    self._rows.clear()
    self._finish_file()

  def _finish_file(self) -> None:
    if self._writer is None:
      return
    self._writer.close()
    self._writer = None
    self.files.append(self._path)
    logging.info("Wrote %s.", self._path)


@gin.configurable
class StoreSink(WholeEpisodeSink):
  """Appends each episode to a store as it ends.

  The store is created if it is missing. Actors that share one need different segments;
  an actor that is started again continues in its segment.
  """

  def __init__(
    self,
    path: str = gin.REQUIRED,
    spec: specs.SpecStructure | Callable[[], specs.SpecStructure] = gin.REQUIRED,
    segment: str = "main",
    step_to_features_fn: StepToFeaturesFn | None = None,
    commit_every: int = 1,
    with_last_observation: bool = False,
    videos: Videos = None,
  ) -> None:
    """Opens the store.

    Args:
      path: path of the store's folder.
      spec: spec of the stored episode; see `WholeEpisodeSink`.
      segment: part of the store that this actor appends to.
      step_to_features_fn: see `WholeEpisodeSink`.
      commit_every: episodes per commit, >= 1; a commit waits for the disk.
      with_last_observation: see `EpisodeSink`.
      videos: see `EpisodeStore.create`; no effect on an existing store.
    Raises:
      SpecError: a spec cannot be stored or is not the store's, or `commit_every` is
        below 1.
      StoreError: the store is damaged, or another actor holds the segment.
      ImportError: `videos` needs the extra `video`.
    """
    super().__init__(spec, step_to_features_fn, with_last_observation)
    create, append = store_lib.EpisodeStore.create, store_lib.EpisodeStore.append
    try:
      self._writer = create(
        path, self.flat_spec, None, segment, commit_every, videos=videos
      )
    except errors.StoreError:  # Another actor or an earlier run has created it.
      self._writer = append(path, segment, self.flat_spec, commit_every)

  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Appends the episode."""
    self._writer.append_episode(structure)

  def close(self) -> None:
    """Commits the episodes and releases the segment."""
    self._rows.clear()
    self._writer.close()


@gin.configurable
class ReplaySink(EpisodeSink):
  """Appends each step to a replay, which can sample windows of a running episode.

  An episode that is abandoned, or in progress at `close`, ends with its latest step.
  """

  def __init__(
    self,
    replay: replay_lib.replay.Replay = gin.REQUIRED,
    step_to_features_fn: StepToFeaturesFn | None = None,
    with_last_observation: bool | None = None,
  ) -> None:
    """Creates the sink; each environment gets a writer with its first step.

    Args:
      replay: the replay to write to; is left open.
      step_to_features_fn: maps a step to values by path of the replay's flat specs;
        None uses `make_step_to_features`.
      with_last_observation: see `EpisodeSink`. None is True if the specs have next
        observations and the replay's padding drops windows beyond the end: otherwise
        the last transition would be missing.
    """
    if with_last_observation is None:
      with_last_observation = _lacks_last_transition(replay)
    self.with_last_observation = with_last_observation
    self._replay = replay
    self._to_features = step_to_features_fn or make_step_to_features(replay.flat_spec)
    self._context_paths = frozenset(
      path for path, leaf in replay.flat_spec.items() if not leaf.is_sequence
    )
    self._writers: dict[int, replay_lib.replay.ReplayWriter] = {}
    self._running: set[int] = set()
    self._stop: stopping.StopCondition | None = None

  def append(self, step: rollouts.EpisodeStep, env: int = 0) -> None:
    """Appends the step; context features take the first step's values.

    Raises:
      SpecError: the step does not fit the replay's specs, all paths are listed; the
        replay is closed; or it has no writer left.
      ReplayTimeoutError: the wait for the replay's rate limiter took too long, or was
        stopped.
    """
    if env not in self._writers:
      should_stop = None if self._stop is None else self._stop.is_set
      self._writers[env] = self._replay.writer(should_stop)
    values = policy_io.flatten_observation(self._to_features(step))
    if env in self._running:
      values = {p: v for p, v in values.items() if p not in self._context_paths}
    self._writers[env].append(values)
    self._running.add(env)

  def end_episode(self, env: int = 0) -> None:
    """Ends an environment's episode."""
    self._writers[env].end_episode()
    self._running.discard(env)

  def abandon_episode(self, env: int = 0) -> None:
    """Ends the episode with its latest step."""
    if env not in self._running:
      return
    try:
      self.end_episode(env)
    except errors.ReplayError as error:  # It must not replace the error of the run.
      # After a stop of learner and actors the windows would not be sampled.
      is_stopped = self._stop is not None and self._stop.is_set()
      log = logging.info if is_stopped else logging.warning
      log("The last windows of an episode may be lost: %s", error)
    finally:
      self._running.discard(env)

  def close_after(self, error: BaseException) -> None:
    """Closes the writers, and ends the wait of a learner with the error."""
    try:
      self.close()
    finally:
      if not isinstance(error, stopping.Stopped):
        self._replay.fail_waiting(error)

  def stop_with(self, stop: stopping.StopCondition) -> None:
    """Sets the condition that ends waits for the replay's rate limiter."""
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


def _lacks_last_transition(replay: replay_lib.replay.Replay) -> bool:
  """Whether the window of an episode's last action needs one more step."""
  ahead = [
    path
    for path, spec in specs.flatten_spec_structure(replay.spec_structure).items()
    if time_span({path: spec})[1] > 0
  ]
  # A path that reads another path's column later is a next observation.
  is_next = bool(ahead) and not any(path in replay.flat_spec for path in ahead)
  return is_next and not replay.cut.pads_end
