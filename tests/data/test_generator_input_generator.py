from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, specs, windows
from t2r_seq.data import joint
from t2r_seq.data.generator_input_generator import CheckedGenerator


def spec(shape, name, **fields):
  return specs.ExtendedTensorSpec(shape, tf.float32, name, **fields)


def example(value, **more):
  return {"x": np.full((2,), value, np.float32), **more}, {"y": np.float32(value)}


def build(generator_fn, kit, mode="train", features=None, labels=None, **kwargs):
  flat_features = features or {"x": spec((2,), "x")}
  flat_labels = {"y": spec((), "y")} if labels is None else labels
  model = kit.FakeModel(
    lambda mode: flat_features, lambda mode: flat_labels, padding="drop"
  )
  generator = data.GeneratorInputGenerator(generator_fn, **{"batch_size": 2, **kwargs})
  generator.set_specification_from_model(model, mode)
  return generator


def targets(batches):
  return [float(y) for _, labels in batches for y in labels["y"].numpy()]


def test_train_repeats_by_calling_again(kit):
  calls = []

  def generator_fn():
    calls.append(len(calls))
    for i in range(3):
      yield example(10 * calls[-1] + i)

  dataset = build(generator_fn, kit).create_dataset("train")
  assert targets(dataset.take(4)) == [0, 1, 2, 10, 11, 12, 20, 21]
  assert dataset.element_spec[0].x.shape == (2, 2)


def test_eval_is_one_pass_and_no_element_is_lost(kit):
  generator = build(lambda: (example(i) for i in range(5)), kit, "eval")
  dataset = generator.create_dataset("eval")
  assert targets(dataset) == [0, 1, 2, 3, 4]
  assert targets(dataset) == [0, 1, 2, 3, 4]


def test_train_is_shuffled_by_seed(kit):
  def order(seed):
    generator = build(
      lambda: (example(i) for i in range(8)), kit, shuffle_buffer_size=8, seed=seed
    )
    return targets(generator.create_dataset("train").take(4))

  assert sorted(order(1)) == list(range(8))
  assert order(1) == order(1)
  assert order(1) != order(2)


def test_optionals_are_given_in_all_elements_or_in_none(kit):
  features = {"x": spec((2,), "x"), "z": spec((), "z", is_optional=True)}
  z = {"z": np.float32(0)}
  generator = build(lambda: iter([example(0), example(1)]), kit, "eval", features)
  assert set(generator.create_dataset("eval").element_spec[0]) == {"x"}
  generator = build(lambda: iter([example(0, **z)]), kit, "eval", features)
  assert set(generator.create_dataset("eval").element_spec[0]) == {"x", "z"}

  generator = build(lambda: iter([example(0, **z), example(1)]), kit, "eval", features)
  with (
    pytest.raises(errors.SpecError, match=r"element 1, unlike the first: features/z"),
    generator.explain_failures(),
  ):
    list(generator.create_dataset("eval"))


@pytest.mark.parametrize(
  ("elements", "want"),
  [
    ([], "generator_fn: expected at least one element, got none"),
    ([example(0)[0]], r"element 0: expected a pair \(features, labels\), got dict"),
    (
      [({"x": np.zeros((3,), np.float32)}, {"y": np.float32(0)})],
      r"element 0: .*\(3,\)",
    ),
    (
      [({"x": np.zeros((2,))}, {"y": np.float32(0)})],
      r"element 0: .*features/x.*float64",
    ),
    ([({"x": np.zeros((2,), np.float32)}, None)], "element 0: .*labels/y"),
    (
      [({"x": [0.0, 1.0]}, {"y": np.float32(0)})],
      r"element 0: .*x/0: expected",
    ),
  ],
)
def test_first_element_is_checked_when_the_dataset_is_created(kit, elements, want):
  generator = build(lambda: iter(elements), kit)
  with pytest.raises(errors.SpecError, match=want):
    generator.create_dataset("train")


