"""Layers give the values that their definitions say, computed here by other means."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers import (
  bcz_networks,
  mdn,
  resnet,
  snail,
  spatial_softmax,
  tec,
  vision_layers,
)
from t2r_seq.layers.construction import LayerStore
from t2r_seq.layers.losses import cosine_triplet_semihard_loss
from t2r_seq.layers.tec import compute_embedding_contrastive_loss
from t2r_seq.layers.vision_layers import MLP


def _normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _randomise(layer):
  """Gives all variables values that no initialiser gives; variances stay positive."""
  for i, variable in enumerate(layer.weights):
    value = 0.3 * _normal(*variable.shape, seed=i)
    variable.assign(np.abs(value) + 0.5 if "variance" in variable.name else value)


def _arrays(variables):
  return [np.array(tf.convert_to_tensor(v)) for v in variables]


def _softmax(x, axis=-1):
  e = np.exp(x - x.max(axis=axis, keepdims=True))
  return e / e.sum(axis=axis, keepdims=True)


def _layer_norm(x, gamma=1.0, beta=0.0):
  axes = tuple(range(1, x.ndim))
  mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
  return (x - mean) / np.sqrt(var + 1e-6) * gamma + beta


def _conv(x, kernel, strides=1, padding="VALID"):
  return tf.nn.conv2d(x, kernel, strides, padding).numpy()


def _close(got, want, tolerance=2e-5):
  np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def _points(features, temperature=1.0):
  num, height, width, channels = features.shape
  softmax = _softmax(features.reshape(num, -1, channels) / temperature, axis=1)
  softmax = softmax.reshape(features.shape)
  x = (softmax.sum(1) * np.linspace(-1, 1, width)[:, None]).sum(1)
  y = (softmax.sum(2) * np.linspace(-1, 1, height)[:, None]).sum(1)
  return np.stack([x, y], -1).reshape(num, -1), softmax


def test_spatial_softmax():
  features = 3 * _normal(2, 4, 6, 5)
  for got, want in zip(
    spatial_softmax.BuildSpatialSoftmax(features), _points(features), strict=True
  ):
    _close(got, want)
  layer = layers.SpatialSoftmax(temperature=0.5, learn_temperature=True)
  _close(layer(features)[0], _points(features, 0.5)[0])
  layer.weights[0].assign(np.log(2.0))
  with tf.GradientTape() as tape:
    points = layer(features)[0]
    loss = tf.reduce_sum(points * points)
  _close(points, _points(features, 2.0)[0])
  assert abs(float(tape.gradient(loss, layer.trainable_variables)[0])) > 1e-3
  # A pixel alone in its row is in the middle.
  assert layers.SpatialSoftmax()(features[:, :1, :1])[0].numpy().max() == 0


def test_maps_between_their_pixels():
  rows, columns = np.meshgrid(np.arange(4), np.arange(5), indexing="ij")
  # Linear maps are read exactly.
  maps = np.stack([rows, 2 * columns - rows], -1)[np.newaxis].repeat(2, 0)
  maps = tf.constant(maps, tf.float32)
  x = tf.Variable([[0.0, 3.25, 4.0], [1.5, 9.0, -1.0]])
  y = tf.constant([[0.0, 0.5, 3.0], [2.25, -2.0, 8.0]])
  with tf.GradientTape() as tape:
    read = layers.spatial_softmax.sample_maps(maps, x, y)
  inside_x, inside_y = np.clip(x, 0, 4), np.clip(y, 0, 3)
  want = np.stack([inside_y, 2 * inside_x - inside_y], -1)
  np.testing.assert_allclose(read, want, atol=1e-5)
  slopes = tape.gradient(read, x).numpy()
  np.testing.assert_allclose(slopes[:, :2], [[2, 2], [2, 0]], atol=1e-5)
  compiled = tf.function(layers.spatial_softmax.sample_maps, jit_compile=True)
  _close(compiled(maps, x, y), read)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_maps_of_half_precision_are_read_at_the_same_places(dtype):
  maps = tf.random.stateless_normal([1, 64, 64, 3], (1, 2))
  places = tf.constant([[5.0, 33.0, 63.0]]), tf.constant([[40.0, 51.0, 63.0]])
  want = layers.spatial_softmax.sample_maps(maps, *places)
  half = [tf.cast(each, dtype) for each in (maps, *places)]
  read = layers.spatial_softmax.sample_maps(*half)
  assert read.dtype == dtype
  np.testing.assert_allclose(tf.cast(read, tf.float32), want, rtol=1e-2, atol=1e-2)


def test_gumbel_softmax_draws_in_training_only():
  tf.random.set_seed(1)
  # Of 4 pixels one has odds of 1/2: so often it is the greatest after the noise.
  features = np.tile(np.log([3.0, 1.0, 1.0, 1.0]).reshape(1, 2, 2, 1), [2000, 1, 1, 1])
  layer = layers.SpatialSoftmax(gumbel=True)
  _, drawn = layer(features.astype(np.float32), training=True)
  first = np.mean(drawn.numpy().reshape(2000, 4).argmax(-1) == 0)
  assert first == pytest.approx(0.5, abs=0.04)
  _close(layer(features.astype(np.float32))[1][0, 0, 0, 0], 0.5)
  _, softmax = spatial_softmax.BuildSpatialSoftmax(features.astype(np.float32), True)
  assert softmax.numpy()[:, 0, 0, 0].std() > 0.1


def test_images_to_features_with_film():
  images = _normal(2, 20, 24, 3)
  layer = layers.ImagesToFeatures(num_blocks=3, num_output_maps=4)
  assert layer.film_size == 2 * 3 * 32
  condition = tf.constant(0.5 * _normal(2, layer.film_size))
  layer(images, condition)
  _randomise(layer)
  weights = _arrays(layer.trainable_variables)
  net = images
  for i in range(3):
    kernel, gamma, beta = weights[3 * i : 3 * i + 3]
    net = _layer_norm(_conv(net, kernel, 2 if i < 2 else 1), gamma, beta)
    film = condition[:, None, None, :]
    net = (1 + film[..., 32 * i : 32 * i + 32]) * net
    net = np.maximum(net + film[..., 96 + 32 * i : 128 + 32 * i], 0)
  net = np.maximum(_layer_norm(_conv(net, weights[9]), *weights[10:]), 0)
  points, softmax = _points(net)
  got, end_points = layer(images, condition)
  _close(got, points)
  _close(end_points["softmax"], softmax)
  # Half the squares of the kernels, as slim has it.
  want = sum(np.sum(w**2) for w in weights if w.ndim == 4) * 1e-5 / 2
  _close(sum(float(loss) for loss in layer.losses), want)
  _close(layer(images)[0], layer(images, tf.zeros_like(condition))[0])


def test_feature_maps_and_high_resolution():
  images = _normal(2, 40, 40, 3)
  maps, end_points = vision_layers.BuildImagesToFeaturesModel(
    images, num_blocks=2, num_output_maps=7, use_spatial_softmax=False
  )
  assert maps.shape == (2, 9, 9, 7) and end_points == {}
  layer = layers.vision_layers.ImagesToFeaturesHighRes(
    num_blocks=2, num_output_maps=4, normalizer=None
  )
  layer(images)
  _randomise(layer)
  weights = _arrays(layer.trainable_variables)
  pairs = [weights[i : i + 2] for i in range(0, len(weights), 2)]
  relu = lambda x, pair, stride=1: np.maximum(_conv(x, pair[0], stride) + pair[1], 0)  # noqa: E731
  first, block1, block2, side1, side2, last = pairs
  net = images.reshape(2, 20, 2, 20, 2, 3).mean((2, 4))
  net = relu(relu(net, first, 2), block1)
  total = relu(net, side1)
  net = relu(tf.nn.max_pool2d(net, 2, 2, "VALID").numpy(), block2)
  low = relu(net, side2)
  assert total.shape[1:3] == (7, 7) and low.shape[1:3] == (1, 1)
  _close(layer(images)[0], _points(relu(total + low, last))[0])


def test_batch_norm_learns_its_statistics_in_training_only():
  images = _normal(4, 16, 16, 3)
  layer = layers.ImagesToFeatures(num_blocks=2, normalizer="batch_norm")
  layer(images)
  means = [v for v in layer.weights if "moving_mean" in v.name]
  assert len(means) == 3 and not np.any(_arrays(means)[0])
  layer(images, training=True)
  assert all(np.any(mean) for mean in _arrays(means))


def test_features_to_pose():
  points, state = _normal(3, 8), _normal(3, 2, seed=1)
  layer = layers.ImageFeaturesToPose(
    4, aux_output_dim=2, hidden_dim=5, num_layers=1, bias_transform_size=3
  )
  layer(points, state)
  _randomise(layer)
  weights = {v.shape: np.array(tf.convert_to_tensor(v)) for v in layer.weights}
  constant = np.tile(weights[3,], [3, 1])
  net = np.concatenate([points, state, constant], -1) @ weights[13, 5]
  norms = [np.array(tf.convert_to_tensor(v)) for v in layer.weights if v.shape == (5,)]
  net = np.maximum(_layer_norm(net, *norms), 0)
  pose, aux = layer(points, state)
  _close(pose, net @ weights[5, 4] + weights[4,])
  _close(aux, points @ weights[8, 2] + weights[2,])
  pose, aux = vision_layers.BuildImageFeaturesToPoseModel(points, None, hidden_dim=6)
  assert pose.shape == (3, 6) and aux is None


class _Reference:
  """A ResNet out of TensorFlow's functions, with a layer's weights in order."""

  def __init__(self, weights):
    self.kernels = iter([w for w in weights if w.ndim == 4])
    self.vectors = iter([w for w in weights if w.ndim == 1])

  def conv(self, net, kernel, strides):
    size = kernel.shape[0]
    if strides > 1:
      before = (size - 1) // 2
      pad = (before, size - 1 - before)
      net = np.pad(net, [(0, 0), pad, pad, (0, 0)])
    return _conv(net, kernel, strides, "SAME" if strides == 1 else "VALID")

  def norm(self):
    gamma, beta = next(self.vectors), next(self.vectors)
    return lambda net: net / np.sqrt(1 + 1e-5) * gamma + beta

  def block(self, net, version, bottleneck, strides, projects, vector):
    count = 3 if bottleneck else 2
    kernels = [next(self.kernels) for _ in range(count)]
    norms = [self.norm() for _ in range(count)]
    each = [1, strides, 1] if bottleneck else [strides, 1]
    gamma, beta = np.split(vector[:, None, None], 2, -1)
    shortcut = net
    projection = next(self.kernels) if projects else None
    if version == 1 and projects:
      shortcut = self.norm()(self.conv(net, projection, strides))
    for i in range(count):
      is_last = i == count - 1
      if version == 2:
        net = norms[i](net)
        net = np.maximum((1 + gamma) * net + beta if is_last else net, 0)
        if i == 0 and projects:
          shortcut = self.conv(net, projection, strides)
        net = self.conv(net, kernels[i], each[i])
      else:
        net = norms[i](self.conv(net, kernels[i], each[i]))
        net = (1 + gamma) * net + beta if is_last else np.maximum(net, 0)
    return np.maximum(net + shortcut, 0) if version == 1 else net + shortcut


@pytest.mark.parametrize(("version", "size"), [(2, 18), (1, 50)])
def test_resnet_with_film(version, size):
  images, embedding = _normal(2, 33, 33, 3), _normal(2, 5, seed=1)
  layer = layers.ResNet(
    3, size, version, num_filters=2, film_generator_cls=layers.LinearFiLMGenerator
  )
  layer(images, embedding)
  for i, variable in enumerate(layer.trainable_variables):
    value = _normal(*variable.shape, seed=i)
    scale = 1 / np.sqrt(np.prod(variable.shape[:-1])) if len(variable.shape) > 1 else 1
    variable.assign(scale * value + (0.5 if len(variable.shape) == 1 else 0))
  got = layer(images, embedding)

  weights = _arrays(layer.trainable_variables)
  *weights, film_weights = weights[:-10], weights[-8:]
  weights, dense = weights[0], _arrays(layer.trainable_variables)[-10:-8]
  films = [embedding @ film_weights[i] + film_weights[i + 1] for i in (0, 2, 4, 6)]
  reference = _Reference(weights)
  net = want = reference.conv(images, next(reference.kernels), 2)
  _close(got["initial_conv"], want)
  if version == 1:
    net = np.maximum(reference.norm()(net), 0)
  padding = "SAME" if version == 2 else [[0, 0], [1, 1], [1, 1], [0, 0]]
  net = tf.nn.max_pool2d(net, 3, 2, padding).numpy()
  _close(got["initial_max_pool"], net)
  for i, count in enumerate([2, 2, 2, 2] if size == 18 else [3, 4, 6, 3]):
    for j, vector in enumerate(np.split(films[i], count, -1)):
      strides = 2 if i and not j else 1
      net = reference.block(net, version, size == 50, strides, j == 0, vector)
    _close(got[f"block_layer{i + 1}"], net, 1e-3)
  if version == 2:
    net = np.maximum(reference.norm()(net), 0)
  _close(got["pre_final_pool"], net, 1e-3)
  pooled = net.mean((1, 2))
  _close(got["final_reduce_mean"][:, 0, 0], pooled, 1e-3)
  _close(got["final_dense"], pooled @ dense[0] + dense[1], 1e-3)
  assert not list(reference.kernels) and not list(reference.vectors)


def test_resnet_under_tensor2robots_names():
  images, embedding = _normal(2, 32, 32, 3), _normal(2, 5)
  generator = functools.partial(
    resnet.linear_film_generator, enabled_block_layers=[True, False, True, False]
  )
  found = generator(embedding, [1, 2, 1, 1], [4, 8, 16, 32])
  shapes = [[None if v is None else v.shape[-1] for v in part] for part in found]
  assert shapes == [[8], [None, None], [32], [None]]
  end_points = resnet.resnet_model(
    images,
    True,
    7,
    resnet_size=18,
    num_filters=2,
    return_intermediate_values=True,
    film_generator_fn=generator,
    film_generator_input=embedding,
  )
  assert list(end_points) == [
    "initial_conv",
    "initial_max_pool",
    *(f"block_layer{i}" for i in (1, 2, 3, 4)),
    "pre_final_pool",
    "final_reduce_mean",
    "final_dense",
  ]
  assert end_points["final_dense"].shape == (2, 7)


def test_causal_convolutions():
  x = _normal(2, 7, 3)
  layer = layers.snail.CausalConv1D(4, dilation_rate=2, kernel_size=3)
  layer(x)
  kernel, bias = _arrays(layer.trainable_variables)
  past = np.concatenate([np.zeros((2, 4, 3)), x], axis=1)
  want = sum(past[:, 2 * k : 2 * k + 7] @ kernel[k] for k in range(3)) + bias
  _close(layer(x), want)
  block = layers.snail.GatedDenseBlock(4, dilation_rate=2)
  got = block(x)
  value, bias_v, gate, bias_g = _arrays(block.trainable_variables)
  both = np.concatenate([np.zeros((2, 2, 3)), x], axis=1)
  conv = lambda kernel: both[:, :7] @ kernel[0] + both[:, 2:] @ kernel[1]  # noqa: E731
  gated = np.tanh(conv(value) + bias_v) / (1 + np.exp(-conv(gate) - bias_g))
  _close(got, np.concatenate([x, gated], -1))
  # Dilations of 2, 4, 8: each step sees the 14 steps before and no later one.
  tc = layers.snail.TemporalConvBlock(7, 4)
  assert tc(x).shape == (2, 7, 3 + 3 * 4)
  changed = x.copy()
  changed[:, 4] += 1
  moved = np.any(tc(x) != tc(changed), axis=(0, 2))
  assert moved.tolist() == [False, False, False, False, True, False, True]


_CONTRIB = {
  "CausalConv": lambda x: snail.CausalConv(x, 2, 4),
  "DenseBlock": lambda x: snail.DenseBlock(x, 2, 4),
  "TCBlock": lambda x: snail.TCBlock(x, 2, 4),
  "SNAIL": lambda x: bcz_networks.SNAIL(
    x, None, lambda x, *_, **__: (x, {}), False, 5, 1, 4, 2, 1, 1
  )[0],
}


@pytest.mark.parametrize("name", _CONTRIB)
def test_causal_convolutions_of_tensor2robots_functions_end_in_a_relu(name):
  x, store = _normal(2, 7, 3), LayerStore()
  with store:
    got = _CONTRIB[name](x)
  past = np.concatenate([np.zeros((2, 2, 3)), x], axis=1)
  (layer,) = store.values()
  weights = _arrays(layer.trainable_variables)

  def conv(kernel, bias):
    return np.maximum(past[:, :7] @ kernel[0] + past[:, 2:] @ kernel[1] + bias, 0)

  value = conv(*weights[:2])
  if name == "CausalConv":
    _close(got, value)
    return
  gated = np.tanh(value) / (1 + np.exp(-conv(*weights[2:4])))
  want = np.concatenate([x, gated], -1)
  if name == "SNAIL":
    attention = layers.snail.CausalAttention(2, 2)
    attention(want)
    for variable, value in zip(attention.variables, weights[4:10], strict=True):
      variable.assign(value)
    want = attention(want)[0] @ weights[10] + weights[11]
  _close(got, want)


def test_causal_attention():
  x = _normal(2, 5, 3)
  layer = layers.snail.CausalAttention(4, 6)
  got, end_points = layer(x)
  wk, bk, wq, bq, wv, bv = _arrays(layer.trainable_variables)
  logits = (x @ wq + bq) @ np.swapaxes(x @ wk + bk, 1, 2) / 2
  logits[:, np.triu(np.ones((5, 5), bool), 1)] = -np.inf
  probs = _softmax(logits)
  _close(end_points["attn_prob"], probs)
  _close(got, np.concatenate([x, probs @ (x @ wv + bv)], -1))
  softmax = snail.CausallyMaskedSoftmax(tf.constant(_normal(5, 5))).numpy()
  assert not np.any(softmax[np.triu_indices(5, 1)])
  _close(softmax.sum(-1), 1)


def test_embeddings_of_states_and_steps():
  state = _normal(3, 4)
  layer = MLP([5], 2)
  layer(state)
  _randomise(layer)
  kernel, gamma, beta, last, bias = _arrays(layer.trainable_variables)
  want = np.maximum(_layer_norm(state @ kernel, gamma, beta), 0) @ last + bias
  _close(layer(state), want)
  steps = _normal(3, 12, 4)
  layer = layers.tec.TemporalReduction(2, conv1d_layers=(6,), fc_hidden_layers=(5,))
  got = layer(steps)
  kernel, gamma, beta, *mlp = _arrays(layer.trainable_variables)
  windows = np.stack([steps[:, i : i + 10] for i in range(3)], 1)
  net = np.maximum(np.einsum("ntkd,kdf->ntf", windows, kernel), 0)
  net = _layer_norm(net, gamma, beta).reshape(3, -1)
  net = np.maximum(_layer_norm(net @ mlp[0], mlp[1], mlp[2]), 0) @ mlp[3] + mlp[4]
  _close(got, net)
  maps = tec.reduce_temporal_embeddings(
    _normal(3, 12, 2, 2, 4), 2, "x", combine_mode="temporal_conv_avg_after"
  )
  assert maps.shape == (3, 2)
  maps = tec.embed_condition_images(
    _normal(2, 40, 40, 3), "x", fc_layers=(6, 5), use_spatial_softmax=False
  )
  assert maps.shape.rank == 4 and maps.shape[-1] == 5


def _unit(*shape, seed):
  x = _normal(*shape, seed=seed)
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _triplet(labels, x, margin=1.0):
  """By the definition, a loop over anchors and positives."""
  distance, losses = 1 - x @ x.T, []
  for a in range(len(x)):
    others = [n for n in range(len(x)) if labels[n] != labels[a]]
    for p in range(len(x)):
      if p != a and labels[p] == labels[a]:
        farther = [distance[a, n] for n in others if distance[a, n] > distance[a, p]]
        negative = min(farther) if farther else max(distance[a, n] for n in others)
        losses.append(max(margin + distance[a, p] - negative, 0))
  return np.mean(losses)


def test_contrastive_losses():
  inference, condition = _unit(4, 2, 6, seed=0), _unit(4, 3, 6, seed=1)
  mean_i, mean_c = inference.mean(1), condition.mean(1)
  positives = np.array([True, False, True, False])

  def one(anchor, others, is_positive):
    d = np.linalg.norm(anchor - others, axis=-1)
    return np.mean(np.where(is_positive, d**2, np.maximum(1 - d, 0) ** 2))

  def entropy(anchor, others):
    odds = 1 / (1 + np.exp(-2 * (others @ anchor)))
    return -np.mean(np.where(positives, np.log(odds), np.log(1 - odds)))

  forward, backward = (
    one(mean_i[0], mean_c, positives),
    one(mean_c[0], mean_i, positives),
  )
  wants = {
    "default": forward,
    "reverse_direction": backward,
    "both_directions": forward + backward,
    "cross_entropy": entropy(mean_i[0], mean_c) + entropy(mean_c[0], mean_i),
  }
  for mode, want in wants.items():
    got = tec.compute_embedding_contrastive_loss(
      inference, condition, tf.constant(positives), mode
    )
    _close(got, want)
  first = np.arange(4) == 0
  _close(
    tec.compute_embedding_contrastive_loss(inference, condition),
    one(mean_i[0], mean_c, first) + one(mean_c[0], mean_i, first),
  )
  got = tec.compute_embedding_contrastive_loss(
    inference, condition, contrastive_loss_mode="triplet"
  )
  want = _triplet([0, 1, 2, 3] * 2, np.concatenate([mean_i, mean_c]))
  _close(got, want)


def test_triplets_of_any_labels_and_slopes_at_copies():
  labels, x = np.array([0, 0, 1, 1, 1, 2]), _unit(6, 3, seed=5)
  _close(cosine_triplet_semihard_loss(labels, x, 0.2), _triplet(labels, x, 0.2))
  same = tf.constant(_unit(3, 1, 4, seed=0)[[0, 0, 0]])
  with tf.GradientTape() as tape:
    tape.watch(same)
    loss = compute_embedding_contrastive_loss(same, same)
  assert np.all(np.isfinite(tape.gradient(loss, same)))
  _close(loss, 2 * 2 / 3)


def test_recurrent_heads_carry_their_state():
  x = _normal(2, 6, 3)
  for cell, count in (("lstm", 2), ("gru", 1)):
    layer = layers.bcz_networks.RecurrentHead(4, 5, cell)
    whole, last = layer(x)
    state, parts = layer.initial_state(2), []
    for part in (x[:, :1], x[:, 1:4], x[:, 4:]):
      out, state = layer(part, state)
      parts.append(out)
    _close(np.concatenate(parts, axis=1), whole)
    assert len(state) == count
    for got, want in zip(state, last, strict=True):
      _close(got, want)
  layer = layers.bcz_networks.RecurrentHead(4, 5, "lstm")
  got, _ = layer(x[:, :2])
  kernel, recurrent, bias, dense, dense_bias = _arrays(layer.trainable_variables)
  sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
  h = c = np.zeros((2, 4))
  for t in range(2):
    i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    _close(got[:, t], h @ dense + dense_bias)


def test_gru_is_that_of_tensor2robot():
  """The equations of tf.nn.rnn_cell.GRUCell, with Keras' order of the gates."""
  x, layer = _normal(2, 3, 4), layers.bcz_networks.RecurrentHead(5, 2, "gru")
  got, _ = layer(x)
  kernel, recurrent, bias, dense, dense_bias = _arrays(layer.trainable_variables)
  sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
  h = np.zeros((2, 5))
  for t in range(3):
    from_inputs = x[:, t] @ kernel + bias
    gates = sigmoid(from_inputs[:, :10] + h @ recurrent[:, :10])
    update, reset = np.split(gates, 2, -1)
    candidate = np.tanh(from_inputs[:, 10:] + (reset * h) @ recurrent[:, 10:])
    h = update * h + (1 - update) * candidate
    _close(got[:, t], h @ dense + dense_bias)


