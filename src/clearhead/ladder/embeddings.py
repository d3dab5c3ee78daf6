"""Embeddings: a sentence as one row of numbers per word.

New here: a token is a vector, its embedding (Bengio et al., 2003,
https://www.jmlr.org/papers/v3/bengio03a.html). Attention never sees the word.
"""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.errors import ArgumentError

EXAMPLE_TOKENS = ("Your", "journey", "starts", "with", "one", "step")
"""The words of the example sentence."""

EXAMPLE_EMBEDDINGS = torch.tensor(
    [
        [0.43, 0.15, 0.89],  # Your
        [0.55, 0.87, 0.66],  # journey
        [0.57, 0.85, 0.64],  # starts
        [0.22, 0.58, 0.33],  # with
        [0.77, 0.25, 0.10],  # one
        [0.05, 0.80, 0.55],  # step
    ]
)
"""The example sentence as numbers: (tokens=6, embed_dim=3), float32."""


class EmbeddedWords(NamedTuple):
    """A sentence cut into words, and the words as vectors.

    Attributes:
        words: in the order of the sentence.
        vocabulary: the id of each different word.
        ids: the id of each word, in the order of the sentence; int64.
        embeddings: the vector of each word, in the order of the sentence: (tokens, width), float32.

    Example:
        >>> embed_words("to be or not to be").vocabulary
        {'be': 0, 'not': 1, 'or': 2, 'to': 3}
    """

    words: tuple[str, ...]
    vocabulary: dict[str, int]
    ids: Tensor
    embeddings: Tensor


def embed_words(
    text: str, width: int = 3, seed: int = 123, vocabulary_size: int = 50_000
) -> EmbeddedWords:
    """Return a random vector for each word of a text, the same one at each occurrence of the word.

    The vocabulary is the different words of the text, sorted; punctuation is left out. The vectors
    are the first rows of `torch.nn.Embedding(vocabulary_size, width)` made after
    `torch.manual_seed(seed)`, so that a tutorial's numbers come out; PyTorch's own generator stays
    as it was.

    Args:
        text: at least one word.
        width: numbers per word.
        seed: of the random numbers.
        vocabulary_size: rows of the table of vectors: at least the number of different words.

    Raises:
        ArgumentError: code `text.words`, if the text has no words, or more different ones than the
            vocabulary has rows.

    Example:
        >>> embed_words("Life is short, eat dessert first").embeddings[0]
        tensor([ 0.3374, -0.1778, -0.3035])
    """
    words = tuple(re.findall(r"\w+(?:['’-]\w+)*", text))
    vocabulary = {word: id for id, word in enumerate(sorted(set(words)))}
    if not 1 <= len(vocabulary) <= vocabulary_size:
        raise ArgumentError(
            "text.words",
            f"text must have 1 to vocabulary_size={vocabulary_size} different words; "
            f"got {len(vocabulary)}.",
        )
    ids = torch.tensor([vocabulary[word] for word in words])
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(vocabulary_size, width, generator=generator)
    return EmbeddedWords(words, vocabulary, ids, table[ids])
