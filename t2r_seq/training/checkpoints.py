"""Checkpoints of a training run: saved, kept, and resumed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.training import stopping
from t2r_seq.training.trainer import Trainer


class NanLossError(RuntimeError):
  """Training stopped because a loss or a gradient was not finite."""


class Checkpoints:
  """The checkpoints of one folder, of finite weights only."""

  def __init__(
    self,
    trainer: Trainer,
    model_dir: str,
    keep_checkpoint_max: int,
    write_dir: str | None = None,
  ) -> None:
    """Creates the manager.

    Args:
      trainer: whose state is saved.
      model_dir: folder of the checkpoints.
      keep_checkpoint_max: older ones are deleted.
      write_dir: folder that this worker saves to, if it is another one.
    """
    self._trainer = trainer
    self._model_dir = model_dir
    self._checkpoint = trainer.checkpoint()
    self._manager = tf.train.CheckpointManager(
      self._checkpoint,
      write_dir or model_dir,
      keep_checkpoint_max,
      checkpoint_name="model.ckpt",
    )
    self._saved_step: int | None = None

  @property
  def latest(self) -> str | None:
    """Path prefix of the newest checkpoint whose files are there."""
    state = tf.train.get_checkpoint_state(self._model_dir)
    paths = state.all_model_checkpoint_paths if state else []
    found = [path for path in paths if tf.io.gfile.exists(f"{path}.index")]
    return found[-1] if found else None

  def restore(self) -> bool:
    """Resumes from the newest checkpoint, and says so.

    Returns:
      Whether there was one.
    Raises:
      SpecError: it is of another model, or damaged.
    """
    latest = self.latest
    if latest is None:
      return False
    try:
      status = self._checkpoint.restore(latest)
      status.assert_existing_objects_matched().assert_consumed()
    except (AssertionError, ValueError) as e:
      raise errors.SpecError(
        f"train_eval_model: {latest}: expected a checkpoint of this model and "
        f"optimizer, got one that does not fit: {_first_line(e)}. Use another "
        "model_dir, or the configuration that wrote it."
      ) from e
    except (IndexError, UnicodeDecodeError, tf.errors.OpError) as e:
      raise errors.SpecError(
        f"train_eval_model: {latest}: expected a readable checkpoint, got "
        f"{_first_line(e)}. Delete {latest}.* to resume at the one before it."
      ) from e
    self._saved_step = self._trainer.global_step
    logging.info("Resumed from checkpoint %s at step %d.", latest, self._saved_step)
    return True

  def save(self) -> None:
    """Saves a checkpoint of this step, unless there is one.

    Raises:
      NanLossError: a step since the last check was not finite.
    """
    self.check_finite()
    step = self._trainer.global_step
    if step != self._saved_step:
      self._manager.save(checkpoint_number=step)
      self._saved_step = step

  @contextlib.contextmanager
  def saved_on_interrupt(self) -> Iterator[None]:
    """Saves a last checkpoint when the run is stopped, by Ctrl-C or SIGTERM."""
    try:
      yield
    except (KeyboardInterrupt, stopping.Stopped):
      self.save()
      logging.info("Stopped at step %d; saved.", self._saved_step)
      raise

  def check_finite(self) -> None:
    """Raises NanLossError if a step of this run was not finite."""
    step = self._trainer.first_bad_step
    if step is not None:
      kept = self.latest or "none; it happened before the first save"
      raise NanLossError(
        f"train_eval_model: step {step}: expected a finite loss and finite gradients, "
        f"got nan or infinity. Training stopped; last good checkpoint: {kept}. Lower "
        "the learning rate, clip gradients, or look for bad values in the data."
      )


def _first_line(error: Exception) -> str:
  return str(error).strip().split("\n")[0].rstrip(".")
