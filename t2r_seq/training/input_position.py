"""Where the training input resumes: a batch number, kept beside the checkpoints.

Orders are functions of a seed and a batch number, so a step is enough to resume, as
long as the batch size and the order stay the same. What they were is kept in a file.
"""

from __future__ import annotations

import json
import os
from typing import Any

from absl import logging

from t2r_seq import files
from t2r_seq.data.plan import STATELESS_ORDERS

FILENAME = "train.input.json"


def resume_batch(
  folder: str, step: int, options: dict[str, Any], is_chief: bool
) -> int:
  """Returns the number of the batch that the training resumes with.

  If only the batch size changed, the input continues at the same sample, in the orders
  that allow it. Other changes are logged.

  Args:
    folder: of the checkpoints.
    step: that the training resumes at.
    options: of the order, see `AbstractInputGenerator.position_options`.
    is_chief: whether this process writes the file.
  """
  path = os.path.join(folder, FILENAME)
  before = _read(path) if step else None
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
      shown = ", ".join(f"{k} {v!r}, now {options[k]!r}" for k, v in changed.items())
      logging.warning(
        "train_eval_model: %s: expected to resume the input that the run began with, "
        "got another one: %s. After step %d samples of this pass are repeated or left "
        "out. Resume with the options as they were, or train in another model_dir "
        "(init_from_checkpoint_fn takes the weights along).",
        *(folder, shown, step),
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
  """Returns the first new batch whose samples have not been shown."""
  epoch, in_epoch = divmod(batch, _batches_per_epoch(before))
  shown = in_epoch * before["batch_size"]
  size = options["batch_size"]
  number = min(-(-shown // size), _batches_per_epoch(options))
  logging.info(
    "The batch size is %d, and was %d before step %d: the input continues at sample %d "
    "of epoch %d, with %d samples left out to fill batches.",
    *(size, before["batch_size"], step, number * size, epoch),
    max(number * size - shown, 0),
  )
  return epoch * _batches_per_epoch(options) + number


def _batches_per_epoch(options: dict[str, Any]) -> int:
  size = options["batch_size"]
  rest = 0 if options["drop_remainder"] else size - 1
  return max((options["examples"] + rest) // size, 1)


def _read(path: str) -> dict[str, Any] | None:
  """Returns what the file holds; None if it is missing or damaged."""
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
