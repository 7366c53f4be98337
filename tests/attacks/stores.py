"""Lives of episode stores that end in kills, power cuts, full disks and damage."""

from __future__ import annotations

import collections
import errno
import os
import random
import shutil
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, store
from t2r_seq.store.writer import EpisodeWriter
from tests.attacks import power

_SPEC = {
  "x": specs.ExtendedTensorSpec((3,), tf.float32, is_sequence=True),
  "note": specs.ExtendedTensorSpec((), tf.string),
}
_SEGMENTS = ("main", "night")
# Whatever changes files goes through these.
CALLS = (
  *("mkdir", "open", "ftruncate", "pwrite", "write", "fsync"),
  *("replace", "rename", "unlink", "rmdir"),
)


def _make_episode(number: int) -> dict[str, Any]:
  length = number % 7 + 1 if number % 10 else 3000
  x = np.full((length, 3), number, np.float32)
  return {"x": x, "note": f"note {number}" * (number % 3)}


class Life:
  """A random life of one store: writers come and go, and segments are merged.

  Attributes:
    begun: episodes that were given to a writer.
    promised: those of which it was said that they are safe.
  """

  def __init__(
    self, folder: str, rng: random.Random, tell: Callable[[int], None]
  ) -> None:
    """Begins with no store.

    Args:
      folder: of the store.
      rng: draws what happens.
      tell: is called with each episode that is promised.
    """
    self.folder = folder
    self.begun: list[int] = []
    self.promised: set[int] = set()
    self._rng = rng
    self._tell = tell
    # By the present writer, and how many its segment had before.
    self._written: list[int] = []
    self._before = 0

  def live(self, num_writers: int) -> None:
    """Opens so many writers one after the other, and merges now and then."""
    for _ in range(num_writers):
      with self._open() as writer:
        self._before = writer.num_episodes
        for _ in range(self._rng.randrange(1, 6)):
          self.append(writer)
      self._promise(self._written)
      if self._rng.random() < 0.3:
        store.EpisodeStore.merge(self.folder)

  def _open(self) -> EpisodeWriter:
    commit_every, self._written = self._rng.randrange(1, 4), []
    if not os.path.exists(os.path.join(self.folder, "store.json")):
      return store.EpisodeStore.create(self.folder, _SPEC, commit_every=commit_every)
    segment = self._rng.choice(_SEGMENTS)
    return store.EpisodeStore.append(self.folder, segment, commit_every=commit_every)

  def append(self, writer: EpisodeWriter) -> None:
    """Writes the next episode, at once or step by step."""
    number = len(self.begun)
    self.begun.append(number)
    episode = _make_episode(number)
    try:
      if self._rng.random() < 0.7:
        writer.append_episode(episode)
      else:
        for x in episode["x"][:50]:
          writer.append_step({"x": x})
        if len(episode["x"]) > 50:
          writer.append_steps({"x": episode["x"][50:]})
        writer.end_episode({"note": episode["note"]})
    finally:
      # Where a commit fails, what it was to commit is gone.
      count = writer.num_episodes - self._before
      self._written = [*self._written, number][:count]
      self._promise(self._written[: writer.num_committed - self._before])

  def _promise(self, numbers: list[int]) -> None:
    for number in numbers:
      if number not in self.promised:
        self.promised.add(number)
        self._tell(number)

  def check(self, folder: str, begun: int, promised: set[int]) -> Iterator[str]:
    """What is wrong with a store, given what may be in it and what has to be."""
    if not os.path.exists(os.path.join(folder, "store.json")):
      if promised:
        yield f"there is no store, and {len(promised)} episodes were promised"
      return
    opened = store.EpisodeStore(folder)
    found = collections.Counter[int]()
    for index in range(len(opened)):
      got = opened.episode(index)
      number = int(got["x"][0, 0])
      found[number] += 1
      want = _make_episode(number)
      if number >= begun or not np.array_equal(got["x"], want["x"]):
        yield f"episode {index} is not what was written"
      elif got["note"][()] != want["note"].encode():
        yield f"episode {index} has another's note"
    if lost := promised - found.keys():
      yield f"promised, and not there: {sorted(lost)}"
    if more := [number for number, count in found.items() if count > 1]:
      yield f"there more than once: {more}"
    report = store.verify_store(folder)
    if not report.is_good:
      yield f"not whole: {report}"
    with store.EpisodeStore.append(folder, "after") as writer:
      writer.append_episode(_make_episode(max(found, default=0) + 1))
    if len(store.EpisodeStore(folder)) != len(opened) + 1:
      yield "nothing more can be written to it"