def mask_features():
  stack = spec((2,), "x", time_offsets=(-1, 0))
  return windows.add_mask_specs({"x": stack})


def test_missing_mask_error_names_the_option(kit):
  generator = build(lambda: iter([example(0)]), kit, features=mask_features())
  want = (
    r"element 0: .*features/x_mask: expected \(2,\) bool, got nothing\. Masks are made "
    "where episodes are cut into windows: yield whole episodes, with yields_episodes=Tr"
  )
  with pytest.raises(errors.SpecError, match=want):
    generator.create_dataset("train")
  generator = build(lambda: iter([example(0)[0]]), kit, features=mask_features())
  with pytest.raises(errors.SpecError, match="got dict") as info:
    generator.create_dataset("train")
  assert "Masks" not in str(info.value)


def test_masks_are_yielded_or_made_of_episodes(kit):
  features, labels = example(0)
  features["x_mask"] = np.array([False, True])
  generator = build(
    lambda: iter([(features, labels)]), kit, "eval", features=mask_features()
  )
  ((batch, _),) = generator.create_dataset("eval")
  assert batch.x_mask.numpy().tolist() == [[False, True]]

  generator = data.GeneratorInputGenerator(
    lambda: iter([({"x": np.zeros((2,), np.float32)}, None)]),
    yields_episodes=True,
  )
  generator.set_feature_specifications(mask_features())
  generator.set_label_specifications({})
  generator.set_padding("repeat")
  ((batch, _),) = generator.create_dataset("eval")
  assert batch.x_mask.numpy().tolist() == [[False, True], [True, True]]


def my_gen():
  yield example(0)


@pytest.mark.parametrize(
  ("generator_fn", "want"),
  [
    (my_gen(), r"a generator: pass my_gen, not my_gen\(\)\."),
    ([example(0)], r"got list \["),
    (None, "got nothing"),
  ],
)
def test_generator_is_no_function(generator_fn, want):
  expected = "GeneratorInputGenerator: generator_fn: expected a function without .*"
  with pytest.raises(errors.SpecError, match=expected + want):
    data.GeneratorInputGenerator(generator_fn)


@pytest.mark.parametrize("size", [-1, 1.5, True])
def test_shuffle_buffer_size_is_checked(size):
  want = f"shuffle_buffer_size: expected an integer of at least 0, got {size}"
  with pytest.raises(errors.SpecError, match=want):
    data.GeneratorInputGenerator(my_gen, shuffle_buffer_size=size)
  for fine in (None, 0, 5):
    data.GeneratorInputGenerator(my_gen, shuffle_buffer_size=fine)


def test_later_elements_are_checked_too(kit):
  wrong = {"x": np.zeros((2,), np.int32)}, {"y": np.float32(0)}
  generator = build(lambda: iter([example(0), example(1), wrong]), kit, "eval")
  dataset = generator.create_dataset("eval")
  with (
    pytest.raises(errors.SpecError, match=r"element 2: .*features/x: .*int32"),
    generator.explain_failures(),
  ):
    list(dataset)
  with pytest.raises(tf.errors.OpError, match="element"):
    list(dataset)


def test_empty_later_pass_is_an_error_not_a_hang(kit):
  passes = iter([[example(0)], []])
  generator = build(lambda: iter(next(passes)), kit, batch_size=3)
  with (
    pytest.raises(errors.SpecError, match="at least one element"),
    generator.explain_failures(),
  ):
    list(generator.create_dataset("train").take(2))


def test_generators_own_error_comes_through(kit):
  def generator_fn():
    yield example(0)
    raise KeyError("my own mistake")

  generator = build(generator_fn, kit)
  with pytest.raises(KeyError, match="my own mistake"), generator.explain_failures():
    list(generator.create_dataset("train").take(3))


