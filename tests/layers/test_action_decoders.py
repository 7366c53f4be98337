"""Action decoders: densities, losses under masks, and actions that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers import discrete, mdn
from t2r_seq.layers.mdn import (
  gaussian_mixture_approximate_mode,
  get_mixture_distribution,
)


def _normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _density(x, mean, sigma):
  return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def _mixture(shape=(4, 2), count=5, size=3):
  params = [_normal(*shape, n, seed=n) for n in (count, count * size, count * size + 1)]
  params[2] = params[2][..., :-1]
  mixture = get_mixture_distribution(np.concatenate(params, -1), count, size)
  odds = np.exp(params[0]) / np.exp(params[0]).sum(-1, keepdims=True)
  means = params[1].reshape(*shape, count, size)
  sigmas = np.log1p(np.exp(params[2].reshape(*shape, count, size))) + 1e-4
  return mixture, odds, means, sigmas


def test_mixtures():
  mixture, odds, means, sigmas = _mixture()
  assert mixture.batch_shape == (4, 2) and mixture.event_shape == 3
  np.testing.assert_allclose(mixture.components_distribution.mean(), means, rtol=1e-5)
  np.testing.assert_allclose(
    mixture.components_distribution.stddev(), sigmas, rtol=1e-5
  )
  x = _normal(4, 2, 3, seed=9)
  each = _density(x[..., None, :], means, sigmas)
  want = np.log((odds * each.prod(-1)).sum(-1))
  np.testing.assert_allclose(mixture.log_prob(x), want, rtol=1e-4)
  # Of some components alone: those of the others are left out of the product.
  is_valid = np.array([True, False, True])
  got = mixture.log_prob(x, tf.constant(np.broadcast_to(is_valid, x.shape)))
  want = np.log((odds * each[..., is_valid].prod(-1)).sum(-1))
  np.testing.assert_allclose(got, want, rtol=1e-4)
  best = np.take_along_axis(means, odds.argmax(-1)[..., None, None], -2)[..., 0, :]
  np.testing.assert_allclose(gaussian_mixture_approximate_mode(mixture), best)
  want = (odds[..., None] * means).sum(-2)
  np.testing.assert_allclose(mixture.mean(), want, rtol=1e-4, atol=1e-5)
  moved = get_mixture_distribution(_normal(4, 35), 5, 3, output_mean=[1, 2, 3])
  still = get_mixture_distribution(_normal(4, 35), 5, 3)
  shift = moved.components_distribution.mean() - still.components_distribution.mean()
  np.testing.assert_allclose(shift, np.broadcast_to([1, 2, 3], [4, 5, 3]), atol=1e-5)


def test_samples_of_a_mixture_have_its_moments():
  tf.random.set_seed(2)
  mixture = layers.mdn.GaussianMixture(
    tf.math.log([0.25, 0.75]) + tf.zeros([20000, 1]),
    tf.constant([[-1.0], [2.0]]) + tf.zeros([20000, 1, 1]),
    tf.constant([[0.5], [0.1]]) + tf.zeros([20000, 1, 1]),
  )
  x = mixture.sample().numpy()
  assert x.shape == (20000, 1)
  assert x.mean() == pytest.approx(0.25 * -1 + 0.75 * 2, abs=0.04)
  assert np.mean(x < 0.5) == pytest.approx(0.25, abs=0.02)
  assert x[x < 0].std() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("condition_sigmas", [True, False])
def test_deviations_can_depend_on_the_inputs(condition_sigmas):
  params = mdn.predict_mdn_params(_normal(2, 16), 5, 10, condition_sigmas)
  assert params.shape == (2, 5 * 21)
  gm = get_mixture_distribution(params, 5, 10)
  sigma = gm.components_distribution.stddev().numpy()
  assert np.allclose(sigma[0], sigma[1]) != condition_sigmas
  if not condition_sigmas:
    np.testing.assert_allclose(sigma, 1 + 1e-4, rtol=1e-5)


def test_bins():
  low, high = np.array([-1.0, 0.0]), np.array([1.0, 4.0])
  centers = discrete.GetDiscreteBins(4, low, high)
  np.testing.assert_allclose(centers[:, 0], [-0.75, -0.25, 0.25, 0.75])
  np.testing.assert_allclose(centers[:, 1], [0.5, 1.5, 2.5, 3.5])
  logits = _normal(3, 1, 2, 8)
  actions = discrete.GetDiscreteActions(tf.constant(logits), 2, 4, centers)
  best = logits.reshape(3, 1, 2, 2, 4).argmax(-1)
  want = np.stack([centers[best[..., 0], 0], centers[best[..., 1], 1]], -1)
  np.testing.assert_allclose(actions, want)
  labels = np.array([-5.0, 0.1, 0.3, 9.0]).reshape(2, 1, 1, 2).astype(np.float32)
  got = discrete.GetDiscreteActionLoss(
    tf.constant(logits[:2, :, 0]), tf.constant(labels), centers, 4
  )
  by_bin = logits[:2, 0, 0].reshape(2, 2, 4)
  log_p = by_bin - np.log(np.exp(by_bin).sum(-1, keepdims=True))
  want = -np.mean([log_p[0, 0, 0], log_p[0, 1, 0], log_p[1, 0, 2], log_p[1, 1, 3]])
  np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("num_flows", [1, 2])
def test_flows_density_is_that_of_its_samples(num_flows):
  """Its integral is 1, and its change of variables is the slope of its samples."""
  decoder = layers.MAFDecoder((2,), num_flows, hidden_layers=(8, 6), seed=3)
  embedding = _normal(1, 3)
  decoder(embedding)
  for i, variable in enumerate(decoder.trainable_variables):
    variable.assign(0.5 * _normal(*variable.shape, seed=i))
  edges = np.linspace(-12, 12, 301, dtype=np.float32)
  grid = np.stack(np.meshgrid(edges, edges), -1).reshape(-1, 2)
  outputs = decoder(np.repeat(embedding, len(grid), 0), training=True)
  assert "inference_output" not in outputs
  every = tf.ones(grid.shape, tf.bool)
  density = np.exp(-decoder.errors(outputs, tf.constant(grid), every, True))
  assert density.sum() * (edges[1] - edges[0]) ** 2 == pytest.approx(1, abs=2e-3)
  samples = []
  fresh = layers.MAFDecoder((2,), num_flows, hidden_layers=(8, 6))
  fresh(embedding)
  for new, old in zip(
    fresh.trainable_variables, decoder.trainable_variables, strict=True
  ):
    new.assign(tf.convert_to_tensor(old))
  samples = fresh(np.repeat(embedding, 8000, 0))["inference_output"].numpy()
  mean = (density[:, None] * grid).sum(0) / density.sum()
  np.testing.assert_allclose(samples.mean(0), mean, atol=0.15)
  # The same noise at each call and in each row.
  twice = decoder(np.repeat(embedding, 2, 0))["inference_output"].numpy()
  np.testing.assert_array_equal(twice[0], twice[1])
  np.testing.assert_allclose(decoder(embedding)["inference_output"][0], twice[0], 1e-5)


_DECODERS = {
  "mse": lambda shape: layers.MSEDecoder(shape),
  "mdn": lambda shape: layers.MDNDecoder(shape, num_mixture_components=2),
  "discrete": lambda shape: layers.DiscreteDecoder(shape, 4, -2.0, 2.0),
  "maf": lambda shape: layers.MAFDecoder(shape, 2, hidden_layers=(8,), seed=0),
  "flow matching": lambda shape: layers.FlowMatchingDecoder(shape, num_steps=3, seed=0),
  "diffusion": lambda shape: layers.DiffusionDecoder(shape, 3, seed=0),
}


@pytest.mark.parametrize("name", _DECODERS)
def test_masked_steps_do_not_change_the_loss(name):
  tf.keras.utils.set_random_seed(0)
  decoder = _DECODERS[name]((3, 2))
  embedding = tf.constant(_normal(4, 5))
  outputs = decoder(embedding)
  assert outputs["inference_output"].shape == (4, 3, 2)
  assert outputs["inference_output"].dtype == tf.float32
  target = _normal(4, 3, 2, seed=1)
  loss = lambda *args: float(decoder.loss(outputs, *args, training=False))  # noqa: E731
  steps = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
  dimensions = np.array([[1, 1], [1, 0], [1, 0], [1, 1]], bool)
  masks = tf.constant(steps), tf.constant(dimensions)
  is_seen = steps[..., None] & dimensions[:, None]
  want = loss(tf.constant(target), *masks)
  # Whatever stands at masked places gives the same; what is seen does not.
  hidden = np.where(is_seen, target, np.nan)
  assert loss(tf.constant(hidden), *masks) == pytest.approx(want, rel=1e-5)
  seen = np.where(is_seen, target + 1, target)
  assert abs(loss(tf.constant(seen), *masks) - want) > 1e-3
  with tf.GradientTape() as tape:
    tape.watch(embedding)
    value = decoder.loss(decoder(embedding, training=True), tf.constant(hidden), *masks)
  gradients = tape.gradient(value, decoder.trainable_variables)
  assert all(np.all(np.isfinite(g)) for g in gradients if g is not None)
  nothing = tf.zeros([4], tf.bool)
  assert loss(tf.constant(target), nothing) == 0
  # The whole batch is the mean of its parts, each of which has as much to see.
  whole = tf.ones([4], tf.bool)
  if name in ("mse", "discrete", "mdn", "maf"):
    parts = []
    for i in range(4):
      one = decoder(embedding[i : i + 1])
      parts.append(float(decoder.loss(one, tf.constant(target[i : i + 1]))))
    assert loss(tf.constant(target), whole) == pytest.approx(np.mean(parts), rel=1e-4)


def test_losses_by_hand():
  target = tf.constant(_normal(4, 2))
  mse = layers.MSEDecoder((2,))
  outputs = mse(_normal(4, 5))
  difference = outputs["inference_output"] - target
  assert float(mse.loss(outputs, target)) == pytest.approx(np.mean(difference**2))
  # One component: the likelihood is that of a normal distribution of unit deviation.
  decoder = layers.MDNDecoder((2,), 1)
  outputs = decoder(_normal(4, 5))
  squares = np.sum((outputs["inference_output"] - target) ** 2, -1)
  want = np.mean(squares / 2 + math.log(2 * math.pi))
  assert float(decoder.loss(outputs, target)) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_components_part_where_there_are_two_ways(seed):
  """Chunks go left or right; all else of them hardly varies."""
  tf.keras.utils.set_random_seed(seed)
  rng = np.random.default_rng(seed)
  embedding = tf.constant(rng.uniform(0, 3, (256, 32)), tf.float32)
  ways = np.stack([rng.choice([-0.5, 0.5], 256), np.ones(256), -np.ones(256)], -1)
  chunks = np.repeat((ways + rng.normal(0, 0.02, (256, 3)))[:, None], 4, axis=1)
  target = tf.constant(chunks, tf.float32)
  decoder = layers.MDNDecoder((4, 3), 4, condition_sigmas=True)
  decoder(embedding)
  optimizer = tf.keras.optimizers.Adam(3e-3)
  optimizer.build(decoder.trainable_variables)

  @tf.function
  def descend():
    with tf.GradientTape() as tape:
      loss = decoder.loss(decoder(embedding, training=True), target)
    gradients = tape.gradient(loss, decoder.trainable_variables)
    optimizer.apply_gradients(zip(gradients, decoder.trainable_variables, strict=True))

  for _ in range(300):
    descend()
  aside = np.abs(decoder(embedding)["inference_output"][..., 0])
  np.testing.assert_allclose(aside, 0.5, atol=0.3)


class _Known(tf.keras.layers.Layer):
  """Says what moves noise to a point in one straight line, or the point's velocity."""

  def __init__(self, function):
    super().__init__()
    self.function = function

  def call(self, noisy, time, embedding):
    return self.function(noisy, time, embedding)


