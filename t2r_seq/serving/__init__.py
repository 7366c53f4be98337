"""Servers: a policy behind a websocket, and the addresses that servers listen at."""

from t2r_seq.serving.websocket import PolicyClient, PolicyServer

__all__ = ["PolicyClient", "PolicyServer"]
