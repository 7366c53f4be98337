"""Exports LeRobot's checkpoints of ACT and Diffusion Policy, with the same actions."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, layers, preprocessors, specs, statistics, training
from t2r_seq.preprocessors.normalize import MEAN_STD, MIN_MAX, QUANTILE
from t2r_seq.statistics.statistics import COUNTS, QUANTILES, PathStatistics, Statistics
from t2r_seq.zoo.act import ACTModel, ACTNetwork, is_environment
from t2r_seq.zoo.diffusion import DiffusionModel
from t2r_seq.zoo.imitation import TARGET, ImitationModel
from t2r_seq.zoo.signature import Signature

_ACTION = "action"
_BACKBONES = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
# Steps of LeRobot's processors that change no values.
_PLAIN_STEPS = ("rename_observations", "to_batch", "device")
_NORMALIZERS = ("normalizer", "unnormalizer")
_MODES = {
  "MEAN_STD": (MEAN_STD, "mean", "std"),
  "MIN_MAX": (MIN_MAX, "min", "max"),
  "QUANTILES": (QUANTILE, "q01", "q99"),
}
_DTYPES = {
  "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
  "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
  "BOOL": "bool",
}  # fmt: skip
# Tensors that are no weights: constants, counters, and the statistics of the inputs,
# which `_find_statistics` reads.
_NO_WEIGHTS = re.compile(
  r"num_batches_tracked$|vae_encoder_pos_enc$|pos_grid$|^(un)?normalize_"
)


def import_policy(
  checkpoint: str | os.PathLike[str],
  export_dir: str | os.PathLike[str],
  seed: int | None = None,
) -> str:
  """Exports a checkpoint of LeRobot: ACT, or Diffusion Policy.

  The export takes raw observations by LeRobot's names, images as uint8 [height, width,
  channels], and returns actions in their units. `export_dir` also gets the statistics.

  Args:
    checkpoint: folder with `config.json` and `model.safetensors`, or the parent of such
      a folder `pretrained_model`.
    export_dir: folder of all versions of the export; made if it is missing.
    seed: seed of the noise that each denoising starts from; None: new noise each time.
      Must be None for ACT.
  Returns:
    The new version's folder.
  Raises:
    SpecError: no `config.json`, a damaged file, another architecture, an unsupported
      option, or tensors that are missing, left over or of another shape.
    OSError: a file cannot be read or written.
  """
  source = _Checkpoint(os.fspath(checkpoint))
  path = os.path.join(export_dir, "statistics.json")
  is_new = not os.path.exists(export_dir)
  os.makedirs(export_dir, exist_ok=True)
  try:
    options = {
      "signature": source.signature,
      "statistics_path": path,
      "image_statistics": source.image_statistics(),
      "normalization": source.save_statistics(path),
    }
    model, names = _CREATE[source.kind](source, options, seed)
    model.build()
    _load(source, model, names)
    return training.export_saved_model(model, os.fspath(export_dir), 0)
  except BaseException:
    if is_new:
      shutil.rmtree(export_dir)
    raise


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Reads the tensors of a safetensors file, by name.

  Raises:
    SpecError: the file is not a safetensors file, or is damaged or empty.
    OSError: the file cannot be read.
  """
  try:
    data = np.memmap(path, np.uint8, "r")
    size = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8 : 8 + size]))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
      start, end = (8 + size + offset for offset in entry["data_offsets"])
      dtype = tf.as_dtype(_DTYPES[entry["dtype"]]).as_numpy_dtype
      values = data[start:end].view(dtype).reshape(entry["shape"])
      tensors[name] = np.asarray(values)
    return tensors
  except (IndexError, KeyError, TypeError, ValueError) as error:
    raise errors.SpecError(
      f"import: {os.fspath(path)}: expected a safetensors file, got "
      f"{type(error).__name__}: {error}. Copy the checkpoint again."
    ) from error


class _Options(dict[str, Any]):
  """Options of a checkpoint, by name; a missing one is an error."""

  def __init__(self, options: Mapping[str, Any], error: Callable[..., Any]) -> None:
    super().__init__(options)
    self._error = error

  def __missing__(self, name: str) -> Any:
    raise self._error(name, "an option of this LeRobot policy", "none")


