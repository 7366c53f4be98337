"""Checkpoints of a training run: saves them whole, keeps the newest, resumes from them.

The order of the input is a function of a seed and a batch number. So the step is enough
to resume it if batch size and order stay the same; see `resume_batch`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, files
from t2r_seq.data.plan import STATELESS_ORDERS
from t2r_seq.policies.checkpoint_predictor import weight_keys
from t2r_seq.training import stopping, workers
from t2r_seq.training.trainer import Trainer

_FILE = re.compile(r"model\.ckpt-(\d+)\.(?:index|data-\d{5}-of-\d{5})")
_STATE = "checkpoint"
# Options of the input, with the step and the batch number at which the run began.
INPUT_POSITION = "train.input.json"
# Holds the last step of a training that has ended.
_FINISHED = "train.finished"
# The folder of a checkpoint that is whole, before its files are moved out of it.
_WHOLE = "whole-"
# TensorFlow's errors for a damaged checkpoint.
DAMAGE = (tf.errors.OpError, IndexError, OverflowError, RuntimeError, ValueError)


class NanLossError(RuntimeError):
  """Training stopped because a loss or a gradient was not finite."""


class Checkpoints:
  """The checkpoints of one folder, with finite weights only.

  They are found by their files, `model.ckpt-<step>.index` and `.data-*`. The file
  `checkpoint` is written for other programs and never read here: it may be missing,
  damaged or stale. A checkpoint is read back and synced to disk before it gets its
  name, so a checkpoint with its name is whole.
  """

  def __init__(
    self,
    trainer: Trainer,
    model_dir: str,
    keep_checkpoint_max: int,
    write_dir: str | None = None,
    is_owner: bool = True,
  ) -> None:
    """Creates the manager.

    Args:
      trainer: trainer with the state to save.
      model_dir: folder of the checkpoints.
      keep_checkpoint_max: number of newest checkpoints to keep.
      write_dir: folder that this worker saves to; None: `model_dir`.
      is_owner: whether no other process writes to `model_dir`. Then leftovers of a
        killed run are removed, and damaged checkpoints are moved.
    """
    self._trainer = trainer
    self._model_dir = model_dir
    self._checkpoint = trainer.checkpoint()
    self._keep = keep_checkpoint_max
    self._write_dir = write_dir or model_dir
    self._is_owner = is_owner and self._write_dir == model_dir
    self._saved_step: int | None = None

  @property
  def folder(self) -> str:
    """The folder of the checkpoints."""
    return self._model_dir

  @property
  def latest(self) -> str | None:
    """Path prefix of the newest checkpoint, if there is one."""
    numbers = steps(self._model_dir)
    return _prefix(self._model_dir, numbers[-1]) if numbers else None

  def restore(self) -> bool:
    """Resumes from the newest whole checkpoint, and logs it.

    The owner moves newer damaged ones to folders `damaged-model.ckpt-<step>`.

    Returns:
      Whether there was one.
    Raises:
      SpecError: the checkpoint is of another model, or all are damaged.
      OSError: a file cannot be read or moved.
    """
    damaged: dict[int, str] = {}
    step: int | None = None
    if workers.is_chief(self._trainer.strategy):
      if self._is_owner:
        _publish_whole(self._model_dir)
      step, damaged = _newest_whole(self._model_dir)
    step = workers.of_chief(self._trainer.strategy, step)
    if step is None:
      return False
    self.load(step)
    for other, reason in damaged.items():
      place = _prefix(self._model_dir, other)
      if self._is_owner:
        place = f"{place} was moved to {_set_aside(self._model_dir, other)}"
      logging.warning(
        "Checkpoint %s: it is damaged: %s. An older one is used.", place, reason
      )
    self._saved_step = step
    latest = _prefix(self._model_dir, step)
    logging.info("Resumed from checkpoint %s at step %d.", latest, step)
    return True

  def load(self, step: int) -> None:
    """Restores the checkpoint of a step.

    Raises:
      SpecError: the checkpoint is of another model or another step.
    """
    prefix = _prefix(self._model_dir, step)
    try:
      self._check_weights(prefix)
      status = self._checkpoint.restore(prefix)
      status.assert_existing_objects_matched().assert_consumed()
    except errors.SpecError:
      raise
    except (AssertionError, ValueError, tf.errors.OpError) as e:
      raise errors.SpecError(
        f"train_eval_model: {prefix}: expected a checkpoint of this model and "
        f"optimizer, got one that does not fit: {_first_line(e)}. Use another "
        "model_dir, or the configuration that wrote it."
      ) from e
    if self._trainer.global_step != step:
      raise errors.SpecError(
        f"train_eval_model: {prefix}: expected a checkpoint of step {step}, got one of "
        f"step {self._trainer.global_step}. Rename its files."
      )

  def _check_weights(self, prefix: str) -> None:
    """Compares names and shapes of the weights with the model's.

    TensorFlow compares them only after it has restored some. Its error names one, and
    it logs a line for each of the others.

    Raises:
      SpecError: lists the weights that differ.
    """
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    stored = {name: tuple(shapes[key]) for name, key in weight_keys(shapes).items()}
    model = {
      name: tuple(variable.shape)
      for name, variable in self._trainer.model.named_variables.items()
    }
    differing = [
      f"{name} {stored.get(name, 'missing')}, expected {model.get(name, 'none')}"
      for name in sorted({*stored, *model})
      if stored.get(name) != model.get(name)
    ]
    if differing:
      raise errors.SpecError(
        f"train_eval_model: {prefix}: expected a checkpoint of this model, got one "
        f"of another with {len(differing)} other weights: {errors.listing(differing)}. "
        "Use another model_dir, or the configuration that wrote it."
      )

  def save(self) -> None:
    """Saves a checkpoint of this step, unless there is one.

    Raises:
      NanLossError: a step of this run was not finite.
      OSError: the checkpoint cannot be written or read back; older ones are unchanged.
    """
    self.check_finite()
    averages = self._trainer.model.averages
    if averages:
      averages.put_back()  # An interrupted evaluation may have left them in place.
    step = self._trainer.global_step
    if step == self._saved_step:
      return
    try:
      self._write(step)
    except (OSError, *DAMAGE) as e:
      place = _prefix(self._model_dir, step)
      raise errors.unwritten(
        f"train_eval_model: {place}: expected to save a checkpoint",
        e,
        f"The newest whole one is {self.latest or 'none'}. Make room, or mend the "
        "disk, and run the same command again.",
      ) from e
    self._saved_step = step

  def _write(self, step: int) -> None:
    folder, name = self._write_dir, f"model.ckpt-{step}"
    _publish_whole(folder)  # Leftovers of a killed run.
    with files.new_folder(os.path.join(folder, _WHOLE + name)) as partial:
      # Unlike `save`, `write` stores no counter, and `Checkpoint.restore` expects one.
      self._checkpoint.save_counter.assign_add(1)
      prefix = os.path.join(partial, name)
      self._checkpoint.write(prefix)
      _read_through(prefix)
    _publish_whole(folder)
    present = steps(folder)
    _write_state(folder, present[-self._keep :])
    for old in present[: -self._keep]:
      for path in _files(folder, old):
        os.remove(path)

  @contextlib.contextmanager
  def saved_on_interrupt(self, signal: stopping.StopSignal) -> Iterator[None]:
    """Saves a last checkpoint when a signal stops the run; signals cannot interrupt it.

    Several workers would have to save together, and only one gets the signal, so they
    do not save: they resume from their last checkpoint.

    Args:
      signal: stop signal of the run.
    """
    try:
      yield
    except (KeyboardInterrupt, stopping.Stopped):
      if not workers.is_multi_worker(self._trainer.strategy):
        with signal.held():
          self.save()
        logging.info("Stopped at step %d; saved.", self._saved_step)
      raise

  def check_finite(self) -> None:
    """Raises NanLossError if a step of this run was not finite."""
    step = self._trainer.first_bad_step
    if step is not None:
      last = self.latest or "none; it happened before the first save"
      raise NanLossError(
        f"train_eval_model: step {step}: expected a finite loss and finite gradients, "
        f"got nan or infinity. Training stopped; last good checkpoint: {last}. Lower "
        "the learning rate, clip gradients, or look for bad values in the data."
      )


def _prefix(folder: str, step: int) -> str:
  return os.path.join(folder, f"model.ckpt-{step}")


def steps(folder: str) -> list[int]:
  """Returns the steps of the checkpoint files in a folder, oldest first."""
  matches = filter(None, map(_FILE.fullmatch, os.listdir(folder)))
  return sorted({int(match[1]) for match in matches})


def _files(folder: str, step: int) -> list[str]:
  """Lists the files of a checkpoint, the index last."""
  names = [name for name in os.listdir(folder) if _FILE.fullmatch(name)]
  step_files = sorted(name for name in names if name.startswith(f"model.ckpt-{step}."))
  return [os.path.join(folder, name) for name in step_files]


def identity(folder: str, step: int) -> str | None:
  """Returns the checksum of a checkpoint's index, or None if it is missing.

  It identifies the contents, as the index has the checksums of all tensors.
  """
  try:
    with open(f"{_prefix(folder, step)}.index", "rb") as f:
      return hashlib.sha1(f.read(), usedforsecurity=False).hexdigest()
  except FileNotFoundError:
    return None


def back_up(folder: str, step: int, place: str) -> bool:
  """Links or copies a checkpoint to a folder where it is not deleted.

  Returns:
    False if it was already deleted.
  Raises:
    Exception: one of `DAMAGE`, if the checkpoint is damaged.
  """
  paths = _files(folder, step)
  for path in paths:
    copy = os.path.join(place, os.path.basename(path))
    try:
      os.link(path, copy)
    except FileNotFoundError:
      return False
    except OSError:  # The file system has no links.
      shutil.copyfile(path, copy)
  try:
    _read_through(_prefix(place, step))
  except DAMAGE:
    if _files(folder, step) != paths:
      return False
    raise
  return True


def mark_finished(folder: str, step: int | None) -> None:
  """Records beside the checkpoints, for `continuous_eval`, that the training has ended.

  Args:
    folder: folder of the checkpoints.
    step: last step; None removes the record, as the training goes further.
  """
  path = os.path.join(folder, _FINISHED)
  if step is not None:
    files.replace_file(path, f"{step}\n".encode())
  elif os.path.exists(path):
    os.remove(path)


def is_finished(folder: str) -> bool:
  """Whether the training in a folder has ended and was not started again."""
  return os.path.exists(os.path.join(folder, _FINISHED))


def _publish_whole(folder: str) -> None:
  """Moves files of whole checkpoints to their names; removes partial checkpoints."""
  for name in os.listdir(folder):
    path = os.path.join(folder, name)
    if name.startswith(f"{_WHOLE}model.ckpt-"):
      for file in _files(path, int(name.rpartition("-")[2])):
        os.replace(file, os.path.join(folder, os.path.basename(file)))
      # Syncs the names before the folder goes, which marks the files as whole.
      files.sync_folder(folder)
      shutil.rmtree(path)
    elif name.startswith(f".{_WHOLE}model.ckpt-"):
      shutil.rmtree(path)


def _newest_whole(folder: str) -> tuple[int | None, dict[int, str]]:
  """Finds the step to resume at, and the faults of newer checkpoints.

  Raises:
    SpecError: there are checkpoints, and all are damaged.
  """
  damaged: dict[int, str] = {}
  for step in reversed(steps(folder)):
    try:
      _read_through(_prefix(folder, step))
    except DAMAGE as e:
      damaged[step] = _first_line(e)
    else:
      return step, damaged
  if damaged:
    mismatches = [
      errors.Mismatch(_prefix(folder, step), "a readable checkpoint", reason)
      for step, reason in damaged.items()
    ]
    error: errors.SpecError = errors.mismatch_error("train_eval_model", mismatches)
    hint = "None is left: put one there from a copy, or use another model_dir."
    raise errors.SpecError(f"{error} {hint}")
  return None, damaged


def _read_through(prefix: str) -> None:
  """Reads every tensor of a checkpoint; TensorFlow compares their checksums.

  Raises:
    OSError: a file cannot be read, which is not damage.
    Exception: one of `DAMAGE`, if the checkpoint is damaged.
  """
  folder, name = os.path.split(prefix)
  for path in _files(folder, int(name.rpartition("-")[2])):
    with open(path, "rb"):
      pass
  reader = tf.train.load_checkpoint(prefix)
  for tensor in reader.get_variable_to_shape_map():
    reader.get_tensor(tensor)


def _set_aside(folder: str, step: int) -> str:
  """Moves a damaged checkpoint's files to a new folder; returns it."""
  base = os.path.join(folder, f"damaged-model.ckpt-{step}")
  place, number = base, 1
  while os.path.exists(place):
    number += 1
    place = f"{base}-{number}"
  os.mkdir(place)
  for path in _files(folder, step):
    os.rename(path, os.path.join(place, os.path.basename(path)))
  files.sync_folder(folder)
  return place


