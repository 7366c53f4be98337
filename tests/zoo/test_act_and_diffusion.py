"""ACT and Diffusion Policy train, and their exports see what training saw."""

from __future__ import annotations

import pytest

from t2r_seq import policies, verification, zoo

_RUN = ["NUM_TRAIN_STEPS = 2", "BATCH_SIZE = 4"]
_IMAGES = [f"{{}}.{option}" for option in ("num_filters = 8", "num_block_layers = 1")]
_ACT = [
  "ACTModel.chunk_size = 4",
  "Transformer.model_size = 8",
  "Transformer.mlp_size = 8",
  *(line.format("ResNet") for line in _IMAGES),
]
_DIFFUSION = [
  "DiffusionModel.prediction_horizon = 8",
  "DiffusionModel.num_executed = 3",
  "DiffusionDecoder.num_steps = 2",
  "ImageEncoder.num_points = 4",
  *(line.format("ImageEncoder") for line in _IMAGES),
]
_POLICIES = {
  "act": (
    "act",
    [
      *_ACT,
      "ACTNetwork.num_layers = (1, 1, 1)",
      "ACTModel.ensemble_decay = None",
      "ACTModel.num_executed = 2",
    ],
  ),
  "diffusion by a U-Net": (
    "diffusion",
    [
      *_DIFFUSION,
      # One resolution: test_lerobot exports one of two.
      "ConditionalUNet.filters = (8,)",
      # An untrained network's actions would all be clipped to the bounds.
      "NoiseSchedule.clip = None",
      "DiffusionModel.normalization = 'mean_std'",
    ],
  ),
  "diffusion by a transformer": (
    "diffusion",
    [
      *_DIFFUSION,
      "DiffusionDecoder.create_denoiser_fn = @DiffusionTransformer",
      "DiffusionTransformer.num_layers = 1",
      "DiffusionTransformer.model_size = 8",
    ],
  ),
}


@pytest.mark.parametrize("name", _POLICIES)
def test_trains_and_verifies(name, store_path, tmp_path):
  policy, bindings = _POLICIES[name]
  result = zoo.train_policy(
    policy, store_path, tmp_path / "run", "tiny", gin_bindings=[*_RUN, *bindings]
  )
  assert result["global_step"] == 2 and result["action_error"] > 0
  assert ("l1_loss" in result) == (policy == "act")
  predictor = policies.ExportedSavedModelPredictor(tmp_path / "run/export/latest")
  predictor.restore()
  report = verification.verify(predictor, store_path)
  assert report.is_identical, str(report)
  if name == "diffusion by a U-Net":  # New noise begins each chunk.
    lite = policies.export_lite(str(tmp_path / "run/export/latest"), tmp_path / "lite")
    assert lite.drawn == ("inference_output", "inference_output_chunk")
