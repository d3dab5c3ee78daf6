import pytest
import torch

from clearhead.errors import ArgumentError
from clearhead.ladder import EXAMPLE_EMBEDDINGS, EXAMPLE_TOKENS, embed_words
from tests.ladder.refusal import refused


def test_example_has_a_row_per_word() -> None:
    assert EXAMPLE_EMBEDDINGS.shape == (len(EXAMPLE_TOKENS), 3)
    assert EXAMPLE_EMBEDDINGS.dtype == torch.float32


@pytest.mark.parametrize(
    ("width", "seed", "vocabulary_size"), [(3, 123, 50_000), (5, 7, 11), (1, 0, 6)]
)
def test_vectors_are_those_of_an_embedding(width: int, seed: int, vocabulary_size: int) -> None:
    words = embed_words("Life is short, eat dessert first", width, seed, vocabulary_size)
    torch.manual_seed(seed)
    table = torch.nn.Embedding(vocabulary_size, width)
    assert torch.equal(words.embeddings, table(words.ids))


def test_generator_stays_as_it_was() -> None:
    before = torch.get_rng_state()
    embed_words("one step")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_word_has_one_vector() -> None:
    words = embed_words("to be or not to be")
    assert words.words == ("to", "be", "or", "not", "to", "be")
    assert words.ids.tolist() == [3, 0, 2, 1, 3, 0]
    assert torch.equal(words.embeddings[0], words.embeddings[4])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Life is short, eat!", ("Life", "is", "short", "eat")),
        ("The animal didn't", ("The", "animal", "didn't")),
        ("well-known — “facts”…", ("well-known", "facts")),
        ("Größe 猫\n3", ("Größe", "猫", "3")),
    ],
)
def test_punctuation_is_no_word(text: str, words: tuple[str, ...]) -> None:
    assert embed_words(text).words == words


def test_refusals() -> None:
    with refused(ArgumentError, "text.words", "1 to vocabulary_size=50000 different words; got 0"):
        embed_words(" ,.!")
    with refused(ArgumentError, "text.words", "1 to vocabulary_size=2 different words; got 3"):
        embed_words("one two three", vocabulary_size=2)
