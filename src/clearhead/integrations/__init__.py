"""Models of other libraries, and what they call things.

huggingface   models and tokenizers of transformers     extra `models`; a packaged one in `demo`
"""