def _write_state(folder: str, steps: list[int]) -> None:
  """Writes the file for `tf.train.latest_checkpoint`, with relative paths."""
  lines = [f'model_checkpoint_path: "model.ckpt-{steps[-1]}"']
  lines += [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in steps]
  text = "".join(f"{line}\n" for line in lines)
  files.replace_file(os.path.join(folder, _STATE), text.encode())


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def resume_batch(
  folder: str, step: int, options: dict[str, Any], is_chief: bool
) -> int:
  """Returns the number of the batch that the training resumes with.

  If only the batch size changed, the input continues at the next whole batch of the new
  size, if the order allows it. Other changes are logged as a warning.

  Args:
    folder: folder of the checkpoints.
    step: step that the training resumes at.
    options: `AbstractInputGenerator.position_options` and the number of 'shards'; {} if
      the order cannot be resumed.
    is_chief: whether this process writes `INPUT_POSITION`.
  """
  path = os.path.join(folder, INPUT_POSITION)
  before = _read_position(path) if step else None
  batch = step
  if before is not None:
    batch = max(before["batch"] + step - before["step"], 0)
    changed = {
      name: value
      for name, value in before["options"].items()
      if name in options and options[name] != value
    }
    if set(changed) == {"batch_size"} and _is_continued(options):
      batch = _continue(batch, step, before["options"], options)
    elif changed:
      changes = ", ".join(f"{k} {v!r}, now {options[k]!r}" for k, v in changed.items())
      logging.warning(
        "train_eval_model: %s: expected to resume the input that the run began with, "
        "got another one: %s. After step %d samples of this pass are repeated or left "
        "out. Resume with the options as they were, or train in another model_dir "
        "(init_from_checkpoint_fn takes the weights along).",
        *(folder, changes, step),
      )
  if is_chief and options:
    content = {"step": step, "batch": batch, "options": options}
    files.replace_file(path, json.dumps(content).encode())
  return batch


