"""Tasks come from record files, a store or replays, whole, drawn by a seed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, meta_learning, models, records, replay, specs, store
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct


class SineModel(models.RegressionModel):
  """y of x."""

  def get_feature_specification(self, mode):
    del mode
    return TensorSpecStruct(x=ExtendedTensorSpec((1,), tf.float32, name="x"))

  def get_label_specification(self, mode):
    del mode
    return TensorSpecStruct(target=ExtendedTensorSpec((1,), tf.float32, name="y"))

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    del mode
    return {"inference_output": self.network(features.x)}


SAMPLE = TensorSpecStruct(
  x=ExtendedTensorSpec((1,), tf.float32, name="x"),
  y=ExtendedTensorSpec((1,), tf.float32, name="y"),
)


def maml() -> meta_learning.MAMLModel:
  return meta_learning.MAMLModel(SineModel(action_size=1))


def batches_of(generator, mode="train", count=None, **params):
  generator.set_specification_from_model(maml(), mode)
  dataset = generator.create_dataset(mode, **params)
  return list(dataset if count is None else dataset.take(count))


@pytest.fixture(scope="module")
def task_files(tmp_path_factory):
  """Three files of six records: task k holds x = 10 k + i, y = -x."""
  folder = tmp_path_factory.mktemp("tasks")
  for task in range(3):
    values = [np.array([10.0 * task + i], np.float32) for i in range(6)]
    records.write_records(
      str(folder / f"task{task}.tfrecord"), SAMPLE, [{"x": v, "y": -v} for v in values]
    )
  return str(folder / "task*.tfrecord")


@pytest.fixture(scope="module")
def task_store(tmp_path_factory):
  """Nine episodes of four steps, tasks a, b and c of three: x = 10 episode + step.

  Of each task two demonstrations, then a trial.
  """
  path = str(tmp_path_factory.mktemp("store") / "s")
  spec = TensorSpecStruct(
    x=ExtendedTensorSpec((1,), tf.float32, name="x", is_sequence=True),
    y=ExtendedTensorSpec((1,), tf.float32, name="y", is_sequence=True),
    task=ExtendedTensorSpec((), tf.string, name="task"),
    kind=ExtendedTensorSpec((), tf.string, name="kind"),
  )
  with store.EpisodeStore.create(path, spec) as writer:
    for episode in range(9):
      x = 10.0 * episode + np.arange(4, dtype=np.float32)[:, np.newaxis]
      task = b"abc"[episode % 3 : episode % 3 + 1]
      of_episode = {"task": task, "kind": b"demo" if episode < 6 else b"trial"}
      named = {key: np.array(value, object) for key, value in of_episode.items()}
      writer.append_episode({"x": x, "y": -x, **named})
  return path


def test_each_file_is_a_task(task_files):
  generator = meta_learning.TaskRecordInputGenerator(
    task_files,
    2,
    num_condition_samples_per_task=2,
    num_inference_samples_per_task=3,
    seed=1,
  )
  for features, labels in batches_of(generator, count=4):
    condition = features["condition/features/x"].numpy()
    inference = features["inference/features/x"].numpy()
    assert condition.shape == (2, 2, 1) and inference.shape == (2, 3, 1)
    assert np.array_equal(features["condition/labels/target"], -condition)
    assert np.array_equal(labels["target"], -inference)
    of_task = np.concatenate([condition, inference], axis=1)[..., 0]
    assert all(len(set(row // 10)) == 1 and len(set(row)) == 5 for row in of_task)


def test_evaluation_has_each_task_once(task_files):
  generator = meta_learning.TaskRecordInputGenerator(task_files, 2)
  batches = batches_of(generator, "eval")
  firsts = np.concatenate([f["condition/features/x"][:, 0, 0] for f, _ in batches])
  assert firsts.tolist() == [0, 10, 20]


def tasks_of(batches):
  return np.concatenate(
    [
      np.concatenate([f["condition/features/x"], f["inference/features/x"]], axis=1)[
        ..., 0
      ]
      for f, _ in batches
    ]
  )


def test_store_samples_are_of_different_episodes(task_store):
  def read(count, **params):
    generator = meta_learning.TaskStoreInputGenerator(
      task_store, batch_size=3, num_condition_samples_per_task=2, seed=5
    )
    return tasks_of(batches_of(generator, count=count, **params))

  found = read(count=20)
  assert found.shape == (60, 3)
  episodes = found // 10
  assert all(len(set(row)) == 3 and len(set(row % 3)) == 1 for row in episodes)
  for epoch in episodes.reshape(20, 3, 3):
    assert sorted(epoch[:, 0] % 3) == [0, 1, 2]
  assert len(np.unique(found)) == 36  # Each step of each episode is drawn.
  assert np.array_equal(read(count=5), found[:15])
  assert np.array_equal(read(count=5, start_step=7), found[21:36])


def test_store_evaluation_is_one_fixed_pass(task_store):
  generator = meta_learning.TaskStoreInputGenerator(task_store, batch_size=2)
  found = tasks_of(batches_of(generator, "eval"))
  assert found.tolist() == [[0, 30], [10, 40], [20, 50]]


def test_condition_of_whole_episodes(task_store):
  """Shown in order from end to end; what is tried is of the task's others."""
  options = {
    "batch_size": 3,
    "num_condition_samples_per_task": 6,
    "num_inference_samples_per_task": 2,
    "condition_episodes": 2,
  }
  generator = meta_learning.TaskStoreInputGenerator(task_store, seed=5, **options)
  found = tasks_of(batches_of(generator, count=60))
  episodes, steps = found // 10, found % 10
  assert np.array_equal(steps[:, :6], np.tile([0, 1, 3] * 2, (180, 1)))
  assert (episodes[:, :3] == episodes[:, :1]).all()
  assert (episodes[:, 3:6] == episodes[:, 3:4]).all()
  assert all(len(set(row)) == 3 and len(set(row % 3)) == 1 for row in episodes)
  assert len(np.unique(found[:, 6:])) == 36  # Each step is tried.
  assert (steps[:, 6] != steps[:, 7]).any()
  fixed = tasks_of(batches_of(generator, "eval"))
  assert fixed[0].tolist() == [0, 1, 3, 30, 31, 33, 60, 63]