def test_flow_matching_goes_where_the_field_leads():
  # The field of straight paths to the embedding is (embedding - x) / (1 - t).
  field = _Known(lambda x, t, e: (e - x) / (1 - t))
  decoder = layers.FlowMatchingDecoder(
    (2,), num_steps=4, create_denoiser_fn=lambda n: field
  )
  embedding = _normal(3, 2)
  outputs = decoder(embedding)
  np.testing.assert_allclose(outputs["inference_output"], embedding, atol=1e-5)
  # With the embedding as the target it is the velocity that is asked for.
  assert float(decoder.loss(outputs, tf.constant(embedding))) < 1e-6
  wrong = _Known(lambda x, t, e: (e - x) / (1 - t) + 2.0)
  decoder = layers.FlowMatchingDecoder(
    (2,), num_steps=4, create_denoiser_fn=lambda n: wrong
  )
  got = decoder.loss(decoder(embedding), tf.constant(embedding))
  assert float(got) == pytest.approx(4, rel=1e-4)


_SCHEDULES = {
  "velocities": layers.NoiseSchedule(),
  "epsilon": layers.NoiseSchedule(100, prediction="epsilon", spacing="leading"),
  "sample": layers.NoiseSchedule(50, "linear", beta_end=0.2, prediction="sample"),
}


