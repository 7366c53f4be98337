"""Writing steps to a store and episodes to records, against hand-written loops.

Run it as `python -m benchmarks.bench_writing [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import measure
from benchmarks.store import works
from t2r_seq import records, specs
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
Episode = dict[str, Any]
_FLOATS = {
  "state": Spec((17,), tf.float32, "state", is_sequence=True),
  "action": Spec((6,), tf.float32, "action", is_sequence=True),
  "reward": Spec((), tf.float32, "reward", is_sequence=True),
}


@dataclasses.dataclass(frozen=True)
class Work:
  """Episodes to write to an empty folder.

  Attributes:
    kind: 'floats', 'JPEG' or 'raw'; the images have the floats beside them.
    folder: where the files are written.
    num_episodes: episodes in a round; a few are held in memory and used in turns.
    num_steps: steps of each episode.
    image_size: height and width of the images.
    sync_every: episodes between two syncs to the disk.
  """

  kind: str
  folder: str
  num_episodes: int
  num_steps: int = 250
  image_size: int = 96
  sync_every: int = 20

  @property
  def spec(self) -> dict[str, Spec]:
    """One step."""
    shape = (self.image_size, self.image_size, 3)
    data_format = {"floats": None, "JPEG": "jpeg", "raw": "raw"}[self.kind]
    image = Spec(shape, tf.uint8, "image", is_sequence=True, data_format=data_format)
    return _FLOATS if data_format is None else {**_FLOATS, "image": image}

  def make_episodes(self) -> list[Episode]:
    """Returns the distinct episodes, arrays [T, ...] by path."""
    rng = np.random.default_rng(0)
    size = works.Work("", 4, self.num_steps, self.image_size, self.kind == "JPEG")
    return [
      {
        path: episode["image"]
        if path == "image"
        else rng.standard_normal((self.num_steps, *spec.shape), np.float32)
        for path, spec in self.spec.items()
      }
      for episode in works.make_episodes(size)
    ]


def append_steps(work: Work) -> measure.Run:
  """Appends step by step to a store; units are steps."""

  def write(folder: str, episodes: list[list[Episode]]) -> None:
    spec, every = work.spec, work.sync_every
    with EpisodeStore.create(f"{folder}/store", spec, commit_every=every) as writer:
      for steps in episodes:
        for step in steps:
          writer.append_step(step)
        writer.end_episode()

  return _write_all(work, write, _split_steps)


def write_columns(work: Work) -> measure.Run:
  """Writes each step to a file a column, and the ends of images to another."""

  def write(folder: str, episodes: list[list[Episode]]) -> None:
    targets = {
      name: open(os.path.join(folder, name), "wb")  # noqa: SIM115
      for name in (*work.spec, "ends")
    }
    columns = [(path, targets[path].write) for path in work.spec]
    write_end, end = targets["ends"].write, 0
    for number, steps in enumerate(episodes, 1):
      for step in steps:
        for path, write in columns:
          write(step[path])
        if work.kind == "JPEG":
          end += len(step["image"])
          write_end(end.to_bytes(8, "little"))
      if number % work.sync_every == 0 or number == len(episodes):
        for target in targets.values():
          target.flush()
          os.fsync(target.fileno())
    for target in targets.values():
      target.close()

  return _write_all(work, write, _split_steps)


def write_records(work: Work) -> measure.Run:
  """Writes an episode a record; units are steps."""

  def write(folder: str, episodes: list[Episode]) -> None:
    records.write_records(f"{folder}/episodes.tfrecord", work.spec, episodes)

  return _write_all(work, write)


def write_protos(work: Work) -> measure.Run:
  """Fills `tf.train.SequenceExample` by hand, a feature a step."""

  def to_feature(value: Any) -> tf.train.Feature:
    if isinstance(value, bytes):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    if value.dtype == np.uint8:
      return to_feature(value.tobytes())
    values = value.ravel().tolist()
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))

  def write(folder: str, episodes: list[Episode]) -> None:
    path = f"{folder}/episodes.tfrecord"
    with tf.io.TFRecordWriter(path) as writer:
      for episode in episodes:
        lists = {
          path: tf.train.FeatureList(feature=[to_feature(v) for v in values])
          for path, values in episode.items()
        }
        steps = tf.train.FeatureLists(feature_list=lists)
        proto = tf.train.SequenceExample(feature_lists=steps)
        writer.write(proto.SerializeToString())
    with open(path, "rb") as file:
      os.fsync(file.fileno())

  return _write_all(work, write)


def write_step_records(work: Work) -> measure.Run:
  """Writes a step a record; units are steps."""
  spec = {path: Spec.from_spec(s, is_sequence=False) for path, s in work.spec.items()}

  def write(folder: str, episodes: list[list[Episode]]) -> None:
    steps = (step for steps in episodes for step in steps)
    records.write_records(f"{folder}/steps.tfrecord", spec, steps)

  return _write_all(work, write, _split_steps)


def write_step_protos(work: Work) -> measure.Run:
  """Fills a `tf.train.Example` a step by hand."""

  def write(folder: str, episodes: list[list[Episode]]) -> None:
    path = f"{folder}/steps.tfrecord"
    with tf.io.TFRecordWriter(path) as writer:
      for steps in episodes:
        for step in steps:
          features = {
            path: tf.train.Feature(
              float_list=tf.train.FloatList(value=value.ravel().tolist())
            )
            for path, value in step.items()
          }
          proto = tf.train.Example(features=tf.train.Features(feature=features))
          writer.write(proto.SerializeToString())
    with open(path, "rb") as file:
      os.fsync(file.fileno())

  return _write_all(work, write, _split_steps)


def _split_steps(episode: Episode) -> list[Episode]:
  names = list(episode)
  return [
    dict(zip(names, step, strict=True)) for step in zip(*episode.values(), strict=True)
  ]


def _write_all(
  work: Work,
  write: Callable[[str, list[Any]], None],
  prepare: Callable[[Episode], Any] = lambda episode: episode,
) -> measure.Run:
  held = [prepare(episode) for episode in work.make_episodes()]
  episodes = [held[i % len(held)] for i in range(work.num_episodes)]
  folders: list[str] = []

  def run() -> measure.Round:
    for folder in folders:
      shutil.rmtree(folder)
    folders[:] = [tempfile.mkdtemp(dir=work.folder)]
    os.sync()

    def do_round() -> int:
      write(folders[0], episodes)
      return work.num_episodes * work.num_steps

    return do_round

  return run


def _candidates(
  ours: Callable[[Any], measure.Run], by_hand: Callable[[Any], measure.Run]
) -> list[measure.Candidate]:
  return [
    measure.Candidate("ours", "ours", ours),
    measure.Candidate("by hand", "peer", by_hand),
  ]


WAYS = {
  "append_step": (_candidates(append_steps, write_columns), ("floats", "JPEG")),
  "an episode a record": (
    _candidates(write_records, write_protos),
    ("floats", "JPEG", "raw"),
  ),
  "a step a record": (_candidates(write_step_records, write_step_protos), ("floats",)),
}


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  options = {"--ways": {"nargs": "+", "choices": list(WAYS), "default": list(WAYS)}}
  args = measure.parse_args(__doc__, argv, options)
  texts = []
  make_work = (
    functools.partial(Work, num_steps=5, image_size=16) if args.quick else Work
  )
  for way in args.ways:
    candidates, kinds = WAYS[way]
    for kind in kinds:
      with tempfile.TemporaryDirectory() as folder:
        number = {"floats": 200, "JPEG": 40, "raw": 40}[kind]
        work = make_work(kind, folder, 2 if args.quick else number)
        figures = measure.compare(candidates, work, args.rounds, not args.quick)
      table = measure.table(candidates, figures, "steps/s")
      texts.append(f"### {way}, {kind}\n\n{table}\n")
      print(texts[-1], flush=True)
  return "\n".join(texts)


if __name__ == "__main__":
  main()