class StoreAttack:
  """Runs rounds of one kind of attack.

  Attributes:
    counts: how often what happened.
  """

  def __init__(self, seed: int, folder: str, say: Callable[[str, Any], None]) -> None:
    self._seed = seed
    self._folder = os.path.join(folder, "lives")
    self._say = say
    self.counts: collections.Counter[str] = collections.Counter()

  def run(self, number: int, count: int) -> None:
    """Lives so many lives."""
    for i in range(count):
      where = f"life {i} of round {number} of seed {self._seed}"
      rng = random.Random(f"{type(self).__name__}/{self._seed}/{number}/{i}")
      os.makedirs(self._folder)
      self._say("at", where)
      try:
        for wrong in self._attack(rng):
          self._say("wrong", f"{where}: {wrong}")
      except Exception:
        self._say("wrong", f"{where}: {traceback.format_exc()[-1500:]}")
      finally:
        shutil.rmtree(self._folder)

  def _attack(self, rng: random.Random) -> Iterator[str]:
    raise NotImplementedError


class KillAttack(StoreAttack):
  """Writers and merges are killed in the middle of a call, and others go on."""

  def _attack(self, rng: random.Random) -> Iterator[str]:
    reader, end = os.pipe()
    folder = os.path.join(self._folder, "store")
    child = os.fork()
    if not child:
      _die(Life(folder, rng, lambda n: _tell(end, n)), rng)
    os.close(end)
    told = b""
    while data := os.read(reader, 1 << 16):
      told += data
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
      self.counts["ended before"] += 1
      if os.WEXITSTATUS(status):
        yield "a writer failed"
    else:
      self.counts["killed"] += 1
    promised = {n for (n,) in struct.iter_unpack("<i", told)}
    yield from Life(folder, rng, lambda n: None).check(folder, 1 << 30, promised)


def _tell(end: int, number: int) -> None:
  _write(end, struct.pack("<i", number))


_write = os.write  # The pipe is no disk.