def _is_continued(options: dict[str, Any]) -> bool:
  """Whether a sample's place in the order does not depend on the batch size."""
  is_stateless = options.get("order") in STATELESS_ORDERS
  return is_stateless and bool(options.get("examples")) and options["shards"] == 1


def _continue(
  batch: int, step: int, before: dict[str, Any], options: dict[str, Any]
) -> int:
  """Returns the first batch of the new size whose samples have not been used."""
  epoch, in_epoch = divmod(batch, _batches_per_epoch(before))
  num_seen = in_epoch * before["batch_size"]
  size = options["batch_size"]
  number = min(-(-num_seen // size), _batches_per_epoch(options))
  logging.info(
    "The batch size is %d, and was %d before step %d: the input continues at sample %d "
    "of epoch %d, with %d samples left out to fill batches.",
    *(size, before["batch_size"], step, number * size, epoch),
    max(number * size - num_seen, 0),
  )
  return epoch * _batches_per_epoch(options) + number


def _batches_per_epoch(options: dict[str, Any]) -> int:
  size = options["batch_size"]
  rest = 0 if options["drop_remainder"] else size - 1
  return max((options["examples"] + rest) // size, 1)


def _read_position(path: str) -> dict[str, Any] | None:
  """Returns the file's contents; None if it is missing or damaged."""
  try:
    with open(path, encoding="utf-8") as file:
      values = json.load(file)
    return {
      "step": int(values["step"]),
      "batch": int(values["batch"]),
      "options": dict(values["options"]),
    }
  except FileNotFoundError:
    return None
  except (KeyError, TypeError, ValueError) as error:
    logging.warning("train_eval_model: %s: expected JSON, got %s.", path, error)
    return None
