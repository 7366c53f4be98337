from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, preprocessors, records, specs, windows

LENGTHS = (5, 2, 6, 4)  # Under 'drop' a window takes 4 steps: 2 + 0 + 3 + 1 windows.
NUM_WINDOWS = 6


@pytest.fixture(name="pattern")
def fixture_pattern(tmp_path, kit):
  kit.write_episodes(tmp_path / "a.tfrecord", LENGTHS[:2])
  kit.write_episodes(tmp_path / "b.tfrecord", LENGTHS[2:], first=2)
  return str(tmp_path / "*.tfrecord")


def build(pattern, kit, mode="eval", model=None, **kwargs):
  kwargs = {"batch_size": 2, "seed": 3, **kwargs}
  generator = data.DefaultRecordInputGenerator(pattern, **kwargs)
  generator.set_specification_from_model(model or kit.FakeModel(), mode)
  return generator


def states(kit):
  """A model without images, which take most of the time that a graph takes."""
  return kit.FakeModel(lambda mode: {"state": kit.feature_spec(mode)["state"]})


def anchors(batches):
  """Returns (episode, step) of each anchor, in the order of the batches."""
  return [
    tuple(int(value) for value in state[-1])
    for features, _ in batches
    for state in features["state"].numpy()
  ]


@pytest.mark.parametrize("padding", ["drop", "repeat"])
def test_eval_is_every_window_once_in_order(pattern, kit, padding):
  generator = build(pattern, kit, model=kit.FakeModel(padding=padding))
  got = list(generator.create_dataset("eval").unbatch())
  first, last = (2, -1) if padding == "drop" else (0, 0)
  want = [(e, t) for e, n in enumerate(LENGTHS) for t in range(first, n + last)]
  assert len(got) == len(want)
  for (episode, step), (features, labels) in zip(want, got, strict=True):
    stack = kit.expected_window(episode, step, LENGTHS[episode], padding)
    after = min(step + 1, LENGTHS[episode] - 1)
    np.testing.assert_array_equal(features.state, np.array(stack, np.float32))
    pixels = np.array([10 * e + t for e, t in stack], np.uint8)[:, None, None, None]
    np.testing.assert_array_equal(features.image, np.broadcast_to(pixels, (3, 4, 4, 3)))
    assert features.task == episode
    np.testing.assert_array_equal(labels.next, np.array([episode, after], np.float32))


def test_elements_are_batched_structs(pattern, kit):
  generator = build(pattern, kit, "train", batch_size=4)
  dataset = generator.create_dataset("train")
  features, labels = next(iter(dataset))
  assert isinstance(features, specs.TensorSpecStruct)
  assert isinstance(labels, specs.TensorSpecStruct)
  assert features.image.shape == (4, 3, 4, 4, 3)
  assert features.image.dtype == tf.uint8
  assert labels.next.shape == (4, 2)
  assert dataset.element_spec[0]["task"].shape == [4]