def _die(life: Life, rng: random.Random) -> None:
  """Lives, and is killed at a random call, half-way through where it writes."""
  left = [rng.randrange(1, 400)]

  def killing(name: str) -> Callable[..., Any]:
    original = getattr(os, name)

    def call(*args: Any, **kwargs: Any) -> Any:
      left[0] -= 1
      if not left[0]:
        if name in ("pwrite", "write") and len(args[1]) > 1:
          original(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
        os.kill(os.getpid(), signal.SIGKILL)
      return original(*args, **kwargs)

    return call

  status = 1
  try:
    for name in CALLS:
      setattr(os, name, killing(name))
    life.live(5)
    status = 0
  finally:
    if status:
      traceback.print_exc()
    os._exit(status)


class PowerAttack(StoreAttack):
  """The power is cut at random calls; what is then on the disk is looked at."""

  def _attack(self, rng: random.Random) -> Iterator[str]:
    wrong: list[str] = []
    disk = os.path.join(self._folder, "disk")
    os.mkdir(disk)
    life = Life(os.path.join(disk, "a", "b", "store"), rng, lambda n: None)

    def on_cut(cuts: power.PowerCuts) -> None:
      self.counts["power cuts"] += 1
      image = os.path.join(self._folder, "image")
      cuts.image(image)
      there = os.path.join(image, "a", "b", "store")
      wrong.extend(life.check(there, len(life.begun), life.promised))
      shutil.rmtree(image)

    with power.PowerCuts(disk, random.Random(rng.random()), on_cut):
      life.live(4)
    yield from wrong
    yield from life.check(life.folder, len(life.begun), life.promised)


class FullDiskAttack(StoreAttack):
  """The disk is full at some moment, and has room again later."""

  def _attack(self, rng: random.Random) -> Iterator[str]:
    folder = os.path.join(self._folder, "store")
    life = Life(folder, rng, lambda n: None)
    life.live(1)
    originals = {name: getattr(os, name) for name in ("pwrite", "write", "fsync")}
    left = [rng.randrange(20), rng.choice([0, 1, 50, 5000])]

    def full(name: str) -> Callable[..., Any]:
      def call(descriptor: int, *args: Any) -> Any:
        left[0] -= 1
        if left[0] > 0:
          return originals[name](descriptor, *args)
        if name == "fsync" or not left[1]:
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = memoryview(args[0])[: left[1]]
        left[1] -= len(part)
        return originals[name](descriptor, part, *args[1:])

      return call

    try:
      for name in originals:
        setattr(os, name, full(name))
      life.live(3)
      self.counts["room enough"] += 1
    except OSError as error:
      self.counts["full"] += 1
      if error.errno != errno.ENOSPC or "No space left" not in str(error):
        yield f"another error: {error!r}"
      if folder not in str(error):
        yield f"the store is not named: {error}"
    finally:
      for name, original in originals.items():
        setattr(os, name, original)
    life.live(1)
    yield from life.check(folder, len(life.begun), life.promised)


class DamageAttack(StoreAttack):
  """Files are damaged: what is read is what was written, or an error says where."""

  def _attack(self, rng: random.Random) -> Iterator[str]:
    folder = os.path.join(self._folder, "store")
    life = Life(folder, rng, lambda n: None)
    life.live(2)
    names = sorted(
      os.path.join(place, name)
      for place, _, found in os.walk(folder)
      for name in found
      if name != "lock"
    )
    before = _episodes(folder)
    for name in rng.sample(names, rng.choice([1, 1, 2])):
      damage(name, rng)
    try:
      report = store.verify_store(folder)
      is_whole, text = report.is_good, str(report)
    except errors.StoreError as error:
      is_whole, text = False, str(error)
    self.counts["whole" if is_whole else "found"] += 1
    if (
      not is_whole
      and folder not in text
      and not any(os.path.relpath(name, folder) in text for name in names)
    ):
      yield f"the place is not named: {text}"
    try:
      after = _episodes(folder)
    except errors.StoreError as error:
      if is_whole:
        yield f"called whole, and refused: {error}"
      return
    if is_whole and after != before:
      yield "called whole, and other episodes"


def _episodes(folder: str) -> list[tuple[bytes, bytes]]:
  opened = store.EpisodeStore(folder)
  found = (opened.episode(index) for index in range(len(opened)))
  return [(e["x"].tobytes(), e["note"][()]) for e in found]


def damage(path: str, rng: random.Random) -> None:
  """Does one of the things that disks and programs do to a file."""
  with open(path, "rb") as file:
    data = bytearray(file.read() or b"x")
  place = rng.randrange(len(data))
  kind = rng.choice(["flip", "cut", "extend", "zeros", "insert", "remove"])
  if kind == "flip":
    data[place] ^= 1 << rng.randrange(8)
  elif kind == "cut":
    del data[place:]
  elif kind == "extend":
    data += rng.randbytes(rng.randrange(1, 100))
  elif kind == "zeros":
    data[place : place + 20] = bytes(len(data[place : place + 20]))
  elif kind == "insert":
    data[place:place] = rng.randbytes(rng.randrange(1, 9))
  os.remove(path)
  if kind != "remove":
    with open(path, "wb") as file:
      file.write(data)
