"""Every example runs, with few steps, and comes to what it promises."""

import importlib
import pathlib

import gin
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
# What an example needs, and what it must return.
NEEDS = {
  "act_from_lerobot": ["pyarrow"],
  "diffusion_from_robomimic": ["h5py", "ai_edge_litert"],
  "dqn_from_pixels": ["gymnasium"],
  "qtopt": ["gymnasium"],
  "convert_view_verify_serve": ["zarr", "websockets", "msgpack"],
  "port_from_tensor2robot": [],
  "sensors_at_other_rates": [],
  "two_robots": [],
}
RESULTS = {
  "act_from_lerobot": lambda action: action.shape == (2,),
  "diffusion_from_robomimic": lambda actions: actions.shape == (10, 3),
  "dqn_from_pixels": lambda result: -1 <= result["closed_loop/reward"] <= 1,
  "qtopt": lambda total: -2000 < total < 0,
  "convert_view_verify_serve": lambda action: action.shape == (2,),
  "port_from_tensor2robot": lambda result: result["loss"] < 1,
  "sensors_at_other_rates": lambda action: action.shape == (2,),
  "two_robots": lambda actions: [len(a) for a in actions.values()] == [2, 3],
}
CAMERA = ("ImageEncoder.num_filters = 8", "ImageEncoder.num_block_layers = 1")
SMALL = {
  "act_from_lerobot": (
    "Transformer.model_size = 16",
    "Transformer.mlp_size = 16",
    "Transformer.num_heads = 2",
    "ACTNetwork.num_layers = (1, 1, 1)",
    "ResNet.num_filters = 8",
    "ResNet.num_block_layers = 1",
  ),
  "diffusion_from_robomimic": (
    "DiffusionDecoder.create_denoiser_fn = @DiffusionTransformer",
    "DiffusionTransformer.num_layers = 1",
    "DiffusionDecoder.num_steps = 2",
  ),
  "convert_view_verify_serve": CAMERA,
}
STEPS = {"dqn_from_pixels": 400, "qtopt": 400, "port_from_tensor2robot": 20}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name, tmp_path, monkeypatch, capfd):
  for module in NEEDS[name]:
    pytest.importorskip(module)
  monkeypatch.syspath_prepend(ROOT / "examples")
  monkeypatch.chdir(tmp_path)
  gin.clear_config()
  module = importlib.import_module(name)
  steps = STEPS.get(name, 3)
  bindings = ["--bindings", *SMALL[name]] if name in SMALL else []
  result = module.main(["--folder", "out", "--steps", str(steps), *bindings])
  assert RESULTS[name](result), result
  assert capfd.readouterr().out
  assert np.all([path.name == "out" for path in tmp_path.iterdir()])


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_short_and_listed(name):
  text = (ROOT / "examples" / f"{name}.py").read_text()
  assert text.count("\n") <= 150
  assert f"]({name}.py)" in (ROOT / "examples/README.md").read_text()
