"""The causal transformer: values, its window, and steps with a carried cache."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers, models, policies, specs


def _normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _norm(x, gamma, beta):
  mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  return (x - mean) / np.sqrt(var + 1e-6) * gamma + beta


def _gelu(x):
  return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.fixture(scope="module")
def transformer():
  layer = layers.CausalTransformer(
    num_layers=2, num_heads=2, model_size=8, window=3, num_tokens=2, mlp_size=12
  )
  layer(_normal(1, 2, 2, 8))
  for i, variable in enumerate(layer.trainable_variables):
    variable.assign(0.4 * _normal(*variable.shape, seed=i))
  return layer


def _by_loops(layer, tokens, is_valid):
  """One block after another, one query after another, rotations as complex numbers."""
  weights = [np.array(tf.convert_to_tensor(v)) for v in layer.trainable_variables]
  vectors = {n: [w for w in weights if w.shape == (n,)] for n in (8, 24, 12)}
  matrix = lambda *shape: [w for w in weights if w.shape == shape]  # noqa: E731
  (slots,) = matrix(2, 8)
  # Vectors of 8: both layers' norms, the biases behind attention, MLP; the last norm.
  norms, merge_bias = vectors[8][:8], vectors[8][8:10]
  out_bias, last = vectors[8][10:12], vectors[8][12:14]
  batch, steps = tokens.shape[:2]
  net = tokens + slots
  rates = 10000.0 ** (-np.arange(2) / 2)

  def turn(head, step):
    spun = (head[:2] + 1j * head[2:]) * np.exp(1j * step * rates)
    return np.concatenate([spun.real, spun.imag])

  for i in range(2):
    qkv = _norm(net, *norms[4 * i : 4 * i + 2]) @ matrix(8, 24)[i] + vectors[24][i]
    read = np.zeros_like(net)
    for b, t, n, h in np.ndindex(batch, steps, 2, 2):
      part = slice(4 * h, 4 * h + 4)
      seen = [
        (s, m)
        for s in range(max(0, t - 2), t + 1)
        for m in range(2)
        if is_valid[b, s] or s == t
      ]
      query = turn(qkv[b, t, n, :8][part], t)
      logits = [query @ turn(qkv[b, s, m, 8:16][part], s) / 2 for s, m in seen]
      odds = np.exp(logits) / np.exp(logits).sum()
      values = [qkv[b, s, m, 16:][part] for s, m in seen]
      read[b, t, n, part] = odds @ np.array(values)
    net = net + read @ matrix(8, 8)[i] + merge_bias[i]
    hidden = _norm(net, *norms[4 * i + 2 : 4 * i + 4]) @ matrix(8, 12)[i]
    hidden = _gelu(hidden + vectors[12][i])
    net = net + hidden @ matrix(12, 8)[i] + out_bias[i]
  return _norm(net, *last)


def test_values(transformer):
  tokens = _normal(2, 5, 2, 8)
  is_valid = np.array([[True] * 5, [False, False, True, True, True]])
  got = transformer(tokens, tf.constant(is_valid))
  np.testing.assert_allclose(
    got, _by_loops(transformer, tokens, is_valid), rtol=1e-4, atol=1e-4
  )
  # What is padded is seen by no other step.
  other = tokens.copy()
  other[1, :2] = 9.0
  again = transformer(other, tf.constant(is_valid))
  np.testing.assert_allclose(again[1, 2:], got[1, 2:], rtol=1e-5, atol=1e-5)


def test_steps_with_a_cache_give_what_the_sequence_gives(transformer):
  tokens = _normal(2, 7, 2, 8)
  want = transformer(tokens)

  @tf.function(jit_compile=True)
  def step(token, cache):
    return transformer(token, cache=cache)

  cache, got = transformer.initial_cache(2), []
  for t in range(7):
    out, cache = step(tokens[:, t : t + 1], cache)
    got.append(out)
  np.testing.assert_allclose(tf.concat(got, 1), want, rtol=1e-4, atol=1e-5)
  # Several steps at once, behind a cache of some.
  out, cache = transformer(tokens[:, :4], cache=transformer.initial_cache(2))
  rest, _ = transformer(tokens[:, 4:], cache=cache)
  np.testing.assert_allclose(tf.concat([out, rest], 1), want, rtol=1e-4, atol=1e-5)
  # One row begins anew, the other goes on.
  fresh = transformer.initial_cache(2)
  mixed = {k: tf.concat([fresh[k][:1], cache[k][1:]], 0) for k in cache}
  out, _ = transformer(tokens[:, 4:], cache=mixed)
  np.testing.assert_allclose(out[1:], rest[1:], rtol=1e-4, atol=1e-5)
  alone = transformer(tokens[:1, 4:])
  np.testing.assert_allclose(out[:1], alone, rtol=1e-4, atol=1e-5)


def test_window_of_one_step_and_what_is_refused():
  layer = layers.CausalTransformer(1, 1, 4, window=1)
  tokens = _normal(1, 3, 1, 4)
  want = layer(tokens)
  out, cache = layer(tokens[:, :1], cache=layer.initial_cache(1))
  np.testing.assert_allclose(out, want[:, :1], rtol=1e-5, atol=1e-6)
  assert cache["keys"].shape == (1, 1, 0, 1, 1, 4)
  with pytest.raises(
    errors.SpecError, match=r"tokens: expected \[batch, steps, 1, 4\]"
  ):
    layer(_normal(1, 3, 2, 4))
  with pytest.raises(errors.SpecError, match="model_size: expected a multiple of 6"):
    layers.CausalTransformer(1, 3, 8, window=1)


class Remembering(models.RecurrentRegressionModel):
  """Carries a transformer's cache from step to step."""

  def get_feature_specification(self, mode):
    x = specs.ExtendedTensorSpec((8,), tf.float32, "x", is_sequence=True)
    return specs.TensorSpecStruct(x=x)

  def get_label_specification(self, mode):
    y = specs.ExtendedTensorSpec((2,), tf.float32, "y", is_sequence=True)
    return specs.TensorSpecStruct(target=y)

  def get_recurrent_state_specification(self, mode):
    return self.network["net"].cache_spec()

  def create_network(self):
    net = layers.CausalTransformer(1, 2, 8, window=3, mlp_size=8)
    return {"net": net, "out": tf.keras.layers.Dense(2)}

  def recurrent_network_fn(self, features, state, mode):
    cache = {name: state[name] for name in state}
    out, cache = self.network["net"](features.x[:, :, tf.newaxis], cache=cache)
    return {"inference_output": self.network["out"](out[:, :, 0])}, cache


def test_policy_of_it_carries_its_cache():
  tf.keras.utils.set_random_seed(1)
  model = Remembering()
  predictor = policies.CheckpointPredictor(model)  # Traces what an export holds.
  predictor.init_randomly()
  x = _normal(1, 6, 8)
  features = specs.TensorSpecStruct(x=tf.constant(x))
  want = model.inference_network_fn(features, None, "eval")["inference_output"]
  served = predictor.predict({"x": x})["inference_output"]
  np.testing.assert_allclose(served, want, atol=1e-5)
  predictor.reset(1)
  for t in range(6):
    got = predictor.step({"x": x[:, t]}, np.array([t == 0]))["inference_output"]
    np.testing.assert_allclose(got, want[:, t], atol=1e-5)
