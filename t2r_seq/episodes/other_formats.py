"""Formats of robot data that are not read, and what to do about each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_WITH_PYTHON = (
  "Read them with Python, and write the episodes to a store: EpisodeStore.create"
)
# Formats of robot data that cannot be read: file names, format, what to do.
_OTHER_FORMATS = (
  (r"episode_\d+\.npz", "CALVIN's steps, an .npz file each", _WITH_PYTHON),
  (
    r".*\.db3",
    "a bag of ROS 2 in SQLite",
    "Make MCAP of it: mcap convert a.db3 a.mcap",
  ),
  (r".*\.bag", "a bag of ROS 1", "Make MCAP of it: mcap convert a.bag a.mcap"),
  (
    r".*\.(tar|tar\.\w+|tgz)",
    "tar archives (WebDataset)",
    "Unpack them. Samples of WebDataset can be written to a store with Python: "
    "EpisodeStore.create",
  ),
  (
    r".*\.parquet",
    "Parquet files",
    "Of a dataset of LeRobot's, name the folder that has meta/info.json. If there is "
    "none, read them with Python, and write the episodes to a store: "
    "EpisodeStore.create",
  ),
  (
    r".*\.(pkl|pickle|p)",
    "Python pickles",
    "Unpickling runs code: it is not done. Load those that you trust with Python, and "
    "write the episodes to a store: EpisodeStore.create",
  ),
  (r".*\.(npz|npy)", "numpy files", _WITH_PYTHON),
)


def other_format(names: Iterable[str]) -> tuple[str, str] | None:
  """Recognises formats of robot data that are not read.

  Args:
    names: of files.
  Returns:
    What the files are, and a sentence that says what to do; None if unknown.
  """
  bases = [os.path.basename(name).lower() for name in names]
  for pattern, what, hint in _OTHER_FORMATS:
    if any(re.fullmatch(pattern, base) for base in bases):
      return what, f"{hint}."
  return None
