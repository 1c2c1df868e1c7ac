"""What is done with the model of a run, or any other, without training it."""
