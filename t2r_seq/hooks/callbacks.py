"""Callbacks that come with the library, and Tensor2Robot's checkpoint listeners."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, models, training
from t2r_seq import replay as replay_lib
from t2r_seq.training import workers
from t2r_seq.training.callbacks import Run


@gin.configurable
class TargetNetworkUpdate(training.Callback):
  """Moves target networks towards the trained networks.

  Hard updates have `rate` 1 and a large `every_n_steps`. For soft updates, a small rate
  at each step, `T2RModel.after_train_step` is cheaper: it is a part of the train step.
  """

  def __init__(
    self,
    targets: Mapping[str, str],
    rate: float = 1.0,
    every_n_steps: int = 1000,
  ) -> None:
    """Creates the callback.

    Args:
      targets: source network by target network, keys of `create_network`'s dict.
      rate: fraction of the way from the target's weights to the source's; 1 copies.
      every_n_steps: steps between updates, >= 1; counted over all runs in the folder.
    """
    self._targets = dict(targets)
    self._rate = rate
    self._every = errors.check_count(
      "TargetNetworkUpdate", "every_n_steps", every_n_steps
    )

  @property
  def step_interval(self) -> int:
    """See the base class."""
    return self._every

  def on_begin(self, run: Run) -> None:
    """Copies the weights if the run is new; SpecError if a network is missing."""
    network = run.model.network
    networks = network if isinstance(network, Mapping) else {}
    for name in (*self._targets, *self._targets.values()):
      if name not in networks:
        raise errors.SpecError(
          f"TargetNetworkUpdate: targets: expected parts of create_network's dict, "
          f"{errors.listing(networks)}, got '{name}'.{errors.nearest(name, networks)}"
        )
    if run.step == 0:
      self._update(run, 1.0)

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Updates, if it is due."""
    if run.step % self._every == 0:
      self._update(run, self._rate)

  def _update(self, run: Run, rate: float) -> None:
    network = run.model.network
    with run.trainer.strategy.scope():
      for target, source in self._targets.items():
        models.update_target_network(network[target], network[source], rate)


@gin.configurable
class EarlyStopping(training.Callback):
  """Ends the training when a metric of the evaluations stops improving."""

  def __init__(
    self,
    metric: str = "loss",
    patience: int = 3,
    min_delta: float = 0.0,
    larger_is_better: bool = False,
  ) -> None:
    """Creates the callback.

    Args:
      metric: name of an evaluation metric.
      patience: evaluations in a row without a better value, >= 1. A resumed run forgets
        earlier evaluations.
      min_delta: an improvement must be larger than this.
      larger_is_better: False for losses.
    """
    self._metric = metric
    self._patience = errors.check_count("EarlyStopping", "patience", patience)
    self._min_delta = min_delta
    self._sign = -1.0 if larger_is_better else 1.0
    self._best, self._num_without_improvement = math.inf, 0

  def on_begin(self, run: Run) -> None:
    """Resets the count."""
    self._best, self._num_without_improvement = math.inf, 0

  def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> None:
    """Counts evaluations without an improvement; stops the run after `patience`.

    Raises:
      SpecError: the evaluation has no such metric.
    """
    if self._metric not in metrics:
      raise errors.SpecError(
        f"EarlyStopping: metric: expected one of {errors.listing(metrics)}, got "
        f"'{self._metric}'.{errors.nearest(self._metric, metrics)}"
      )
    value = self._sign * metrics[self._metric]
    if value < self._best - self._min_delta:
      self._best, self._num_without_improvement = value, 0
      return
    self._num_without_improvement += 1
    if self._num_without_improvement >= self._patience:
      best = self._sign * self._best
      logging.info(
        "EarlyStopping: %s is no better than %.5g for %d evaluations: the run ends.",
        self._metric,
        best,
        self._num_without_improvement,
      )
      run.stop()


