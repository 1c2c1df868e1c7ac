"""Layer 2: language-model actor-critic policies, their heads, generation, and saving."""