def _rates(schedule, time):
  """Returns the shares of action and noise at a network's time."""
  step = tf.cast(tf.round(time * schedule.num_steps), tf.int32)
  power = tf.gather(tf.constant(schedule.alphas_cumprod, tf.float32), step)
  return tf.sqrt(power), tf.sqrt(1 - power)


def _prediction(schedule, action_fn):
  """Returns a network that predicts what follows from the expected action."""

  def predict(x, t, e):
    signal, sigma = _rates(schedule, t)
    action = action_fn(x, signal, sigma, e)
    noise = (x - signal * action) / sigma
    velocity = signal * noise - sigma * action
    values = {"epsilon": noise, "sample": action, "velocity": velocity}
    return values[schedule.prediction]

  return _Known(predict)


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
@pytest.mark.parametrize("name", _SCHEDULES)
def test_diffusion_ends_at_the_predicted_action(name, sampler):
  schedule = _SCHEDULES[name]
  network = _prediction(schedule, lambda x, signal, sigma, e: e)
  decoder = layers.DiffusionDecoder(
    (2,), 5, schedule, sampler, create_denoiser_fn=lambda shape: network
  )
  embedding = _normal(3, 2)
  outputs = decoder(embedding)
  np.testing.assert_allclose(outputs["inference_output"], embedding, atol=1e-4)
  assert float(decoder.loss(outputs, tf.constant(embedding))) < 1e-4