@gin.configurable
class VariableNorms(training.Callback):
  """Writes the norm of each variable to the event file, as 'norm/<name>'."""

  def __init__(self, every_n_steps: int = 1000, include: tuple[str, ...] = ("*",)):
    """Creates the callback.

    Args:
      every_n_steps: steps between two writes, >= 1.
      include: patterns of names; see `T2RModel.named_variables`.
    """
    self._every = errors.check_count("VariableNorms", "every_n_steps", every_n_steps)
    self._is_chosen = models.create_name_filter(include)

  @property
  def step_interval(self) -> int:
    """See the base class."""
    return self._every

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Writes, if it is due."""
    if run.step % self._every == 0:
      run.write_scalars(
        {
          f"norm/{name}": tf.norm(tf.cast(variable, tf.float32))
          for name, variable in run.model.named_variables.items()
          if self._is_chosen(name)
        }
      )


@gin.configurable
class PriorityUpdate(training.Callback):
  """Sets the priorities of a replay from a train step's outputs.

  Prioritized experience replay (Schaul et al., 2016): the replay samples with
  `Prioritized`, the model declares `replay.add_sample_specs`, weighs its loss by
  'sample/weight', and returns the keys and errors of each example, as `CriticModel`
  does by itself. Each step waits for the device.
  """

  def __init__(
    self,
    replay: replay_lib.replay.Replay | replay_lib.ReplayInputGenerator,
    output: str = "td_error",
    key: str = "sample/key",
    epsilon: float = 1e-6,
  ) -> None:
    """Creates the callback.

    Args:
      replay: the replay, or the generator that samples from it.
      output: name of the model's output; the mean of its absolute value over an example
        is the priority.
      key: name of the model's output with the keys.
      epsilon: added to each priority, so that each item can be sampled again.
    """
    self._replay = replay
    self._output, self._key, self._epsilon = output, key, epsilon

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Updates the priorities.

    Raises:
      SpecError: the model does not return these outputs.
    """
    outputs = run.outputs
    for name in (self._output, self._key):
      if name not in outputs:
        raise errors.SpecError(
          f"PriorityUpdate: {name}: expected an output of each example, got "
          f"{errors.listing(outputs)}. Return them from model_train_fn: "
          "(loss, scalars, {name: tensor})."
        )
    keys, sizes = outputs[self._key], np.abs(outputs[self._output])
    sizes = sizes.reshape(len(sizes), -1).mean(axis=1) + self._epsilon
    is_sampled = keys != 0  # Examples of other parts of a mixture have the key 0.
    replay = self._replay
    if isinstance(replay, replay_lib.ReplayInputGenerator):
      replay = replay.replay
    keys = (keys[is_sampled] - 1).view(np.uint64)  # `sample/key` is the key + 1.
    replay.update_priorities(keys, sizes[is_sampled].astype(np.float64))


@gin.configurable
class ReplayCheckpoint(training.Callback):
  """Saves a replay with each checkpoint of the training, and restores it at the start.

  For a buffer in memory: a replay server restores its newest checkpoint by itself.
  """

  def __init__(self, replay: replay_lib.ReplayBuffer = gin.REQUIRED) -> None:
    """Restores the newest whole checkpoint in the buffer's folder, if there is one.

    Args:
      replay: a buffer with a `checkpoint_dir`, to which nothing has been appended.
    Raises:
      ReplayError: the replay has no `checkpoint_dir`, or has steps already; the
        checkpoints are damaged, or of another kind of buffer.
    """
    self._replay = replay
    if (path := replay.resume()) is not None:
      logging.info("The replay begins with %s.", path)

  def after_checkpoint(self, run: Run, path: str) -> None:
    """Saves the replay."""
    del run, path
    self._replay.checkpoint()


@gin.configurable
class ScalarSink(training.Callback):
  """Passes all scalars to a function: to W&B, MLflow, Trackio or a file."""

  def __init__(self, write_fn: Callable[[dict[str, float], int], object]) -> None:
    """Creates the callback.

    Args:
      write_fn: called by the chief with scalars by name and the step: those that the
        training logs, and metrics of evaluations as 'eval/<name>'.
    """
    self._write_fn = write_fn

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    """Writes the logged scalars."""
    if run.is_chief:
      self._write_fn({k: float(v) for k, v in scalars.items()}, run.step)

  def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> None:
    """Writes the metrics."""
    if run.is_chief:
      named = {f"eval/{name}": float(value) for name, value in metrics.items()}
      self._write_fn(named, run.step)


@gin.configurable
class GoldenValues(training.Callback):
  """Keeps the scalars of the first steps in a file, to be compared by a test.

  The file, `golden_values.json` in the run's folder, is a list of the steps' scalars by
  name. The model returns such scalars beside the loss.
  """

  filename = "golden_values.json"

  def __init__(self, num_steps: int = 10) -> None:
    """Creates the callback.

    Args:
      num_steps: number of steps to keep, >= 1.
    """
    self._num_steps = errors.check_count("GoldenValues", "num_steps", num_steps)
    self._values: list[dict[str, float]] = []

  @property
  def step_interval(self) -> int:
    """See the base class: each step, as long as values are kept."""
    return int(len(self._values) < self._num_steps)

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Keeps the step's scalars."""
    if len(self._values) < self._num_steps:
      self._values.append({name: float(value) for name, value in scalars.items()})

  def on_end(self, run: Run) -> None:
    """Writes the file."""
    path = os.path.join(run.write_dir, self.filename)
    files.replace_file(path, json.dumps(self._values, indent=1).encode())


