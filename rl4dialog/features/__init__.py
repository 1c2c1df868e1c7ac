"""Features: each is whole in its folder, and can be deleted with it (``docs/architecture.md``)."""
