"""One batch of old episodes and new ones: a store and a live replay, by weight."""

from __future__ import annotations

import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, replay, specs, store, training, windows

Spec = specs.ExtendedTensorSpec
FEATURES = {"obs": Spec((3, 2), tf.float32, time_offsets=(-2, -1, 0))}
LABELS = {"target": Spec((2,), tf.float32, time_offsets=0)}
FLAT = windows.flat_specs({**FEATURES, **LABELS})
ONLINE = 10_000  # Steps of the replay are numbered from here.


def make_steps(first: int, count: int) -> dict:
  numbers = np.arange(first, first + count, dtype=np.float32)
  return {
    "obs": np.stack([numbers, np.zeros(count, np.float32)], 1),
    "target": np.stack([2 * numbers, np.ones(count, np.float32)], 1),
  }


def append(writer, first: int, count: int) -> None:
  steps = make_steps(first, count)
  for row in range(count):
    writer.append({path: values[row] for path, values in steps.items()})
  writer.end_episode()


@pytest.fixture
def store_path(tmp_path) -> str:
  path = str(tmp_path / "store")
  with store.EpisodeStore.create(path, FLAT) as writer:
    for episode in range(5):
      writer.append_episode(make_steps(100 * episode, 20))
  return path


@pytest.fixture
def buffer():
  options = {"timeout": 10.0, "seed": 0, "padding": "drop"}
  with replay.ReplayBuffer({**FEATURES, **LABELS}, 500, **options) as made:
    yield made


def make_mixture(store_path, buffer, weights, **options) -> data.MixtureInputGenerator:
  sources = {
    "offline": data.StoreInputGenerator(store_path, seed=1),
    "online": replay.ReplayInputGenerator(buffer),
  }
  mixture = data.MixtureInputGenerator(sources, weights, **{"batch_size": 8, **options})
  mixture.set_feature_specifications(FEATURES)
  mixture.set_label_specifications(LABELS)
  mixture.set_padding("drop")
  return mixture


WEIGHTS = {
  "equal": (None, [(4, 4)] * 6),
  "mostly offline": ([3, 1], [(6, 2)] * 6),
  "not whole rows": ({"offline": 1, "online": 2}, [(3, 5), (3, 5), (2, 6)] * 2),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_both_are_in_every_batch(name, store_path, buffer):
  weights, want = WEIGHTS[name]
  with buffer.writer() as writer:
    append(writer, ONLINE, 20)
  dataset = make_mixture(store_path, buffer, weights).create_dataset("train")
  got = []
  for features, labels in dataset.take(len(want)):
    obs, target = features["obs"].numpy(), labels["target"].numpy()
    now = obs[:, 2, 0]
    np.testing.assert_array_equal(obs[:, :, 0], now[:, None] + np.array([-2, -1, 0]))
    np.testing.assert_array_equal(target, np.stack([2 * now, np.ones(8)], 1))
    is_online = now >= ONLINE
    got.append((int((~is_online).sum()), int(is_online.sum())))
  assert sorted(got) == sorted(want)


def test_items_inserted_during_training_are_sampled(store_path, buffer):
  writer, stop = buffer.writer(), threading.Event()
  append(writer, ONLINE, 20)

  def collect() -> None:
    first = ONLINE + 1000
    while not stop.is_set():
      append(writer, first, 20)
      first += 100

  batches = iter(make_mixture(store_path, buffer, [1, 1]).create_dataset("train"))
  next(batches)
  collector = threading.Thread(target=collect)
  collector.start()
  try:
    newest = 0.0
    for _ in range(10_000):
      features, _ = next(batches)
      obs = features["obs"].numpy()
      np.testing.assert_array_equal(obs[:, 0, 0] + 2, obs[:, 2, 0])
      newest = max(newest, obs.max())
      if newest > ONLINE + 2000:
        break
    assert newest > ONLINE + 2000
  finally:
    stop.set()
    collector.join(20)


def test_wait_for_the_replay_has_a_timeout(store_path):
  options = {"timeout": 0.05, "padding": "drop"}
  with replay.ReplayBuffer({**FEATURES, **LABELS}, 500, **options) as buffer:
    mixture = make_mixture(store_path, buffer, None)
    want = r"sample: waited 0\.05 s: 0 of 1 items are there"
    with (
      pytest.raises(errors.ReplayTimeoutError, match=want),
      mixture.explain_failures(),
    ):
      next(iter(mixture.create_dataset("train")))


def test_replay_of_other_specs(store_path):
  spec = {"obs": Spec((2,), tf.float32, time_offsets=0), **LABELS}
  with replay.ReplayBuffer(spec, 500) as buffer:
    mixture = make_mixture(store_path, buffer, None)
    with pytest.raises(errors.SpecError, match=r"obs: expected \(3, 2\) float32, got"):
      mixture.create_dataset("train")


def test_evaluates_offline_only(store_path, buffer):
  with pytest.raises(errors.SpecError, match=r"online: expected a source that ends"):
    make_mixture(store_path, buffer, None).create_dataset("eval")


class Model(models.RegressionModel):
  """Regresses the target from the stack."""

  def get_feature_specification(self, mode):
    return specs.TensorSpecStruct(FEATURES)

  def get_label_specification(self, mode):
    return specs.TensorSpecStruct(LABELS)

  def create_network(self):
    return {"out": tf.keras.layers.Dense(2)}

  def a_func(self, features, mode):
    flat = tf.reshape(features["obs"], [-1, 6]) / ONLINE
    return {"inference_output": self.network["out"](flat)}


def test_gin_configures_offline_and_online_data(store_path, buffer, tmp_path):
  with buffer.writer() as writer:
    append(writer, ONLINE, 20)
  gin.bind_parameter("StoreInputGenerator.store_path", store_path)
  gin.parse_config("""
    offline/StoreInputGenerator.seed = 1
    MixtureInputGenerator.sources = {
        'offline': @offline/StoreInputGenerator(),
        'online': @ReplayInputGenerator()}
    MixtureInputGenerator.weights = {'offline': 1, 'online': 3}
    MixtureInputGenerator.batch_size = 8
  """)
  gin.bind_parameter("ReplayInputGenerator.replay", lambda: buffer)
  training.train_eval_model(
    t2r_model=Model(padding="drop"),
    input_generator_train=data.MixtureInputGenerator(),
    max_train_steps=4,
    model_dir=str(tmp_path / "model"),
    create_exporters_fn=list,
    run_config=training.RunConfig(seed=1),
  )
  assert buffer.counters.num_samples >= 4 * 6


@pytest.fixture(autouse=True)
def clean_gin():
  yield
  gin.clear_config()
