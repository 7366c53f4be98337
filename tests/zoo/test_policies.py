"""Every ready policy trains, verifies identical, exports to LiteRT, serves."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import lite, policies, serving, verification, zoo
from t2r_seq.zoo import registry
from t2r_seq.zoo.train import configure_policy

CAMERA = (
  "ImageEncoder.num_filters = 8",
  "ImageEncoder.num_block_layers = 1",
  "ImageEncoder.num_points = 4",
)
# Their encoder is that of the transformer, which has a camera.
NO_CAMERA = ("find_signature.observations = ['observation.state']",)
# What makes a policy small enough for seconds.
SMALL = {
  "lstm": (*NO_CAMERA, "LSTMModel.num_units = 8", "SEQUENCE_LENGTH = 4"),
  "transformer": (
    *CAMERA,
    "TransformerModel.observation_horizon = 3",
    "TransformerModel.model_size = 16",
    "TransformerModel.num_heads = 2",
  ),
  "flow": (
    *NO_CAMERA,
    "FlowModel.chunk_size = 4",
    "FlowModel.num_executed = 2",
    "FlowModel.model_size = 16",
    "FlowModel.num_heads = 2",
    "FlowModel.num_layers = 1",
    "FlowModel.num_steps = 2",
  ),
  "bc-z": (
    "BCZPolicyModel.num_filters = 8",
    "BCZPolicyModel.image_size = (24, 32)",
    "ResNet.num_block_layers = 1",
  ),
}
DIFFUSION = (
  *CAMERA,
  "DiffusionModel.prediction_horizon = 8",
  "DiffusionModel.num_executed = 3",
  "DiffusionDecoder.num_steps = 2",
  # One resolution: test_lerobot exports one of two. An example trains a transformer.
  "ConditionalUNet.filters = (8,)",
  # An untrained network's actions would all be clipped to the bounds.
  "NoiseSchedule.clip = None",
  "DiffusionModel.normalization = 'mean_std'",
)
RUN = ("NUM_TRAIN_STEPS = 2", "BATCH_SIZE = 4")
# test_conventions trains act, as does a notebook, with a camera; test_train_policy mlp.
ELSEWHERE = ("act", "diffusion", "mlp")


def test_every_policy_is_tested():
  known = [
    n for n, each in registry.policies().items() if each.kind == registry.IMITATION
  ]
  assert sorted((*SMALL, *ELSEWHERE)) == sorted(known)


@pytest.mark.parametrize("name", SMALL)
def test_policy(name, lerobot_path, tmp_path):
  bindings = [*SMALL[name], *RUN]
  result = zoo.train_policy(name, lerobot_path, tmp_path, "tiny", gin_bindings=bindings)
  assert result["global_step"] == 2 and result["action_error"] > 0
  predictor = policies.ExportedSavedModelPredictor(tmp_path / "export/latest")
  predictor.restore()
  model = gin.query_parameter("train_eval_model.t2r_model").scoped_configurable_fn()
  reference = policies.CheckpointPredictor(model, tmp_path, timeout=0)
  assert reference.restore()
  report = verification.verify(
    predictor, lerobot_path, model, reference=reference, num_episodes=2
  )
  assert report.is_identical, str(report)
  assert policies.list_exports(str(tmp_path / "export/best"))
  found = policies.export_lite(f"{tmp_path}/export/latest", f"{tmp_path}/lite")
  assert found.max_difference < 1e-3
  pytest.importorskip("websockets")
  with serving.PolicyServer(lite.LitePolicy(f"{tmp_path}/lite"), port=0) as server:
    client = serving.PolicyClient(port=server.port)
    client.reset()
    action, _ = client.sample_action(zeros(predictor))
    client.close()
  assert action.shape == (2,)


def zeros(predictor):
  spec = predictor.get_step_specification()
  return {
    path: b"push it"
    if each.dtype == tf.string
    else np.zeros(each.shape, each.dtype.name)
    for path, each in spec.items()
  }


def test_diffusion_draws_noise_that_verify_repeats(store_path, tmp_path):
  zoo.train_policy(
    "diffusion", store_path, tmp_path, "tiny", gin_bindings=[*RUN, *DIFFUSION]
  )
  export = str(tmp_path / "export/latest")
  predictor = policies.ExportedSavedModelPredictor(export)
  predictor.restore()
  report = verification.verify(predictor, store_path)
  assert report.is_identical, str(report)
  found = policies.export_lite(export, tmp_path / "lite")
  assert found.drawn == ("inference_output", "inference_output_chunk")


# Here with the camera.
@pytest.mark.parametrize("name", ("flow", "lstm", "transformer"))
def test_half_precision(name, store_path, tmp_path):
  small = [*CAMERA, *(line for line in SMALL[name] if line not in NO_CAMERA)]
  bindings = [*small, "DTYPE_POLICY = 'mixed_bfloat16'", "BATCH_SIZE = 4"]
  configure_policy(name, store_path, tmp_path, "tiny", gin_bindings=bindings)
  model = gin.query_parameter("train_eval_model.t2r_model").scoped_configurable_fn()
  model.build()
  assert model.network["encoder"].compute_dtype == "bfloat16"
