"""Where an actor's steps go: record files, a store, a replay."""

from __future__ import annotations

import abc
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, files, policies, records, specs, windows
from t2r_seq import replay as replay_lib
from t2r_seq import store as store_lib
from t2r_seq.actors import rollouts
from t2r_seq.records.files import token_path
from t2r_seq.store.layout import Videos
from t2r_seq.training import stopping
from t2r_seq.windows.cut import appended_specs


def flatten_step(step: rollouts.EpisodeStep) -> dict[str, Any]:
  """Flattens a step into one value a path.

  Args:
    step: of an episode.
  Returns:
    'observation' (or, for dictionary observations, one path a leaf, 'a/b' when
    nested), 'action' (of a dictionary, 'action/a' and so on), 'reward', 'terminated'
    and 'truncated'.
  """
  observation, action = step["observation"], step["action"]
  return {
    **(
      policies.flatten_observation(observation)
      if isinstance(observation, Mapping)
      else {"observation": observation}
    ),
    **(
      policies.flatten_observation(action, "action/")
      if isinstance(action, Mapping)
      else {"action": action}
    ),
    "reward": np.float32(step["reward"]),
    "terminated": np.bool_(step["terminated"]),
    "truncated": np.bool_(step["truncated"]),
  }


def step_to_features(step: rollouts.EpisodeStep, spec: Any) -> specs.TensorSpecStruct:
  """Turns a step into what the spec structure stores of it.

  The default of the sinks: each path of the spec is looked up among the observation's
  own paths, 'action', 'reward', 'terminated' and 'truncated'. Numbers are converted as
  the policies convert them, so that what acts and what is stored are one.

  Args:
    step: of an episode.
    spec: the flat specs of an episode (or windowed ones: their flat specs are taken).
  Returns:
    Numpy arrays by path, without a time axis. A path that the step lacks is left out
    when its spec is optional.
  Raises:
    SpecError: the step lacks required paths; all are named.
  """
  flat_spec = windows.flat_specs(spec)
  values = flatten_step(step)
  missing = [
    errors.Mismatch(
      path, errors.describe(leaf), "nothing", errors.nearest(path, values)
    )
    for path, leaf in flat_spec.items()
    if path not in values and not leaf.is_optional
  ]
  if missing:
    raise errors.mismatch_error("step to features", missing)
  return specs.TensorSpecStruct(
    (path, _fit_shape(policies.to_spec_dtype(path, values[path], leaf), leaf))
    for path, leaf in flat_spec.items()
    if path in values
  )


def stack_steps(rows: Sequence[Mapping[str, Any]], spec: Any) -> specs.TensorSpecStruct:
  """Makes an episode of its steps.

  Args:
    rows: T >= 1 structures as of `step_to_features`, with the same paths.
    spec: the flat specs of the episode.
  Returns:
    Numpy arrays by path: [T, ...] for sequence specs, the first step's value for the
    others.
  """
  flat = [policies.flatten_observation(row) for row in rows]
  return specs.TensorSpecStruct(
    (path, np.stack([row[path] for row in flat]) if leaf.is_sequence else flat[0][path])
    for path, leaf in windows.flat_specs(spec).items()
    if path in flat[0]
  )


def episode_to_features(steps: rollouts.Episode, spec: Any) -> specs.TensorSpecStruct:
  """Turns the steps of an episode into what the spec structure stores of it.

  The default of `collect_episodes`: `step_to_features` of each, stacked.

  Args:
    steps: the episode, T steps.
    spec: the flat specs of an episode record, or windowed ones.
  Returns:
    Numpy arrays by path; see `stack_steps`.
  Raises:
    SpecError: a step lacks required paths; all are named.
  """
  flat_spec = windows.flat_specs(spec)
  return stack_steps([step_to_features(step, flat_spec) for step in steps], flat_spec)


def _fit_shape(value: np.ndarray, spec: specs.ExtendedTensorSpec) -> np.ndarray:
  """Gives a scalar (a reward) the shape (1,) that records often keep it in."""
  if value.ndim == 0 and spec.shape.rank == 1 and spec.shape.is_compatible_with([1]):
    return value.reshape(1)
  return value


StepToFeaturesFn = Callable[[rollouts.EpisodeStep], Mapping[str, Any]]


