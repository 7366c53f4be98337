"""Models that embed the condition of a task and act on the embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, layers, models, specs
from t2r_seq.layers.bcz_networks import SNAILEncoder
from t2r_seq.layers.construction import CompositeLayer, configurable_layer
from t2r_seq.layers.tec import compute_embedding_contrastive_loss
from t2r_seq.layers.vision_layers import MLP
from t2r_seq.meta_learning import meta_tfdata, preprocessors
from t2r_seq.meta_learning.task_model import (
  CARRIED,
  TASK,
  TaskModel,
  base_state,
  flat,
  merge_samples,
)
from t2r_seq.preprocessors import AbstractPreprocessor
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct

TASK_EMBEDDING = "task_embedding"
"""The base model's feature that is computed from a task's condition."""


@configurable_layer
class SampleEmbedding(CompositeLayer):
  """Embeds samples of a task: images by a tower, other features as vectors."""

  def __init__(
    self, embedding_size: int, fc_layers: Sequence[int] = (64, 64), **kwargs: Any
  ) -> None:
    """Creates the layer.

    Args:
      embedding_size: D.
      fc_layers: units of the hidden dense layers.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._tower: layers.tec.ImageEmbedding | None = None
    self._mlp = MLP(tuple(fc_layers), embedding_size)

  def build(self, input_shape: Mapping[str, Any]) -> None:
    """Creates the tower if there are images."""
    if any(len(shape) >= 4 for shape in input_shape.values()):
      self._tower = layers.tec.ImageEmbedding()
    super().build(input_shape)

  def call(self, sample: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
    """Maps samples to embeddings.

    Args:
      sample: numeric features and labels by path, [N, ...]. Those with four axes or
        more are images; each image of a stack is embedded.
      training: mode of batch normalization.
    Returns:
      [N, D].
    Raises:
      SpecError: the shape of a sample is unknown, such as its number of steps.
    """
    del training  # Keras passes it to the inner layers.
    parts = []
    for path, value in sorted(sample.items()):
      if not value.shape[1:].is_fully_defined():
        raise errors.SpecError(
          f"SampleEmbedding: {path}: expected numbers of a known shape, got "
          f"{errors.describe(value)}. Write a create_embedding_fn for sequences."
        )
      value = tf.cast(value, tf.float32)
      if self._tower is not None and value.shape.rank >= 4:
        images = tf.reshape(value, [-1, *value.shape[-3:]])
        count = value.shape[1:-3].num_elements()
        embedded = self._tower(images)
        parts.append(tf.reshape(embedded, [-1, count * embedded.shape[-1]]))
      else:
        parts.append(tf.reshape(value, [-1, value.shape[1:].num_elements()]))
    return self._mlp(tf.concat(parts, axis=-1))


@configurable_layer
class SequenceEmbedding(CompositeLayer):
  """Embeds ordered samples, such as a demonstration, by SNAIL.

  Mishra et al., 'A Simple Neural Attentive Meta-Learner', 2018: causal convolutions
  and attention over the samples.
  """

  def __init__(
    self,
    embedding_size: int,
    sequence_length: int = 16,
    num_blocks: int = 2,
    tc_filters: int = 32,
    attention_size: int = 16,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      embedding_size: D.
      sequence_length: samples that the convolutions cover.
      num_blocks: see `layers.bcz_networks.SNAILEncoder`.
      tc_filters: see `layers.bcz_networks.SNAILEncoder`.
      attention_size: see `layers.bcz_networks.SNAILEncoder`.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._encoder = SNAILEncoder(
      sequence_length, embedding_size, num_blocks, tc_filters, attention_size
    )

  def call(self, embedded: tf.Tensor) -> tf.Tensor:
    """Maps embeddings of samples, [tasks, samples, D], to [tasks, D]."""
    outputs, _ = self._encoder(embedded)
    return outputs[:, -1]


@gin.configurable
class TaskEmbeddingModel(TaskModel):
  """Embeds the condition of a task as a feature of a base model.

  James, Bloesch and Davison, 'Task-Embedded Control Networks for Few-Shot Imitation
  Learning', 2018. The base model declares a feature `task_embedding` [D] that no data
  has. It is the mean of the embeddings of the condition's samples, or the output of
  `create_sequence_fn`, L2-normalized. `adapt` of the exported policy computes it.
  """

  def __init__(
    self,
    base_model: models.T2RModel,
    preprocessor_cls: Callable[..., preprocessors.MAMLPreprocessorV2] | None = None,
    create_embedding_fn: Callable[[int], Any] = SampleEmbedding,
    create_sequence_fn: Callable[[int], Any] | None = None,
    contrastive_weight: float = 0.0,
    contrastive_loss_mode: str = "both_directions",
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      base_model: not built; its features have `task_embedding`, float32 [D].
      preprocessor_cls: called with the base model's preprocessor; by default
        `MAMLPreprocessorV2`.
      create_embedding_fn: called with D; returns the layer that maps a dictionary of
        'features/<path>' and 'labels/<path>', [N, ...], to [N, D].
      create_sequence_fn: called with D; returns the layer that maps the ordered
        embeddings of the condition, [tasks, samples, D], to [tasks, D], such as
        `SequenceEmbedding`. None: their mean.
      contrastive_weight: weight of the contrastive loss of condition and inference; 0:
        no such loss.
      contrastive_loss_mode: see `layers.tec.compute_embedding_contrastive_loss`.
      **kwargs: arguments of `T2RModel`; see `TaskModel`.
    Raises:
      SpecError: the base model has no such feature.
    """
    super().__init__(base_model, preprocessor_cls, **kwargs)
    self._create_embedding_fn = create_embedding_fn
    self._create_sequence_fn = create_sequence_fn
    self._contrastive_weight = contrastive_weight
    self._contrastive_loss_mode = contrastive_loss_mode
    self._embedding_spec()

  def _base_preprocessor(self) -> Any:
    return _WithoutEmbedding(self._base_model.preprocessor)

  def get_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's specs without the embedding; see the base class."""
    base = self._base_model
    return preprocessors.maml_feature_spec(
      lambda mode: _without(base.get_feature_specification(mode)),
      base.get_label_specification,
      mode,
    )

  def create_network(self) -> dict[str, Any]:
    """Builds the base model and the embedding network."""
    self._base_model.build()
    size = self._embedding_spec().shape[0]
    network = {
      "base": self._base_model.network,
      "embedding": self._create_embedding_fn(size),
    }
    if self._create_sequence_fn is not None:
      network["sequence"] = self._create_sequence_fn(size)
    return network

  def inference_network_fn(  # type: ignore[override]
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> TensorSpecStruct:
    """Embeds each task, and runs the base model with the embedding.

    Args:
      features: features of the condition and of the inference, [tasks, samples, ...].
      labels: labels of the inference, or None.
      mode: value of `ModeKeys`.
    Returns:
      Outputs of the base model, [tasks, samples, ...], 'task_embedding', [tasks, D],
      and, for the contrastive loss, 'inference_embedding', [tasks, D].
    """
    condition, inference = features["condition"], features["inference"]["features"]
    embedding = self._embed(condition["features"], condition["labels"], mode)
    packed, sizes = self._pack(inference, embedding, mode)
    targets = None if labels is None else self._targets(labels, mode)
    base = flat(self._base_model.inference_network_fn(packed, targets, mode))
    outputs = TensorSpecStruct(meta_tfdata.expand_batch_dims(base, sizes))
    outputs[TASK_EMBEDDING] = embedding
    if labels is not None and self._contrastive_weight:
      outputs["inference_embedding"] = self._embed(inference, labels, mode)
    return outputs

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the base model's loss on the inference, and the contrastive loss."""
    given = self._inference_batch(features, labels, inference_outputs, mode)
    loss, scalars, *_ = self._split_loss(self._base_model.model_train_fn(*given, mode))
    if self._contrastive_weight:
      contrastive = compute_embedding_contrastive_loss(
        inference_outputs["inference_embedding"][:, tf.newaxis],
        inference_outputs[TASK_EMBEDDING][:, tf.newaxis],
        contrastive_loss_mode=self._contrastive_loss_mode,
      )
      loss += self._contrastive_weight * contrastive
      scalars = {**scalars, "contrastive_loss": contrastive}
    return loss, scalars

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: Any, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the base model's exported outputs, and the embedding."""
    embedding = inference_outputs[TASK_EMBEDDING]
    packed, sizes = self._pack(features["inference"]["features"], embedding, mode)
    outputs = self._base_model.create_export_outputs_fn(
      packed, self._merged_outputs(inference_outputs), mode
    )
    expanded = meta_tfdata.expand_batch_dims(dict(outputs), sizes)
    return {**expanded, TASK_EMBEDDING: embedding}

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    """Returns the base model's paths without the embedding."""
    return [path for path in super().step_paths(raw_paths) if path != TASK_EMBEDDING]

  def task_specification(self) -> TensorSpecStruct:
    """Returns the spec of the embedding."""
    spec = self._embedding_spec()
    return TensorSpecStruct(
      {TASK_EMBEDDING: specs.ExtendedTensorSpec(spec.shape, spec.dtype)}
    )

  def initial_task(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns zeros, which are not a task's embedding."""
    size = self._embedding_spec().shape[0]
    return TensorSpecStruct({TASK_EMBEDDING: tf.zeros([batch_size, size])})

  def adapt(self, raw_features: SpecStructure) -> TensorSpecStruct:
    """Returns the embedding of each task; see the base class."""
    mode = ModeKeys.INFER
    condition = self.preprocessor.preprocess_condition(raw_features, mode)
    embedding = self._embed(condition["features"], condition["labels"], mode)
    return TensorSpecStruct({f"{TASK}/{TASK_EMBEDDING}": embedding})

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """Steps the base model in each environment, with the embedding of its task."""
    state = specs.flatten_spec_structure(recurrent_state)
    given = TensorSpecStruct(flat(raw_features))
    given[TASK_EMBEDDING] = state[f"{TASK}/{TASK_EMBEDDING}"]
    carried = base_state(self._base_model, state)
    outputs, carried = self._base_model.export_step(given, carried, seeds)
    for path, value in flat(carried).items():
      state[f"{CARRIED}/{path}"] = value
    return outputs, state

  @tf.autograph.experimental.do_not_convert
  def _embedding_spec(self) -> specs.ExtendedTensorSpec:
    given = specs.flatten_spec_structure(
      self._base_model.get_feature_specification(ModeKeys.TRAIN)
    )
    spec = given.get(TASK_EMBEDDING)
    if spec is None or spec.shape.rank != 1 or spec.dtype != tf.float32:
      raise errors.SpecError(
        f"{type(self).__name__}: base_model: expected a feature '{TASK_EMBEDDING}' "
        f"float32 (D,), got {errors.listing(given) if spec is None else spec}."
      )
    return spec

  @tf.autograph.experimental.do_not_convert
  def _embed(self, features: Any, labels: Any, mode: str) -> tf.Tensor:
    """Embeds samples [tasks, samples, ...]; returns [tasks, D]."""
    sample = {
      f"{branch}/{path}": value
      for branch, part in (("features", features), ("labels", labels))
      for path, value in flat(part).items()
    }
    merged = meta_tfdata.merge_first_n_dims(sample, 2)
    embedded = self.network["embedding"](merged, training=mode == ModeKeys.TRAIN)
    sizes = meta_tfdata.batch_sizes(sample, 2)
    embedded = meta_tfdata.expand_batch_dims(embedded, sizes)
    static_shape = next(iter(sample.values())).shape[:2]
    embedded = tf.ensure_shape(embedded, [*static_shape, embedded.shape[-1]])
    if self._create_sequence_fn is None:
      task = tf.reduce_mean(embedded, axis=1)
    else:
      task = self.network["sequence"](embedded)
    return tf.math.l2_normalize(task, axis=-1)

  @tf.autograph.experimental.do_not_convert
  def _pack(
    self, inference: Any, embedding: tf.Tensor, mode: str
  ) -> tuple[SpecStructure, Any]:
    """Returns the base model's features, [tasks * samples, ...], and both sizes."""
    given = flat(inference)
    sizes = meta_tfdata.batch_sizes(given, 2)
    merged = TensorSpecStruct(meta_tfdata.merge_first_n_dims(given, 2))
    merged[TASK_EMBEDDING] = tf.repeat(embedding, sizes[1], axis=0)
    spec = self._base_model.get_feature_specification(mode)
    return specs.pack_flat_sequence_to_spec_structure(spec, merged), sizes

  @tf.autograph.experimental.do_not_convert
  def _targets(self, labels: Any, mode: str) -> SpecStructure:
    return merge_samples(labels, self._base_model.get_label_specification(mode))

  @tf.autograph.experimental.do_not_convert
  def _merged_outputs(self, outputs: Any) -> TensorSpecStruct:
    extra = (TASK_EMBEDDING, "inference_embedding")
    base = {path: value for path, value in flat(outputs).items() if path not in extra}
    return TensorSpecStruct(meta_tfdata.merge_first_n_dims(base, 2))

  def _inference_batch(
    self, features: SpecStructure, labels: SpecStructure, outputs: Any, mode: str
  ) -> tuple[Any, Any, Any]:
    inference = features["inference"]["features"]
    packed, _ = self._pack(inference, outputs[TASK_EMBEDDING], mode)
    return packed, self._targets(labels, mode), self._merged_outputs(outputs)


class _WithoutEmbedding(AbstractPreprocessor):
  """A base model's preprocessor, for data without embeddings."""

  def __init__(self, base_preprocessor: AbstractPreprocessor) -> None:
    super().__init__()
    self._base = base_preprocessor

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    return _without(self._base.get_in_feature_specification(mode))

  def get_in_label_specification(self, mode: str) -> SpecStructure:
    return self._base.get_in_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> TensorSpecStruct:
    return _without(self._base.get_out_feature_specification(mode))

  def get_out_label_specification(self, mode: str) -> SpecStructure:
    return self._base.get_out_label_specification(mode)

  @tf.autograph.experimental.do_not_convert
  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    given = TensorSpecStruct(flat(features))
    size = tf.shape(next(iter(given.values())))[0]
    spec = specs.flatten_spec_structure(self._base.get_in_feature_specification(mode))
    given[TASK_EMBEDDING] = tf.zeros([size, *spec[TASK_EMBEDDING].shape])
    made, labels = self._base.preprocess(given, labels, mode)
    return _without(made), labels


def _without(structure: SpecStructure) -> TensorSpecStruct:
  return TensorSpecStruct(
    (path, leaf)
    for path, leaf in specs.flatten_spec_structure(structure).items()
    if path != TASK_EMBEDDING
  )
