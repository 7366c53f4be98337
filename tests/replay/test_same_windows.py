"""A store, a stream of records and a replay give the same windows for the same specs.

They are compared with a reference that takes every step in a loop of its own.
"""

from __future__ import annotations

import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from t2r_seq import data, records, replay, specs, store, windows
from t2r_seq.specs import ExtendedTensorSpec as Spec

MAX_EXAMPLES = 3
PADDINGS = [*windows.cut.PADDINGS, *itertools.permutations(windows.cut.PADDINGS, 2)]


def at(path, offsets, shape=(), dtype=tf.float32, **kwargs):
  stack = (len(offsets),) if isinstance(offsets, tuple) else ()
  return Spec((*stack, *shape), dtype, path, time_offsets=offsets, **kwargs)


def stacks(low, high):
  return st.lists(st.integers(low, high), min_size=1, max_size=3).map(tuple)


@st.composite
def any_windows(draw):
  """Draws features, labels and a cut of windows of any kind."""
  length = draw(st.one_of(st.none(), st.integers(1, 3)))
  structure = {}
  for path in "abc"[: draw(st.integers(1, 3))]:
    offsets = draw(st.one_of(st.integers(-3, 3), stacks(-3, 3)))
    is_sequence = length is not None and draw(st.booleans())
    dtype = draw(st.sampled_from([tf.float32, tf.int64]))
    shape = draw(st.sampled_from([(), (2,)]))
    structure[path] = at(path, offsets, shape, dtype, is_sequence=is_sequence)
  if not any(spec.is_sequence for spec in structure.values()):
    length = None
  cut = windows.Cut(
    length,
    draw(st.integers(1, 3)),
    draw(st.integers(1, 3)),
    draw(st.sampled_from(PADDINGS)),
    masks=False,
  )
  return windows.add_mask_specs(structure), {}, cut


@st.composite
def transitions(draw):
  """Draws features, labels and a cut of transitions over up to n steps."""
  own = draw(st.one_of(st.just(0), stacks(-3, 0)))
  later = own + 1 if isinstance(own, int) else tuple(step + 1 for step in own)
  features = {
    "obs": at("obs", own, (2,)),
    "act": at("act", draw(st.sampled_from([0, (0,), (0, 1), (-1, 0)]))),
    "next_obs": at("obs", later, (2,)),
  }
  labels = {
    "rew": at("rew", 0),
    "done": at("done", 0),
  }
  n_step = None
  if draw(st.booleans()):
    n_step = draw(st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0])))
    labels |= {"discount": Spec((), tf.float32), "num_steps": Spec((), tf.int32)}
  padding = draw(st.sampled_from(PADDINGS))
  cut = windows.Cut(None, draw(st.integers(1, 2)), 1, padding, n_step=n_step)
  return features, labels, cut


def make_episode(flat, number, num_steps):
  rng = np.random.default_rng(10 * number + num_steps)
  episode = {
    path: rng.integers(1, 100, (num_steps, *spec.shape)).astype(
      spec.dtype.as_numpy_dtype
    )
    for path, spec in flat.items()
  }
  episode["goal"] = np.full([3], number, np.float32)
  if "done" in episode:
    # The last step has the last observation only.
    episode["done"][:] = 0
    if num_steps > 1 and number % 2:
      episode["done"][-2] = 1
  return episode


def reference(structure, cut, episode, num_steps):
  """Yields the windows of an episode, each step by itself."""
  n_step = cut.n_step
  offsets_of = {
    path: np.array(spec.time_offsets)
    for path, spec in structure.items()
    if getattr(spec, "time_offsets", None) is not None
  }
  low = min(0, *(int(offsets.min()) for offsets in offsets_of.values()))
  high = max(0, *(int(offsets.max()) for offsets in offsets_of.values()))

  def read(path, steps):
    source = structure[path].name
    shown = np.zeros(steps.shape + episode[source].shape[1:], episode[source].dtype)
    for place in np.ndindex(*steps.shape):
      step = steps[place]
      side = cut.front if step < 0 else cut.end if step >= num_steps else "real"
      assert side != "drop"
      if side != "zero":
        shown[place] = episode[source][min(max(step, 0), num_steps - 1)]
    return shown

  first = -low if cut.front == "drop" else 0
  while True:
    anchors = [first + i * cut.stride for i in range(cut.num_stacks)]
    if anchors[-1] + high >= num_steps if cut.end == "drop" else first >= num_steps:
      return
    later = 0
    if n_step is not None:
      later = min(n_step.n, num_steps - high - first) - 1
    window = {"goal": episode["goal"]}
    for path, offsets in offsets_of.items():
      own = anchors if structure[path].is_sequence else anchors[-1]
      steps = np.add.outer(np.array(own), offsets)
      if n_step is not None and path in ("next_obs", "done"):
        steps = steps + later
      if n_step is not None and path == "rew":
        rewards = episode["rew"][first : first + later + 1]
        total = (rewards * n_step.gamma ** np.arange(later + 1)).sum()
        window["rew"] = np.float32(total)
        continue
      window[path] = read(path, steps)
      if f"{path}_mask" in structure:
        window[f"{path}_mask"] = (steps >= 0) & (steps < num_steps)
    if n_step is not None:
      goes_on = 1 - window["done"]
      window["discount"] = np.float32(n_step.gamma ** (later + 1) * goes_on)
      window["num_steps"] = np.int32(later + 1)
    yield window
    if cut.end != "drop" and anchors[-1] + cut.stride >= num_steps:
      return
    first += cut.shift * cut.stride