def test_waypoint_heads_keep_later_gradients_back():
  net = tf.constant(_normal(2, 3, 5))
  layer = layers.bcz_networks.WaypointHeads([3, 1], 4, [6])
  outputs = layer(net)
  assert [o.shape for o in outputs] == [(2, 3, 4, 3), (2, 3, 4, 1)]
  assert len(layer.trainable_variables) == 2 * 2 * 4
  flat = layer(net[:, 0])
  _close(flat[0], outputs[0][:, 0])
  weights = _arrays(layer.trainable_variables)
  hidden = np.maximum(net @ weights[0] + weights[1], 0)
  _close(outputs[0][:, :, 0], hidden @ weights[2] + weights[3])
  hidden = np.maximum(net @ weights[8] + weights[9], 0)
  later = (hidden @ weights[10] + weights[11]).reshape(2, 3, 3, 3)
  _close(outputs[0][:, :, 1:], later)
  for training, is_zero in ((True, True), (False, False)):
    with tf.GradientTape() as tape:
      tape.watch(net)
      loss = tf.reduce_sum(layer(net, training=training)[0][..., 1:, :] ** 2)
    slope = tape.gradient(loss, net)
    assert (slope is None or not np.any(slope)) == is_zero


def test_sequences_of_images_under_tensor2robots_names():
  images, state = _normal(2, 3, 36, 36, 3), _normal(2, 3, 4)
  tower = bcz_networks.SpatialSoftmaxTorso
  store = LayerStore()
  with store:
    features, end_points = tower(images, state, is_training=False)
  assert features.shape == (2, 3, 64 + 4)
  assert end_points["softmax"].shape[:2] == (2, 3)
  with store:
    one, _ = tower(images[:, 1], state[:, 1], is_training=False)
  _close(one, features[:, 1])

  def torso(image, aux, is_training):
    return tf.reshape(image, [2, 3, -1])[..., :5], {}

  outputs, _ = bcz_networks.ConvLSTM(images, state, torso, False, 6, 7)
  assert outputs.shape == (2, 3, 7)
  outputs, end_points = bcz_networks.SNAIL(
    images,
    state,
    torso,
    False,
    7,
    condition_sequence_length=1,
    inference_sequence_length=2,
  )
  assert outputs.shape == (2, 3, 7)
  assert end_points["attn_probs/1"].shape == (2, 3, 3)
  heads = bcz_networks.MultiHeadMLP(_normal(2, 5), [3, 1], 4, [6], is_training=True)
  assert [head.shape for head in heads] == [(2, 4, 3), (2, 4, 1)]
  assert bcz_networks.LinearHead(outputs, 2).shape == (2, 3, 2)


