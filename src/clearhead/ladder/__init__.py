"""The mechanism of attention, one new idea per file, from the dot product to many heads.

    words                   a sentence as vectors                       embed_words
    dot_product             one score                                   dot_product
    scoring                 the scores of all pairs                     scores_by_loops
    normalising             scores as shares of one                     weights_by_sum, naive_softmax
    mixing                  the weighted sum of the values              context_by_loops
    simple_attention        the three in a row, for all tokens          SimpleAttention
    self_attention          three matrices that learn, and the scale    SelfAttention
    linear_layers           the matrices as linear layers               SelfAttentionWithLayers
    cross_attention         keys and values of another sequence         CrossAttention
    renormalised_attention  a mask on the weights                       RenormalisedAttention
    masked_attention        a mask on the scores                        MaskedAttention
    dropout_attention       weights dropped while training              DropoutAttention
    batched_attention       several sequences at once                   BatchedAttention
    concatenated_heads      several attentions side by side             ConcatenatedHeads
    split_heads             several heads in one product                SplitHeads
    tutorial                a tutorial's model as one of these          from_tutorial

Each file uses those above it, and `clearhead.stages` for the arithmetic. Every class is called like
a layer, and its method `stages` gives each step with its numbers. The last one computes what
`clearhead.MultiHeadAttention` computes.
"""

from clearhead.ladder.batched_attention import BatchedAttention
from clearhead.ladder.concatenated_heads import ConcatenatedHeads, merge_heads
from clearhead.ladder.cross_attention import CrossAttention
from clearhead.ladder.dot_product import dot_product
from clearhead.ladder.dropout_attention import DropoutAttention
from clearhead.ladder.linear_layers import SelfAttentionWithLayers
from clearhead.ladder.masked_attention import MaskedAttention
from clearhead.ladder.mixing import context_by_loops
from clearhead.ladder.normalising import naive_softmax, weights_by_sum
from clearhead.ladder.renormalised_attention import RenormalisedAttention, hide, renormalise
from clearhead.ladder.scoring import scores_by_loops, scores_of_query
from clearhead.ladder.self_attention import SelfAttention
from clearhead.ladder.simple_attention import SimpleAttention
from clearhead.ladder.split_heads import SplitHeads, split_heads
from clearhead.ladder.tutorial import from_tutorial
from clearhead.ladder.words import (
    EXAMPLE_EMBEDDINGS,
    EXAMPLE_TOKENS,
    EmbeddedWords,
    embed_words,
)

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
