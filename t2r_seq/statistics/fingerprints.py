"""Fingerprints of files: cheap, and another one after nearly any change."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping

import tensorflow as tf

_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


def file_fingerprints(filenames: Iterable[str]) -> dict[str, str]:
  """Returns the fingerprints of files.

  They hold the size and a checksum of 16 samples of 64 KiB, first and last bytes
  among them (of the whole file up to 1 MiB), and no times: a copy is not a change.

  Args:
    filenames: the files.
  Returns:
    Texts by name, relative to the folder that the files have in common.
  """
  names = [name if "://" in name else os.path.abspath(name) for name in filenames]
  folders = [name.split("/")[:-1] for name in names]
  num_common = 0
  while all(
    parts[: num_common + 1] == folders[0][: num_common + 1] for parts in folders
  ):
    if num_common == len(folders[0]):
      break
    num_common += 1
  return {"/".join(name.split("/")[num_common:]): _fingerprint(name) for name in names}


def find_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
  """Says which files have changed between two fingerprints, sorted by name.

  Args:
    before: fingerprints by name.
    now: the same, later.
  Returns:
    Such as "a.tfrecord has changed", "b.tfrecord is gone", "c.tfrecord is new".
  """
  changes = []
  for name in sorted({*before, *now}):
    if name not in now:
      changes.append(f"{name} is gone")
    elif name not in before:
      changes.append(f"{name} is new")
    elif before[name] != now[name]:
      changes.append(f"{name} has changed")
  return changes


def _fingerprint(name: str) -> str:
  with tf.io.gfile.GFile(name, "rb") as file:
    size = file.size()
    last = max(size - _SAMPLE_BYTES, 0)
    step = _SAMPLE_BYTES
    if size > _SAMPLES * _SAMPLE_BYTES:
      step = -(-last // (_SAMPLES - 1))
    crc = 0
    for start in [*range(0, last, step), last]:
      file.seek(start)
      crc = zlib.crc32(file.read(_SAMPLE_BYTES), crc)
  return f"{size}-{crc:08x}"
