"""The laws of training, checked on copies of a training script."""