def test_condition_of_a_demonstration_and_a_trial(task_store):
  """The inference is of the demonstrations that were not shown."""
  options = {
    "batch_size": 3,
    "num_condition_samples_per_task": 4,
    "num_inference_samples_per_task": 2,
    "kind_key": "kind",
    "condition_episodes": ["demo", "trial"],
    "inference_kind": "demo",
  }
  generator = meta_learning.TaskStoreInputGenerator(task_store, seed=5, **options)
  found = tasks_of(batches_of(generator, count=20))
  episodes, steps = found // 10, found % 10
  assert np.array_equal(steps[:, :4], np.tile([0, 3], (60, 2)))
  assert (episodes[:, 2] >= 6).all() and len(np.unique(found[:, 4:])) == 24
  for row in episodes:
    assert sorted({row[0], row[2], row[4]}) == [row[2] % 3 + 3 * n for n in range(3)]
    assert row[0] == row[1] and row[2] == row[3] and row[4] == row[5]
  fixed = tasks_of(batches_of(generator, "eval"))
  assert fixed[0].tolist() == [0, 3, 60, 63, 30, 33]


def test_each_replay_is_a_task():
  """What is written between two batches is among the next; all tasks take turns."""
  spec = TensorSpecStruct(
    x=ExtendedTensorSpec((1,), tf.float32, name="x", time_offsets=0),
    y=ExtendedTensorSpec((1,), tf.float32, name="y", time_offsets=0),
  )
  replays = [replay.ReplayBuffer(spec, capacity_steps=8, seed=n) for n in range(3)]
  for n, task in enumerate(replays):
    with task.writer() as writer:
      for t in range(8):
        value = np.float32([10 * n + t])
        writer.append({"x": value, "y": -value})
  generator = meta_learning.TaskReplayInputGenerator(
    replays, 3, num_condition_samples_per_task=2, num_inference_samples_per_task=2
  )
  for features, labels in batches_of(generator, count=4):
    condition = features["condition/features/x"].numpy()
    inference = features["inference/features/x"].numpy()
    assert np.array_equal(features["condition/labels/target"], -condition)
    assert np.array_equal(labels["target"], -inference)
    of_task = np.concatenate([condition, inference], axis=1)[..., 0] // 10
    assert (of_task == of_task[:, :1]).all() and sorted(of_task[:, 0]) == [0, 1, 2]
  with pytest.raises(errors.SpecError, match="replays: expected one or more, got none"):
    meta_learning.TaskReplayInputGenerator([])
  with pytest.raises(errors.SpecError, match=r"replay: expected .*, got 5"):
    meta_learning.TaskReplayInputGenerator([5])
  for task in replays:
    task.close()


