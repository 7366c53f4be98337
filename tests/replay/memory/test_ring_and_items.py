"""The in-process engine's ring: what goes, what stays, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs
from t2r_seq.replay import ReplayBuffer
from t2r_seq.specs import ExtendedTensorSpec as Spec

X = {"x": Spec((), tf.int64, "x", time_offsets=0)}
PAIR = {"x": Spec((2,), tf.int64, "x", time_offsets=(-1, 0))}


def append(writer, *values):
  for value in values:
    writer.append({"x": np.int64(value)})


def items(buffer):
  """Returns all windows that can be sampled, in order."""
  count = buffer.counters.num_items
  if not count:
    return []
  seen = {np.array(x).tobytes(): x.tolist() for x in buffer.sample(60 * count)["x"]}
  return sorted(seen.values())


def test_writers_have_parts_of_the_ring():
  buffer = ReplayBuffer(X, 7, num_writers=2, seed=0)
  first, second = buffer.writer(), buffer.writer()
  append(first, *range(10))
  append(second, 100)
  assert items(buffer) == [7, 8, 9, 100]
  with pytest.raises(errors.ReplayError, match="num_writers, 2, got one more"):
    buffer.writer()
  first.close()
  with buffer.writer() as third:
    append(third, 50)
  assert items(buffer) == [8, 9, 50, 100]


def test_max_times_sampled():
  buffer = ReplayBuffer(X, 10, sampler=replay.Fifo(), max_times_sampled=2, timeout=0)
  with buffer.writer() as writer:
    append(writer, 1, 2)
  assert buffer.sample(3)["x"].tolist() == [1, 1, 2]
  info, batch = buffer.sample_with_info(1)
  assert batch["x"].tolist() == [2] and info.times_sampled.tolist() == [2]
  with pytest.raises(errors.ReplayTimeoutError, match="0 of 1 items"):
    buffer.sample(1)


def test_keys_are_never_used_again():
  buffer = ReplayBuffer(X, 4, sampler=replay.Prioritized(1.0), seed=0)
  writer = buffer.writer()
  append(writer, 0, 1)
  info, _ = buffer.sample_with_info(20)
  append(writer, *range(2, 5))
  keys = np.unique(info.key)
  # Step 0 has gone, and another item is in its row.
  assert buffer.update_priorities(keys, np.full(len(keys), 7.0)) == 1
  assert buffer.counters.num_ignored_updates == 1
  info, batch = buffer.sample_with_info(400)
  assert dict(zip(batch["x"].tolist(), info.priority, strict=True)) == {
    **{1: 7.0, 2: 1.0},
    **{3: 1.0, 4: 1.0},
  }


def test_priorities_of_one_key_twice():
  buffer = ReplayBuffer(X, 4, sampler=replay.Prioritized(1.0), seed=0)
  append(buffer.writer(), 0)
  info, _ = buffer.sample_with_info(1)
  keys = np.repeat(info.key, 3)
  assert buffer.update_priorities(keys, np.array([3.0, 1.0, 2.0])) == 3
  assert buffer.sample_with_info(1)[0].priority == [2.0]


def test_new_items_have_the_greatest_priority():
  buffer = ReplayBuffer(
    X, 4, sampler=replay.Prioritized(1.0), initial_priority=None, seed=0
  )
  writer = buffer.writer()
  append(writer, 0)
  info, _ = buffer.sample_with_info(1)
  buffer.update_priorities(info.key, np.array([9.0]))
  append(writer, 1)
  info, batch = buffer.sample_with_info(50)
  assert set(info.priority) == {9.0} and set(batch["x"]) == {0, 1}


def test_maximum_priority_ignores_evicted_items():
  buffer = ReplayBuffer(
    X, 2, sampler=replay.Prioritized(1.0), initial_priority=None, seed=0
  )
  writer = buffer.writer()
  append(writer, 0, 1)
  keys = np.unique(buffer.sample_with_info(50)[0].key)
  append(writer, 2)
  assert buffer.update_priorities(keys, np.array([1000.0, 2.0])) == 1
  append(writer, 3)
  assert set(buffer.sample_with_info(50)[0].priority) == {1.0, 2.0}
  # Without any that is there, nothing is known.
  assert buffer.update_priorities(keys, np.array([1000.0, 2.0])) == 0
  append(writer, 4)
  assert set(buffer.sample_with_info(50)[0].priority) == {2.0}


def test_greatest_priority_may_have_come_with_a_step():
  buffer = ReplayBuffer(
    X, 4, sampler=replay.Prioritized(1.0), initial_priority=None, seed=0
  )
  writer = buffer.writer()
  writer.append({"x": 0}, priority=10.0)
  writer.append({"x": 1})
  info, batch = buffer.sample_with_info(50)
  assert set(info.priority) == {10.0} and set(batch["x"]) == {0, 1}


def test_same_seed_same_samples():
  def draw(seed):
    buffer = ReplayBuffer(X, 50, seed=seed)
    append(buffer.writer(), *range(40))
    in_graph = [b["x"].numpy() for b in buffer.dataset(8).take(3)]
    return np.concatenate([buffer.sample(30)["x"], *in_graph]).tolist()

  assert draw(3) == draw(3)
  assert draw(3) != draw(4)


def test_uniform_draws_are_uniform():
  buffer = ReplayBuffer(PAIR, 400, seed=0, padding="drop")
  writer = buffer.writer()
  for episode in range(20):
    append(writer, *range(20 * episode, 20 * episode + 3))
    writer.end_episode()
  counts = np.unique(buffer.sample(40_000)["x"][:, 0], return_counts=True)[1]
  assert len(counts) == 40
  assert ((counts - 1000) ** 2 / 1000).sum() < 80  # chi-square of 39: p is 1e-4


def test_few_items_among_many_rows_are_found():
  buffer = ReplayBuffer(PAIR, 4000, seed=0, padding="drop")
  writer = buffer.writer()
  for step in range(3000):
    append(writer, step)
    if step != 1500:
      writer.end_episode()
  assert items(buffer) == [[1500, 1501]]


def test_context_features_go_with_their_episode():
  spec = {
    "x": Spec((), tf.int64, "x", time_offsets=0),
    "goal": Spec((2,), tf.int64, "goal"),
  }
  buffer = ReplayBuffer(spec, 10, num_writers=2, seed=0)
  writers = [buffer.writer(), buffer.writer()]
  for episode in range(12):
    for lane, writer in enumerate(writers):
      number = 10 * episode + lane
      goal = np.full(2, number)
      writer.append({"x": np.int64(number), "goal": goal})
      writer.append({"x": np.int64(number)})
      writer.append({"x": np.int64(number), "goal": goal.copy()})
      writer.end_episode()
  batch = buffer.sample(300)
  assert set(batch["x"].tolist()) == {100, 101, 110, 111}
  np.testing.assert_array_equal(batch["goal"], np.tile(batch["x"], (2, 1)).T)
  writer = writers[0]
  writer.append({"x": np.int64(1), "goal": np.full(2, 1)})
  with pytest.raises(errors.SpecError, match=r"append: goal: .*time_offsets=0"):
    writer.append({"x": np.int64(1), "goal": np.full(2, 2)})


STEPS = {
  "python numbers": {"a": 1.5, "b": True, "c": 3},
  "numpy scalars": {"a": np.float32(1.5), "b": np.bool_(True), "c": np.int32(3)},
  "tensors": {"a": tf.constant(1.5), "b": tf.constant(True), "c": tf.constant(3)},
  "nested": {"a": np.float32(1.5), "b": True, "c": np.int32(3)},
}


@pytest.mark.parametrize("name", STEPS)
def test_accepted_values_of_a_step(name):
  spec = {
    "a": Spec((), tf.float32, time_offsets=0),
    "b": Spec((), tf.bool, time_offsets=0),
    "c": Spec((), tf.int32, time_offsets=0),
  }
  step = STEPS[name]
  if name == "nested":
    spec, step = {"top": spec}, {"top": step}
  buffer = ReplayBuffer(spec, 10)
  buffer.writer().append(step)
  batch = buffer.sample(1)
  assert [values.tolist() for values in batch.values()] == [[1.5], [True], [3]]
  assert [values.dtype for values in batch.values()] == [np.float32, bool, np.int32]


@pytest.mark.parametrize("value", [1e39, True, 1, "1"])
def test_numbers_of_another_kind(value):
  buffer = ReplayBuffer({"c": Spec((), tf.int8, time_offsets=0)}, 10)
  with pytest.raises(errors.SpecError, match=r"append: c: expected \(\) int8, got"):
    buffer.writer().append({"c": 300 if value == 1 and value is not True else value})


def test_encoded_images_are_decoded_by_the_dataset():
  spec = {
    "image": Spec(
      (2, 8, 8, 3), tf.uint8, "image", data_format="png", time_offsets=(-1, 0)
    )
  }
  buffer = ReplayBuffer(spec, 10, seed=0, padding="drop")
  pixels = np.random.default_rng(0).integers(0, 255, (5, 8, 8, 3), np.uint8)
  writer = buffer.writer()
  for image in pixels:
    writer.append({"image": tf.io.encode_png(image).numpy()})
  for batch in buffer.dataset(4).take(2):
    for pair in batch["image"].numpy():
      starts = [t for t in range(4) if np.array_equal(pair, pixels[t : t + 2])]
      assert len(starts) == 1
  with pytest.raises(errors.SpecError, match=r"image: expected an image of"):
    writer.append({"image": b"no image"})


def test_closed_buffer():
  buffer = ReplayBuffer(X, 10)
  writer = buffer.writer()
  append(writer, 1)
  buffer.close()
  for call in (
    lambda: append(writer, 2),
    lambda: buffer.sample(1),
    buffer.writer,
    lambda: buffer.update_priorities(np.zeros(1, np.uint64), np.ones(1)),
  ):
    with pytest.raises(errors.ReplayError, match="expected an open replay"):
      call()
  writer.close()


BAD_ARGUMENTS = {
  "no capacity": ({}, "either capacity_steps or capacity_bytes, got None and None"),
  "two capacities": (
    {"capacity_steps": 1, "capacity_bytes": 1},
    "either capacity_steps or capacity_bytes, got 1 and 1",
  ),
  "zero": ({"capacity_steps": 0}, "capacity_steps: expected an integer of at least 1"),
  "less than a window": (
    {"capacity_steps": 3, "num_writers": 2},
    "capacity_steps: expected at least 2 steps for each writer, the length of a "
    r"window, got 1\. Raise it from 3 to 4 or more\.",
  ),
  "bytes for too few steps": (
    {"capacity_bytes": 40},
    "capacity_bytes: expected at least 2 steps for each writer, the length of a "
    r"window, got 1\. Raise it from 40 to \d+ or more\.",
  ),
  "no writers": (
    {"capacity_steps": 9, "num_writers": 0},
    "ReplayBuffer: num_writers: expected an integer of at least 1, got 0",
  ),
  "no items": ({"capacity_steps": 9, "max_size": 0}, "max_size: expected an integer"),
  "a time that is past": ({"capacity_steps": 9, "timeout": -1}, "timeout: .* got -1"),
  "a wait that no thread can wait": (
    {"capacity_steps": 9, "timeout": 1e300},
    r"timeout: expected a number of seconds of at least 0, or None, got 1e\+300",
  ),
  "no selector": (
    {"capacity_steps": 9, "sampler": "fifo"},
    r"ReplayBuffer: sampler: expected one of .*Uniform\], got str 'fifo'\. Such as "
    r"replay\.Uniform\(\)\.",
  ),
  "no remover": (
    {"capacity_steps": 9, "remover": "x"},
    r"ReplayBuffer: remover: expected .*, got str 'x'\. Such as replay\.Fifo\(\)",
  ),
  "no rate limiter": (
    {"capacity_steps": 9, "rate_limiter": 5},
    r"ReplayBuffer: rate_limiter: expected one of .*, got int 5\. Such as "
    r"replay\.MinSize\(\)\.",
  ),
  "classes of options": (
    {"capacity_steps": 9, "sampler": replay.Fifo, "rate_limiter": replay.Queue},
    r"ReplayBuffer: 2 mismatches:\n.*Make one: replay\.Queue\(\.\.\.\), or @Queue\(\) "
    r"in gin\.\n.*Make one: replay\.Fifo\(\.\.\.\), or @Fifo\(\) in gin\.",
  ),
  "a seed": (
    {"capacity_steps": 9, "seed": "a"},
    "ReplayBuffer: seed: expected an integer of at least 0, or None, got 'a'",
  ),
  "a negative seed": ({"capacity_steps": 9, "seed": -1}, "seed: expected an integer"),
  "too much": (
    {"capacity_steps": 10**15},
    "ReplayBuffer: capacity_steps: expected as much as the memory has room for, got "
    r"1000000000000000 steps: .*\. Lower capacity_steps\.",
  ),
  "far too much": ({"capacity_steps": 10**25}, "capacity_steps: expected as much as"),
  "too many bytes": (
    {"capacity_bytes": 10**17},
    "capacity_bytes: expected as much as the memory has room for, got",
  ),
  "priority": (
    {"capacity_steps": 9, "initial_priority": -1.0},
    "ReplayBuffer: initial_priority: expected finite numbers of at least 0, .* got -1",
  ),
  "no priority": (
    {"capacity_steps": 9, "initial_priority": "a"},
    "ReplayBuffer: initial_priority: expected a number, got str 'a'",
  ),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
  arguments, message = BAD_ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=message):
    ReplayBuffer(PAIR, **arguments)


def test_requested_capacity_is_enough():
  for num_writers in (1, 3):
    more = {"num_writers": num_writers, "sampler": replay.Prioritized()}
    for name in ("capacity_steps", "capacity_bytes"):
      with pytest.raises(errors.SpecError) as caught:
        ReplayBuffer(PAIR, **{name: 1}, **more)
      enough = int(str(caught.value).split(" to ")[1].split()[0])
      ReplayBuffer(PAIR, **{name: enough}, **more)
      with pytest.raises(errors.SpecError, match="the length of a window"):
        ReplayBuffer(PAIR, **{name: enough - 1}, **more)


def test_bytes_of_strings_are_not_known():
  spec = {"text": Spec((), tf.string, time_offsets=0), "task": Spec((), tf.string)}
  with pytest.raises(errors.SpecError, match=r"\(\[task, text\]\): .* Give cap"):
    ReplayBuffer(spec, capacity_bytes=1000)


def test_capacity_in_bytes_holds():
  spec = {"x": Spec((2, 5000), tf.float32, "x", time_offsets=(-1, 0))}
  buffer = ReplayBuffer(spec, capacity_bytes=1_000_000)
  writer = buffer.writer()
  for _ in range(60):
    writer.append({"x": np.zeros(5000, np.float32)})
  counters = buffer.counters
  assert counters.num_steps == 49
  assert 20_000 * 49 <= counters.num_bytes <= 1.02 * 20_000 * 49


SCALAR = {"x": Spec((), tf.float32, "x", time_offsets=0)}
WITH_GOAL = {**SCALAR, "goal": Spec((1000,), tf.float32, "goal")}
IN_BYTES = {
  "uniform": (SCALAR, {}),
  "by priority": (SCALAR, {"sampler": replay.Prioritized()}),
  "three writers": (PAIR, {"num_writers": 3, "padding": "zero"}),
  "a queue": (SCALAR, {"sampler": replay.Fifo(), "max_times_sampled": 9}),
  "features of episodes": (WITH_GOAL, {}),
  "all": (WITH_GOAL, {"num_writers": 2, "sampler": replay.Prioritized()}),
}


@pytest.mark.parametrize("name", IN_BYTES)
@pytest.mark.parametrize("length", [1, 10**6])
def test_capacity_in_bytes_counts_all(length, name):
  spec, arguments = IN_BYTES[name]
  buffer = ReplayBuffer(spec, capacity_bytes=100_000, **arguments)
  num_writers = arguments.get("num_writers", 1)
  writers = [buffer.writer() for _ in range(num_writers)]
  flat = buffer.flat_spec
  step = {p: np.zeros(s.shape, s.dtype.as_numpy_dtype) for p, s in flat.items()}
  num_slots = buffer._table.index.num_slots
  for t in range(num_slots + 20):
    for writer in writers:
      writer.append(step)
      if (t + 1) % length == 0:
        writer.end_episode()
  buffer.sample_with_info(2)
  counters = buffer.counters
  assert counters.num_steps == num_slots * num_writers
  assert counters.num_bytes <= 100_000
  if length == 1:
    assert counters.num_bytes > 90_000


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0])
def test_bad_batch_size(wrong):
  with pytest.raises(errors.SpecError, match="batch_size: expected an integer"):
    ReplayBuffer(X, 4).sample(wrong)


def test_spec_that_shows_the_steps_of_another():
  spec = {
    "obs": Spec((2, 3), tf.float32, "obs", time_offsets=(-1, 0)),
    "next_obs": Spec((3,), tf.float32, "obs", time_offsets=1),
  }
  buffer = ReplayBuffer(spec, 4, padding="drop")
  assert list(buffer.flat_spec) == ["obs"]
  writer = buffer.writer()
  for t in range(3):
    writer.append({"obs": np.full(3, t, np.float32)})
  batch = buffer.sample(1)
  assert batch["obs"][0, :, 0].tolist() == [0, 1] and batch["next_obs"][0, 0] == 2


def test_structure_without_steps():
  with pytest.raises(errors.SpecError, match="at least one path with a time axis"):
    ReplayBuffer(specs.TensorSpecStruct(goal=Spec((3,), tf.float32)), 4)