@gin.configurable
class CheckpointExport(training.Callback):
  """Exports for actors after checkpoints, independent of evaluations.

  A lagged folder has the version before, like TD3's target networks (Fujimoto et al.,
  2018).
  """

  def __init__(
    self,
    export_dir: str,
    lagged_export_dir: str | None = None,
    save_secs: float = 90,
    num_versions: int = 3,
    warmup_batch_sizes: Sequence[int] = (1,),
  ) -> None:
    """Creates the callback.

    Args:
      export_dir: folder of the versions.
      lagged_export_dir: folder that is one version behind, or None.
      save_secs: minimum seconds between two exports.
      num_versions: number of versions to keep in each folder, >= 1.
      warmup_batch_sizes: see `export_saved_model`.
    """
    self._export_dir = export_dir
    self._lagged_export_dir = lagged_export_dir
    self._save_secs = save_secs
    self._num_versions = errors.check_count(
      "CheckpointExport", "num_versions", num_versions
    )
    self._warmup_batch_sizes = tuple(warmup_batch_sizes)
    self._last = -math.inf
    self._listener: CheckpointExportListener | None = None
    self._temporary: tempfile.TemporaryDirectory[str] | None = None

  def on_begin(self, run: Run) -> None:
    """Makes the folders."""
    place, lagged = self._export_dir, self._lagged_export_dir
    if not run.is_chief:  # All workers take part in an export, and one keeps it.
      self._temporary = tempfile.TemporaryDirectory()
      place = os.path.join(self._temporary.name, "export")
      lagged = lagged and os.path.join(self._temporary.name, "lagged")

    def export(folder: str, step: int) -> str:
      return training.export_saved_model(
        run.model, folder, step, self._warmup_batch_sizes
      )

    if lagged is None:
      self._listener = CheckpointExportListener(export, place, self._num_versions)
    else:
      self._listener = LaggedCheckpointListener(
        export, place, lagged, self._num_versions
      )

  def after_checkpoint(self, run: Run, path: str) -> None:
    """Exports, if it is due."""
    is_due = time.monotonic() - self._last >= self._save_secs
    if workers.chief_says(run.trainer.strategy, is_due) and self._listener is not None:
      self._listener.after_save(None, run.step)
      self._last = time.monotonic()

  def on_end(self, run: Run) -> None:
    """Removes the files of this worker only."""
    if self._temporary is not None:
      self._temporary.cleanup()


@gin.configurable
class TD3Hooks(CheckpointExport):
  """Tensor2Robot's name of `CheckpointExport` with a lagged folder."""

  def __init__(
    self,
    export_dir: str,
    lagged_export_dir: str,
    batch_sizes_for_export: Sequence[int] = (1,),
    save_secs: float = 90,
    num_versions: int = 3,
  ) -> None:
    """See `CheckpointExport`; `batch_sizes_for_export` are `warmup_batch_sizes`."""
    super().__init__(
      export_dir, lagged_export_dir, save_secs, num_versions, batch_sizes_for_export
    )


ExportFn = Callable[[str, int], str]
"""Exports to a folder of versions at a step; returns the new version's folder."""


class CheckpointExportListener:
  """Exports after each checkpoint, and keeps the newest versions."""

  def __init__(
    self, export_fn: ExportFn, export_dir: str, num_versions: int | None = None
  ) -> None:
    """Creates the listener, and tidies up.

    Args:
      export_fn: exports.
      export_dir: folder of the versions; made if it is missing.
      num_versions: number of versions to keep; None keeps all.
    """
    self._export_fn = export_fn
    self._export_dir = os.fspath(export_dir)
    self._num_versions = num_versions
    files.make_folders(self._export_dir)
    self._remove_old(self._export_dir)

  def after_save(self, session: Any, global_step: int) -> str:
    """Exports.

    Args:
      session: None; TensorFlow 2 has none.
      global_step: step of the checkpoint.
    Returns:
      The new version's folder.
    """
    del session
    path = self._export_fn(self._export_dir, global_step)
    logging.info("Exported step %d to %s", global_step, path)
    self._remove_old(self._export_dir)
    return path

  def _remove_old(self, folder: str) -> None:
    if self._num_versions:
      for name in versions(folder)[: -self._num_versions]:
        shutil.rmtree(os.path.join(folder, name))


class LaggedCheckpointListener(CheckpointExportListener):
  """Keeps a second folder one version behind the first: the targets of TD3.

  That version depends only on the folders, so that a resumed run continues with it.
  """

  def __init__(
    self,
    export_fn: ExportFn,
    export_dir: str,
    lagged_export_dir: str,
    num_versions: int | None = None,
  ) -> None:
    """Creates the listener, and completes the lagged folder.

    Args:
      export_fn: exports.
      export_dir: folder of the versions.
      lagged_export_dir: folder of the exports that are one version behind.
      num_versions: number of versions to keep in each folder; None keeps all.
    """
    self._lagged_export_dir = os.fspath(lagged_export_dir)
    files.make_folders(self._lagged_export_dir)
    super().__init__(export_fn, export_dir, num_versions)
    newest = versions(self._export_dir)[-2:]
    if newest:
      self._copy(newest[0])

  def after_save(self, session: Any, global_step: int) -> str:
    """Exports, and copies the version before, or the first one itself."""
    before = versions(self._export_dir)[-1:]
    path = super().after_save(session, global_step)
    self._copy(before[0] if before else os.path.basename(os.path.normpath(path)))
    return path

  def _copy(self, name: str) -> None:
    source = os.path.join(self._export_dir, name)
    target = os.path.join(self._lagged_export_dir, name)
    if os.path.isdir(source) and not os.path.exists(target):
      with files.new_folder(target) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    self._remove_old(self._lagged_export_dir)


def versions(folder: str) -> list[str]:
  """Lists the names of a folder's versions, the oldest first, without hidden ones."""
  names = [name for name in os.listdir(folder) if not name.startswith(".")]
  return sorted(names, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else n))
