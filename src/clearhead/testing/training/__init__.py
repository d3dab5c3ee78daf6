"""The laws of training, asked of copies of a training script."""
