"""Priorities of a replay follow what training steps say of the items."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import data, errors, hooks, models, replay, specs, training
from t2r_seq.specs import ExtendedTensorSpec as Spec

TRANSITION = {
  "obs": Spec((1,), tf.float32, "obs", time_offsets=0),
  "act": Spec((1,), tf.float32, "act", time_offsets=0),
  "rew": Spec((), tf.float32, "rew", time_offsets=0),
  "next_obs": Spec((1,), tf.float32, "obs", time_offsets=1),
  "done": Spec((), tf.float32, "done", time_offsets=0),
}
NUM_STEPS = 8


class Zero(models.CriticModel):
  """Values everything with 0: its TD error is the reward."""

  def __init__(self):
    super().__init__(create_optimizer_fn=lambda: tf.keras.optimizers.SGD(0.0))

  def get_state_specification(self):
    return specs.TensorSpecStruct(obs=TRANSITION["obs"])

  def get_action_specification(self):
    return specs.TensorSpecStruct(act=TRANSITION["act"])

  def get_label_specification(self, mode):
    return replay.add_sample_specs({"reward": TRANSITION["rew"]})

  def create_network(self):
    return tf.keras.layers.Dense(1, kernel_initializer="zeros")

  def q_func(self, state, action, mode):
    return {"q_predicted": self.network(tf.concat([state.obs, action.act], 1))[:, 0]}


@pytest.fixture
def buffer():
  made = replay.ReplayBuffer(
    TRANSITION,
    capacity_steps=50,
    sampler=replay.Prioritized(priority_exponent=1.0),
    n_step=(2, 0.5),
    seed=0,
  )
  with made, made.writer() as writer:
    for t in range(NUM_STEPS + 1):
      flag = np.float32(t == NUM_STEPS - 1)
      value = np.full(1, t, np.float32)
      writer.append({"obs": value, "act": value, "rew": np.float32(t), "done": flag})
    writer.end_episode()
    yield made


def joined_rewards():
  """Of each step: its reward, and half of the next."""
  rewards = np.arange(NUM_STEPS, dtype=np.float64)
  return rewards + 0.5 * np.append(rewards[1:], 0.0)


def test_sampling_follows_the_td_errors(buffer, tmp_path):
  generator = replay.ReplayInputGenerator(buffer, 16, importance_exponent=1.0)
  training.train_eval_model(
    Zero(),
    input_generator_train=generator,
    max_train_steps=20,
    model_dir=str(tmp_path),
    create_exporters_fn=None,
    callbacks=[hooks.PriorityUpdate(generator)],
  )
  info, batch = buffer.sample_with_info(20_000)
  want = joined_rewards() / joined_rewards().sum()
  steps = batch["obs"][:, 0].astype(int)
  np.testing.assert_allclose(info.probability, want[steps], rtol=1e-4)
  got = np.bincount(steps, minlength=NUM_STEPS) / len(steps)
  np.testing.assert_allclose(got, want, atol=0.01)
  np.testing.assert_allclose(batch["rew"], joined_rewards()[steps], rtol=1e-6)
  # The loss is weighed: 1 where the chance is least, of those that were drawn.
  model = Zero()
  generator = replay.ReplayInputGenerator(buffer, 64, importance_exponent=1.0)
  generator.set_specification_from_model(model, "train")
  features, labels = next(iter(generator.create_dataset("train")))
  chance = want[features["state/obs"].numpy()[:, 0].astype(int)]
  weight = chance.min() / chance
  np.testing.assert_allclose(labels["sample/weight"], weight, rtol=1e-4)
  model.build()
  loss, outputs = model.train_loss(features, labels)
  reward = labels["reward"].numpy()
  np.testing.assert_allclose(outputs["td_error"], reward, rtol=1e-6)
  np.testing.assert_allclose(loss, np.mean(weight * reward**2), rtol=1e-4)


def test_mixture_gives_other_sources_weight_1():
  step = {"x": Spec((), tf.float32, time_offsets=0)}

  def examples():
    for _ in range(10):
      yield {"x": np.float32(-1)}, {}

  with replay.ReplayBuffer(step, 20, seed=0) as made:
    with made.writer() as writer:
      for t in range(5):
        writer.append({"x": np.float32(t)})
    sources = {
      "offline": data.GeneratorInputGenerator(examples),
      "online": replay.ReplayInputGenerator(made),
    }
    mixture = data.MixtureInputGenerator(sources, batch_size=8)
    mixture.set_feature_specifications(step)
    mixture.set_label_specifications(replay.add_sample_specs({}))
    features, labels = next(iter(mixture.create_dataset("train")))
  is_drawn = features["x"].numpy() >= 0
  assert is_drawn.sum() == 4
  np.testing.assert_array_equal(labels["sample/key"].numpy() != 0, is_drawn)
  np.testing.assert_array_equal(labels["sample/weight"], np.ones(8))


PADDINGS = {
  "another": ("zero", "repeat", "padding at the front: expected 'repeat', the model's"),
  "made up": (
    "repeat",
    "drop",
    "expected 'drop', the model's, or 'drop', got 'repeat'",
  ),
  "the same": ("repeat", "repeat", None),
  "full windows only": ("drop", "repeat", None),
}


@pytest.mark.parametrize("name", PADDINGS)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_replay_pads_as_the_model_or_not_at_all(name, is_mixed):
  own, wanted, match = PADDINGS[name]
  stack = {"x": Spec((2,), tf.float32, time_offsets=(-1, 0))}
  with replay.ReplayBuffer(stack, 20, padding=own, seed=0) as made:
    with made.writer() as writer:
      for t in range(5):
        writer.append({"x": np.float32(t)})
    generator = replay.ReplayInputGenerator(made)
    if is_mixed:
      generator = data.MixtureInputGenerator({"only": generator})
    generator.set_feature_specifications(stack)
    generator.set_label_specifications({})
    generator.set_padding(wanted)
    if match is None:
      features, _ = next(iter(generator.create_dataset("train")))
      assert features["x"].shape == (32, 2)
    else:
      with pytest.raises(errors.SpecError, match=match):
        generator.create_dataset("train")
