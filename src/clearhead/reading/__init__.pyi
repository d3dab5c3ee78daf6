from ..matrix.rollout import rollout
from ..watching.finding import image_numbers
from .head_circuits import circuits
from .logit_lens import lens
from .logit_shares import logits_of
from .token_relevance import relevance
from .written_tokens import writes

__all__ = [
    "circuits",
    "image_numbers",
    "lens",
    "logits_of",
    "relevance",
    "rollout",
    "writes",
]
