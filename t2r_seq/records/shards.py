"""Names of sharded files: 'a-00000-of-00002.tfrecord' and so on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import tensorflow as tf

_COMPRESSION_SUFFIXES = (".gz", ".zz", ".zlib")


def shard_paths(output_path: str, num_shards: int) -> list[str]:
  """Returns the names of a sharded file: 'a-00000-of-00002.tfrecord' and so on.

  Args:
    output_path: the name without shards; its suffixes stay at the end.
    num_shards: how many.
  """
  root, extension, compression = _split_suffixes(output_path)
  return [
    f"{root}-{shard:05d}-of-{num_shards:05d}{extension}{compression}"
    for shard in range(num_shards)
  ]


def token_path(output_path: str, token: str) -> str:
  """Returns 'a-<token>.tfrecord' for 'a.tfrecord': a name that nobody else has."""
  root, extension, compression = _split_suffixes(output_path)
  return f"{root}-{token}{extension}{compression}"


def other_shards(output_path: str, files: Iterable[str]) -> list[str]:
  """Finds files of earlier runs that a pattern would read along with the new ones.

  Args:
    output_path: the name without shards.
    files: those that are to be written.
  Returns:
    The names of files in the same folder that are `output_path` or a shard of it,
    compressed or not, and not among `files`.
  """
  root, extension, _ = _split_suffixes(output_path)
  folder, base = os.path.split(root)
  compressions = "|".join(map(re.escape, _COMPRESSION_SUFFIXES))
  same_base = re.compile(
    rf"{re.escape(base)}(-\d{{5,}}-of-\d{{5,}})?{re.escape(extension)}({compressions})?"
  )
  if not tf.io.gfile.isdir(folder or "."):
    return []
  new = {os.path.basename(path) for path in files}
  names = tf.io.gfile.listdir(folder or ".")
  return [name for name in names if same_base.fullmatch(name) and name not in new]


def _split_suffixes(output_path: str) -> tuple[str, str, str]:
  """Splits 'a.tfrecord.gz' into ('a', '.tfrecord', '.gz')."""
  root, compression = output_path, ""
  for suffix in _COMPRESSION_SUFFIXES:
    if root.lower().endswith(suffix):
      root, compression = root[: -len(suffix)], root[-len(suffix) :]
      break
  return (*os.path.splitext(root), compression)