def from_generator(generator, features, labels, cut):
  generator.set_feature_specifications(features)
  generator.set_label_specifications(labels)
  generator.set_padding(cut.padding)
  for pair in generator.create_dataset("eval").as_numpy_iterator():
    yield {path: value[0] for part in pair for path, value in part.items()}


def from_store(folder, features, labels, cut, flat, episodes):
  with store.EpisodeStore.create(folder / "store", flat) as writer:
    for episode in episodes:
      writer.append_episode(episode)
  made = data.StoreInputGenerator(folder / "store", 1, **options(cut))
  return from_generator(made, features, labels, cut)


def from_records(folder, features, labels, cut, flat, episodes):
  records.write_records(str(folder / "episodes"), flat, episodes)
  made = data.DefaultRecordInputGenerator(str(folder / "episodes"), 1, **options(cut))
  return from_generator(made, features, labels, cut)


def from_python(folder, features, labels, cut, flat, episodes):
  def pairs():
    for episode in episodes:
      yield tuple(
        {
          path: episode[spec.name]
          for path, spec in windows.flat_specs(half, cut.n_step).items()
        }
        for half in (features, labels)
      )

  made = data.GeneratorInputGenerator(pairs, 1, yields_episodes=True, **options(cut))
  return from_generator(made, features, labels, cut)


def from_replay(folder, features, labels, cut, flat, episodes):
  with replay.ReplayBuffer(
    {**features, **labels},
    200,
    sampler=replay.Fifo(),
    max_times_sampled=1,
    timeout=0,
    cut=cut,
  ) as buffer:
    assert dict(buffer.flat_spec) == dict(flat)
    with buffer.writer() as writer:
      for episode in episodes:
        steps = {p: v for p, v in episode.items() if p != "goal"}
        for t in range(len(next(iter(steps.values())))):
          step = {path: values[t] for path, values in steps.items()}
          writer.append({**step, "goal": episode["goal"]})
        writer.end_episode()
    count = buffer.counters.num_items
    batch = buffer.sample(count) if count else {}
  for row in range(count):
    yield {path: values[row] for path, values in batch.items()}


def options(cut):
  return {
    name: getattr(cut, name)
    for name in ("sequence_length", "stride", "shift", "n_step")
  }


SOURCES = {
  "store": from_store,
  "records": from_records,
  "python": from_python,
  "replay": from_replay,
}


@pytest.mark.parametrize("kind", [any_windows, transitions])
def test_all_give_the_same(kind, tmp_path_factory):
  # Not shrunk: each try makes three datasets, which takes a second.
  @hypothesis.settings(max_examples=MAX_EXAMPLES, phases=[hypothesis.Phase.generate])
  @hypothesis.given(kind(), st.lists(st.integers(1, 9), min_size=2, max_size=4))
  def check(problem, lengths):
    features, labels, cut = problem
    features = {**features, "goal": Spec((3,), tf.float32, "goal")}
    structure = specs.TensorSpecStruct({**features, **labels})
    flat = windows.flat_specs(structure, cut.n_step)
    flat = specs.TensorSpecStruct((p, s) for p, s in flat.items() if s.name == p)
    per_step = {path: spec for path, spec in flat.items() if spec.is_sequence}
    episodes = [make_episode(per_step, i, num) for i, num in enumerate(lengths)]
    want = [
      window
      for episode, num in zip(episodes, lengths, strict=True)
      for window in reference(structure, cut, episode, num)
    ]
    hypothesis.assume(want)
    for name, read in SOURCES.items():
      folder = tmp_path_factory.mktemp(name)
      got = list(read(folder, features, labels, cut, flat, episodes))
      assert len(got) == len(want), name
      for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert sorted(mine) == sorted(theirs), name
        for path, value in theirs.items():
          where = f"{name}: window {number}: {path}"
          assert mine[path].dtype == value.dtype, where
          np.testing.assert_array_equal(mine[path], value, err_msg=where)

  check()
