"""Builds all objects from the config, one module per kind. The built objects receive plain arguments."""
