"""Networks that models share, as layers for Keras 2 and 3."""

from t2r_seq.layers import action_expert as _action_expert
from t2r_seq.layers import bcz_networks as _bcz_networks
from t2r_seq.layers import tec as _tec
from t2r_seq.layers.action_decoders import MSEDecoder
from t2r_seq.layers.attention import Transformer
from t2r_seq.layers.diffusion_networks import (
  ConditionalUNet,
  DiffusionTransformer,
)
from t2r_seq.layers.discrete import DiscreteDecoder
from t2r_seq.layers.flow_matching import (
  DiffusionDecoder,
  FlowMatchingDecoder,
  NoiseSchedule,
)
from t2r_seq.layers.losses import masked_mean
from t2r_seq.layers.maf import MAFDecoder
from t2r_seq.layers.mdn import MDNDecoder
from t2r_seq.layers.observation_encoder import ImageEncoder
from t2r_seq.layers.resnet import LinearFiLMGenerator, ResNet
from t2r_seq.layers.spatial_softmax import SpatialSoftmax
from t2r_seq.layers.transformer import CausalTransformer
from t2r_seq.layers.vision_layers import ImageFeaturesToPose, ImagesToFeatures

# gin finds what these define by name.
_GIN_MODULES = (
  _action_expert,
  _bcz_networks,
  _tec,
)

__all__ = [
  "CausalTransformer",
  "ConditionalUNet",
  "DiffusionDecoder",
  "DiffusionTransformer",
  "DiscreteDecoder",
  "FlowMatchingDecoder",
  "ImageEncoder",
  "ImageFeaturesToPose",
  "ImagesToFeatures",
  "LinearFiLMGenerator",
  "MAFDecoder",
  "MDNDecoder",
  "MSEDecoder",
  "NoiseSchedule",
  "ResNet",
  "SpatialSoftmax",
  "Transformer",
  "masked_mean",
]
