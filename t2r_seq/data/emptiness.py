"""The errors about data that gives no example."""

from __future__ import annotations

from t2r_seq import errors


def too_short_error(
  where: str, min_steps: int, num_episodes: int, longest: int
) -> errors.RecordError:
  """Builds the error for episodes none of which is as long as a window.

  Args:
    where: which generator reads what.
    min_steps: of a window.
    num_episodes: that were read, all of them too short.
    longest: steps of the longest of them.
  Returns:
    The error, to be raised by the caller.
  """
  return errors.RecordError(
    f"{where}: expected episodes with at least the {min_steps} steps of a window, got "
    f"none: all {num_episodes} episodes are shorter; the longest has {longest}. "
    "Use longer episodes, a smaller span or sequence_length, or padding 'repeat'."
  )


def too_few_error(where: str, num_needed: int, num_found: int) -> errors.RecordError:
  """Builds the error for examples that do not fill one batch.

  Args:
    where: which generator reads what.
    num_needed: examples of a batch.
    num_found: examples that there are.
  Returns:
    The error, to be raised by the caller.
  """
  return errors.RecordError(
    f"{where}: expected at least the {num_needed} examples of one batch, got "
    f"{num_found}. Use a smaller batch_size, or drop_remainder=False."
  )