def test_each_epoch_is_every_window_once_in_another_order(pattern, kit):
  dataset = build(pattern, kit, "train", states(kit)).create_dataset("train")
  order = anchors(dataset.take(4 * NUM_WINDOWS // 2))
  epochs = [order[i : i + NUM_WINDOWS] for i in range(0, len(order), NUM_WINDOWS)]
  want = [(0, 2), (0, 3), (2, 2), (2, 3), (2, 4), (3, 2)]
  assert [sorted(epoch) for epoch in epochs] == [want] * 4
  assert len({tuple(epoch) for epoch in epochs}) > 1
  assert want not in epochs[:1]


def test_windows_of_one_episode_are_shuffled(tmp_path, kit):
  path = kit.write_episodes(tmp_path / "a.tfrecord", [12])
  order = anchors(
    build(path, kit, "train", states(kit), batch_size=9).create_dataset("train").take(2)
  )
  want = [(0, step) for step in range(2, 11)]
  assert sorted(order[:9]) == sorted(order[9:]) == want
  assert want != order[:9] != order[9:]


def test_batches_do_not_depend_on_the_parallelism(tmp_path, kit):
  for i in range(4):
    kit.write_episodes(tmp_path / f"{i}.tfrecord", [6, 7, 8], first=3 * i)

  def order(**kwargs):
    model = states(kit)
    generator = build(str(tmp_path / "*"), kit, "train", model, batch_size=5, **kwargs)
    return anchors(generator.create_dataset("train").take(30))

  want = order(num_parallel_calls=1)
  assert order(num_parallel_calls=4) == want
  assert order(num_parallel_calls=tf.data.AUTOTUNE) == want
  assert order(seed=4) != want


def test_resumed_run_continues_in_another_order(tmp_path, kit):
  path = kit.write_episodes(tmp_path / "a.tfrecord", [9, 9, 9])

  def order(**params):
    generator = build(path, kit, "train", states(kit), batch_size=6, seed=3)
    return anchors(generator.create_dataset("train", **params).take(3))

  first, later = order(), order(start_step=7)
  assert order(start_step=0) == first
  assert order(start_step=7) == later != first
  assert sorted(later) == sorted(first)


def test_without_shuffle_train_repeats_in_order(pattern, kit):
  model = states(kit)
  generator = build(pattern, kit, "train", model, shuffle_buffer_size=0, batch_size=3)
  order = anchors(generator.create_dataset("train").take(4))
  once = [(0, 2), (0, 3), (2, 2), (2, 3), (2, 4), (3, 2)]
  assert order == once * 2


def test_report_counts_what_is_too_short(pattern, kit):
  generator = build(pattern, kit)
  assert generator.report is None
  for _ in generator.create_dataset("eval"):
    pass
  report = generator.report
  counts = (report.episodes, report.windows, report.too_short, report.longest_too_short)
  assert counts == (4, 6, 1, 2)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_too_short_episodes_raise(tmp_path, kit, mode):
  path = kit.write_episodes(tmp_path / "short.tfrecord", [1, 3, 2])
  generator = build(path, kit, mode)
  want = r"short.tfrecord: .*4 steps of a window.*all 3 episodes .* longest has 3"
  with pytest.raises(errors.RecordError, match=want):
    generator.create_dataset(mode)


@pytest.mark.parametrize(("mode", "windowed"), [("train", True), ("eval", False)])
def test_empty_files_are_an_error(tmp_path, kit, mode, windowed):
  for name in ("a", "b"):
    kit.write_episodes(tmp_path / f"{name}.tfrecord", [])
  model = kit.FakeModel() if windowed else example_model(kit)
  generator = build(str(tmp_path / "*.tfrecord"), kit, mode, model)
  want = r"\*.tfrecord: expected records, got none in 2 file"
  with pytest.raises(errors.RecordError, match=want):
    generator.create_dataset(mode)


def test_patterns_without_files_are_an_error(tmp_path, kit):
  generator = build(str(tmp_path / "nothing*"), kit)
  with pytest.raises(errors.SpecError, match=r"nothing\*"):
    generator.create_dataset("eval")


def example_model(kit, features=None, labels=None):
  flat = features or {"x": kit.spec((), tf.int64, "x")}
  return kit.FakeModel(lambda mode: flat, lambda mode: labels or {})


def values(batches):
  return [int(x) for features, _ in batches for x in features["x"].numpy()]


@pytest.fixture(name="examples")
def fixture_examples(tmp_path, kit):
  return [
    kit.write_examples(tmp_path / "a.tfrecord", range(0, 5)),
    kit.write_examples(tmp_path / "b.tfrecord.gz", range(5, 9)),
  ]


@pytest.mark.parametrize(
  ("drop_remainder", "want"), [(None, range(9)), (False, range(9)), (True, range(8))]
)
def test_examples_in_order(examples, kit, drop_remainder, want):
  generator = build(
    examples, kit, model=example_model(kit), drop_remainder=drop_remainder
  )
  got = list(generator.create_dataset("eval"))
  assert values(got) == list(want)
  assert all(isinstance(labels, specs.TensorSpecStruct) for _, labels in got)
  assert all(len(labels) == 0 for _, labels in got)
  assert generator.report is None


def test_examples_shuffled_by_epoch(examples, kit):
  patterns = ",".join(examples)
  generator = build(patterns, kit, "train", example_model(kit), batch_size=3)
  order = values(generator.create_dataset("train").take(6))
  assert sorted(order[:9]) == sorted(order[9:]) == list(range(9))
  assert order[:9] != order[9:]
  assert order[:9] != list(range(9))


def test_small_data_fills_a_large_batch(examples, kit):
  generator = build(examples, kit, "train", example_model(kit), batch_size=20)
  (got,) = generator.create_dataset("train").take(1)
  assert collections.Counter(values([got])).most_common(1)[0][1] == 3


def test_fewer_examples_than_one_whole_batch_is_an_error(examples, kit):
  model = example_model(kit)
  generator = build(examples, kit, model=model, batch_size=10, drop_remainder=True)
  with pytest.raises(errors.RecordError, match=r"at least the 10 examples.*got 9"):
    generator.create_dataset("eval")


def test_infer_has_features_only(tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord", [1, 2])
  model = example_model(kit, labels={"y": kit.spec((), tf.int64, "not_in_the_file")})
  generator = build(path, kit, "infer", model)
  ((features, labels),) = generator.create_dataset("infer")
  np.testing.assert_array_equal(features.x, [1, 2])
  assert len(labels) == 0


def test_absent_optionals_are_left_out(tmp_path, kit, caplog):
  path = kit.write_episodes(tmp_path / "a.tfrecord", [4])

  def with_optionals(mode):
    windowed = kit.feature_spec()
    for name in ("there", "absent"):
      windowed[name] = kit.spec(
        (2, 2), tf.float32, name, time_offsets=(-1, 0), is_optional=True
      )
    windowed["also_absent"] = kit.spec((), tf.int64, "no", is_optional=True)
    return windows.add_mask_specs(windowed, ["absent"]) if mode == "infer" else windowed

  flat = windows.flat_specs(with_optionals("eval"))
  episode = {**kit.make_episode(0, 4), "there": np.ones((4, 2), np.float32)}
  records.write_records(path, flat, [episode])
  generator = build(path, kit, model=kit.FakeModel(with_optionals))
  with caplog.at_level("INFO", logger="absl"):
    ((features, _),) = generator.create_dataset("eval")
  assert set(features) == {"image", "state", "task", "there"}
  assert "features/absent (feature 'absent')" in caplog.text
  assert "features/also_absent (feature 'no')" in caplog.text


def test_declared_masks_are_delivered(tmp_path, kit):
  path = kit.write_episodes(tmp_path / "a.tfrecord", [3])

  def masked(mode):
    return windows.add_mask_specs(kit.feature_spec(mode), ["state"])

  def masked_labels(mode):
    return windows.add_mask_specs(kit.label_spec(mode))

  model = kit.FakeModel(masked, masked_labels, padding="zero")
  generator = build(path, kit, model=model, batch_size=3)
  ((features, labels),) = generator.create_dataset("eval")
  want = [[False, False, True], [False, True, True], [True, True, True]]
  np.testing.assert_array_equal(features.state_mask, want)
  np.testing.assert_array_equal(labels.next_mask, [True, True, False])
  np.testing.assert_array_equal(labels.next[-1], [0, 0])
  assert "image_mask" not in features


def test_sequences_of_stacks(tmp_path, kit):
  path = kit.write_episodes(tmp_path / "a.tfrecord", [6])

  def sequence(mode):
    del mode
    spec = kit.spec((2, 2), tf.float32, "state", time_offsets=(-1, 0), is_sequence=True)
    return {"state": spec}

  model = kit.FakeModel(sequence, lambda mode: {})
  generator = build(path, kit, model=model, sequence_length=3, shift=2)
  ((features, _),) = generator.create_dataset("eval")
  want = [[[0, 1], [1, 2], [2, 3]], [[2, 3], [3, 4], [4, 5]]]
  np.testing.assert_array_equal(features.state[..., 1], want)


def test_whole_sequences_are_padded_and_have_lengths(tmp_path, kit):
  flat = {"state": kit.spec((1,), tf.float32, "state", is_sequence=True)}
  path = str(tmp_path / "a.tfrecord")
  records.write_records(
    path, flat, [{"state": np.ones((n, 1), np.float32)} for n in (3, 1)]
  )
  model = kit.FakeModel(
    lambda mode: specs.add_sequence_length_specs(flat), lambda mode: {}
  )
  ((features, _),) = build(path, kit, model=model).create_dataset("eval")
  np.testing.assert_array_equal(features.state[..., 0], [[1, 1, 1], [1, 0, 0]])
  np.testing.assert_array_equal(features.state_length, [3, 1])


def test_sequence_length_without_windows_is_an_error(examples, kit):
  generator = build(examples, kit, model=example_model(kit), sequence_length=3)
  with pytest.raises(errors.SpecError, match=r"sequence_length.*time_offsets=0"):
    generator.create_dataset("eval")


def keyed_model(kit):
  return kit.FakeModel(
    lambda mode: {"x": kit.spec((), tf.int64, "x", dataset_key="a")},
    lambda mode: {"y": kit.spec((), tf.int64, "x", dataset_key="b")},
  )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_datasets_are_zipped_record_by_record(tmp_path, kit, mode):
  patterns = {
    "a": kit.write_examples(tmp_path / "a.tfrecord", range(6)),
    "b": [
      kit.write_examples(tmp_path / "b0.tfrecord", range(100, 102)),
      kit.write_examples(tmp_path / "b1.tfrecord", range(102, 106)),
    ],
  }
  dataset = build(patterns, kit, mode, keyed_model(kit)).create_dataset(mode).take(3)
  pairs = [
    (int(x), int(y))
    for features, labels in dataset
    for x, y in zip(features["x"], labels["y"], strict=True)
  ]
  assert sorted(pairs) == [(i, 100 + i) for i in range(6)]
  assert (pairs == sorted(pairs)) == (mode == "eval")


def test_zipped_datasets_of_different_size_are_an_error(tmp_path, kit):
  patterns = {
    "a": kit.write_examples(tmp_path / "a.tfrecord", range(6)),
    "b": kit.write_examples(tmp_path / "b.tfrecord", range(4)),
  }
  generator = build(patterns, kit, model=keyed_model(kit))
  dataset = generator.create_dataset("eval")
  with pytest.raises(tf.errors.InvalidArgumentError, match="ends before another"):
    list(dataset)
  with (
    pytest.raises(errors.RecordError, match=r"b.tfrecord.*same number of records"),
    generator.explain_failures(),
  ):
    list(dataset)


def test_dataset_keys_must_be_mapped(tmp_path, kit):
  path = kit.write_examples(tmp_path / "a.tfrecord", range(6))
  generator = build({"a": path}, kit, model=keyed_model(kit))
  with pytest.raises(errors.SpecError, match=r"labels/y \(dataset_key 'b'\)"):
    generator.create_dataset("eval")


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_missing_feature_is_explained(tmp_path, kit, mode):
  path = kit.write_examples(tmp_path / "a.tfrecord", range(3))
  model = example_model(kit, {"image": kit.spec((), tf.int64, "imag")})
  generator = build(path, kit, mode, model)
  with (
    pytest.raises(errors.RecordError, match=r"(?s)a.tfrecord.*image.*'imag'"),
    generator.explain_failures(),
  ):
    list(generator.create_dataset(mode).take(1))


def test_bad_episode_is_explained_at_creation(tmp_path, kit):
  path = str(tmp_path / "a.tfrecord")
  kit.write_examples(path, range(2))
  generator = build(path, kit)
  with pytest.raises(errors.RecordError, match=r"(?s)a.tfrecord.*features/state"):
    generator.create_dataset("eval")


def test_truncated_file_is_explained(examples, kit):
  with open(examples[0], "rb+") as file:
    file.truncate(file.seek(0, 2) - 3)
  generator = build(examples, kit, model=example_model(kit))
  dataset = generator.create_dataset("eval")
  with (
    pytest.raises(errors.RecordError, match=r"a.tfrecord"),
    generator.explain_failures(),
  ):
    list(dataset)


def test_images_reach_the_model_as_floats(pattern, kit):
  def float_images(mode):
    flat = kit.feature_spec(mode)
    flat["image"] = specs.ExtendedTensorSpec.from_spec(flat.image, dtype=tf.float32)
    return flat

  model = kit.FakeModel(
    float_images, preprocessor_cls=preprocessors.ImageToFloatPreprocessor
  )
  features, _ = next(iter(build(pattern, kit, model=model).create_dataset("eval")))
  want = np.array([[0, 1, 2], [1, 2, 3]], np.float32) / 255
  np.testing.assert_allclose(features.image[:, :, 0, 0, 0], want, rtol=1e-6)


def test_dataset_can_be_created_while_a_graph_is_built(examples, kit):
  generator = build(examples, kit, model=example_model(kit))

  @tf.function
  def total():
    dataset = generator.create_dataset("eval")
    return dataset.reduce(
      tf.constant(0, tf.int64), lambda n, xy: n + tf.reduce_sum(xy[0]["x"])
    )

  assert total() == sum(range(9))
