"""One writer per segment, enforced by the operating system."""

from __future__ import annotations

import os

from t2r_seq import errors, files
from t2r_seq.store import layout


def lock_segment(folder: str) -> files.FileLock:
  """Holds a segment for one writer; a process that dies lets go of it.

  Args:
    folder: of the segment; made if it is missing, or a merge removes it meanwhile.
  Returns:
    The lock.
  Raises:
    StoreError: another writer holds it.
  """

  def refusal(holder: str) -> errors.StoreError:
    return errors.StoreError(
      f"EpisodeStore: {folder}: expected no other writer, got {holder}. Close that "
      "one, or write beside it: EpisodeStore.append(path, segment='another-name')."
    )

  while True:
    os.makedirs(folder, exist_ok=True)
    try:
      return files.FileLock(os.path.join(folder, layout.LOCK), refusal)
    except FileNotFoundError:
      continue  # A merge removed the folder.


def is_locked(folder: str) -> bool:
  """Whether a writer holds the segment just now."""
  return files.is_locked(os.path.join(folder, layout.LOCK))
