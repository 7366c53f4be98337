"""Layers: networks that models share, as Keras layers of either version."""

from t2r_seq.layers.action_decoders import ActionDecoder, MSEDecoder, valid_targets
from t2r_seq.layers.bcz_networks import (
  ImageTorso,
  RecurrentHead,
  SNAILEncoder,
  WaypointHeads,
)
from t2r_seq.layers.construction import LayerStore, configurable_layer
from t2r_seq.layers.discrete import DiscreteDecoder
from t2r_seq.layers.flow_matching import (
  Denoiser,
  DiffusionDecoder,
  FlowMatchingDecoder,
)
from t2r_seq.layers.losses import (
  contrastive_loss,
  cosine_triplet_semihard_loss,
  masked_mean,
  n_pairs_loss,
  retrieval_accuracy,
)
from t2r_seq.layers.maf import MAFDecoder
from t2r_seq.layers.mdn import (
  GaussianMixture,
  MDNDecoder,
  MDNParams,
  gaussian_mixture_approximate_mode,
  get_mixture_distribution,
)
from t2r_seq.layers.resnet import LinearFiLMGenerator, ResNet
from t2r_seq.layers.snail import (
  CausalAttention,
  CausalConv1D,
  GatedDenseBlock,
  TemporalConvBlock,
)
from t2r_seq.layers.spatial_softmax import SpatialSoftmax, sample_maps
from t2r_seq.layers.tec import (
  ImageEmbedding,
  TemporalReduction,
  compute_embedding_contrastive_loss,
)
from t2r_seq.layers.transformer import CausalTransformer
from t2r_seq.layers.vision_layers import (
  MLP,
  ImageFeaturesToPose,
  ImagesToFeatures,
  ImagesToFeaturesHighRes,
  LayerNorm,
  film,
)

__all__ = [
  "MLP",
  "ActionDecoder",
  "CausalAttention",
  "CausalConv1D",
  "CausalTransformer",
  "Denoiser",
  "DiffusionDecoder",
  "DiscreteDecoder",
  "FlowMatchingDecoder",
  "GatedDenseBlock",
  "GaussianMixture",
  "ImageEmbedding",
  "ImageFeaturesToPose",
  "ImageTorso",
  "ImagesToFeatures",
  "ImagesToFeaturesHighRes",
  "LayerNorm",
  "LayerStore",
  "LinearFiLMGenerator",
  "MAFDecoder",
  "MDNDecoder",
  "MDNParams",
  "MSEDecoder",
  "RecurrentHead",
  "ResNet",
  "SNAILEncoder",
  "SpatialSoftmax",
  "TemporalConvBlock",
  "TemporalReduction",
  "WaypointHeads",
  "compute_embedding_contrastive_loss",
  "configurable_layer",
  "contrastive_loss",
  "cosine_triplet_semihard_loss",
  "film",
  "gaussian_mixture_approximate_mode",
  "get_mixture_distribution",
  "masked_mean",
  "n_pairs_loss",
  "retrieval_accuracy",
  "sample_maps",
  "valid_targets",
]
