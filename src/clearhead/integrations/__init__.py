"""The models of other libraries.

attention     clearhead as an `attn_implementation` of transformers    extra `models`
huggingface   models of transformers that read text                    extra `models`; one in `demo`
"""
