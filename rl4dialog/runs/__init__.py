"""Read and write run folders."""
