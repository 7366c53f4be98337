"""All layers under XLA, in half precision, with gradients, and by gin."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers.action_expert import ActionExpert, ContextEncoder
from t2r_seq.layers.bcz_networks import SNAILEncoder


def _normal(*shape):
  return tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)


class _All:
  """Layers by name, each with what it is called with."""

  def __init__(self):
    images, steps, vectors = _normal(2, 16, 16, 3), _normal(2, 4, 6), _normal(2, 6)
    target = _normal(2, 3, 2)
    tower = layers.ImagesToFeatures(num_blocks=2, num_output_maps=3)
    self.networks = {
      "tower": (tower, [images, _normal(2, tower.film_size)]),
      "high resolution": (
        layers.vision_layers.ImagesToFeaturesHighRes(num_blocks=1),
        [images],
      ),
      "pose": (layers.ImageFeaturesToPose(3, 2, 8), [vectors, vectors]),
      "snail": (SNAILEncoder(4, 3, 1, 4, 4), [steps]),
      "lstm": (layers.bcz_networks.RecurrentHead(4, 3), [steps]),
      "waypoints": (layers.bcz_networks.WaypointHeads([2, 1], 3, [4]), [steps]),
      "reduction": (layers.tec.TemporalReduction(3, None, [5]), [steps]),
      "transformer": (layers.CausalTransformer(1, 2, 8, 3), [_normal(2, 4, 1, 8)]),
      "decoder": (
        layers.Transformer(1, 2, 8, 16, pre_norm=True, has_memory=True),
        [_normal(2, 4, 8), _normal(4, 8), None, _normal(2, 3, 8), _normal(3, 8)],
      ),
      "U-Net": (
        layers.ConditionalUNet((4, 2), (8, 8), num_groups=4, time_size=4),
        [_normal(2, 8), tf.constant([[0.1], [0.5]]), vectors],
      ),
      "two LSTMs": (
        layers.bcz_networks.RecurrentHead(4, 3, num_layers=2),
        [steps],
      ),
      "context": (ContextEncoder(4, 8, 1, 2), [_normal(2, 4, 8)]),
      "action expert": (
        ActionExpert((4, 2), 8, 1, 2),
        [_normal(2, 8), tf.constant([[0.1], [0.5]]), _normal(2, 24)],
      ),
      "image encoder": (layers.ImageEncoder(18, 8, 1, 4, 5), [images]),
      "diffusion transformer": (
        layers.DiffusionTransformer((4, 2), 2, 1, 2, 8),
        [_normal(2, 8), tf.constant([[0.1], [0.5]]), vectors],
      ),
    }
    decoders = {
      "mse": layers.MSEDecoder((3, 2)),
      "mdn": layers.MDNDecoder((3, 2), 2),
      "discrete": layers.DiscreteDecoder((3, 2), 4),
      "maf": layers.MAFDecoder((3, 2), 1, [8], seed=0),
      "flow": layers.FlowMatchingDecoder((3, 2), num_steps=2, seed=0),
      "diffusion": layers.DiffusionDecoder((3, 2), 3, seed=0),
    }
    self.decoders = {name: (d, vectors, target) for name, d in decoders.items()}

  def outputs(self, training):
    outputs = {}
    for name, (layer, inputs) in self.networks.items():
      outputs[name] = tf.nest.flatten(layer(*inputs, training=training))
    for name, (decoder, inputs, target) in self.decoders.items():
      predicted = decoder(inputs, training=training)
      loss = decoder.loss(predicted, target, training=training)
      outputs[name] = [loss, predicted.get("inference_output", loss)]
    return outputs

  def keep(self, names):
    self.networks = {n: v for n, v in self.networks.items() if n in names}
    self.decoders = {n: v for n, v in self.decoders.items() if n in names}

  def actions(self):
    return {n: d(x)["inference_output"] for n, (d, x, _) in self.decoders.items()}

  def variables(self):
    parts = [part[0] for part in [*self.networks.values(), *self.decoders.values()]]
    return [v for part in parts for v in part.trainable_variables]


# One compilation for all costs seconds: of layers that are alike, one is enough.
_COMPILED = ["tower", "lstm", "mdn", "maf", "flow", "U-Net", "diffusion"]


def test_compiled_by_xla_they_give_the_same_and_train():
  all_layers = _All()
  want = all_layers.outputs(training=False)
  all_layers.keep(_COMPILED)

  @tf.function(jit_compile=True)
  def outputs_and_gradients():
    with tf.GradientTape() as tape:
      outputs = tf.nest.flatten(all_layers.outputs(training=True))
      loss = tf.add_n([tf.reduce_sum(tf.square(x)) for x in outputs])
    return all_layers.actions(), tape.gradient(loss, all_layers.variables())

  got, gradients = outputs_and_gradients()
  for name in got:  # What is drawn with a seed is the same, too.
    np.testing.assert_allclose(
      got[name], want[name][-1], rtol=1e-3, atol=1e-4, err_msg=name
    )
  assert all(np.all(np.isfinite(g)) for g in gradients)


def test_every_variable_is_trained():
  all_layers = _All()
  all_layers.outputs(training=False)
  with tf.GradientTape() as tape:
    outputs = tf.nest.flatten(all_layers.outputs(training=True))
    loss = tf.add_n([tf.reduce_sum(tf.square(x)) for x in outputs])
  gradients = tape.gradient(loss, all_layers.variables())
  assert all(np.all(np.isfinite(g)) for g in gradients)


@pytest.fixture
def half_precision():
  tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
  yield
  tf.keras.mixed_precision.set_global_policy("float32")


def test_in_half_precision(half_precision):
  all_layers = _All()
  outputs = all_layers.outputs(training=False)
  assert all(np.all(np.isfinite(tf.cast(x, tf.float32))) for x in outputs["tower"])
  for name in all_layers.networks:
    is_denoiser = name in ("U-Net", "diffusion transformer", "action expert")
    want = tf.float32 if is_denoiser else tf.bfloat16
    assert outputs[name][0].dtype == want, name
  for name in all_layers.decoders:
    assert {x.dtype for x in outputs[name]} == {tf.float32}, name
  assert {v.dtype for v in all_layers.variables()} <= {tf.float32, "float32"}


def test_by_gin():
  gin.parse_config("""
    ResNet.num_filters = 2
    ResNet.resnet_size = 18
    ResNet.film_generator_cls = @LinearFiLMGenerator
    LinearFiLMGenerator.enabled_block_layers = [True, False, False, False]
    FlowMatchingDecoder.num_steps = 3
    FlowMatchingDecoder.create_denoiser_fn = @Denoiser
    Denoiser.hidden_sizes = (7,)
  """)
  network = layers.ResNet()
  end_points = network(_normal(1, 8, 8, 3), _normal(1, 4))
  assert end_points["pre_final_pool"].shape[-1] == 16
  dense = [tuple(v.shape) for v in network.trainable_variables if len(v.shape) == 2]
  assert dense == [(4, 2 * 2 * 2)]
  decoder = layers.FlowMatchingDecoder((2,))
  decoder(_normal(1, 4))
  assert (7,) in [tuple(v.shape) for v in decoder.trainable_variables]
