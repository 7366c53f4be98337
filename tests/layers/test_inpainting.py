"""Chunks that continue a plan, compared with loops in numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers.flow_matching import Continuation

STEPS, SIZE, NUM_CALLS = 6, 2, 5
NUMBERS = STEPS * SIZE
RNG = np.random.default_rng(0)
MATRIX = (RNG.normal(size=[NUMBERS, NUMBERS]) / 4).astype(np.float32)
DRIFT = RNG.normal(size=NUMBERS).astype(np.float32)
TARGET = RNG.normal(size=[2, STEPS, SIZE]).astype(np.float32)
NOISE = np.random.default_rng(7).standard_normal(NUMBERS)


class LinearNetwork(tf.keras.layers.Layer):
  """`noisy @ MATRIX + time * DRIFT`."""

  def __init__(self, action_shape):
    super().__init__()
    assert tuple(action_shape) == (STEPS, SIZE)

  def call(self, noisy, time, embedding):
    del embedding
    return noisy @ tf.constant(MATRIX) + time * tf.constant(DRIFT)


def network(flat, time):
  return flat @ MATRIX.astype(np.float64) + time * DRIFT


def soft_weights(frozen, known):
  weights = []
  for place in range(STEPS):
    share = (known - place) / (known - frozen + 1)
    soft = share * (math.exp(share) - 1) / (math.e - 1)
    weights.append(1.0 if place < frozen else soft if place < known else 0.0)
  return np.repeat(weights, SIZE)


def flow(target, weights):
  """Euler steps of a guided velocity field; the gradient is that of a linear map."""
  flat, ends = NOISE.copy(), (np.arange(NUM_CALLS + 1) / NUM_CALLS) ** 1.5
  for start, end in itertools.pairwise(ends):
    velocity = network(flat, start)
    error = weights * (target - (flat + (1 - start) * velocity))
    jacobian = np.eye(NUMBERS) + (1 - start) * MATRIX
    ratio = start**2 + (1 - start) ** 2
    strength = min(5.0, ratio / (start * (1 - start)) if start else 5.0)
    flat = flat + (end - start) * (velocity + strength * jacobian @ error)
  return flat


def diffusion(target, weights):
  """DDIM steps of a network of the noise."""
  schedule = layers.NoiseSchedule(20, prediction="epsilon", spacing="leading")
  steps, flat = schedule.sampler_steps(NUM_CALLS), NOISE.copy()
  powers = np.append(schedule.alphas_cumprod[steps], 1.0)
  for step, power, after in zip(steps, powers[:-1], powers[1:], strict=True):
    signal, sigma = np.sqrt(power), np.sqrt(1 - power)
    noise = network(flat, step / 20)
    clean = (flat - sigma * noise) / signal
    jacobian = (np.eye(NUMBERS) - sigma * MATRIX) / signal
    error = weights * (target - clean)
    change = min(5.0, 1 / signal) * jacobian @ error
    most = np.linalg.norm(error) / max(np.linalg.norm(change), 1e-6)
    clean = clean + change * min(1.0, most)
    flat = np.sqrt(after) * clean + np.sqrt(1 - after) * noise
  return flat


def make_decoder(oracle):
  options = {"create_denoiser_fn": LinearNetwork, "seed": 7, "num_steps": NUM_CALLS}
  if oracle is flow:
    return layers.FlowMatchingDecoder((STEPS, SIZE), **options)
  schedule = layers.NoiseSchedule(20, prediction="epsilon", spacing="leading")
  return layers.DiffusionDecoder((STEPS, SIZE), schedule=schedule, **options)


@pytest.mark.parametrize("oracle", [flow, diffusion])
def test_guided_inpainting_equals_a_loop_in_numpy(oracle):
  counts = [(2, 4), (0, 6)]
  frozen, known = (np.array(each, np.int32) for each in zip(*counts, strict=True))

  @tf.function
  def sample(target, frozen, known):
    continued = Continuation.of(target, frozen, known)
    return make_decoder(oracle)(tf.zeros([2, 3]), known=continued)["inference_output"]

  got = sample(TARGET, frozen, known).numpy()
  for row, (num_frozen, num_known) in enumerate(counts):
    want = oracle(TARGET[row].ravel(), soft_weights(num_frozen, num_known))
    want = want.reshape([STEPS, SIZE])
    want[:num_frozen] = TARGET[row, :num_frozen]  # Frozen actions are exact.
    np.testing.assert_allclose(got[row], want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("oracle", [flow, diffusion])
def test_chunk_without_a_plan_is_the_same(oracle):
  decoder, nothing = make_decoder(oracle), np.zeros([2], np.int32)
  known = Continuation.of(tf.constant(TARGET), nothing, nothing)
  free = decoder(tf.zeros([2, 3]))["inference_output"]
  continued = decoder(tf.zeros([2, 3]), known=known)["inference_output"]
  np.testing.assert_allclose(free, continued, rtol=1e-4, atol=1e-5)
