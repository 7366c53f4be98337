"""Gin files of the project."""