def test_functions_of_tensor2robots_names_keep_their_layers_in_a_store():
  x, images = _normal(2, 7, 3), _normal(2, 100, 100, 3)
  store, passes = LayerStore(), []
  for _ in range(2):
    with store:
      film = vision_layers.BuildFILMParams(x[:, 0], 2 * 2 * 32)
      made = [
        snail.CausalConv(x, 2, 4, kernel_size=3),
        snail.DenseBlock(x, 2, 4),
        snail.TCBlock(x, 7, 4),
        snail.AttentionBlock(x, 4, 6)[0],
        vision_layers.BuildImagesToFeaturesModel(
          images, num_blocks=2, film_output_params=film
        )[0],
        vision_layers.BuildImagesToFeaturesModelHighRes(
          images, num_blocks=2, num_output_maps=4
        )[0],
      ]
    passes.append(made)
  assert [tuple(each.shape) for each in made] == [
    *((2, 7, 4), (2, 7, 7), (2, 7, 15), (2, 7, 9)),
    *((2, 64), (2, 8)),
  ]
  assert len(store) == 7
  for first, second in zip(*passes, strict=True):
    np.testing.assert_array_equal(first, second)


def test_store_finds_a_functions_layers_again():
  x = _normal(2, 6)
  store = LayerStore()

  def network():
    with store:
      a, _ = vision_layers.BuildImageFeaturesToPoseModel(x, 3)
      b, _ = vision_layers.BuildImageFeaturesToPoseModel(x, 3)
      c = tec.embed_fullstate(x, 3, "shared")
      d = tec.embed_fullstate(x, 3, "shared")
      e = mdn.predict_mdn_params(x, 1, 2)
    return [np.array(v) for v in (a, b, c, d, e)]

  first, second = network(), network()
  for one, two in zip(first, second, strict=True):
    np.testing.assert_array_equal(one, two)
  assert np.any(first[0] != first[1]) and np.all(first[2] == first[3])
  assert len(store) == 4
  again = tec.embed_fullstate(x, 3, "shared")
  assert np.any(again != first[2])  # Outside of a store it is another layer.