def test_next_pass_does_not_hide_what_stopped_one():
  def generator_fn():
    yield example(0)
    raise KeyError("my own mistake")

  # tf.data reads ahead: it may begin another pass before the error is asked for.
  joined = joint.join({"x": spec((2,), "x")}, {"y": spec((), "y")})
  source = CheckedGenerator(generator_fn, joined, "generator")
  with pytest.raises(KeyError):
    list(source())
  next(source())
  assert isinstance(source.failure, KeyError)


def episodes(kit, lengths):
  for index, length in enumerate(lengths):
    episode = kit.make_episode(index, length)
    yield episode, {"next": episode["state"]}


def build_episodes(kit, lengths, mode, **kwargs):
  generator = data.GeneratorInputGenerator(
    lambda: episodes(kit, lengths), batch_size=2, yields_episodes=True, **kwargs
  )
  generator.set_specification_from_model(kit.FakeModel(), mode)
  return generator


def test_episodes_are_cut_into_windows(kit):
  generator = build_episodes(kit, (5, 2, 4), "eval")
  got = list(generator.create_dataset("eval").unbatch())
  want = [(0, 2), (0, 3), (2, 2)]
  assert len(got) == len(want)
  for (episode, step), (features, labels) in zip(want, got, strict=True):
    np.testing.assert_array_equal(
      features.state, kit.expected_window(episode, step, None)
    )
    np.testing.assert_array_equal(labels.next, [episode, step + 1])
    assert features.task == episode
  assert (generator.report.windows, generator.report.too_short) == (3, 1)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
  ("lengths", "shorter"),
  [((2, 3), "all 2 episodes are"), ((3,), "the only episode is")],
)
def test_too_short_episodes_raise(kit, mode, lengths, shorter):
  generator = build_episodes(kit, lengths, mode)
  want = rf"4 steps.*none: {shorter} shorter; the longest has 3"
  with (
    pytest.raises(errors.RecordError, match=want),
    generator.explain_failures(),
  ):
    list(generator.create_dataset(mode).take(1))


def test_sequences_of_different_lengths_are_padded(kit):
  features = {"x": spec((1,), "x", is_sequence=True)}
  elements = [({"x": np.ones((n, 1), np.float32)}, None) for n in (1, 3)]
  generator = build(lambda: iter(elements), kit, "eval", features, {})
  ((got, labels),) = generator.create_dataset("eval")
  np.testing.assert_array_equal(got.x[..., 0], [[1, 0, 0], [1, 1, 1]])
  assert len(labels) == 0


# name: (dtype of the spec, what is yielded, what is read; None for an error)
SCALARS = {
  "an int": (tf.int64, 3, 3),
  "an int, as a small one": (tf.uint8, 255, 255),
  "an int, as a float": (tf.float32, 3, 3.0),
  "a float": (tf.float32, 0.5, 0.5),
  "a bool": (tf.bool, True, True),
  "a str": (tf.string, "é", "é".encode()),
  "bytes": (tf.string, b"\x00a\x00", b"\x00a\x00"),
  "an int that does not fit": (tf.uint8, 256, None),
  "a negative one": (tf.uint8, -1, None),
  "a float for an int": (tf.int64, 0.5, None),
  "a bool for an int": (tf.int64, True, None),
  "a str for a number": (tf.float32, "1", None),
}


@pytest.mark.parametrize("name", SCALARS)
def test_python_scalars_are_values(name):
  dtype, given, want = SCALARS[name]
  made = data.GeneratorInputGenerator(
    lambda: iter([({"a": {"x": given}}, {"y": 1})]), batch_size=1
  )
  made.set_feature_specifications(
    {"a": {"x": specs.ExtendedTensorSpec((), dtype, "x")}}
  )
  made.set_label_specifications({"y": specs.ExtendedTensorSpec((), tf.int64, "y")})
  if want is None:
    with pytest.raises(errors.SpecError, match=r"element 0: .*a/x: expected"):
      made.create_dataset("eval")
    return
  ((features, labels),) = made.create_dataset("eval")
  assert features["a/x"].numpy().tolist() == [want]
  assert labels["y"].numpy().tolist() == [1]
