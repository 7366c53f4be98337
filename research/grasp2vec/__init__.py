"""Grasp2Vec: what was lifted is what the scene lost, and where it was."""