class EpisodeSink(files.Closing):
  """Takes the steps of episodes, one by one; a context manager.

  Several episodes may be in progress at once, one an environment.

  Attributes:
    with_last_observation: whether the observation that the last action led to follows
      as one more step (see `last_observation`). Next observations, and all that looks
      ahead, need it; then an episode of T actions has T + 1 steps. Without it `n_step`
      keeps a terminal transition and leaves out a truncated one.
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
    """Ends an environment's episode with the step before."""

  def abandon_episode(self, env: int = 0) -> None:
    """Ends, or drops, an episode that will not be finished: the run ended before it.

    Here it ends with the step before. Without steps, nothing has to happen.

    Args:
      env: whose episode; the next step is of another one.
    """
    self.end_episode(env)

  def stop_with(self, stop: stopping.StopCondition) -> None:
    """Names what ends the waits of a sink that waits for another process."""

  @abc.abstractmethod
  def close(self) -> None:
    """Ends the writing; what becomes of an episode in progress is the sink's to say.

    Whole episodes are kept, whatever went wrong after them.
    """


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
        returns one); of windowed specs each step once, and what is named after another
        path is that path's. `models.training_specification` gives that of a model.
      step_to_features_fn: turns a step into values by path; None takes
        `step_to_features`.
      with_last_observation: see `EpisodeSink`.
    """
    self.with_last_observation = with_last_observation
    self.flat_spec = appended_specs(spec() if callable(spec) else spec)
    self._to_features = step_to_features_fn or functools.partial(
      step_to_features, spec=self.flat_spec
    )
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
  """Writes each episode as a record, a few records a file.

  A file appears, whole, when it has its number of episodes or the sink is closed. Its
  name has the time and a token of this sink, so that neither another actor nor an
  earlier run is ever overwritten: 'a/collect.tfrecord.gz' becomes
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
      output_path: the name of the files, but for what is put into it. A suffix '.gz'
        compresses.
      spec: what is stored; see `WholeEpisodeSink`.
      episodes_per_file: how many records a file has, >= 1; the last one may have fewer.
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
    """Writes the episode, into a new file where the one before is full."""
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

  The store is made where there is none. Actors that share one need segments of their
  own; an actor that is started again goes on in its segment.
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
      path: of the store's folder.
      spec: what is stored; see `WholeEpisodeSink`.
      segment: which part of the store this actor appends to.
      step_to_features_fn: see `WholeEpisodeSink`.
      commit_every: episodes between two commits, which wait for the disk.
      with_last_observation: see `EpisodeSink`.
      videos: of a store that is made, how the frames of specs with `data_format` 'mp4'
        are kept; see `EpisodeStore.create`.
    Raises:
      SpecError: a spec cannot be stored, or is not the store's.
      StoreError: the store is damaged, or another actor holds the segment.
    """
    super().__init__(spec, step_to_features_fn, with_last_observation)
    self._writer = self._open(path, segment, commit_every, videos)

  def write_episode(self, structure: specs.TensorSpecStruct) -> None:
    """Appends the episode."""
    self._writer.append_episode(structure)

  def close(self) -> None:
    """Commits the episodes and lets go of the segment."""
    self._rows.clear()
    self._writer.close()

  def _open(
    self, path: str, segment: str, commit_every: int, videos: Videos
  ) -> store_lib.EpisodeWriter:
    """Makes the store, or opens what another actor made, or an earlier run."""
    make, append = store_lib.EpisodeStore.create, store_lib.EpisodeStore.append
    try:
      return make(path, self.flat_spec, None, segment, commit_every, videos=videos)
    except errors.StoreError:
      return append(path, segment, self.flat_spec, commit_every)


@gin.configurable
class ReplaySink(EpisodeSink):
  """Appends each step to a replay, where windows can be sampled while an episode runs.

  An episode in progress when it is abandoned, or at `close`, ends with the step before.
  """

  def __init__(
    self,
    replay: replay_lib.Replay = gin.REQUIRED,
    step_to_features_fn: StepToFeaturesFn | None = None,
    with_last_observation: bool | None = None,
  ) -> None:
    """Creates the sink; each environment gets a writer with its first step.

    Args:
      replay: is left open.
      step_to_features_fn: turns a step into values by path, as the replay's flat specs
        have it; None takes `step_to_features`.
      with_last_observation: see `EpisodeSink`; None: where nothing looks ahead but next
        observations, as of transitions, and what would look beyond the end is left out:
        an episode's last transition would be missing, and with it all that is terminal.
    """
    if with_last_observation is None:
      with_last_observation = _lacks_last_transition(replay)
    self.with_last_observation = with_last_observation
    self._replay = replay
    self._to_features = step_to_features_fn or functools.partial(
      step_to_features, spec=replay.flat_spec
    )
    self._context_paths = frozenset(
      path for path, leaf in replay.flat_spec.items() if not leaf.is_sequence
    )
    self._writers: dict[int, replay_lib.replay.ReplayWriter] = {}
    self._running: set[int] = set()
    self._stop: stopping.StopCondition | None = None

  def append(self, step: rollouts.EpisodeStep, env: int = 0) -> None:
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
      # Who stops a learner and its actors has no use for what nobody would sample.
      is_asked = self._stop is not None and self._stop.is_set()
      log = logging.info if is_asked else logging.warning
      log("The last windows of an episode may be lost: %s", error)
    finally:
      self._running.discard(env)

  def close_after(self, error: BaseException) -> None:
    """Closes the writers; a learner that would wait for ever is told of the error."""
    try:
      self.close()
    finally:
      if not isinstance(error, stopping.Stopped):
        self._replay.give_up(error)

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


def _lacks_last_transition(replay: replay_lib.Replay) -> bool:
  """Whether it takes one more step to have the window of an episode's last action."""
  ahead = [
    path
    for path, spec in specs.flatten_spec_structure(replay.spec_structure).items()
    if windows.time_span({path: spec})[1] > 0
  ]
  # A path without a column of its own shows another one's, later: a next observation.
  is_next = bool(ahead) and not any(path in replay.flat_spec for path in ahead)
  return is_next and not replay.cut.pads_end
