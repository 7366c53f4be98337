"""Layers: networks that models share, as Keras layers of either version."""

from t2r_seq.layers.action_decoders import ActionDecoder, MSEDecoder
from t2r_seq.layers.action_expert import ActionExpert, ContextEncoder
from t2r_seq.layers.attention import Transformer
from t2r_seq.layers.bcz_networks import (
  SNAILEncoder,
)
from t2r_seq.layers.construction import LayerStore
from t2r_seq.layers.control import QNetwork, StackEncoder
from t2r_seq.layers.diffusion_networks import (
  ConditionalUNet,
  DiffusionTransformer,
)
from t2r_seq.layers.discrete import DiscreteDecoder
from t2r_seq.layers.flow_matching import (
  Continuation,
  DiffusionDecoder,
  FlowMatchingDecoder,
  NoiseSchedule,
)
from t2r_seq.layers.losses import (
  cosine_triplet_semihard_loss,
  masked_mean,
  n_pairs_loss,
)
from t2r_seq.layers.maf import MAFDecoder
from t2r_seq.layers.mdn import (
  MDNDecoder,
  gaussian_mixture_approximate_mode,
  get_mixture_distribution,
)
from t2r_seq.layers.observation_encoder import (
  ImageEncoder,
  ObservationEncoder,
  standardize,
)
from t2r_seq.layers.resnet import LinearFiLMGenerator, ResNet
from t2r_seq.layers.spatial_softmax import SpatialSoftmax
from t2r_seq.layers.tec import (
  compute_embedding_contrastive_loss,
)
from t2r_seq.layers.transformer import CausalTransformer
from t2r_seq.layers.vision_layers import (
  MLP,
  ImageFeaturesToPose,
  ImagesToFeatures,
  film,
)

__all__ = [
  "MLP",
  "ActionDecoder",
  "ActionExpert",
  "CausalTransformer",
  "ConditionalUNet",
  "ContextEncoder",
  "Continuation",
  "DiffusionDecoder",
  "DiffusionTransformer",
  "DiscreteDecoder",
  "FlowMatchingDecoder",
  "ImageEncoder",
  "ImageFeaturesToPose",
  "ImagesToFeatures",
  "LayerStore",
  "LinearFiLMGenerator",
  "MAFDecoder",
  "MDNDecoder",
  "MSEDecoder",
  "NoiseSchedule",
  "ObservationEncoder",
  "QNetwork",
  "ResNet",
  "SNAILEncoder",
  "SpatialSoftmax",
  "StackEncoder",
  "Transformer",
  "compute_embedding_contrastive_loss",
  "cosine_triplet_semihard_loss",
  "film",
  "gaussian_mixture_approximate_mode",
  "get_mixture_distribution",
  "masked_mean",
  "n_pairs_loss",
  "standardize",
]
