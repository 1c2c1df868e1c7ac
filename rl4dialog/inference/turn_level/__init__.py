"""Use of trained policies in environments with plain gymnasium spaces."""
