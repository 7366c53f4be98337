"""What windows of videos cost: pools that decode each frame once, or item by item.

Run it as `python -m benchmarks.bench_video [--rounds N] [--quick]`; with `--lerobot
PYTHON`, one that has LeRobot, its own loader takes part.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import itertools
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import lerobot_loader, measure
from t2r_seq import convert, data, specs, store
from t2r_seq.store import videos

_STACK = (-3, -2, -1, 0)
_CAMERA, _FPS = "observation.image", 30
_THREADS = 4


@dataclasses.dataclass(frozen=True)
class VideoWork:
  """Windows of 4 frames of videos, AV1 as LeRobot writes it, in a random order.

  Attributes:
    folder: of the files.
    gop: frames from one key frame to the next.
    num_episodes: of the dataset.
    num_steps: of each.
    size: height and width of a frame.
    batch_size: windows.
    num_batches: of a round, at most; those of an epoch that are decoded one by one
      are a part of it.
    memory_budget: of our pools.
  """

  folder: str
  gop: int
  num_episodes: int = 60
  num_steps: int = 150
  size: int = 128
  batch_size: int = 64
  num_batches: int = 20
  memory_budget: int = 2**27

  @property
  def store(self) -> str:
    """The store."""
    return os.path.join(self.folder, "store")

  @property
  def lerobot(self) -> str:
    """LeRobot's folder, of the same videos."""
    return os.path.join(self.folder, "videos.lerobot")

  def write(self) -> None:
    """Writes both."""
    shape = (self.size, self.size, 3)
    spec = specs.ExtendedTensorSpec(
      shape, tf.uint8, is_sequence=True, data_format="mp4"
    )
    action = specs.ExtendedTensorSpec((7,), tf.float32, is_sequence=True)
    how = store.VideoOptions(gop=self.gop, fps=_FPS)
    rng = np.random.default_rng(0)
    with store.EpisodeStore.create(
      self.store, {_CAMERA: spec, "action": action}, videos=how
    ) as writer:
      for _ in range(self.num_episodes):
        actions = rng.normal(size=(self.num_steps, 7)).astype(np.float32)
        writer.append_episode({_CAMERA: self._frames(rng), "action": actions})
    convert.convert(self.store, self.lerobot)

  def _frames(self, rng: np.random.Generator) -> np.ndarray:
    """Makes a scene that a camera moves over, with a camera's noise."""
    size, steps = self.size, self.num_steps
    scene = np.cumsum(rng.normal(size=(2 * size, 2 * size, 3)), 0)
    scene = 128 + 60 * scene / np.abs(scene).max()
    noise = rng.integers(-4, 5, (steps, size, size, 3))
    at = [size * step // steps for step in range(steps)]
    moved = np.stack([scene[a : a + size, a // 2 : a // 2 + size] for a in at])
    return (moved + noise).clip(0, 255).astype(np.uint8)


def _rounds(work: VideoWork, dataset: tf.data.Dataset) -> measure.Run:
  batches = iter(dataset)  # For ever.

  def run() -> measure.Round:
    def one_round() -> int:
      # An epoch: pools are read ahead, so that a part of one would tell little.
      count = work.num_episodes * work.num_steps // work.batch_size
      return sum(_count(batch) for batch in itertools.islice(batches, count))

    return one_round

  return run


def _count(batch: Any) -> int:
  features = batch[0] if isinstance(batch, tuple) else batch
  return int(features["image"].shape[0])


def _generator(work: VideoWork, generator: Any) -> measure.Run:
  shape = (len(_STACK), work.size, work.size, 3)
  image = specs.ExtendedTensorSpec(shape, tf.uint8, _CAMERA, time_offsets=_STACK)
  generator.set_feature_specifications({"image": image})
  generator.set_label_specifications({})
  return _rounds(work, generator.create_dataset("train"))


def run_store(work: VideoWork) -> measure.Run:
  """Trains from a store with a column of videos."""
  options = {"batch_size": work.batch_size, "memory_budget": work.memory_budget}
  return _generator(work, data.StoreInputGenerator(work.store, seed=0, **options))


def run_lerobot(work: VideoWork) -> measure.Run:
  """Trains from LeRobot's folder."""
  options = {"batch_size": work.batch_size, "memory_budget": work.memory_budget}
  return _generator(work, data.LeRobotInputGenerator(work.lerobot, seed=0, **options))


def run_per_item(work: VideoWork) -> measure.Run:
  """Decodes each item for itself, as LeRobot's loader does: open, seek, decode on."""

  def decode(path: str, times: np.ndarray) -> np.ndarray:
    return videos.read_frames(path, times, num_threads=1)

  return _items(work, decode)


def run_held_open(work: VideoWork) -> measure.Run:
  """The same with a decoder that each thread keeps, as torchcodec's are cached."""
  held = threading.local()

  def decode(path: str, times: np.ndarray) -> np.ndarray:
    if not hasattr(held, "container"):
      held.container = videos.load_av().open(path)
      held.stream = held.container.streams.video[0]
      held.stream.codec_context.thread_count = 1
      held.reformatter = videos.load_av().video.reformatter.VideoReformatter()
    start = round((times[0] + 1e-3) / held.stream.time_base)
    held.container.seek(start, stream=held.stream)
    found: list[np.ndarray] = []
    for frame in held.container.decode(held.stream):
      if frame.time > times[len(found)] - 1e-3:
        pixels = held.reformatter.reformat(frame, format="rgb24")
        found.append(pixels.to_ndarray())
      if len(found) == len(times):
        break
    return np.stack(found)

  return _items(work, decode)


def _items(
  work: VideoWork, decode: Callable[[str, np.ndarray], np.ndarray]
) -> measure.Run:
  (path,) = glob.glob(f"{work.lerobot}/videos/**/*.mp4", recursive=True)
  rng = np.random.default_rng(0)
  steps = np.arange(len(_STACK) - 1, work.num_steps)

  def item(place: tuple[int, int]) -> np.ndarray:
    rows = place[0] * work.num_steps + place[1] + np.array(_STACK)
    return decode(path, rows / _FPS)

  def run() -> measure.Round:
    def one_round() -> int:
      with futures.ThreadPoolExecutor(_THREADS) as executor:
        for _ in range(work.num_batches):
          episodes = rng.integers(work.num_episodes, size=work.batch_size).tolist()
          places = zip(episodes, rng.choice(steps, work.batch_size), strict=True)
          np.stack(list(executor.map(item, places)))
      return work.num_batches * work.batch_size

    return one_round

  return run


def run_with_workers(python: str, num_workers: int, work: VideoWork) -> measure.Run:
  """Reads by LeRobot's dataset and torch's DataLoader, in another Python."""
  arguments = [work.lerobot, _CAMERA, f"{work.batch_size}", f"{num_workers}"]
  process = subprocess.Popen(
    [python, lerobot_loader.__file__, *arguments],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdin is not None and process.stdout is not None
  stdin, stdout = process.stdin, process.stdout

  def read(num_batches: int) -> int:
    print(num_batches, file=stdin, flush=True)
    return int(stdout.readline())

  def run() -> measure.Round:
    read(2 * num_workers)  # What they have read ahead.
    return lambda: read(work.num_batches)

  return run


def run_sequential(work: VideoWork) -> measure.Run:
  """Decodes each video from its first frame to its last, and drops the frames."""
  opened = store.EpisodeStore(work.store)
  steps = np.arange(work.num_steps)

  def decode(episode: int) -> int:
    segment, place = opened.find_episode(episode)
    return len(segment.frames(_CAMERA, place, steps, num_threads=1))

  def run() -> measure.Round:
    def one_round() -> int:
      with futures.ThreadPoolExecutor(_THREADS) as executor:
        # A step is a window's last one.
        return sum(executor.map(decode, range(work.num_episodes)))

    return one_round

  return run


CANDIDATES = (
  measure.Candidate("StoreInputGenerator", "ours", run_store),
  measure.Candidate("LeRobotInputGenerator", "ours", run_lerobot),
  measure.Candidate("PyAV, item by item", "peer", run_per_item),
  measure.Candidate("PyAV, item by item, files held open", "peer", run_held_open),
  measure.Candidate("each video decoded once, in order", "limit", run_sequential),
)


def _works(quick: bool) -> Iterator[VideoWork]:
  for gop in (2,) if quick else (2, 30):
    with tempfile.TemporaryDirectory() as folder:
      work = VideoWork(folder, gop)
      if quick:
        work = VideoWork(folder, gop, 2, 8, 64, 2, 2)
      work.write()
      yield work


def main(argv: Sequence[str] | None = None) -> str:
  """Runs all candidates at both lengths; prints and returns the tables."""
  options = {"--lerobot": {"help": "a Python that has LeRobot"}}
  args = measure.parse_args(__doc__, argv, options)
  candidates = list(CANDIDATES)
  for num in (0, 2, 4) if args.lerobot else ():
    setup = functools.partial(run_with_workers, args.lerobot, num)
    candidates.append(measure.Candidate(f"LeRobot, {num} workers", "peer", setup))
  texts = []
  for work in _works(args.quick):
    figures = measure.compare(candidates, work, args.rounds, isolate=not args.quick)
    extra = measure.private_column(figures)
    text = measure.table(candidates, figures, "windows/s", extra)
    texts.append(f"### A key frame every {work.gop} frames\n\n{text}\n")
    print(texts[-1], flush=True)
  return "\n".join(texts)


if __name__ == "__main__":
  main()
