"""Serves policies by websocket; restricts servers to an address."""

from t2r_seq.serving.websocket import PolicyClient, PolicyServer

__all__ = ["PolicyClient", "PolicyServer"]
