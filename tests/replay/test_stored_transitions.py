"""Transitions from a store and from a replay: the same ones, n steps or one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, replay, specs, store, transitions, windows
from t2r_seq.specs import ExtendedTensorSpec as Spec

FEATURES = {
  "obs": Spec((2,), tf.float32, "obs", time_offsets=0),
  "act": Spec((1,), tf.float32, "act", time_offsets=0),
  "next_obs": Spec((2,), tf.float32, "obs", time_offsets=1),
  "goal": Spec((2,), tf.int64, "goal"),
}
LABELS = {
  "rew": Spec((), tf.float32, "rew", time_offsets=0),
  "done": Spec((), tf.float32, "done", time_offsets=0),
}
JOINED = {"discount": Spec((), tf.float32), "num_steps": Spec((), tf.int32)}
STACKED = {
  **FEATURES,
  "obs": Spec((3, 2), tf.float32, "obs", time_offsets=(-2, -1, 0)),
  "next_obs": Spec((3, 2), tf.float32, "obs", time_offsets=(-1, 0, 1)),
}
LENGTHS = (5, 1, 4, 2)  # Transitions; an episode has a step more.


def fill(buffer):
  with buffer.writer() as writer:
    for number, length in enumerate(LENGTHS):
      for t in range(length + 1):
        step = 100 * number + t
        writer.append(
          {
            "obs": np.full(2, step, np.float32),
            "act": np.full(1, step, np.float32),
            "rew": np.float32(0 if t == length else 1 + step),
            "done": np.float32(t == length - 1 and number % 2 == 0),
            "goal": np.full(2, number),
          }
        )
      writer.end_episode()
  return buffer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A store that a replay of transitions wrote."""
  path = tmp_path_factory.mktemp("stored") / "store"
  with replay.ReplayBuffer({**FEATURES, **LABELS}, 100) as buffer:
    assert fill(buffer).to_store(path) == len(LENGTHS)
  return path


# name: (features, padding, rows of transitions that were, rows that were not)
PADDINGS = {
  "the front alone is padded": (FEATURES, ("repeat", "drop"), 12, 0),
  "full windows, nothing to be lost": (FEATURES, "drop", 12, 0),
  "stacks: the front alone": (STACKED, ("repeat", "drop"), 12, 0),
  "stacks: the front, with zeros": (STACKED, ("zero", "drop"), 12, 0),
  "stacks: full windows lose the first": (STACKED, "drop", 5, 0),
  "both: the last rows are made up": (STACKED, "repeat", 12, 4),
}


@pytest.mark.parametrize("name", PADDINGS)
def test_rows_by_padding(name, place):
  features, padding, real, made_up = PADDINGS[name]
  counted = store.EpisodeStore(place).windows({**features, **LABELS}, padding=padding)
  batch = counted.read(tf.range(len(counted)))
  are_last = (batch["rew"].numpy() == 0) & (batch["done"].numpy() == 0)
  assert (int((~are_last).sum()), int(are_last.sum())) == (real, made_up)


