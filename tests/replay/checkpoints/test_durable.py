"""A restored buffer goes on as the one that was saved; bad checkpoints are refused."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs, store
from t2r_seq.replay.replay import ReplayCounters

Spec = specs.ExtendedTensorSpec
SPEC = {
  "obs": Spec((3, 2), tf.int64, time_offsets=(-2, -1, 0)),
  "next": Spec((2,), tf.int64, name="obs", time_offsets=1),
  "reward": Spec((), tf.float32, time_offsets=0),
}
RICH = {
  **SPEC,
  "text": Spec((), tf.string, time_offsets=0),
  "words": Spec((2,), tf.string, time_offsets=0),
  "image": Spec((2, 4, 4, 3), tf.uint8, data_format="png", time_offsets=(-1, 0)),
  "is_first": Spec((2,), tf.bool, time_offsets=(0, 1)),
  "task": Spec((), tf.string),
  "goal": Spec((2,), tf.float32),
}
IMAGES = [
  tf.io.encode_png(np.full((4, 4, 3), shade, np.uint8)).numpy() for shade in range(9)
]
CASES = {
  "uniform": {},
  "three writers": {"num_writers": 3, "capacity_steps": 99},
  "prioritized": {"sampler": replay.Prioritized(0.7)},
  "greatest priority first": {
    "sampler": replay.Prioritized(1.0),
    "initial_priority": None,
  },
  "fifo": {"sampler": replay.Fifo()},
  "fifo, bounded": {"sampler": replay.Fifo(), "max_size": 20},
  "bounded at random": {"max_size": 17, "remover": replay.Uniform()},
  "twice each": {"max_times_sampled": 2},
  "repeated": {"padding": "repeat"},
  "zeros, three writers": {"padding": "zero", "num_writers": 3, "masks": True},
  "a ratio": {"rate_limiter": replay.SampleToInsertRatio(0.5, 5, 50.0)},
  "strings and contexts": {"spec": RICH},
  "strings and contexts, repeated": {"spec": RICH, "padding": "repeat"},
}


def make(name: str, **more) -> replay.ReplayBuffer:
  arguments = {"spec": SPEC, "capacity_steps": 40, "seed": 3, "timeout": 0.0}
  arguments |= {"padding": "drop", **CASES[name], **more}
  return replay.ReplayBuffer(arguments.pop("spec"), **arguments)


def step(rng: np.random.Generator, number: int, is_rich: bool) -> dict:
  values = {
    "obs": np.array([number, rng.integers(1000)]),
    "reward": np.float32(rng.random()),
  }
  if is_rich:
    values["text"] = b"x" * int(rng.integers(9)) + b"\0"
    values["words"] = [str(number), ""]
    values["image"] = IMAGES[number % 9]
    values["is_first"] = np.bool_(rng.random() < 0.5)
    values["task"] = f"task {number // 100}"
    values["goal"] = np.full(2, number // 100, np.float32)
  return values


def write(buffer, rng, num_episodes: int, longest: int = 30) -> None:
  """Whole episodes, by all writers in turn."""
  is_rich = "task" in buffer.flat_spec
  num_writers = buffer._table.index.num_writers
  writers = [buffer.writer() for _ in range(num_writers)]
  for episode in range(num_episodes):
    number = 100 * (buffer.counters.num_inserts + episode)
    writer = writers[episode % num_writers]
    for _ in range(rng.integers(1, longest)):
      try:
        priority = float(rng.integers(0, 5))
        writer.append(step(rng, number, is_rich), priority)
      except errors.ReplayTimeoutError:
        read(buffer, 3)
      number += 1
    writer.end_episode()
  for writer in writers:
    writer.close()


def read(buffer, count: int = 4):
  """Samples and, as PER does, updates what came; None where there is nothing."""
  try:
    info, batch = buffer.sample_with_info(count)
  except errors.ReplayTimeoutError:
    return None
  buffer.update_priorities(info.key, info.key.astype(np.float64) % 5)
  return info, batch


def counters(buffer) -> ReplayCounters:
  # The memory of episodes that have gone is kept for others.
  return dataclasses.replace(buffer.counters, num_bytes=0)


def names_in(folder) -> list[str]:
  """What is in a folder of checkpoints, beside its lock."""
  return sorted(name for name in os.listdir(folder) if name != ".lock")


def assert_alike(left, right) -> None:
  tf.nest.map_structure(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("name", CASES)
def test_restored_replay_equals_the_saved_one(name, tmp_path):
  rng = np.random.default_rng(1)
  buffer = make(name, checkpoint_dir=str(tmp_path))
  for _ in range(4):
    write(buffer, rng, 4)
    read(buffer, 2)
  path = buffer.checkpoint()
  again = make(name, seed=99)
  assert again.restore(tmp_path) == path == f"{tmp_path}/checkpoint-00000001"
  seen = 0
  for round_ in range(3):
    for _ in range(5):
      assert counters(buffer) == counters(again)
      left, right = read(buffer), read(again)
      assert (left is None) == (right is None)
      seen += left is not None
      assert_alike(left, right)
    write(buffer, np.random.default_rng(round_), 4)
    write(again, np.random.default_rng(round_), 4)
  assert seen


def test_episode_that_went_on_ends(tmp_path):
  buffer = make("repeated", checkpoint_dir=str(tmp_path))
  writer, rng = buffer.writer(), np.random.default_rng(0)
  for number in range(7):
    writer.append(step(rng, number, False))
  buffer.checkpoint()
  again = make("repeated")
  again.restore(tmp_path)
  # The last step's window, which shows the one after it, is only there at the end.
  assert buffer.counters.num_items == again.counters.num_items == 6
  assert_alike(read(buffer), read(again))
  writer.close()
  other = again.writer()
  assert again.counters.num_items == 7
  assert_alike(read(buffer), read(again))
  other.append(step(rng, 100, False))
  other.close()
  assert again.counters.num_episodes == 2
  for _ in range(20):
    obs = again.sample(16)["obs"][..., 0]
    assert ((obs >= 100).all(1) | (obs < 100).all(1)).all()


@pytest.mark.parametrize("padding", ["drop", "repeat"])
def test_writer_that_is_open_begins_another_episode(padding, tmp_path):
  spec = {"x": Spec((2,), tf.int64, time_offsets=(0, 1)), "goal": Spec((), tf.int64)}
  options = {"capacity_steps": 100, "padding": padding, "seed": 0}
  buffer = replay.ReplayBuffer(spec, **options, checkpoint_dir=str(tmp_path))
  writer = buffer.writer()
  for x in range(5):
    writer.append({"x": x, "goal": 1})
  buffer.checkpoint()
  again = replay.ReplayBuffer(spec, **options)
  writer = again.writer()
  again.restore(tmp_path)
  for x in range(100, 104):
    writer.append({"x": x, "goal": 2})
  writer.close()
  batch = again.sample(500)
  want = {(x, x + 1, 1) for x in range(4)} | {(x, x + 1, 2) for x in range(100, 103)}
  if padding == "repeat":
    want |= {(4, 4, 1), (103, 103, 2)}
  found = zip(*batch["x"].T.tolist(), batch["goal"].tolist(), strict=True)
  assert set(found) == want
  assert again.counters.num_inserts == len(want)


def test_end_at_restore_does_not_wait(tmp_path):
  buffer = make("repeated", checkpoint_dir=str(tmp_path))
  writer, rng = buffer.writer(), np.random.default_rng(0)
  for number in range(7):
    writer.append(step(rng, number, False))
  buffer.checkpoint()
  # Nobody has sampled yet.
  again = make("repeated", rate_limiter=replay.SampleToInsertRatio(1.0, 1, 5.0))
  again.writer()
  again.restore(tmp_path)
  assert again.counters.num_inserts == again.counters.num_items == 7


def test_checkpoint_is_a_store(tmp_path):
  buffer = make("strings and contexts", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 3, 12)
  opened = store.EpisodeStore(os.path.join(buffer.checkpoint(), "episodes"))
  assert len(opened) == buffer.counters.num_episodes
  assert opened.num_steps == buffer.counters.num_steps
  assert store.verify_store(opened.path).is_good


def test_flipped_bit_is_not_restored(tmp_path):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 5)
  segment = os.path.join(buffer.checkpoint(), "episodes", "segments", "main")
  place = os.path.join(segment, "obs.data")
  with open(place, "r+b") as file:
    first = file.read(1)[0]
    file.seek(0)
    file.write(bytes([first ^ 1]))
  again = make("uniform")
  want = (
    "expected the bytes that were saved, got\n.*main/obs.data: .*\nRestore a former"
  )
  with pytest.raises(errors.ReplayError, match=want):
    again.restore(tmp_path)
  assert again.counters.num_steps == 0


def test_other_options_may_follow(tmp_path):
  buffer = make("prioritized", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 5)
  before = {int(k): p for k, p in _priorities(buffer).items()}
  buffer.checkpoint()
  for name in ("uniform", "fifo", "fifo, bounded", "twice each"):
    again = make(name)
    again.restore(tmp_path)
    at_most = CASES[name].get("max_size", 40)
    assert again.counters.num_items == min(at_most, buffer.counters.num_items)
    info, _ = again.sample_with_info(4)
    if name == "fifo":
      assert set(info.key.tolist()) == {min(before)}


SMALLER = {
  "the oldest go": ({}, range(40, 50)),
}


@pytest.mark.parametrize("name", SMALLER)
def test_fewer_items_may_follow(name, tmp_path):
  spec = {"x": Spec((), tf.int64, time_offsets=0)}
  buffer = replay.ReplayBuffer(
    spec, 60, sampler=replay.Prioritized(), checkpoint_dir=str(tmp_path)
  )
  writer = buffer.writer()
  for x in range(50):
    writer.append({"x": x}, priority=float(x % 5 == 0))
  buffer.checkpoint()
  arguments, want = SMALLER[name]
  again = replay.ReplayBuffer(spec, 60, max_size=10, **arguments)
  again.restore(tmp_path)
  assert again.counters.num_items == 10
  assert again.counters.num_deletes == 40
  assert set(again.sample(500)["x"]) == {*want}
  writer = again.writer()
  writer.append({"x": 100})
  assert again.counters.num_items == 10


def _priorities(buffer) -> dict[int, float]:
  found = {}
  for _ in range(200):
    info, _ = buffer.sample_with_info(16)
    found.update(zip(info.key.tolist(), info.priority.tolist(), strict=True))
  return found


def test_no_folder():
  with pytest.raises(errors.ReplayError, match=r"without\. Give ReplayBuffer\(checkp"):
    make("uniform").checkpoint()


def test_closed_buffer(tmp_path):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  buffer.close()
  for call in (buffer.checkpoint, lambda: buffer.to_store(tmp_path / "s")):
    with pytest.raises(errors.ReplayError, match="expected an open replay"):
      call()
  assert not os.listdir(tmp_path)


OTHERS = {
  "steps": (
    {"spec": {**SPEC, "reward": Spec((), tf.float64, time_offsets=0)}},
    r"of another replay \(.*what this buffer has\): reward: expected .*float64.*, "
    "got .*float32",
  ),
  "a path more": (
    {"spec": {**SPEC, "x": Spec((), tf.float64, time_offsets=0)}},
    r"x: expected .*, got nothing",
  ),
  "offsets": (
    {"spec": {**SPEC, "next": Spec((2,), tf.int64, name="obs", time_offsets=2)}},
    r"2 mismatches:\n  next: expected .*\n  the windows' anchors: expected",
  ),
  "capacity": ({"capacity_steps": 41}, "steps for each writer: expected 41, got 40"),
  "writers": (
    {"num_writers": 2},
    r"(?s)2 mismatches.*num_writers: expected 2, got 1.*steps for each writer: "
    "expected 20, got 40",
  ),
  "padding": (
    {"padding": "zero"},
    "the windows' anchors: expected .* They follow from padding",
  ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_buffers(name, tmp_path):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 2)
  buffer.checkpoint()
  more, want = OTHERS[name]
  other = make("uniform", **more)
  with pytest.raises(errors.ReplayError, match=want):
    other.restore(tmp_path)
  assert other.counters.num_steps == 0


def test_buffer_in_use(tmp_path):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 2)
  buffer.checkpoint()
  with pytest.raises(errors.ReplayError, match="expected a buffer without steps, got"):
    buffer.restore(tmp_path)


def _truncate(path: str) -> None:
  os.truncate(path, os.path.getsize(path) // 2)


def _overwrite(path: str) -> None:
  """Writes over the beginnings of all files of a folder."""
  for folder, _, names in os.walk(path):
    for name in names:
      with open(os.path.join(folder, name), "r+b") as file:
        file.write(b"zzz")


FORMER = r"[\s\S]*Restore a former checkpoint\.$"
DAMAGES = {
  "state": ("state.npz", _truncate, f"expected the state of a replay{FORMER}"),
  "no state": ("state.npz", os.remove, "expected a checkpoint or a folder of them"),
  "rows": ("episodes/segments/main/obs.data", _truncate, f"obs.data{FORMER}"),
  "no store": (
    "episodes/store.json",
    os.remove,
    f"This is not an EpisodeStore{FORMER}",
  ),
  "no episodes": (
    "episodes",
    shutil.rmtree,
    f"restore: .*checkpoint-00000001: expected the episodes that were saved{FORMER}",
  ),
  "another's episodes": (
    "episodes",
    _overwrite,
    f"restore: .*checkpoint-00000001: expected the episodes that were saved{FORMER}",
  ),
  "commit": (
    "episodes/segments/main/commit.json",
    os.remove,
    f"expected the commit of the segment's episodes, got no such file{FORMER}",
  ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_one(name, tmp_path):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 2)
  path = buffer.checkpoint()
  file, damage, want = DAMAGES[name]
  damage(os.path.join(path, file))
  again = make("uniform")
  with pytest.raises(errors.ReplayError, match=want):
    again.restore(path)
  # It can still be restored from another one.
  good = buffer.checkpoint()
  assert again.restore(good) == good
  assert_alike(read(buffer), read(again))


def test_damaged_ones_are_passed_over_and_not_kept(tmp_path, caplog):
  buffer = make("uniform", checkpoint_dir=str(tmp_path))
  write(buffer, np.random.default_rng(0), 2)
  good, bad = buffer.checkpoint(), buffer.checkpoint()
  _truncate(os.path.join(bad, "episodes/segments/main/obs.data"))
  again = make("uniform", checkpoint_dir=str(tmp_path))
  with caplog.at_level("WARNING", "absl"):
    assert again.restore(tmp_path) == good
  assert re.search(
    f"Restored the older checkpoint {good}: restore: {bad}: .*obs.data", caplog.text
  )
  assert_alike(read(make_restored(good)), read(again))
  newest = again.checkpoint()
  assert {good, newest} <= {str(path) for path in tmp_path.iterdir()}
  newer = again.checkpoint()
  assert [f"{tmp_path}/{name}" for name in names_in(tmp_path)] == [newest, newer]
  for path in (newest, newer):
    os.truncate(os.path.join(path, "state.npz"), 9)
  with pytest.raises(errors.ReplayError, match="got 2 damaged ones:") as caught:
    make("uniform").restore(tmp_path)
  assert str(caught.value).index(newer) < str(caught.value).index(f"{newest}/state")


def make_restored(path):
  buffer = make("uniform")
  buffer.restore(path)
  return buffer
