"""`ReplayInputGenerator`: a model's features and labels from a live replay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, replay, specs, windows
from t2r_seq.specs import ExtendedTensorSpec as Spec

FEATURES = {"image": Spec((2, 3, 3), tf.uint8, "image", time_offsets=(-1, 0))}
LABELS = {"target": Spec((2,), tf.float32, "action", time_offsets=0)}


@pytest.fixture
def buffer():
  spec = {**FEATURES, "action": Spec((2,), tf.float32, "action", time_offsets=0)}
  with replay.ReplayBuffer(spec, 100, seed=0, timeout=0.2, padding="drop") as made:
    yield made


def make_generator(source, features=FEATURES, labels=LABELS):
  generator = replay.ReplayInputGenerator(source, batch_size=4)
  generator.set_feature_specifications(features)
  generator.set_label_specifications(labels)
  return generator


@pytest.mark.parametrize("is_made_late", [False, True])
def test_batches_fit_the_specs(buffer, is_made_late):
  with buffer.writer() as writer:
    for t in range(9):
      image = np.full((3, 3), t, np.uint8)
      writer.append({"image": image, "action": np.full(2, t, np.float32)})
  generator = make_generator((lambda: buffer) if is_made_late else buffer)
  dataset = generator.create_dataset("train")
  assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
  for features, labels in dataset.take(5):
    assert features["image"].shape == (4, 2, 3, 3)
    now = features["image"][:, 1, 0, 0].numpy()
    np.testing.assert_array_equal(features["image"][:, 0, 2, 2], now - 1)
    np.testing.assert_array_equal(labels["target"][:, 0], now)
  assert buffer.counters.num_samples >= 20


def test_differences_are_named_at_once(buffer):
  generator = make_generator(
    buffer,
    {"image": Spec((4, 3, 3), tf.uint8, "image", time_offsets=(-3, -2, -1, 0))},
    {"imag": Spec((2,), tf.float32), "target": Spec((2,), tf.float64, "action")},
  )
  want = "^ReplayInputGenerator: 3 mismatches"
  with pytest.raises(errors.SpecError, match=want) as caught:
    generator.create_dataset("train")
  for text in (
    r"features/image: expected \(4, 3, 3\) uint8, got \(2, 3, 3\) uint8",
    r"labels/imag: expected \(2,\) float32, got nothing. Did you mean 'image'",
    r"labels/target: expected \(2,\) float64, got \(2,\) float32",
  ):
    caught.match(text)


# Of a replay, and of a model: names to specs.
PAIR = {"x": Spec((2,), tf.int64, "x", time_offsets=(-1, 0))}
NEXT = {
  "x": Spec((), tf.int64, "x", time_offsets=0),
  "next_x": Spec((), tf.int64, "x", time_offsets=1),
}
OTHER_STEPS = {
  "a stack": (PAIR, {"x": Spec((2,), tf.int64, "x", time_offsets=(-5, 0))}),
  "another order": (PAIR, {"x": Spec((2,), tf.int64, "x", time_offsets=(0, -1))}),
  "no offsets against a stack": (PAIR, {"x": Spec((2,), tf.int64, "x")}),
  "one step": (NEXT, {"x": Spec((), tf.int64, "x", time_offsets=-1)}),
  "a path that is a name": (
    {"x": Spec((), tf.int64, "x", time_offsets=-2)},
    {"now": Spec((), tf.int64, "x", time_offsets=0)},
  ),
  "the next, by name": (NEXT, {"next_x": Spec((), tf.int64, "x", time_offsets=2)}),
}


@pytest.mark.parametrize("case", OTHER_STEPS)
def test_other_steps_are_refused(case):
  held, wanted = OTHER_STEPS[case]
  ((path, spec),) = wanted.items()
  generator = make_generator(replay.ReplayBuffer(held, 100), wanted, {})
  with pytest.raises(errors.SpecError) as caught:
    generator.create_dataset("train")
  given = held.get(path, held["x"]).time_offsets
  assert str(caught.value) == (
    f"ReplayInputGenerator: features/{path}: expected the steps at time_offsets "
    f"{spec.time_offsets}, got the steps at time_offsets {given}. The replay has other "
    "specs than the model."
  )


def test_other_steps_are_named_at_once_in_a_mixture_too():
  stacks = {
    name: Spec((2,), tf.int64, name, time_offsets=(-5, 0)) for name in ("x", "y")
  }
  held = {**PAIR, "y": Spec((2,), tf.int64, "y", time_offsets=(-1, 0))}
  online = replay.ReplayInputGenerator(replay.ReplayBuffer(held, 100), 4)
  mixture = data.MixtureInputGenerator({"online": online}, batch_size=4)
  mixture.set_feature_specifications(stacks)
  mixture.set_label_specifications({})
  with pytest.raises(errors.SpecError, match=r"2 mismatches(?s:.*)/x: (?s:.*)/y: "):
    mixture.create_dataset("train")


SEQUENCE = {"x": Spec((), tf.int64, "x", is_sequence=True)}
SAME_STEPS = {
  "nothing and 0": (
    {"x": Spec((), tf.int64, "x", time_offsets=0)},
    {"x": Spec((), tf.int64, "x")},
    {},
  ),
  "0 of an episode's feature": (
    {**NEXT, "g": Spec((), tf.int64, "g")},
    {"g": Spec((), tf.int64, "g", time_offsets=0)},
    {},
  ),
  "a stack of one": (
    {"x": Spec((1,), tf.int64, "x", time_offsets=0)},
    {"x": Spec((1,), tf.int64, "x", time_offsets=(0,))},
    {},
  ),
  "by its name": (
    {"x": Spec((), tf.int64, "x", time_offsets=1)},
    {"y": Spec((), tf.int64, "x", time_offsets=1)},
    {},
  ),
  "the next": (NEXT, NEXT, {}),
  "the next, as a path of its own": (
    NEXT,
    {"next_x": Spec((), tf.int64, "next_x", time_offsets=0)},
    {},
  ),
  "a sequence": (SEQUENCE, SEQUENCE, {"sequence_length": 3}),
  "a sequence, of a fixed length": (
    SEQUENCE,
    {"x": Spec((3,), tf.int64, "x")},
    {"sequence_length": 3},
  ),
  "flat windows": (
    {"x": Spec((2,), tf.int64, "x", time_offsets=(-1, 0), is_sequence=True)},
    {"x": Spec((), tf.int64, "x", is_sequence=True)},
    {"sequence_length": 3, "flat": True},
  ),
  "masks": (PAIR, windows.add_mask_specs(PAIR), {"masks": True, "padding": "repeat"}),
  "declared masks": (windows.add_mask_specs(PAIR), windows.add_mask_specs(PAIR), {}),
}


@pytest.mark.parametrize("case", SAME_STEPS)
def test_same_steps_may_be_written_in_other_ways(case):
  held, wanted, arguments = SAME_STEPS[case]
  source = replay.ReplayBuffer(held, 100, **arguments)
  generator = make_generator(source, wanted, {})
  features, _ = generator.create_dataset("train").element_spec
  assert set(features) == set(specs.flatten_spec_structure(wanted))


def test_n_step_transitions_are_the_same_steps():
  held = {
    "obs": Spec((2,), tf.float32, "obs", time_offsets=0),
    "next_obs": Spec((2,), tf.float32, "obs", time_offsets=1),
    "rew": Spec((), tf.float32, "rew", time_offsets=0),
    "done": Spec((), tf.float32, "done", time_offsets=0),
  }
  wanted = {**held, "discount": Spec((), tf.float32, "discount", time_offsets=0)}
  source = replay.ReplayBuffer(held, 100, n_step=(3, 0.9))
  features, _ = make_generator(source, wanted, {}).create_dataset("train").element_spec
  assert set(features) == set(wanted)


SOURCES = {
  "a word": ("x", "got 'x'. Give a ReplayBuffer or a ReverbReplay; in gin, @Rev"),
  "nothing": (None, "got None. Give a ReplayBuffer"),
  "one that makes none": (lambda: "x", "got one that makes 'x'. Return the replay."),
}


@pytest.mark.parametrize("case", SOURCES)
def test_generator_rejects_other_objects(case):
  source, want = SOURCES[case]
  expected = "expected a replay, or a function without arguments that makes one, "
  with pytest.raises(errors.SpecError) as caught:
    generator = replay.ReplayInputGenerator(source)
    assert callable(source)
    generator.replay  # noqa: B018
  message = f"ReplayInputGenerator: replay: {expected}{want}"
  assert str(caught.value).startswith(message)


def test_failures_are_explained(buffer):
  generator = make_generator(buffer)
  dataset = generator.create_dataset("train")
  with (
    pytest.raises(errors.ReplayTimeoutError, match=r"waited 0\.2 s: 0 of 1 items"),
    generator.explain_failures(),
  ):
    next(iter(dataset))
