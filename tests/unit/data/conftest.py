"""A stand-in for the hub, and files made from a mapping."""

from stand_ins import fake_hub, write  # noqa: F401 (fixtures)
