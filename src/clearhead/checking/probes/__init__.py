"""One way to put a question to a subject per file; what the answers mean is for `judging`."""
