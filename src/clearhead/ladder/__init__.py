"""The mechanism of attention, one new idea per file, from the dot product to many heads.

    embeddings              a sentence as vectors                       embed_words
    scores                  the dot product, of one pair and of all     dot_product, scores_by_loops
    softmax                 scores as shares of one                     weights_by_sum, naive_softmax
    weighted_sum            the context                                 context_by_loops
    rung                    a class whose stages can be looked at
    simple_attention        score, share and sum, for all tokens        SimpleAttention
    self_attention          three matrices that learn, and the scale    SelfAttention
    linear_layers           the matrices as linear layers               SelfAttentionWithLayers
    cross_attention         keys and values of another sequence         CrossAttention
    masking                 which keys a query may attend to
    renormalised_attention  a mask on the weights                       RenormalisedAttention
    masked_attention        a mask on the scores                        MaskedAttention
    dropout_attention       weights dropped while training              DropoutAttention
    batched_attention       several sequences at once                   BatchedAttention
    concatenated_heads      several attentions side by side             ConcatenatedHeads
    split_heads             several heads in one product                SplitHeads
    saved_weights           a tutorial's model as one of these          from_tutorial

Each file uses those above it, and `clearhead.stages` for the arithmetic. A rung is its projections
and one call of the stages; the layers, the mask and the dropout of the later ones are set in one
base each, and no rung inherits from another. The last one computes what
`clearhead.MultiHeadAttention` computes.
"""

from clearhead.ladder.batched_attention import BatchedAttention
from clearhead.ladder.concatenated_heads import ConcatenatedHeads
from clearhead.ladder.cross_attention import CrossAttention
from clearhead.ladder.dropout_attention import DropoutAttention
from clearhead.ladder.embeddings import (
    EXAMPLE_EMBEDDINGS,
    EXAMPLE_TOKENS,
    EmbeddedWords,
    embed_words,
)
from clearhead.ladder.linear_layers import SelfAttentionWithLayers
from clearhead.ladder.masked_attention import MaskedAttention
from clearhead.ladder.renormalised_attention import RenormalisedAttention, hide, renormalise
from clearhead.ladder.saved_weights import from_tutorial
from clearhead.ladder.scores import dot_product, scores_by_loops, scores_of_query
from clearhead.ladder.self_attention import SelfAttention
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.ladder.softmax import naive_softmax, weights_by_sum
from clearhead.ladder.split_heads import SplitHeads, merge_heads, split_heads
from clearhead.ladder.weighted_sum import context_by_loops

__all__ = [
    "BatchedAttention",
    "ConcatenatedHeads",
    "CrossAttention",
    "DropoutAttention",
    "EXAMPLE_EMBEDDINGS",
    "EXAMPLE_TOKENS",
    "EmbeddedWords",
    "MaskedAttention",
    "RenormalisedAttention",
    "SelfAttention",
    "SelfAttentionWithLayers",
    "SimpleAttention",
    "SplitHeads",
    "context_by_loops",
    "dot_product",
    "embed_words",
    "from_tutorial",
    "hide",
    "merge_heads",
    "naive_softmax",
    "renormalise",
    "scores_by_loops",
    "scores_of_query",
    "split_heads",
    "weights_by_sum",
]