# name: (features, padding, n_step, transitions)
STORED = {
  "one step": (FEATURES, "drop", None, 12),
  "three steps": (FEATURES, "drop", (3, 0.5), 12),
  "stacks, the first frame repeated": (STACKED, ("repeat", "drop"), None, 12),
  "stacks after zeros, three steps": (STACKED, ("zero", "drop"), (3, 0.5), 12),
  "full stacks": (STACKED, "drop", None, 5),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_replay_is_loaded(name, tmp_path):
  features, padding, n_step, num = STORED[name]
  spec, options = {**features, **LABELS}, {"padding": padding}
  with fill(replay.ReplayBuffer(spec, 100, **options)) as buffer:
    buffer.to_store(tmp_path / "store")
  loaded = transitions.load_transitions(tmp_path / "store")
  loaded = loaded if n_step is None else loaded.n_step(*n_step)
  assert len(loaded) == num
  with replay.ReplayBuffer(
    spec,
    100,
    sampler=replay.Fifo(),
    max_times_sampled=1,
    n_step=n_step,
    **options,
  ) as buffer:
    want = fill(buffer).sample(num)
  got = loaded.to_numpy()
  assert sorted(got) == sorted(want)
  for path, values in want.items():
    np.testing.assert_array_equal(got[path], values, err_msg=path)
  # Any number of axes, the episode's features too.
  two_by_two = loaded.read(tf.constant([[0, 1], [2, num - 1]]))
  for path, values in want.items():
    picked = values[np.array([[0, 1], [2, num - 1]])]
    np.testing.assert_array_equal(two_by_two[path], picked, err_msg=path)


def test_rest_of_an_overwritten_episode_is_loaded(tmp_path):
  """Of the first episode the last row alone is left, which is no transition."""
  with replay.ReplayBuffer({**FEATURES, **LABELS}, 2 + 5 + 3 + 1) as buffer:
    fill(buffer).to_store(tmp_path / "store")
  lengths = store.EpisodeStore(tmp_path / "store").episode_lengths.tolist()
  assert lengths == [1, 2, 5, 3]
  got = transitions.load_transitions(tmp_path / "store").to_numpy()
  assert got["obs"][:, 0].tolist() == [100, 200, 201, 202, 203, 300, 301]
  assert got["next_obs"][:, 0].tolist() == [101, 201, 202, 203, 204, 301, 302]


OTHER_WINDOWS = {
  "stacks with a gap": {
    **STACKED,
    "obs": Spec((2, 2), tf.float32, "obs", time_offsets=(-2, 0)),
    "next_obs": Spec((2, 2), tf.float32, "obs", time_offsets=(-1, 1)),
  },
  "no next observation": {
    path: spec for path, spec in FEATURES.items() if path != "next_obs"
  },
}


@pytest.mark.parametrize("name", OTHER_WINDOWS)
def test_other_windows_are_no_transitions(name, tmp_path):
  spec = {**OTHER_WINDOWS[name], **LABELS}
  with replay.ReplayBuffer(spec, 100, padding=("repeat", "drop")) as buffer:
    fill(buffer).to_store(tmp_path / "store")
  with pytest.raises(errors.StoreError, match="got an EpisodeStore of episodes"):
    transitions.load_transitions(tmp_path / "store")


def make(source, **arguments):
  return lambda place: source(place, **arguments)


def stored(place, **arguments):
  return data.StoreInputGenerator(place, **arguments)


def replayed(place, **arguments):
  spec = {**FEATURES, **LABELS}
  return replay.ReplayInputGenerator(fill(replay.ReplayBuffer(spec, 99, **arguments)))


def recorded(place, **arguments):
  return data.DefaultRecordInputGenerator(f"{place}.tfrecord", **arguments)


def mixed(place, **arguments):
  sources = {"a": stored(place, **arguments), "b": stored(place, **arguments)}
  return data.MixtureInputGenerator(sources)


# name: (two sources, what is told of the second)
MIXTURES = {
  "a store and a replay": (
    (make(stored), make(replayed, n_step=(3, 0.97))),
    r"second: n_step: expected None, as 'first' has it, got \(3, 0.97\)",
  ),
  "a replay and a store": (
    (make(replayed, n_step=(3, 0.97)), make(stored)),
    r"second: n_step: expected \(3, 0.97\), as 'first' has it, got None",
  ),
  "another discount": (
    (make(stored, n_step=(3, 0.97)), make(replayed, n_step=(3, 0.9))),
    r"second: n_step: expected \(3, 0.97\), as 'first' has it, got \(3, 0.9\)",
  ),
  "other steps": (
    (make(recorded, n_step=(2, 0.9)), make(stored, n_step=windows.NStep(3, 0.9))),
    r"second: n_step: expected \(2, 0.9\), as 'first' has it, got \(3, 0.9\)",
  ),
  "a mixture of others": (
    (make(mixed, n_step=(2, 0.9)), make(stored)),
    r"second: n_step: expected \(2, 0.9\), as 'first' has it, got None",
  ),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixture_has_one_meaning_of_a_reward(name, place):
  (first, second), want = MIXTURES[name]
  mixture = data.MixtureInputGenerator({"first": first(place), "second": second(place)})
  mixture.set_feature_specifications(FEATURES)
  mixture.set_label_specifications(LABELS)
  mixture.set_padding(("repeat", "drop"))
  with pytest.raises(errors.SpecError, match=f"MixtureInputGenerator: {want}. The rew"):
    mixture.create_dataset("train")


def test_mixture_of_n_steps(place):
  sources = {
    "offline": stored(place, n_step=(3, 0.5), seed=0),
    "online": replayed(place, n_step=(3, 0.5)),
  }
  mixture = data.MixtureInputGenerator(sources, batch_size=8)
  mixture.set_feature_specifications(FEATURES)
  mixture.set_label_specifications({**LABELS, **JOINED})
  mixture.set_padding("repeat")
  want = transitions.load_transitions(place).n_step(3, 0.5).to_numpy()
  by_obs = {obs: row for row, obs in enumerate(want["obs"][:, 0].tolist())}
  for features, labels in mixture.create_dataset("train").take(3):
    rows = [by_obs[obs] for obs in features["obs"].numpy()[:, 0].tolist()]
    for path, values in {**features, **labels}.items():
      np.testing.assert_array_equal(values, want[path][rows], err_msg=path)


def set_up(generator, labels):
  generator.set_feature_specifications(FEATURES)
  generator.set_label_specifications(labels)
  return generator


INTEGERS = {**LABELS, "rew": Spec((), tf.int64, "rew", time_offsets=0)}
FLAT = {path: Spec(spec.shape, spec.dtype, path) for path, spec in LABELS.items()}
REFUSED = {
  "the discount without n_step": (
    lambda place: set_up(stored(place), {**LABELS, **JOINED}).create_dataset("train"),
    r"labels/discount: expected .*, got nothing. It comes with n_step=\(n, gamma\)",
  ),
  "integers, of which returns are none": (
    lambda place: set_up(stored(place, n_step=(2, 1.0)), INTEGERS).create_dataset(
      "train"
    ),
    r"StoreInputGenerator: labels/rew: expected rewards of floats, got \(\) int64. Ret",
  ),
  "examples of a generator": (
    lambda place: data.GeneratorInputGenerator(list, n_step=(2, 1.0)),
    r"n_step: expected None without yields_episodes, got NStep\(n=2, gamma=1.0",
  ),
  "examples of records": (
    lambda place: data.DefaultRecordInputGenerator(f"{place}.tfrecord", n_step=(2, 1)),
    r"n_step: expected None for specs without time offsets, got 2-step transitions",
  ),
  "no pair": (lambda place: stored(place, n_step=3), r"expected \(n, gamma\) or None"),
  "sequences": (
    lambda place: stored(place, n_step=(3, 0.9), sequence_length=2),
    r"sequence_length: expected None with n_step, got 2",
  ),
  "a padding of three words": (
    lambda place: stored(place).set_padding(("drop", "drop", "drop")),
    r"padding: expected one of drop, repeat, zero, or two of them",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, place):
  call, want = REFUSED[name]
  with pytest.raises(errors.SpecError, match=want):
    made = call(place)
    made.set_feature_specifications({"x": Spec((), tf.float32, "x")})
    made.set_label_specifications(specs.TensorSpecStruct(FLAT))
    made.create_dataset("train")