def test_tasks_of_a_split(task_files, task_store, tmp_path):
  """Held-out tasks are no part of what is learned."""
  copied = str(tmp_path / "s")
  shutil.copytree(task_store, copied)
  store.EpisodeStore.write_splits(copied, {"train": [0, 2, 3, 5, 6, 8], "eval": [1, 4]})
  read = meta_learning.TaskStoreInputGenerator
  found = tasks_of(batches_of(read(copied, batch_size=2, split="train"), "eval"))
  assert found.tolist() == [[0, 30], [20, 50]]
  some = read(copied, batch_size=1, split="train", episodes=[3, 6, 4])
  assert tasks_of(batches_of(some, "eval")).tolist() == [[30, 60]]
  files = meta_learning.TaskRecordInputGenerator(task_files, 2, split="task1")
  assert tasks_of(batches_of(files, "eval")).tolist() == [[10, 11]]


def test_errors(task_store):
  read = meta_learning.TaskStoreInputGenerator
  cases = {
    "task_key": (
      {"task_key": "tusk"},
      r"tusk: expected a number or a string for each episode, got nothing.*'task'",
    ),
    "a sequence": (
      {"task_key": "x"},
      r"x: expected a number or a string for each episode, got [^.]* of each step\.$",
    ),
    "too few episodes": (
      {"num_condition_samples_per_task": 3},
      r"task: expected 4 episodes or more of each task, .*'a' has 3",
    ),
    "no other episode": (
      {"num_condition_samples_per_task": 3, "condition_episodes": 3},
      r"task: expected 4 episodes or more of each task, those of the condition and ano",
    ),
    "uneven": (
      {"num_condition_samples_per_task": 3, "condition_episodes": 2},
      r"num_condition_samples_per_task: expected a multiple of the 2 episodes, got 3",
    ),
    "too few of a kind": (
      {
        "num_condition_samples_per_task": 2,
        "kind_key": "kind",
        "condition_episodes": ["trial", "trial"],
        "inference_kind": "demo",
      },
      r"task: expected 2 episodes or more of each task, of kind 'trial', .*'a' has 1",
    ),
    "no kind to try": (
      {"kind_key": "kind", "condition_episodes": ["demo"]},
      r"expected kind_key, the kinds of condition_episodes and inference_kind, or none "
      r"of them, got 'kind', \['demo'\] and ''",
    ),
    "a batch of more": ({"batch_size": 4}, r"expected at most the 3 tasks of .* got 4"),
    "no sample": (
      {"num_inference_samples_per_task": 0},
      r"num_inference_samples_per_task.*got 0",
    ),
  }
  for name, (options, want) in cases.items():
    with pytest.raises(errors.SpecError, match=want):
      batches_of(read(task_store, **{"batch_size": 2, **options}), count=1)
      pytest.fail(name)


def test_generator_rejects_a_model_without_tasks(task_store):
  generator = meta_learning.TaskStoreInputGenerator(task_store)
  with pytest.raises(errors.SpecError, match="expected one whose preprocessor is a"):
    generator.set_specification_from_model(
      SineModel(action_size=1), specs.ModeKeys.TRAIN
    )


def test_error_names_a_file_with_too_few_records(task_files):
  generator = meta_learning.TaskRecordInputGenerator(
    task_files, 1, num_condition_samples_per_task=7
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match="expected 8 records"):
    batches_of(generator, count=1)