class _Checkpoint:
  """The files of a checkpoint: options, weights, statistics."""

  def __init__(self, path: str) -> None:
    inner = os.path.join(path, "pretrained_model")
    self.path = inner if os.path.isdir(inner) else path
    self.config = _Options(self._read_json("config.json"), self.error)
    self.kind = str(self.config.get("type"))
    if self.kind not in _CREATE:
      raise self.error("type", f"one of {errors.listing(_CREATE)}", repr(self.kind))
    for group in ("input_features", "output_features"):
      if group not in self.config:
        raise self.error(group, "the policy's features", "none")
    self.tensors = read_safetensors(os.path.join(self.path, "model.safetensors"))
    self._modes: dict[str, str] = dict(self.config.get("normalization_mapping", {}))
    self._statistics = self._find_statistics()

  def error(self, name: str, expected: str, got: str) -> errors.SpecError:
    """Returns the error for an option of `config.json`."""
    return errors.SpecError(
      f"import: {self.path}/config.json: {name}: expected {expected}, got {got}."
    )

  def require(self, **options: Sequence[Any]) -> None:
    """Checks options by their supported values; the first is the default."""
    for name, supported in options.items():
      if self.config.get(name, supported[0]) not in supported:
        raise self.error(
          name,
          f"one of {errors.listing(map(repr, supported))}",
          repr(self.config[name]),
        )

  @property
  def features(self) -> dict[str, dict[str, Any]]:
    """The policy's inputs by name: robot state, environment state, then images."""
    kinds = ("STATE", "ENV", "VISUAL")
    features = self.config["input_features"]
    for name, feature in features.items():
      if feature["type"] not in kinds:
        raise self.error(name, f"a type of {errors.listing(kinds)}", feature["type"])
    return dict(sorted(features.items(), key=lambda item: kinds.index(item[1]["type"])))

  @property
  def signature(self) -> Signature:
    """The signature of the policy."""
    shapes = {name: feature["shape"] for name, feature in self.features.items()}
    size = self.config["output_features"][_ACTION]["shape"][0]
    return Signature(
      action=_ACTION,
      action_size=size,
      states={name: shape for name, shape in shapes.items() if len(shape) == 1},
      cameras={
        name: [*shape[1:], shape[0]] for name, shape in shapes.items() if len(shape) > 1
      },
    )

  def image_statistics(self) -> dict[str, list[list[float]]]:
    """Returns [mean, std] of the channels, by camera."""
    measures = {}
    for name, feature in self.features.items():
      if feature["type"] == "VISUAL":
        identity = MEAN_STD, np.zeros(1), np.ones(1)
        mode, first, second = self._measures(name, "VISUAL") or identity
        if mode != MEAN_STD:
          first, second = (first + second) / 2, (second - first) / 2
        measures[name] = [first.ravel().tolist(), second.ravel().tolist()]
    return measures

  def save_statistics(self, path: str) -> dict[str, str | None]:
    """Writes the statistics of states and actions; returns their modes by path."""
    paths, modes = {}, {}
    kinds = {name: feature["type"] for name, feature in self.features.items()}
    for name, kind in {**kinds, _ACTION: "ACTION"}.items():
      if kind == "VISUAL":
        continue
      measures = self._measures(name, kind)
      if measures is None and name == _ACTION:  # The identity: [-1, 1] to [-1, 1].
        ones = np.ones(self.signature.action_size)
        measures = MIN_MAX, -ones, ones
      modes[TARGET if name == _ACTION else name] = measures and measures[0]
      if measures is not None:
        paths[name] = _path_statistics(name, *measures)
    Statistics("episodes", {}, "", False, 1, None, paths).save(path)
    return modes

  def _measures(
    self, name: str, kind: str
  ) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Returns the mode and its two statistics; None if a feature is not normalized."""
    mode = self._modes.get(kind, "IDENTITY")
    if mode == "IDENTITY" or name not in self._statistics:
      return None
    if mode not in _MODES:
      expected = f"one of {errors.listing([*_MODES, 'IDENTITY'])}"
      raise self.error(f"normalization_mapping: {kind}", expected, mode)
    stored = self._statistics[name]
    ours, *measures = _MODES[mode]
    missing = [measure for measure in measures if measure not in stored]
    if missing:
      raise errors.SpecError(
        f"import: {self.path}: {name}: expected the statistics {' and '.join(measures)}"
        f", got {errors.listing(stored)}."
      )
    first, second = (stored[measure].astype(np.float64) for measure in measures)
    if ours != MEAN_STD and name != _ACTION:
      # LeRobot maps constant elements to -1, `Normalize` to 0.
      second = np.where(first == second, first + 2, second)
    return ours, first, second

  def _find_statistics(self) -> dict[str, dict[str, np.ndarray]]:
    """Reads statistics by feature, from processors, or from buffers of old models."""
    tensors: dict[str, dict[str, np.ndarray]] = {}
    for stage in ("policy_preprocessor", "policy_postprocessor"):
      if not os.path.exists(os.path.join(self.path, f"{stage}.json")):
        continue
      for step in self._read_json(f"{stage}.json")["steps"]:
        kind = str(step.get("registry_name", "")).removesuffix("_processor")
        if kind in _NORMALIZERS:
          self._modes |= step["config"]["norm_map"]
          if "state_file" in step:
            values = read_safetensors(os.path.join(self.path, step["state_file"]))
            for name, value in values.items():
              feature, _, measure = name.rpartition(".")
              tensors.setdefault(feature, {})[measure] = value
        elif kind not in _PLAIN_STEPS:
          steps = errors.listing([*_PLAIN_STEPS, *_NORMALIZERS])
          raise errors.SpecError(
            f"import: {self.path}/{stage}.json: expected the steps {steps}, got "
            f"'{kind}'."
          )
    for name in (*self.config["input_features"], _ACTION):
      place = r"(un)?normalize_\w+\.buffer_" + re.escape(name.replace(".", "_"))
      for key, value in self.tensors.items():
        if match := re.fullmatch(rf"{place}\.(\w+)", key):
          tensors.setdefault(name, {})[match[2]] = value
    return tensors

  def _read_json(self, name: str) -> dict[str, Any]:
    path = os.path.join(self.path, name)
    try:
      with open(path, encoding="utf-8") as file:
        content = json.load(file)
    except FileNotFoundError as error:
      raise errors.SpecError(
        f"import: {path}: expected a policy that LeRobot trained, a folder with "
        "config.json and model.safetensors, got no such file. Name the folder "
        "`pretrained_model` of a checkpoint."
      ) from error
    except ValueError as error:
      raise errors.SpecError(f"import: {path}: expected JSON, got {error}.") from error
    if not isinstance(content, dict):
      raise errors.SpecError(
        f"import: {path}: expected an object, got {content!r:.50}."
      )
    return content


def _path_statistics(
  name: str, mode: str, first: np.ndarray, second: np.ndarray
) -> PathStatistics:
  """Makes statistics from the two of a checkpoint; estimates the others."""
  if mode == MEAN_STD:
    mean, std = first, second
    low, high = mean - 3 * std, mean + 3 * std
  else:
    mean, std = (first + second) / 2, (second - first) / 2
    low, high = first, second
  shares = {0.01: low, 0.99: high}
  ones = np.ones(mean.shape, np.int64)
  counts: dict[str, Any] = dict.fromkeys(COUNTS, 0 * ones)
  return PathStatistics(
    spec=specs.ExtendedTensorSpec(mean.shape, tf.float32, name, is_sequence=True),
    kind=statistics.statistics.NUMBERS,
    rows=1,
    per="element",
    **{**counts, "count": ones},
    mean=mean,
    std=std,
    min=low,
    max=high,
    quantiles={share: shares.get(share, mean) for share in QUANTILES},
    method=statistics.statistics.SKETCH,
  )


_Names = Mapping[str, str]


def _create_act(
  source: _Checkpoint, options: dict[str, Any], seed: int | None
) -> tuple[ImitationModel, _Names]:
  if seed is not None:
    raise errors.SpecError("import: seed: ACT draws no random numbers: leave it out.")
  config = source.config
  source.require(
    vision_backbone=[*_BACKBONES],
    replace_final_stride_with_dilation=[False, 0],
    feedforward_activation=["relu", "gelu"],
    n_obs_steps=[1],
  )
  layer_counts = [config[f"n_{name}_layers"] for name in ("encoder", "decoder")]
  layer_counts.append(config["n_vae_encoder_layers"] if config["use_vae"] else 0)
  transformer = functools.partial(
    layers.Transformer,
    num_heads=config["n_heads"],
    model_size=config["dim_model"],
    mlp_size=config["dim_feedforward"],
    dropout=config["dropout"],
    pre_norm=config["pre_norm"],
    activation=config["feedforward_activation"],
  )
  size = _BACKBONES[config["vision_backbone"]]
  filters = _num_filters(source, "model.backbone.conv1.weight")
  network = functools.partial(
    ACTNetwork,
    num_layers=layer_counts,
    latent_size=config["latent_dim"],
    create_transformer_fn=transformer,
    create_tower_fn=functools.partial(
      layers.ResNet, None, size, 1, filters, normalizer="frozen"
    ),
  )
  model = ACTModel(
    kl_weight=config["kl_weight"],
    create_network_fn=network,
    chunk_size=config["chunk_size"],
    num_executed=config["n_action_steps"],
    ensemble_decay=config["temporal_ensemble_coeff"],
    image_transforms=[],
    **options,
  )
  return model, dict(_act_names(source, layer_counts, size))


def _create_diffusion(
  source: _Checkpoint, options: dict[str, Any], seed: int | None
) -> tuple[ImitationModel, _Names]:
  config = source.config
  source.require(
    vision_backbone=[*_BACKBONES],
    noise_scheduler_type=["DDPM", "DDIM"],
    prediction_type=["epsilon", "sample"],
    resize_shape=[None],
  )
  crop, cameras = config.get("crop_shape"), source.signature.cameras
  if cameras and crop:
    height, width, _ = next(iter(cameras.values()))
    offset = [round((n - m) / 2) for n, m in zip((height, width), crop, strict=True)]
    options["image_size"] = crop
    options["image_transforms"] = [preprocessors.CustomCrop(offset, crop)]
  else:
    options["image_transforms"] = []
  shares = not config.get("use_separate_rgb_encoder_per_camera", False)
  schedule = layers.NoiseSchedule(
    num_steps=config["num_train_timesteps"],
    betas=config["beta_schedule"],
    beta_start=config["beta_start"],
    beta_end=config["beta_end"],
    prediction=config["prediction_type"],
    clip=config["clip_sample_range"] if config["clip_sample"] else None,
    spacing="leading",
  )
  denoiser = functools.partial(
    layers.ConditionalUNet,
    filters=config["down_dims"],
    kernel_size=config["kernel_size"],
    num_groups=config["n_groups"],
    time_size=config["diffusion_step_embed_dim"],
    time_scale=config["num_train_timesteps"],
    film_scales=config["use_film_scale_modulation"],
  )
  decoder = functools.partial(
    layers.DiffusionDecoder,
    num_steps=config["num_inference_steps"] or config["num_train_timesteps"],
    schedule=schedule,
    sampler=config["noise_scheduler_type"].lower(),
    create_denoiser_fn=denoiser,
    seed=seed,
  )
  points, size = config["spatial_softmax_num_keypoints"], config["vision_backbone"]
  first = "" if shares else "0."
  encoder = functools.partial(
    layers.ImageEncoder,
    _BACKBONES[size],
    _num_filters(source, f"diffusion.rgb_encoder.{first}backbone.0.weight"),
    num_points=points,
    output_size=2 * points,
    normalizer="group" if config["use_group_norm"] else "batch",
    activation="relu",
    centers_images=False,
  )
  model = DiffusionModel(
    observation_horizon=config["n_obs_steps"],
    prediction_horizon=config["horizon"],
    num_executed=config["n_action_steps"],
    action_decoder_cls=decoder,
    create_image_encoder_fn=encoder,
    shares_encoder=shares,
    **options,
  )
  count = 1 if shares and cameras else len(cameras)
  return model, dict(_diffusion_names(config, count, shares))


_CREATE = {"act": _create_act, "diffusion": _create_diffusion}


def _num_filters(source: _Checkpoint, name: str) -> int:
  return len(source.tensors[name]) if name in source.tensors else 64


def _layer_name(name: str, number: int) -> str:
  return f"{name}_{number}" if number else name


# Pairs (our layer, LeRobot's module); for weights outside of layers (our variable,
# LeRobot's tensor).
_Pairs = Iterator[tuple[str, str]]


def _act_names(source: _Checkpoint, layer_counts: Sequence[int], size: int) -> _Pairs:
  yield "latent_in", "model.encoder_latent_input_proj"
  yield "output", "model.action_head"
  yield "positions", "model.encoder_1d_feature_pos_embed.weight"
  yield "queries", "model.decoder_pos_embed.weight"
  for i, path in enumerate(source.signature.states):
    kind = "env" if is_environment(path) else "robot"
    yield _layer_name("state_in", i), f"model.encoder_{kind}_state_input_proj"
  yield "image_in", "model.encoder_img_feat_input_proj"
  yield from _resnet_names("res_net", "model.backbone.{}", size)
  parts = [("encoder", "encoder"), ("decoder", "decoder"),
           ("style_encoder", "vae_encoder")]  # fmt: skip
  for (ours, theirs), count in zip(parts, layer_counts, strict=True):
    yield from _transformer_names(ours, f"model.{theirs}", count)
  for name in ("robot_state_input", "action_input", "latent_output"):
    ours = {"r": "style_state_in", "a": "style_action_in", "l": "style_out"}[name[0]]
    yield ours, f"model.vae_encoder_{name}_proj"
  yield "style_token", "model.vae_encoder_cls_embed.weight"


def _transformer_names(ours: str, theirs: str, count: int) -> _Pairs:
  has_memory = ours == "decoder"
  for i in range(count):
    block = f"{ours}/{_layer_name('transformer_block', i)}/"
    other = f"{theirs}.layers.{i}."
    pairs = {"self_attention": "self_attn"}
    if has_memory:
      pairs["cross_attention"] = "multihead_attn"
    for attention, module in pairs.items():
      for part, name in enumerate(("query", "key", "value")):
        yield f"{block}{attention}/{name}", f"{other}{module}.in_proj_{part}"
      yield f"{block}{attention}/output", f"{other}{module}.out_proj"
    yield f"{block}mlp_in", f"{other}linear1"
    yield f"{block}mlp_out", f"{other}linear2"
    for j in range(3 if has_memory else 2):
      yield f"{block}norm_{j}", f"{other}norm{j + 1}"
  yield f"{ours}/final_norm", f"{theirs}.norm"


def _resnet_names(
  ours: str, theirs: str, size: int, in_sequence: bool = False
) -> _Pairs:
  """Pairs a ResNet's layers with torchvision's, by name or by index in a Sequential."""
  names = {"conv1": "0", "bn1": "1", **{f"layer{i}": str(3 + i) for i in range(1, 5)}}
  name = lambda module: theirs.format(names[module] if in_sequence else module)  # noqa: E731
  yield f"{ours}/padded_conv/conv2d", name("conv1")
  yield f"{ours}/NORM", name("bn1")
  num_convs, block = 3 if size >= 50 else 2, 0
  for i, count in enumerate(layers.resnet.block_and_filter_sizes(size)[0]):
    for j in range(count):
      inner = f"{ours}/{_layer_name('block_v1', block)}/"
      other = f"{name(f'layer{i + 1}')}.{j}."
      for k in range(num_convs + 1):
        is_last = k == num_convs
        conv, norm = ("downsample.0", "downsample.1") if is_last else (
          f"conv{k + 1}", f"bn{k + 1}")  # fmt: skip
        yield f"{inner}{_layer_name('padded_conv', k)}/conv2d", f"{other}{conv}"
        yield f"{inner}{_layer_name('NORM', k)}", f"{other}{norm}"
      block += 1


def _diffusion_names(
  config: Mapping[str, Any], num_encoders: int, shares: bool
) -> _Pairs:
  for i in range(num_encoders):
    ours, other = (
      f"encoders/{i}/",
      "diffusion.rgb_encoder." + ("" if shares else f"{i}."),
    )
    size = _BACKBONES[config["vision_backbone"]]
    yield from _resnet_names(f"{ours}res_net", other + "backbone.{}", size, True)
    yield f"{ours}conv2d", f"{other}pool.nets"
    yield f"{ours}dense", f"{other}out"
  ours, other = "decoder/conditional_u_net/", "diffusion.unet."
  yield f"{ours}time_in", f"{other}diffusion_step_encoder.1"
  yield f"{ours}time_out", f"{other}diffusion_step_encoder.3"
  depth = len(config["down_dims"])
  for name, sampler, count in (
    ("down", "downsample", depth), ("mid", "", 1), ("up", "upsample", depth - 1)
  ):  # fmt: skip
    for i in range(count):
      place = f"{other}{name}_modules." + (f"{i}." if sampler else "")
      for j in range(2):
        inner = f"{ours}{_layer_name(name, 2 * i + j)}/"
        for k in range(2):
          yield f"{inner}conv_{k}/conv1d", f"{place}{j}.conv{k + 1}.block.0"
          yield f"{inner}conv_{k}/NORM", f"{place}{j}.conv{k + 1}.block.1"
        yield f"{inner}film", f"{place}{j}.cond_encoder.1"
        yield f"{inner}projection", f"{place}{j}.residual_conv"
      if sampler:
        yield f"{ours}{_layer_name(sampler, i)}", f"{place}2"
  yield f"{ours}last/conv1d", f"{other}final_conv.0.block.0"
  yield f"{ours}last/NORM", f"{other}final_conv.0.block.1"
  yield f"{ours}output", f"{other}final_conv.1"


_LEAVES = {
  "kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias",
  "moving_mean": "running_mean", "moving_variance": "running_var",
}  # fmt: skip


def _load(source: _Checkpoint, model: ImitationModel, names: _Names) -> None:
  """Assigns the tensors of a checkpoint; raises one SpecError for all mismatches."""
  unused = {name for name in source.tensors if not _NO_WEIGHTS.search(name)}
  mismatches: list[errors.Mismatch] = []
  for name, variable in model.named_variables.items():
    if not variable.dtype.is_floating:  # Random states of dropout layers.
      continue
    place, _, leaf = re.sub("(batch|group)_normalization", "NORM", name).rpartition("/")
    theirs = f"{names[place]}.{_LEAVES[leaf]}" if place else names[name]
    part = re.fullmatch(r"(.*in_proj_)(\d)\.(weight|bias)", theirs)
    tensor_name = f"{part[1]}{part[3]}" if part else theirs
    unused.discard(tensor_name)
    value = source.tensors.get(tensor_name)
    expected = errors.describe(variable)
    if value is None:
      near = errors.nearest(tensor_name, unused)
      want = f"a tensor for {name}, {expected}"
      mismatches.append(errors.Mismatch(tensor_name, want, "none", near))
      continue
    if part and len(value) % 3 == 0:
      value = np.split(value, 3)[int(part[2])]
    value = _as_kernel(value) if leaf == "kernel" else value
    if value.shape != tuple(variable.shape):
      got = str(source.tensors[tensor_name].shape)
      want = f"the weights of {name}, {expected}"
      mismatches.append(errors.Mismatch(tensor_name, want, got, ""))
      continue
    variable.assign(tf.cast(np.ascontiguousarray(value), variable.dtype))
  mismatches += [
    errors.Mismatch(name, f"no such tensor in a policy '{source.kind}'", "it", "")
    for name in sorted(unused)
  ]
  if mismatches:
    raise errors.mismatch_error(f"import: {source.path}/model.safetensors", mismatches)


def _as_kernel(value: np.ndarray) -> np.ndarray:
  """Orders the axes of a kernel as TensorFlow has them."""
  return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.transpose()