def _two_modes(x, signal, noise):
  """E[action | x = signal * action + noise * normal]: -1 in 30 %, otherwise 1."""
  log_odds = 2 * signal * tf.reduce_sum(x, -1, keepdims=True) / noise**2
  return tf.tanh(0.5 * (log_odds + math.log(0.7 / 0.3))) * tf.ones_like(x)


def _two_modes_flow(x, t, _):
  return (_two_modes(x, t, 1 - t) - x) / (1 - t)


@pytest.mark.parametrize("name", ["flow matching", "diffusion"])
def test_ten_steps_keep_the_shares_of_modes(name):
  tf.random.set_seed(0)
  decoder_cls, network = layers.FlowMatchingDecoder, _Known(_two_modes_flow)
  if name == "diffusion":
    action_fn = lambda x, signal, sigma, e: _two_modes(x, signal, sigma)  # noqa: E731
    network = _prediction(layers.NoiseSchedule(), action_fn)
    decoder_cls = layers.DiffusionDecoder
  decoder = decoder_cls((56,), create_denoiser_fn=lambda shape: network)
  actions = decoder(tf.zeros([8000, 1]))["inference_output"].numpy()
  assert np.mean(actions < 0) == pytest.approx(0.29, abs=0.025)
  assert np.mean(np.abs(actions) < 0.7) < 0.02


_WAYS = {
  "mdn": lambda how: layers.MDNDecoder((1,), 3, inference=how),
  "discrete": lambda how: layers.DiscreteDecoder((1,), 3, -1.5, 1.5, inference=how),
}


@pytest.mark.parametrize("name", _WAYS)
def test_ways_of_inference(name):
  tf.random.set_seed(0)
  embedding = np.repeat(_normal(1, 4), 3000, 0)
  answers = {}
  for how in ("mode", "mean", "sample"):
    decoder = _WAYS[name](how)
    decoder(embedding[:1])
    for i, variable in enumerate(decoder.trainable_variables):
      variable.assign(_normal(*variable.shape, seed=i))
    answers[how] = decoder(embedding)["inference_output"].numpy()
  assert np.ptp(answers["mode"]) == 0 and np.ptp(answers["mean"]) < 1e-5
  assert abs(answers["mode"][0] - answers["mean"][0]) > 1e-2
  assert answers["sample"].std() > 0.1
  assert answers["sample"].mean() == pytest.approx(answers["mean"].mean(), abs=0.1)


_REFUSED = {
  "a target of another shape": (
    lambda: layers.MSEDecoder((3, 2)).loss({}, tf.zeros([4, 3])),
    r"MSEDecoder: target: expected the axes \(3, 2\) of action_shape at the end, got",
  ),
  "a mask of numbers": (
    lambda: layers.action_decoders.valid_targets(
      "loss", tf.zeros([4, 2]), tf.ones([4])
    ),
    r"loss: mask: expected bools for the leading axes of the target",
  ),
  "a dimension mask of another size": (
    lambda: layers.action_decoders.valid_targets(
      "loss", tf.zeros([4, 2]), None, tf.ones([4, 3], tf.bool)
    ),
    r"loss: dimension_mask: expected bools, the last axis that of the target",
  ),
  "narrow flows": (
    lambda: layers.MAFDecoder((9,), hidden_layers=(8,)),
    r"MAFDecoder: hidden_layers: expected at least 9 units each",
  ),
  "an empty range": (
    lambda: layers.DiscreteDecoder((2,), 4, 1.0, 1.0),
    r"DiscreteDecoder: output_min: expected less than output_max",
  ),
  "an inference": (
    lambda: layers.MDNDecoder((2,), inference="best"),
    r"MDNDecoder: inference: expected one of \[mean, mode, sample\], got 'best'",
  ),
  "no steps": (
    lambda: layers.FlowMatchingDecoder((2,), num_steps=0),
    r"FlowMatchingDecoder: num_steps: expected at least 1, got 0",
  ),
  "parameters": (
    lambda: get_mixture_distribution(tf.zeros([2, 9]), 2, 3),
    r"get_mixture_distribution: params: expected 14 numbers at the end",
  ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_refused(case):
  create, message = _REFUSED[case]
  with pytest.raises(errors.SpecError, match=message):
    create()
