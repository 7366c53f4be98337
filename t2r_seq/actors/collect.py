"""Collection of episodes into record files."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, windows
from t2r_seq.actors import features as features_lib
from t2r_seq.actors import metrics as metrics_lib
from t2r_seq.actors import rollouts

_COMPRESSION_SUFFIXES = (".gz", ".zz", ".zlib")


@gin.configurable
def collect_episodes(
  env: Any = gin.REQUIRED,
  policy: Any = gin.REQUIRED,
  spec: Any = gin.REQUIRED,
  num_episodes: int = gin.REQUIRED,
  output_path: str = gin.REQUIRED,
  seed: int = 0,
  episodes_per_file: int | None = None,
  episode_to_features_fn: Callable[[rollouts.Episode], Any] | None = None,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
) -> dict[str, Any]:
  """Runs a policy and writes its episodes, flat, one record an episode.

  Each file appears only when it is complete, so a killed collection leaves whole files
  or none. The same seed writes the same episodes, whatever `episodes_per_file` is.

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
    policy: an object with `reset()` and `sample_action(obs, explore_prob)`; restored
      first if it has `restore()`.
    spec: what is stored: a spec structure (or a function without arguments that
      returns one); of windowed specs, the flat specs are stored.
    num_episodes: how many episodes, >= 1.
    output_path: the file to write. With `episodes_per_file`, 'a/train.tfrecord' becomes
      'a/train-00000-of-00004.tfrecord' and so on. A suffix '.gz' compresses.
    seed: of the run; makes environment and policy repeatable.
    episodes_per_file: None writes one file.
    episode_to_features_fn: steps -> numpy structure that matches `spec`; None takes
      `episode_to_features`.
    explore_prob: is handed to the policy with each observation.
    max_steps: cuts an episode off.
  Returns:
    The metrics of `run_env`, and 'files': the paths written.
  Raises:
    ValueError: a count is below 1, or `output_path` was collected before into another
      number of files; nothing is run.
    SpecError: an episode doesn't match the specs.
  """
  if episodes_per_file is not None and episodes_per_file < 1:
    raise ValueError(
      f"collect episodes: episodes_per_file must be >= 1, got {episodes_per_file}."
    )
  flat_spec = windows.flat_specs(spec() if callable(spec) else spec)
  to_features = episode_to_features_fn or functools.partial(
    features_lib.episode_to_features, spec=flat_spec
  )
  files = [output_path]
  if episodes_per_file is not None:
    files = shard_paths(output_path, math.ceil(num_episodes / episodes_per_file))
  _check_no_other_shards(output_path, files)
  metrics_lib.restore_policy(policy)
  tally = metrics_lib.EpisodeTally()
  episodes = rollouts.generate_episodes(
    env, policy, num_episodes, seed, explore_prob, max_steps
  )
  with contextlib.closing(episodes):
    for path in files:
      shard = _take(episodes, episodes_per_file or num_episodes, tally, to_features)
      records.write_records(path, flat_spec, shard)
      logging.info("Collected %d episodes; wrote %s.", tally.num_episodes, path)
  return {**tally.metrics(), "files": files}


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


def _split_suffixes(output_path: str) -> tuple[str, str, str]:
  """Splits 'a.tfrecord.gz' into ('a', '.tfrecord', '.gz')."""
  root, compression = output_path, ""
  for suffix in _COMPRESSION_SUFFIXES:
    if root.lower().endswith(suffix):
      root, compression = root[: -len(suffix)], root[-len(suffix) :]
      break
  return (*os.path.splitext(root), compression)


def _check_no_other_shards(output_path: str, files: list[str]) -> None:
  """Refuses to leave files of an earlier run beside the new ones.

  A pattern that means one collection would read both.
  """
  root, extension, _ = _split_suffixes(output_path)
  folder, base = os.path.split(root)
  compressions = "|".join(map(re.escape, _COMPRESSION_SUFFIXES))
  same_base = re.compile(
    rf"{re.escape(base)}(-\d{{5,}}-of-\d{{5,}})?{re.escape(extension)}({compressions})?"
  )
  if not tf.io.gfile.isdir(folder or "."):
    return
  new = {os.path.basename(path) for path in files}
  names = tf.io.gfile.listdir(folder or ".")
  old = [name for name in names if same_base.fullmatch(name) and name not in new]
  if old:
    raise ValueError(
      f"collect episodes: output_path: {output_path}: expected no files but those that "
      f"are replaced, got {len(old)} of an earlier collection, "
      f"{errors.listing(old, limit=6)}, which would be read along with the new ones. "
      "Delete them, or choose another output_path."
    )


def _take(
  episodes: Iterator[rollouts.Episode],
  count: int,
  tally: metrics_lib.EpisodeTally,
  to_features: Callable[[rollouts.Episode], Any],
) -> Iterator[Any]:
  """Yields the records of the next `count` episodes."""
  for _, steps in zip(range(count), episodes, strict=False):
    tally.add(steps)
    yield to_features(steps)
