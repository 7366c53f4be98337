"""Training from a store: the windows that records give, and exact resumption."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, preprocessors, specs, windows
from t2r_seq.store import EpisodeStore

Spec = specs.ExtendedTensorSpec
LENGTHS = (5, 2, 6, 4)  # Under 'drop' a window takes 4 steps: 2 + 0 + 3 + 1 windows.


@pytest.fixture(name="path")
def fixture_path(tmp_path, kit):
  path = tmp_path / "store"
  flat = windows.flat_specs(kit.feature_spec())
  with EpisodeStore.create(path, flat) as writer:
    for index, length in enumerate(LENGTHS):
      episode = kit.make_episode(index, length)
      episode["image"] = [tf.io.encode_png(image).numpy() for image in episode["image"]]
      writer.append_episode(episode)
  return path


def build(path, kit, mode="eval", model=None, **kwargs):
  kwargs = {"batch_size": 2, "seed": 3, **kwargs}
  generator = data.StoreInputGenerator(path, **kwargs)
  generator.set_specification_from_model(model or kit.FakeModel(), mode)
  return generator


def contents(dataset):
  return [
    (features.image.numpy().tolist(), labels.next.numpy().tolist())
    for features, labels in dataset
  ]


def states_of(mode):
  """The features of windows without images, each of which costs loops of a graph."""
  del mode
  return {"state": Spec((3, 2), tf.float32, "state", time_offsets=(-2, -1, 0))}


def states(dataset):
  return [features.state.numpy().tolist() for features, _ in dataset]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_report_counts_short_episodes_before_a_batch_is_read(path, kit, mode):
  generator = build(path, kit, mode)
  assert generator.report is None
  generator.create_dataset(mode)
  assert str(generator.report) == (
    "6 windows from 4 episodes (17 steps); 1 episodes too short for a window, the "
    "longest of them with 2 steps"
  )


@pytest.mark.parametrize("order", [None, "global", "sequential"])
def test_train_repeats_and_resumes(path, kit, order):
  same = build(
    path, kit, "train", order=order or "quasi_random", memory_budget=4000
  ).create_dataset("train")
  # There are images to be decoded, so pools are what None means.
  generator = build(path, kit, "train", order=order, memory_budget=4000)
  want = contents(generator.create_dataset("train").take(9))
  assert contents(same.take(9)) == want
  resumed = generator.create_dataset("train", start_step=5)
  assert contents(resumed.take(4)) == want[5:]
  epochs = [
    sorted(image for batch in want[i : i + 3] for image in batch[0]) for i in (0, 3, 6)
  ]
  assert epochs[0] == epochs[1] == epochs[2]
  if order != "sequential":
    assert want[:3] != want[3:6] or want[3:6] != want[6:]


@pytest.mark.parametrize("order", ["global", "quasi_random"])
def test_stacked_on_the_device(path, kit, order):
  model = kit.FakeModel(padding="repeat", preprocessor_cls=Doubling)
  at_once = build(path, kit, "train", model, order=order)
  later = build(path, kit, "train", model, order=order, stack_on_device=True)
  want = at_once.create_dataset("train").take(5)
  flat = later.create_dataset("train").take(5)
  assert flat.element_spec[0]["state"].shape == (2, 3, 2)
  assert flat.element_spec[1]["next"].shape == (2, 2)
  assert at_once.device_fn is None
  device_fn = tf.function(later.device_fn)
  for one, other in zip(flat, want, strict=True):
    for mine, theirs in zip(device_fn(*one), other, strict=True):
      assert list(mine) == list(theirs)
      for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value, err_msg=name)


def test_evaluation_is_stacked_on_the_host(path, kit):
  model = kit.FakeModel(padding="repeat")
  generator = build(path, kit, "eval", model, stack_on_device=True)
  assert generator.create_dataset("eval").element_spec[1]["next"].shape[1:] == (2,)
  assert generator.device_fn is None


class Doubling(preprocessors.NoOpPreprocessor):
  """Doubles the states; what a step has to do once, and after stacking."""

  def _preprocess_fn(self, features, labels, mode):
    features["state"] = 2 * features["state"]
    return features, labels


def test_seed_of_the_run_and_none(path, kit):
  def batches(seed, run_seed=None):
    model = kit.FakeModel(states_of)
    kwargs = {"seed": seed, "batch_size": 6, "order": "quasi_random"}
    generator = build(path, kit, "train", model, **kwargs)
    return states(generator.create_dataset("train", seed=run_seed).take(3))

  assert batches(None, run_seed=3) == batches(3) != batches(4)
  assert any(batches(None) != batches(None) for _ in range(5))


def test_each_worker_of_a_strategy_reads_its_part_of_a_batch(path, kit):
  model = kit.FakeModel(states_of)
  generator = build(path, kit, "train", model, order="global")
  whole = states(generator.create_dataset("train").take(6))
  parts = []
  for index in range(2):
    context = tf.distribute.InputContext(2, index, num_replicas_in_sync=2)
    assert generator.reads_shards
    options = {"input_context": context, "start_step": 1}
    parts.append(states(generator.create_dataset("train", **options).take(5)))
  for one, other, want in zip(*parts, whole[1:], strict=True):
    assert len(one) == 1
    assert sorted(one + other) == sorted(want)


def test_own_paths_come_before_names(path, kit):
  model = kit.FakeModel(
    features=lambda mode: specs.TensorSpecStruct(
      # The name of the first is that of no column, the path of the second.
      {
        "task": kit.spec((), tf.int64, "job"),
        "s": kit.spec((2,), tf.float32, "state"),
      }
    ),
    labels=lambda mode: specs.TensorSpecStruct(),
  )
  features, _ = next(iter(build(path, kit, model=model).create_dataset("eval")))
  assert features.task.numpy().tolist() == [0, 0]
  assert features.s.numpy().tolist() == [[0, 0], [0, 1]]


def test_generator_rejects_specs_that_do_not_fit_the_store(path, kit, tmp_path):
  with pytest.raises(errors.SpecError, match=r"order: .*got 'glob'\. Did you mean"):
    data.StoreInputGenerator(path, order="glob")
  with pytest.raises(errors.SpecError, match="memory_budget: expected an integer of"):
    data.StoreInputGenerator(path, memory_budget=0)
  with pytest.raises(errors.StoreError, match="nothing"):
    build(tmp_path / "nothing", kit).create_dataset("eval")
  model = kit.FakeModel(
    features=lambda mode: specs.TensorSpecStruct(
      {"stat": kit.spec((2,), tf.float32, "stat", time_offsets=0)}
    )
  )
  with pytest.raises(errors.SpecError, match=r"features/stat: expected .* got nothing"):
    build(path, kit, model=model).create_dataset("eval")
  with pytest.raises(errors.SpecError, match=r"at most the 6 windows"):
    build(path, kit, "train", batch_size=7).create_dataset("train")