_REFUSED = {
  "film of another size": (
    lambda: layers.ImagesToFeatures(num_blocks=2)(
      _normal(1, 16, 16, 3), tf.zeros([1, 9])
    ),
    r"ImagesToFeatures: film_output_params: expected \[batch, 128\], got \(1, 9\)",
  ),
  "film of another number of channels": (
    lambda: vision_layers.film(_normal(1, 2, 2, 3), tf.zeros([1, 3])),
    r"film: gamma_beta: expected \[batch, 6\], a gamma and a beta for each of 3",
  ),
  "flags for another ResNet": (
    lambda: layers.LinearFiLMGenerator([2] * 4, [4] * 4, [True] * 5),
    r"enabled_block_layers: expected one bool for each of 4 block layers, got 5",
  ),
  "a size of no ResNet": (
    lambda: layers.ResNet(3, 17),
    r"ResNet: resnet_size: expected one of \[.*18.*\], of version 1 or 2, got 17",
  ),
  "more blocks than there are": (
    lambda: layers.ResNet(num_block_layers=5),
    r"ResNet: num_block_layers: expected 1 to 4, got 5",
  ),
  "a condition without a generator": (
    lambda: resnet.resnet_model(
      _normal(1, 8, 8, 3), False, 3, film_generator_input=_normal(1, 2)
    ),
    r"film_generator_fn: expected a generator for the given film_generator_input",
  ),
  "a normaliser": (
    lambda: layers.ImagesToFeatures(normalizer="group"),
    r"normalizer: expected 'layer_norm', 'batch_norm', None or a function",
  ),
  "images of two batches": (
    lambda: tec.embed_condition_images(_normal(3, 4, 10, 12, 3), "x"),
    r"ImageEmbedding: images: expected 4 axes, got \(3, 4, 10, 12, 3\)",
  ),
  "steps of two batches": (
    lambda: tec.reduce_temporal_embeddings(_normal(2, 4, 20, 16), 10, "x"),
    r"TemporalReduction: temporal_embedding: expected 3 axes, got",
  ),
  "a contrastive mode": (
    lambda: tec.compute_embedding_contrastive_loss(
      _normal(2, 1, 3), _normal(2, 1, 3), contrastive_loss_mode="both"
    ),
    r"contrastive_loss_mode: expected one of .*triplet.*, got 'both'",
  ),
  "a cell": (
    lambda: layers.bcz_networks.RecurrentHead(3, 2, "rnn"),
    r"RecurrentHead: cell: expected one of \[gru, lstm\], got 'rnn'",
  ),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_refused(case):
  create, message = _REFUSED[case]
  with pytest.raises(errors.SpecError, match=message):
    create()
