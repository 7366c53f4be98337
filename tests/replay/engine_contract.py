"""What every engine of a replay has to do: the same cases for each of them.

A module of tests makes a class of `EngineContract` and gives it a fixture `make_replay`
that takes the arguments of `MakeReplay` and closes what it has made.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs, windows
from t2r_seq.replay.replay import SampleInfo, flat_replay_specs
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.windows.reader import WindowReader

LENGTHS = (1, 2, 7, 12, 5)


class MakeReplay(Protocol):
  """Makes a replay of the engine under test; arguments are those of `ReplayBuffer`."""

  def __call__(self, spec_structure: Any, **arguments: Any) -> replay.replay.Replay: ...


def step_spec(**leaves: Any) -> specs.TensorSpecStruct:
  """Returns specs by path."""
  return specs.TensorSpecStruct(leaves)


STACK = step_spec(
  image=Spec((3, 2, 2), tf.uint8, "image", time_offsets=(-2, -1, 0)),
  state=Spec((4,), tf.float32, "state", time_offsets=0),
)
NEXT = step_spec(
  obs=Spec((2, 3), tf.float32, "obs", time_offsets=(-1, 0)),
  next_obs=Spec((2, 3), tf.float32, "obs", time_offsets=(0, 1)),
  action=Spec((), tf.int32, "action", time_offsets=0),
)
CHUNK = step_spec(
  image=Spec((2, 2), tf.uint8, "image", time_offsets=(-3, 0)),
  action=Spec((4, 2), tf.float64, "action", time_offsets=(0, 1, 2, 3)),
  is_far=Spec((), tf.bool, "is_far", time_offsets=2),
)
SEQUENCE = step_spec(
  image=Spec((2, 2), tf.uint8, "image", time_offsets=(-1, 0), is_sequence=True),
  reward=Spec((), tf.float32, "reward", is_sequence=True),
)
CONTEXT = step_spec(
  state=Spec((2,), tf.float32, "state", time_offsets=0),
  goal=Spec((3,), tf.float32, "goal"),
)
TEXT = step_spec(
  text=Spec((2,), tf.string, "text", time_offsets=(-1, 0)),
  state=Spec((), tf.int64, "state", time_offsets=0),
)

CASES: dict[str, tuple[specs.TensorSpecStruct, dict[str, Any]]] = {
  "a stack": (STACK, {}),
  "a stack, repeated at the start": (STACK, {"padding": "repeat"}),
  "a stack, zeros at the start": (STACK, {"padding": "zero"}),
  "next observations": (NEXT, {}),
  "next observations, repeated at the end": (NEXT, {"padding": "repeat"}),
  "a chunk of actions": (CHUNK, {}),
  "a chunk of actions, repeated": (CHUNK, {"padding": "repeat"}),
  "a chunk of actions, zeros": (CHUNK, {"padding": "zero"}),
  "masks": (windows.add_mask_specs(CHUNK), {"padding": "zero"}),
  "every other anchor": (STACK, {"shift": 2}),
  "sequences": (SEQUENCE, {"sequence_length": 3}),
  "sequences with a stride": (
    SEQUENCE,
    {"sequence_length": 3, "stride": 2, "shift": 2},
  ),
  "sequences, repeated": (
    SEQUENCE,
    {"sequence_length": 4, "shift": 2, "padding": "repeat"},
  ),
  "sequences far apart, zeros": (
    SEQUENCE,
    {"sequence_length": 2, "stride": 2, "shift": 3, "padding": "zero"},
  ),
  "context features": (CONTEXT, {}),
  "byte strings": (TEXT, {"padding": "zero"}),
}

TRANSITION = step_spec(
  obs=Spec((2, 3), tf.float32, "obs", time_offsets=(-1, 0)),
  act=Spec((), tf.int32, "act", time_offsets=0),
  rew=Spec((), tf.float32, "rew", time_offsets=0),
  next_obs=Spec((2, 3), tf.float32, "obs", time_offsets=(0, 1)),
  done=Spec((), tf.bool, "done", time_offsets=0),
  truncated=Spec((), tf.bool, "truncated", time_offsets=0),
  goal=Spec((2,), tf.int64, "goal"),
)
# Number of joined steps, padding.
N_STEP_CASES = {
  "one step": (1, "drop"),
  "three steps": (3, "drop"),
  "three steps, repeated at the start": (3, "repeat"),
  "three steps, zeros at the start": (3, "zero"),
  "more than an episode has": (20, "repeat"),
}


def make_transitions(number: int, num: int) -> dict[str, np.ndarray]:
  """Makes an episode of transitions: terminal, cut off, or just left, by number."""
  random = np.random.default_rng(number)
  is_last = np.arange(num + 1) == num - 1
  return {
    "obs": random.random((num + 1, 3), np.float32) + 1,
    "act": np.arange(num + 1, dtype=np.int32) + 100 * number,
    "rew": np.where(np.arange(num + 1) < num, random.random(num + 1), 0).astype("f4"),
    "done": is_last & (number % 3 == 0),
    "truncated": is_last & (number % 3 == 1),
    "goal": np.array([number, -number]),
  }


def joined_transitions(
  episode: dict[str, np.ndarray], n: int, gamma: float, padding: str
) -> Iterator[dict[str, np.ndarray]]:
  """Yields n-step transitions by their definition, `windows.NStep`."""
  num = len(episode["rew"]) - 1
  obs = episode["obs"].astype(np.float32)
  for t in range(padding == "drop", num):
    count = min(n, num - t)
    end = t + count - 1
    before = obs[0] * (padding == "repeat")
    rewards = episode["rew"][t : end + 1].astype(np.float64)
    yield {
      "obs": np.stack([obs[t - 1] if t else before, obs[t]]),
      "act": episode["act"][t],
      "rew": np.float32((rewards * gamma ** np.arange(count)).sum()),
      "next_obs": obs[end : end + 2],
      "done": episode["done"][end],
      "truncated": episode["truncated"][end],
      "goal": episode["goal"],
      "discount": np.float32(gamma**count * (1 - episode["done"][end])),
      "num_steps": np.int32(count),
    }


def make_episode(spec: Any, number: int, num_steps: int) -> dict[str, np.ndarray]:
  """Makes an episode in which every value tells its episode, its step and its path."""
  episode = {}
  flat = flat_replay_specs("test", spec)
  for place, (path, leaf) in enumerate(flat.items()):
    count = num_steps if leaf.is_sequence else 1
    shape = (count, *leaf.shape.as_list())
    code = np.arange(count) + 40 * number + 7 * place + 1
    full = np.broadcast_to(code.reshape(count, *[1] * (len(shape) - 1)), shape)
    if leaf.dtype == tf.string:
      values = np.array([b"%d\0" % c for c in full.ravel()], object).reshape(shape)
    elif leaf.dtype == tf.bool:
      values = full % 3 == 0
    else:
      values = full.astype(leaf.dtype.as_numpy_dtype)
    episode[path] = values if leaf.is_sequence else values[0]
  return episode


def step_of(spec: Any, episode: dict[str, np.ndarray], t: int) -> dict[str, Any]:
  """Returns what is appended for a step; context features come with the first one."""
  flat = flat_replay_specs("test", spec)
  step = {path: values[t] for path, values in episode.items() if flat[path].is_sequence}
  if t == 0:
    step |= {p: values for p, values in episode.items() if p not in step}
  return step


def write(
  target: replay.replay.ReplayWriter, spec: Any, episode: dict[str, Any]
) -> None:
  """Appends an episode and ends it."""
  flat = flat_replay_specs("test", spec)
  num_steps = max(len(v) for p, v in episode.items() if flat[p].is_sequence)
  for t in range(num_steps):
    target.append(step_of(spec, episode, t))
  target.end_episode()


def expected_windows(
  spec: Any, episodes: list[dict[str, np.ndarray]], options: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
  """Cuts all windows from whole episodes with `windows.reader.WindowReader`."""
  found = []
  for episode in episodes:
    tensors = {path: tf.convert_to_tensor(values) for path, values in episode.items()}
    element = {path: tf.TensorSpec(t.shape, t.dtype) for path, t in tensors.items()}
    reader = WindowReader(element, spec, windows.Cut(**options))
    num_steps = int(reader.num_steps(tensors))
    for window in range(reader.grid.num_windows(num_steps)):
      start = tf.constant(reader.grid.start(window), tf.int64)
      read = reader.read(tensors, start, tf.constant(num_steps, tf.int64))
      found.append({path: value.numpy() for path, value in read.items()})
  return found


def window_key(window: dict[str, Any]) -> str:
  """Returns a text that differs between different windows."""
  return "; ".join(
    f"{path} {np.asarray(window[path]).shape} {np.asarray(window[path]).tolist()}"
    for path in sorted(window)
  )


def rows_of(batch: Any) -> Iterator[dict[str, np.ndarray]]:
  """Yields the windows of a batch."""
  arrays = {path: tensor.numpy() for path, tensor in batch.items()}
  for row in range(len(next(iter(arrays.values())))):
    yield {path: array[row] for path, array in arrays.items()}


BAD_STEPS: dict[str, tuple[Any, list[str]]] = {
  "everything": (
    {"image": np.zeros((2, 3), np.uint8), "stat": np.zeros(4, np.float32)},
    [
      r"append: 3 mismatches",
      r"image: expected \(2, 2\) uint8, got \(2, 3\) uint8",
      r"stat: expected .*Did you mean 'state'",
      r"state: expected \(4,\) float32, got nothing",
    ],
  ),
  "a dtype": (
    {"image": np.zeros((2, 2), np.uint8), "state": np.zeros(4)},
    [r"append: state: expected \(4,\) float32, got \(4,\) float64"],
  ),
}


NUMBERS = step_spec(
  x=Spec((2,), tf.float32, "x", time_offsets=0),
  half=Spec((2,), tf.bfloat16, "half", time_offsets=0),
  reward=Spec((), tf.float32, "reward", time_offsets=0),
  goal=Spec((), tf.float64, "goal"),
)
_HALF = tf.bfloat16.as_numpy_dtype
# Path, its value, what the error has.
NONFINITE: dict[str, tuple[str, Any, str]] = {
  "NaN": ("x", np.array([0, np.nan], np.float32), r"x: .*got NaN at \(1,\)"),
  "infinity": ("x", np.array([-np.inf, 0], np.float32), r"x: .*got -inf at \(0,\)"),
  "NaN in a list": ("x", [0.0, np.nan], r"x: .*got NaN at \(1,\)"),
  "bfloat16": ("half", np.array([np.inf, 0], _HALF), r"half: .*got inf at \(0,\)"),
  "a scalar": ("reward", np.float32(np.nan), r"reward: .*got NaN at \(\)"),
  "a Python number": ("reward", np.nan, r"reward: .*got NaN at \(\)"),
  "of the episode": ("goal", np.inf, r"goal: .*got inf at \(\)"),
}


AFTER_CLOSE: dict[str, Callable[[replay.replay.Replay], Any]] = {
  "writer": lambda buffer: buffer.writer(),
  "dataset": lambda buffer: buffer.dataset(1),
  "update_priorities": lambda buffer: buffer.update_priorities([1], [1.0]),
  "checkpoint": lambda buffer: buffer.checkpoint(),
}


class EngineContract:
  """The cases."""

  @pytest.mark.parametrize("name", CASES)
  def test_windows_are_those_of_whole_episodes(self, name, make_replay):
    spec, options = CASES[name]
    episodes = [make_episode(spec, i, n) for i, n in enumerate(LENGTHS)]
    expected = expected_windows(spec, episodes, options)
    buffer = make_replay(
      spec, sampler=replay.Fifo(), max_times_sampled=1, timeout=20, **options
    )
    with buffer.writer() as writer:
      for episode in episodes:
        write(writer, spec, episode)
    dataset = buffer.dataset(1).take(len(expected))
    got = [window for batch in dataset for window in rows_of(batch)]
    assert collections.Counter(map(window_key, got)) == collections.Counter(
      map(window_key, expected)
    )
    assert buffer.counters.num_inserts == len(expected)

  @pytest.mark.parametrize("name", N_STEP_CASES)
  def test_n_step_transitions(self, name, make_replay):
    n, padding = N_STEP_CASES[name]
    episodes = [make_transitions(i, num) for i, num in enumerate((1, 4, 2, 9))]
    want = {
      int(joined["act"]): joined
      for episode in episodes
      for joined in joined_transitions(episode, n, 0.9, padding)
    }
    buffer = make_replay(
      TRANSITION,
      n_step=(n, 0.9),
      padding=padding,
      sampler=replay.Fifo(),
      max_times_sampled=1,
      timeout=20,
    )
    with buffer.writer() as writer:
      for episode in episodes:
        write(writer, TRANSITION, episode)
    dataset = buffer.dataset(1)
    element = {path: (t.shape[1:], t.dtype) for path, t in dataset.element_spec.items()}
    seen = []
    for batch in dataset.take(len(want)):
      assert {p: (t.shape[1:], t.dtype) for p, t in batch.items()} == element
      (got,) = rows_of(batch)
      seen.append(int(got["act"]))
      assert got.keys() == want[seen[-1]].keys()
      for path, value in want[seen[-1]].items():
        assert got[path].dtype == value.dtype, path
        np.testing.assert_allclose(got[path], value, rtol=1e-7, err_msg=path)
    assert sorted(seen) == sorted(want)
    assert buffer.counters.num_inserts == len(want)

  def test_terminal_transition_needs_no_row_after_it(self, make_replay):
    buffer = make_replay(
      TRANSITION,
      n_step=(3, 0.5),
      padding="repeat",
      sampler=replay.Fifo(),
      max_times_sampled=1,
      timeout=20,
    )
    with buffer.writer() as writer:
      for number in range(3):  # A terminal, a truncation, and an episode just left.
        episode = make_transitions(number, 4)
        per_step = {p: v[:-1] for p, v in episode.items() if p != "goal"}
        write(writer, TRANSITION, {**per_step, "goal": episode["goal"]})
    got = [row for batch in buffer.dataset(1).take(10) for row in rows_of(batch)]
    found = {int(row["act"]): (row["num_steps"], row["discount"]) for row in got}
    assert found == {
      **{0: (3, 0.125), 1: (3, 0), 2: (2, 0), 3: (1, 0)},
      **{100: (3, 0.125), 101: (2, 0.25), 102: (1, 0.5)},
      **{200: (3, 0.125), 201: (2, 0.25), 202: (1, 0.5)},
    }

  def test_n_step_of_a_running_episode_waits_for_all_steps(self, make_replay):
    buffer = make_replay(TRANSITION, n_step=(3, 1.0), padding="repeat")
    episode = make_transitions(2, 8)
    writer = buffer.writer()
    for t in range(5):
      writer.append(step_of(TRANSITION, episode, t))
    while buffer.counters.num_inserts < 2:  # A writer may be ahead of its server.
      pass
    writer.close()
    assert buffer.counters.num_inserts == 4

  def test_masks_are_not_joined(self, make_replay):
    with pytest.raises(
      errors.SpecError, match="n_step: masks: expected none, got mask"
    ):
      make_replay(TRANSITION, n_step=(3, 1.0), masks=True)

  def test_dataset_has_the_specs_of_windows(self, make_replay):
    buffer = make_replay(STACK)
    element = buffer.dataset(5).element_spec
    assert {path: (t.shape, t.dtype) for path, t in element.items()} == {
      "image": ((5, 3, 2, 2), tf.uint8),
      "state": ((5, 4), tf.float32),
    }
    info, _ = buffer.dataset(5, with_info=True).element_spec
    assert info._fields == SampleInfo._fields
    assert [t.dtype for t in info] == [
      *(tf.uint64, tf.float64, tf.int64, tf.float64, tf.int32)
    ]

  @pytest.mark.parametrize("with_info", [False, True])
  def test_no_buffer_of_old_batches_grows(self, with_info, make_replay):
    dataset = make_replay(NEXT, max_size=100).dataset(4, with_info=with_info)
    assert dataset.options().experimental_optimization.inject_prefetch is False

  def test_running_episodes_can_be_sampled(self, make_replay):
    buffer = make_replay(NEXT, timeout=20, padding="drop")
    episode = make_episode(NEXT, 0, 5)
    writer = buffer.writer()
    for t in range(3):
      writer.append(step_of(NEXT, episode, t))
    (window,) = rows_of(next(iter(buffer.dataset(1))))
    assert window["action"] == episode["action"][1]
    assert buffer.counters.num_items == 1

  def test_unended_episode_ends_where_it_stopped(self, make_replay):
    buffer = make_replay(CHUNK, padding="repeat", timeout=20)
    with buffer.writer() as writer:
      for t in range(3):
        writer.append(step_of(CHUNK, make_episode(CHUNK, 0, 9), t))
    with buffer.writer() as writer:
      write(writer, CHUNK, make_episode(CHUNK, 1, 4))
    assert buffer.counters.num_inserts == 3 + 4

  def test_order(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    once = {"sampler": replay.Fifo(), "max_times_sampled": 1}
    buffer = make_replay(spec, timeout=20, **once)
    with buffer.writer() as writer:
      for x in range(4):
        writer.append({"x": np.int64(x)})
    got = [int(batch["x"][0]) for batch in buffer.dataset(1).take(4)]
    assert got == [0, 1, 2, 3]

  def test_samples_wait_for_inserts(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    limiter = replay.SampleToInsertRatio(2.0, 3, 4.0)
    buffer = make_replay(spec, rate_limiter=limiter, timeout=0.2)
    with buffer.writer() as writer:
      for x in range(4):
        writer.append({"x": np.int64(x)})
    with pytest.raises(tf.errors.OpError, match=r"waited 0\.2 s.*4 inserts and 6 samp"):
      for _ in buffer.dataset(1):
        pass

  def test_priorities(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    buffer = make_replay(spec, sampler=replay.Prioritized(1.0), timeout=20)
    with buffer.writer() as writer:
      for x in range(4):
        writer.append({"x": np.int64(x)}, priority=float(x))
    counts = collections.Counter()
    keys = {}
    for info, batch in buffer.dataset(50, with_info=True).take(20):
      xs = batch["x"].numpy()
      counts.update(xs.tolist())
      np.testing.assert_allclose(info.probability.numpy(), xs / 6, rtol=1e-6)
      np.testing.assert_array_equal(info.priority.numpy(), xs)
      np.testing.assert_array_equal(info.table_size.numpy(), 4)
      keys.update(zip(xs.tolist(), info.key.numpy().tolist(), strict=True))
      weights = replay.importance_weights(info, 1.0)
      np.testing.assert_allclose(weights.numpy(), xs.min() / xs, rtol=1e-6)
    assert counts[0] == 0
    for x in (1, 2, 3):
      assert abs(counts[x] / 1000 - x / 6) < 0.08, counts
    updated = np.array([keys[1], keys[3]], np.uint64)
    buffer.update_priorities(updated, np.array([5.0, 0.0]))
    # What was drawn before the update may still be on its way.
    later = list(buffer.dataset(50, with_info=True).take(4))[-1]
    assert set(later[1]["x"].numpy().tolist()) == {1, 2}

  def test_max_size_evicts_the_oldest(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    buffer = make_replay(spec, sampler=replay.Uniform(), max_size=3, timeout=20)
    with buffer.writer() as writer:
      for x in range(10):
        writer.append({"x": np.int64(x)})
    assert buffer.counters.num_items == 3
    got = np.concatenate([b["x"].numpy() for b in buffer.dataset(20).take(5)])
    assert set(got.tolist()) == {7, 8, 9}

  def test_empty_replay_times_out(self, make_replay):
    buffer = make_replay(
      STACK, rate_limiter=replay.MinSize(3), timeout=0.2, padding="repeat"
    )
    with buffer.writer() as writer:
      write(writer, STACK, make_episode(STACK, 0, 2))
    with pytest.raises(tf.errors.OpError, match=r"waited 0\.2 s.*2 of 3 items"):
      next(iter(buffer.dataset(1)))
    with (
      pytest.raises(errors.ReplayTimeoutError) as caught,
      buffer.explain_failures(),
    ):
      next(iter(buffer.dataset(1)))
    caught.match(r"^replay: sample: waited 0\.2 s.*: 2 of 3 items are there")
    assert len(str(caught.value)) < 200

  def test_waits_for_the_minimum_size(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    buffer = make_replay(spec, rate_limiter=replay.MinSize(5), timeout=30)
    got: list[Any] = []
    thread = threading.Thread(
      target=lambda: got.append(next(iter(buffer.dataset(8)))["x"].numpy())
    )
    thread.start()
    with buffer.writer() as writer:
      for x in range(5):
        assert not got
        writer.append({"x": np.int64(x)})
    thread.join(30)
    assert len(got) == 1 and set(got[0].tolist()) <= set(range(5))

  def test_full_queue_times_out(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    buffer = make_replay(
      spec,
      sampler=replay.Fifo(),
      max_times_sampled=1,
      rate_limiter=replay.Queue(2),
      timeout=0.2,
    )
    writer = buffer.writer()
    writer.append({"x": np.int64(0)})
    writer.append({"x": np.int64(1)})
    with pytest.raises(errors.ReplayTimeoutError, match=r"insert: waited 0\.2 s"):
      writer.append({"x": np.int64(2)})
      writer.append({"x": np.int64(3)})
      writer.close()

  @pytest.mark.parametrize("name", BAD_STEPS)
  def test_bad_steps(self, name, make_replay):
    step, want = BAD_STEPS[name]
    buffer = make_replay(STACK, padding="repeat")
    good = {"image": np.zeros((2, 2), np.uint8), "state": np.zeros(4, np.float32)}
    with buffer.writer() as writer:
      writer.append(good)
      with pytest.raises(errors.SpecError) as caught:
        writer.append(step)
      for text in want:
        caught.match(text)
      writer.append(good)
    assert buffer.counters.num_inserts == 2

  @pytest.mark.parametrize("kind", ["steps", "steps and context"])
  @pytest.mark.parametrize("name", NONFINITE)
  def test_nan_and_infinity_need_allow_nan(self, name, kind, make_replay):
    path, value, match = NONFINITE[name]
    has_context = kind != "steps"
    if path == "goal" and not has_context:
      pytest.skip("there is no context")
    spec = step_spec(**{p: s for p, s in NUMBERS.items() if p != "goal" or has_context})
    good = {p: np.zeros(s.shape, s.dtype.as_numpy_dtype) for p, s in spec.items()}
    bad = {**good, path: value}
    buffer, allowing = make_replay(spec), make_replay(spec, allow_nan=True)
    for target in (buffer, allowing):
      writer = target.writer()
      if target is buffer:
        with pytest.raises(errors.SpecError, match=f"append: {match}.*allow_nan=True"):
          writer.append(bad)
        writer.append(good)
      else:
        writer.append(bad)
      writer.close()
      assert target.counters.num_inserts == 1

  def test_append_after_close(self, make_replay):
    buffer = make_replay(STACK)
    writer = buffer.writer()
    writer.close()
    writer.close()
    with pytest.raises(errors.SpecError, match="expected an open writer"):
      writer.append(
        {"image": np.zeros((2, 2), np.uint8), "state": np.zeros(4, np.float32)}
      )
    with pytest.raises(errors.SpecError, match="expected an open writer"):
      writer.end_episode()

  def test_priorities_of_removed_items_are_ignored(self, make_replay):
    spec = step_spec(x=Spec((), tf.int64, "x", time_offsets=0))
    buffer = make_replay(spec, sampler=replay.Prioritized(1.0), max_size=2, timeout=20)
    with buffer.writer() as writer:
      writer.append({"x": np.int64(0)})
      writer.append({"x": np.int64(1)})
      infos = [i for i, _ in buffer.dataset(10, with_info=True).take(1)]
      for x in range(2, 6):
        writer.append({"x": np.int64(x)})
    keys = np.unique(infos[0].key.numpy())
    buffer.update_priorities(keys, np.ones(len(keys)))
    assert buffer.counters.num_items == 2

  @pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
  def test_bad_priorities(self, wrong, make_replay):
    buffer = make_replay(STACK, sampler=replay.Prioritized())
    with pytest.raises(errors.SpecError, match="finite numbers of at least 0"):
      buffer.update_priorities(np.zeros(1, np.uint64), np.array([wrong]))

  def test_several_writers(self, make_replay):
    spec = step_spec(x=Spec((2,), tf.int64, "x", time_offsets=(-1, 0)))
    buffer = make_replay(
      spec,
      num_writers=3,
      sampler=replay.Fifo(),
      max_times_sampled=1,
      timeout=20,
      padding="drop",
    )
    writers = [buffer.writer() for _ in range(3)]
    for t in range(4):
      for row, writer in enumerate(writers):
        writer.append({"x": np.int64(10 * row + t)})
      if t == 1:
        writers[0].end_episode()
    for writer in writers:
      writer.close()
    num = buffer.counters.num_items
    got = [tuple(b["x"].numpy()[0].tolist()) for b in buffer.dataset(1).take(num)]
    want = [
      (0, 1),
      (2, 3),
      *((10 * i + t, 10 * i + t + 1) for i in (1, 2) for t in range(3)),
    ]
    assert sorted(got) == sorted(want)

  def test_closed_replay(self, make_replay):
    buffer = make_replay(STACK)
    buffer.close()
    buffer.close()
    for operation, call in AFTER_CLOSE.items():
      with pytest.raises(errors.ReplayError) as caught:
        call(buffer)
      assert str(caught.value) == (
        f"{operation}: expected an open replay, got a closed one."
      )
    with pytest.raises(errors.ReplayError, match=r"^writer: .* open replay"):
      buffer.writer()
