"""Replays that become stores, and stores that replays begin with."""

from __future__ import annotations

import errno
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs, store, windows
from t2r_seq.replay.replay import flat_replay_specs
from t2r_seq.store import files

Spec = specs.ExtendedTensorSpec
SPEC = {
  "obs": Spec((3, 2), tf.float32, time_offsets=(-2, -1, 0)),
  "next": Spec((2,), tf.float32, name="obs", time_offsets=1),
  "text": Spec((), tf.string, time_offsets=0),
  "flag": Spec((), tf.bool, time_offsets=0),
  "task": Spec((), tf.string),
}


def make_episode(number: int, num_steps: int) -> dict:
  """Steps that say whose they are."""
  steps = 1000.0 * number + np.arange(num_steps, dtype=np.float32)
  texts = np.empty(num_steps, object)
  texts[:] = [f"{step:.0f}".encode() for step in steps]
  obs = np.stack([steps, np.where(np.arange(num_steps) == 1, np.nan, steps)], 1)
  flags = np.arange(num_steps) % 3 == 0
  return {"obs": obs, "text": texts, "flag": flags, "task": f"task {number}"}


def append(buffer: replay.ReplayBuffer, writer, number: int, num_steps: int) -> None:
  episode = make_episode(number, num_steps)
  for step in range(num_steps):
    values = {path: episode[path][step] for path in ("obs", "text", "flag")}
    writer.append({**values, "task": episode["task"]})
  writer.end_episode()


def make_store(path, lengths, spec=None) -> str:
  flat = flat_replay_specs("test", spec or SPEC)
  with store.EpisodeStore.create(path, flat, allow_nan=True) as writer:
    for number, length in enumerate(lengths):
      episode = make_episode(number, length)
      writer.append_episode({name: episode[name] for name in flat})
  return str(path)


def windows_of(buffer: replay.ReplayBuffer) -> list[str]:
  """All windows that a buffer has, each once, as texts in order."""
  found, count = {}, buffer.counters.num_items
  rounds = 0
  while len(found) < count:
    info, batch = buffer.sample_with_info(64)
    found.update(zip(info.key.tolist(), to_texts(batch), strict=True))
    rounds += 1
    assert rounds < 1000
  return sorted(found.values())


def windows_in(path: str, padding: str = "drop", first: int = 0) -> list[str]:
  """All windows of a store, from one on, as texts in order."""
  read = store.EpisodeStore(path).windows(SPEC, padding=padding)
  batch = read.read(tf.range(first, len(read)))
  return sorted(to_texts({path: value.numpy() for path, value in batch.items()}))


def to_texts(batch) -> list[str]:
  columns = [batch[path].tolist() for path in sorted(batch)]
  return [repr(window) for window in zip(*columns, strict=True)]


@pytest.mark.parametrize("num_writers", [1, 3])
def test_replay_becomes_a_store_of_the_same_windows(num_writers, tmp_path):
  buffer = replay.ReplayBuffer(
    SPEC, 60, num_writers=num_writers, padding="drop", allow_nan=True
  )
  writers = [buffer.writer() for _ in range(num_writers)]
  # Some go round the ring; the last ones go on.
  for number in range(9):
    append(buffer, writers[number % num_writers], number, 4 + 3 * number)
  for index, writer in enumerate(writers):
    for step in range(5):
      obs = np.full(2, 9000 + 100 * index + step, np.float32)
      writer.append({"obs": obs, "text": b"", "flag": True, "task": "last"})
  assert buffer.counters.num_steps == 60
  count = buffer.to_store(tmp_path / "s")
  opened = store.EpisodeStore(tmp_path / "s")
  assert count == len(opened) == buffer.counters.num_episodes
  assert opened.num_steps == 60
  assert windows_in(tmp_path / "s") == windows_of(buffer)
  assert opened.spec == buffer.flat_spec


