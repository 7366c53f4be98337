"""Files and folders that are whole, or not there, whenever the power goes."""

from __future__ import annotations

import os


def make_folders(path: str | os.PathLike[str]) -> None:
  """Makes a folder and the parents that are missing, and puts their names on the disk.

  To sync the last folder alone would not do: after a power cut it may be whole, and in
  a folder that is not there.

  Args:
    path: of the folder; it may be there already.
  Raises:
    OSError: a folder cannot be made.
  """
  folder = os.path.abspath(path)
  made = []
  while not os.path.isdir(folder):
    made.append(folder)
    folder = os.path.dirname(folder)
  os.makedirs(path, exist_ok=True)
  for each in (*made, folder) if made else ():
    sync_folder(each)


def sync_folder(path: str | os.PathLike[str]) -> None:
  """Returns when the names of a folder's files are on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
