"""Transformers of ACT, networks and schedules of Diffusion Policy.

That trained ones act as in LeRobot is tested in tests/zoo.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers import attention, diffusion_networks


def _normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _arrays(variables):
  return [np.array(tf.convert_to_tensor(v)) for v in variables]


def test_attention_reads_values_by_the_softmax_of_products():
  layer = attention.Attention(6, num_heads=2)
  queries, keys, values = (_normal(2, n, 6, seed=n) for n in (3, 4, 4))
  mask = np.array([[[1, 1, 0, 1]], [[1, 0, 1, 1]]], bool)
  got = layer(queries, keys, values, tf.constant(mask))
  wq, bq, wk, bk, wv, bv, wo, bo = _arrays(layer.trainable_variables)
  heads = lambda x: x.reshape(2, -1, 2, 3).transpose(0, 2, 1, 3)  # noqa: E731
  q, k, v = (heads(x @ w + b) for x, w, b in
             ((queries, wq, bq), (keys, wk, bk), (values, wv, bv)))  # fmt: skip
  logits = np.where(mask[:, None], q @ k.transpose(0, 1, 3, 2) / math.sqrt(3), -np.inf)
  weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  read = (weights @ v).transpose(0, 2, 1, 3).reshape(2, 3, 6)
  np.testing.assert_allclose(got, read @ wo + bo, atol=1e-5)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformer_ignores_masked_tokens(pre_norm):
  layer = layers.Transformer(
    2, 2, 8, 12, pre_norm=pre_norm, has_memory=True, final_norm=True
  )
  tokens, memory, positions = _normal(2, 3, 8), _normal(2, 4, 8), _normal(4, 8)
  mask = tf.constant([[[True, True, False, True]]])
  read = lambda m: layer(tokens, None, None, m, positions, mask).numpy()  # noqa: E731
  before, changed, seen = read(memory), memory.copy(), memory.copy()
  changed[:, 2] += 5
  seen[:, 1] += 5
  np.testing.assert_array_equal(read(changed), before)
  assert np.abs(read(seen) - before).max() > 1e-3


def test_dropout_of_all_parts_follows_training():
  tf.random.set_seed(0)
  layer = layers.Transformer(1, 2, 8, 12, dropout=0.5)
  tokens = _normal(1, 3, 8)
  np.testing.assert_array_equal(layer(tokens), layer(tokens, training=False))
  first, second = layer(tokens, training=True), layer(tokens, training=True)
  assert np.abs(first - second).max() > 1e-2


def test_positions_of_pixels_are_those_of_detr():
  got = attention.sinusoidal_positions_2d(2, 3, 8)
  assert got.shape == (2, 3, 8)
  row, column = 2 * math.pi * 1 / 2, 2 * math.pi * 3 / 3
  want = [math.sin(row), math.cos(row), math.sin(row / 100), math.cos(row / 100)]
  want += [math.sin(column), math.cos(column)]
  want += [math.sin(column / 100), math.cos(column / 100)]
  np.testing.assert_allclose(got[0, 2], want, atol=1e-5)


# Parameters of LeRobot's networks of the same settings.
_PARAMETERS = {
  "U-Net": (
    lambda: layers.ConditionalUNet((16, 2), (64, 128, 256)), 134, 4_896_450
  ),
  "U-Net that shifts": (
    lambda: layers.ConditionalUNet(
      (8, 3), (32, 64), 3, 8, 32, film_scales=False
    ), 20, 171_043,
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", _PARAMETERS)
def test_number_of_parameters(name):
  create, size, want = _PARAMETERS[name]
  layer = create()
  shape = layer._action_shape
  got = layer(tf.zeros([2, math.prod(shape)]), tf.zeros([2, 1]), tf.zeros([2, size]))
  assert got.shape == (2, math.prod(shape))
  assert sum(math.prod(v.shape) for v in layer.trainable_variables) == want


def test_transformer_of_a_chunk_is_causal():
  layer = layers.DiffusionTransformer((4, 2), 2, 1, 2, 8)
  noisy, time, embedding = _normal(1, 8), tf.constant([[0.3]]), _normal(1, 6)
  layer(noisy, time, embedding)
  for i, variable in enumerate(layer.trainable_variables):
    variable.assign(_normal(*variable.shape, seed=i))
  later = noisy.copy()
  later[:, 4:] += 1
  before, after = layer(noisy, time, embedding), layer(later, time, embedding)
  np.testing.assert_array_equal(before[:, :4], after[:, :4])
  assert np.abs(before[:, 4:] - after[:, 4:]).max() > 1e-3


@pytest.mark.parametrize("num_steps", [50, 100, 1000])
def test_steps_are_embedded_by_their_exact_number(num_steps):
  steps = np.arange(num_steps)[:, np.newaxis]
  time = (steps / num_steps).astype(np.float32)
  got = diffusion_networks.StepEmbedding(4, num_steps)(time)
  angles = (steps * np.array([1, 1e-4])).astype(np.float32)
  np.testing.assert_allclose(
    got, np.concatenate([np.sin(angles), np.cos(angles)], 1), atol=1e-6
  )


def test_schedules_against_closed_forms():
  cosine = layers.NoiseSchedule(100).alphas_cumprod
  steps = np.arange(1, 100)
  f = lambda t: np.cos((t / 100 + 0.008) / 1.008 * math.pi / 2) ** 2  # noqa: E731
  np.testing.assert_allclose(cosine[:99], f(steps) / f(0), rtol=1e-5)
  # Betas end at 0.999.
  assert cosine[99] == pytest.approx(cosine[98] * 0.001, rel=1e-4)
  linear = layers.NoiseSchedule(3, "linear", 0.1, 0.3).alphas_cumprod
  np.testing.assert_allclose(linear, [0.9, 0.9 * 0.8, 0.9 * 0.8 * 0.7], rtol=1e-6)
  leading = layers.NoiseSchedule(100, spacing="leading")
  assert leading.sampler_steps(5).tolist() == [80, 60, 40, 20, 0]
  assert leading.sampler_steps(16)[:2].tolist() == [90, 84]
  dense = layers.NoiseSchedule(100).sampler_steps(4)
  assert dense[0] == 99 and np.all(np.diff(dense) < 0) and dense[-1] > 0


class _Half(tf.keras.layers.Layer):
  """Predicts half of the noisy actions."""

  def call(self, noisy, time, embedding):
    return noisy / 2


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_samplers_against_closed_forms(sampler):
  schedule = layers.NoiseSchedule(
    10, "linear", 0.1, 0.4, "epsilon", clip=0.9, spacing="leading"
  )
  decoder = layers.DiffusionDecoder(
    (3,), 5, schedule, sampler, seed=3, create_denoiser_fn=lambda shape: _Half()
  )
  got = decoder(tf.zeros([1, 2]))["inference_output"][0]
  power = np.cumprod(1 - np.linspace(0.1, 0.4, 10))
  x = np.random.default_rng(3).standard_normal(3)
  noises = np.random.default_rng([3, 1]).standard_normal((5, 3))
  for i, t in enumerate([8, 6, 4, 2, 0]):
    a, before = power[t], power[t - 2] if t else 1.0
    action = np.clip((x - math.sqrt(1 - a) * x / 2) / math.sqrt(a), -0.9, 0.9)
    if sampler == "ddim":  # Equation 12 of arXiv:2010.02502 without its last term.
      x = math.sqrt(before) * action + math.sqrt(1 - before) * x / 2
    else:  # Equation 7 of arXiv:2006.11239, of steps that skip others.
      alpha = a / before
      mean = math.sqrt(before) * (1 - alpha) / (1 - a) * action
      mean = mean + math.sqrt(alpha) * (1 - before) / (1 - a) * x
      x = mean + math.sqrt((1 - before) / (1 - a) * (1 - alpha)) * noises[i]
  np.testing.assert_allclose(got, x, atol=1e-5)


_REFUSED = {
  "heads": (
    lambda: attention.Attention(6, 4),
    r"Attention: model_size: expected a multiple of 4 heads, got 6",
  ),
  "a chunk that can't be halved": (
    lambda: layers.ConditionalUNet((6, 2), (8, 8, 8)),
    r"ConditionalUNet: action_shape: expected \(steps, components\) with a multiple of "
    r"4 steps for 3 filters, got \(6, 2\)\. Change the chunk, or take fewer filters",
  ),
  "betas": (
    lambda: layers.NoiseSchedule(betas="cosine"),
    r"NoiseSchedule: betas: expected one of \[.*squaredcos_cap_v2.*\], got 'cosine'",
  ),
  "no training steps": (
    lambda: layers.NoiseSchedule(0),
    r"NoiseSchedule: num_steps: expected at least 1, got 0",
  ),
  "a sampler": (
    lambda: layers.DiffusionDecoder((2,), sampler="euler"),
    r"DiffusionDecoder: sampler: expected one of \[ddim, ddpm\], got 'euler'",
  ),
  "more steps than were trained": (
    lambda: layers.DiffusionDecoder((2,), 20, layers.NoiseSchedule(10)),
    r"DiffusionDecoder: num_steps: expected at most the 10 of its schedule, got 20",
  ),
  "a normalizer": (
    lambda: layers.ResNet(normalizer="layer"),
    r"ResNet: normalizer: expected one of \[batch, frozen, group\], got 'layer'",
  ),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_options_that_are_refused(name):
  create, message = _REFUSED[name]
  with pytest.raises(errors.SpecError, match=message):
    create()


def test_unet_begins_with_the_weights_of_pytorch():
  """Uniform, up to 1 / sqrt(fan_in), with biases: it learns in fewer steps."""
  network = layers.ConditionalUNet((8, 2), (16, 32), time_size=8)
  network(tf.zeros([1, 16]), tf.zeros([1, 1]), tf.zeros([1, 3]))
  kernels = [v.numpy() for v in network.weights if "kernel" in v.name]
  assert len(kernels) > 20
  for kernel in kernels:
    if len(kernel) != 4:  # A transposed convolution has its inputs last.
      limit = 1 / np.sqrt(np.prod(kernel.shape[:-1]))
      assert 0.6 * limit < np.abs(kernel).max() < 1.001 * limit
  biases = [v.numpy() for v in network.weights if "bias" in v.name]
  assert all(np.any(bias) for bias in biases)
