"""GGUF files of trained models, for llama.cpp and the programs that are built on it."""