@pytest.mark.parametrize("padding", ["drop", "repeat", "zero"])
@pytest.mark.parametrize("num_writers", [1, 2])
def test_store_begins_a_replay(padding, num_writers, tmp_path):
  path = make_store(tmp_path / "s", [7, 1, 12, 5, 4])
  buffer = replay.ReplayBuffer.from_store(
    path,
    SPEC,
    capacity_steps=80,
    allow_nan=True,
    padding=padding,
    num_writers=num_writers,
  )
  want = windows_in(path, padding)
  assert windows_of(buffer) == want
  counters = buffer.counters
  assert counters.num_episodes == 5 and counters.num_steps == 29
  assert counters.num_inserts == counters.num_items == len(want)
  # And there and back again.
  buffer.to_store(tmp_path / "t")
  assert windows_in(tmp_path / "t", padding) == want
  with buffer.writer() as writer:
    append(buffer, writer, 77, 6)
  assert buffer.counters.num_steps == 35


def test_last_episodes_are_read(tmp_path):
  path = make_store(tmp_path / "s", [10, 30, 30, 9, 5])
  buffer = replay.ReplayBuffer.from_store(
    path, SPEC, capacity_steps=20, allow_nan=True, padding="drop"
  )
  assert buffer.counters.num_steps == 20 and buffer.counters.num_episodes == 3
  obs = np.concatenate([buffer.sample(64)["obs"][:, 2, 0] for _ in range(5)])
  assert {2, 3, 4} == set((obs // 1000).astype(int).tolist())
  # Episodes that would be overwritten anyway are not even read.
  assert buffer.counters.num_inserts == 27 + 6 + 2
  cut = windows.Cut(padding="drop")
  exact = replay.ReplayBuffer.from_store(
    path, SPEC, cut=cut, capacity_steps=14, allow_nan=True
  )
  assert exact.counters.num_inserts == 6 + 2
  single = replay.ReplayBuffer.from_store(
    path, SPEC, cut=cut, capacity_steps=5, allow_nan=True
  )
  assert single.counters.num_inserts == 2


def test_empty_store(tmp_path):
  path = make_store(tmp_path / "s", [])
  buffer = replay.ReplayBuffer.from_store(path, SPEC, capacity_steps=20, allow_nan=True)
  assert buffer.counters.num_steps == 0
  assert buffer.to_store(tmp_path / "t") == 0
  assert len(store.EpisodeStore(tmp_path / "t")) == 0


def test_loading_waits_for_nobody_and_counts(tmp_path):
  path = make_store(tmp_path / "s", [20])
  limiter = replay.SampleToInsertRatio(2.0, 4, 6.0)
  buffer = replay.ReplayBuffer.from_store(
    path,
    SPEC,
    capacity_steps=30,
    allow_nan=True,
    rate_limiter=limiter,
    timeout=0.0,
    padding="drop",
  )
  assert buffer.counters.num_inserts == 17
  with buffer.writer() as writer:
    with pytest.raises(errors.ReplayTimeoutError, match="17 inserts and 0 samples"):
      append(buffer, writer, 5, 6)
    buffer.sample(32)
    append(buffer, writer, 5, 4)


def test_bounded_replay(tmp_path):
  path = make_store(tmp_path / "s", [20])
  buffer = replay.ReplayBuffer.from_store(
    path,
    SPEC,
    capacity_steps=30,
    allow_nan=True,
    max_size=4,
    remover=replay.Fifo(),
    padding="drop",
  )
  counters = buffer.counters
  assert (counters.num_items, counters.num_inserts, counters.num_deletes) == (4, 17, 13)
  assert windows_of(buffer) == windows_in(path, first=13)


def test_column_of_another_path(tmp_path):
  path = make_store(tmp_path / "s", [6], {k: SPEC[k] for k in ("obs", "task")})
  spec = {
    "state": Spec((2,), tf.float32, name="obs", time_offsets=0),
    "task": Spec((), tf.string),
  }
  buffer = replay.ReplayBuffer.from_store(path, spec, capacity_steps=20, allow_nan=True)
  assert buffer.counters.num_items == 6
  assert set(buffer.sample(64)["state"][:, 0].tolist()) == {0, 1, 2, 3, 4, 5}


def test_store_that_lacks_something(tmp_path):
  flat = flat_replay_specs("test", {k: SPEC[k] for k in ("obs", "text")})
  flat["text"] = Spec.from_spec(flat["text"], is_optional=True)
  with store.EpisodeStore.create(tmp_path / "s", flat, allow_nan=True) as writer:
    writer.append_episode({"obs": make_episode(0, 3)["obs"]})
  want = r"(?s)from_store: .*3 mismatches.*flag: expected \(\) bool.*got nothing"
  spec = {**SPEC, "obs": Spec((3,), tf.float32, time_offsets=0)}
  del spec["next"]
  with pytest.raises(errors.SpecError, match=want):
    replay.ReplayBuffer.from_store(
      tmp_path / "s", spec, capacity_steps=20, allow_nan=True
    )
  spec = {path: SPEC[path] for path in ("obs", "text")}
  want = r"from_store: .*text: expected it in every episode, got none in 1 of 1"
  with pytest.raises(errors.SpecError, match=want):
    replay.ReplayBuffer.from_store(
      tmp_path / "s", spec, capacity_steps=20, allow_nan=True
    )
  with pytest.raises(errors.StoreError, match="nothing there"):
    replay.ReplayBuffer.from_store(
      tmp_path / "none", SPEC, capacity_steps=20, allow_nan=True
    )


def test_existing_path_is_refused(tmp_path):
  path = make_store(tmp_path / "s", [3])
  with pytest.raises(errors.StoreError, match="expected nothing there"):
    replay.ReplayBuffer(SPEC, 20).to_store(path)
  assert store.EpisodeStore(path).num_steps == 3


def test_interrupt_keeps_an_existing_store(tmp_path, monkeypatch):
  path = make_store(tmp_path / "s", [3])

  def interrupted(*args, **arguments):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(store.EpisodeStore, "create", interrupted)
    with pytest.raises(errors.StoreError, match="expected nothing there"):
      replay.ReplayBuffer(SPEC, 20).to_store(path)
    with pytest.raises(KeyboardInterrupt):
      replay.ReplayBuffer(SPEC, 20).to_store(tmp_path / "new")
  assert store.EpisodeStore(path).num_steps == 3
  assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_full_disk_leaves_nothing_behind(call, is_there, tmp_path, monkeypatch):
  buffer = replay.ReplayBuffer(SPEC, 20, allow_nan=True)
  append(buffer, buffer.writer(), 0, 7)
  path = tmp_path / "s"
  if is_there:
    path.mkdir()

  def no_room(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with monkeypatch.context() as patched:
    patched.setattr(files.os, call, no_room)
    with pytest.raises(OSError, match="No space left on device") as caught:
      buffer.to_store(path)
  assert caught.value.errno == errno.ENOSPC
  assert os.listdir(tmp_path) == ["s"] * is_there
  assert not is_there or not os.listdir(path)
  assert buffer.to_store(path) == 1
  assert store.EpisodeStore(path).num_steps == 7


def test_memory_is_bounded(tmp_path):
  """An episode is written and read in parts, however long it is."""
  spec = {"image": Spec((1 << 16,), tf.uint8, time_offsets=0)}
  buffer = replay.ReplayBuffer(spec, 2000)
  image = np.zeros(1 << 16, np.uint8)
  with buffer.writer() as writer:
    for step in range(2000):
      image[0] = step % 256
      writer.append({"image": image})
  tracemalloc.start()
  try:
    buffer.to_store(tmp_path / "s")
    replay.ReplayBuffer.from_store(
      tmp_path / "s", spec, capacity_steps=2000, allow_nan=True
    )
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  # The episode has 131 MB; the ring's own memory is mapped, and not counted.
  assert peak < 50e6
