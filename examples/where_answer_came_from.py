"""Find which of ten passages an answer came from: by attention mass, by relevance and by knockout.

    clearhead samples install smollm2
    python examples/where_answer_came_from.py [TOKENS [PICTURE.png]]

Ten passages about invented towns stand in the KV cache of a trained model, which is asked about one of them, and given
the right answer token by token. Three ways to say which passage the answer came from: how much the tokens before each
token of the answer look at a passage, in heads that were found on other texts (mass); gradient × attention through
the layers (relevance); and what hiding a passage from question and answer takes from the answer's log-probability
(knockout).
"""

import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import clearhead as ch
from clearhead.integrations import attention

PASSAGES = 10
HEADS = 8
"""The heads whose mass is taken, found on other texts."""

PREFILL = 512
"""Tokens that are read at once."""

TEXTS, HELD_OUT = range(4, 8), range(100, 102)
"""Seeds: of the texts that are ranked, five questions each, and of shorter ones on which heads are found. The largest
token of a passage was chosen for its relevance on the texts 0 to 3."""

BEGIN = "<|im_start|>user\nRead about some towns, then answer the question.\n\n"
ASK = "\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\n{start}"


def words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


TOWNS = words(
    "Falcon, Juniper, Copper, Lantern, Willow, Saffron, Granite, Meadow, Anchor, Thistle, Cedar, Marble, Heron, "
    "Violet, Pepper, Walnut, Raven, Clover, Silver, Amber, Basil, Canyon, Ginger, Indigo, Jasper, Laurel, Maple, "
    "Onyx, Poppy"
)
FIRST = words(
    "Tessa, Orla, Bram, Ivo, Mirka, Jonas, Petra, Lukas, Greta, Anton, Sonja, Felix, Nora, Oskar, Clara, Hugo, Edda, "
    "Viktor, Alma, Ruben, Ines, Magnus, Paula, Edgar, Lotte, Simon, Frida, Casper, Marta, Linus, Agnes, Tobias, Hanna, "
    "Emil, Vera, Nils, Rosa, Albin, Judith, Leo"
)
LAST = words(
    "Brandt, Keller, Lindqvist, Moreau, Novak, Petrov, Sorensen, Whitlock, Falk, Hartmann, Okafor, Rossi, Vance, "
    "Ziegler, Almeida, Castell, Dupont, Eriksen, Farrow, Grimaldi, Holloway, Ibsen, Janssen, Kowalski, Larkin, "
    "Marchetti, Nyberg, Ostrow, Pruitt, Quist, Renner, Salter, Thorne, Ulrich, Vidal, Wexler, Yarrow, Zeller, "
    "Ashdown, Birch"
)
FACTS = """
Who is the mayor of {town}? | The mayor of {town} is | who took the office after a close vote
Who built the stone bridge of {town}? | The stone bridge of {town} was built by | who needed eleven summers for it
Who leads the school of {town}? | The school of {town} is led by | who also conducts the choir
Whom does the bakery of {town} belong to? | The bakery of {town} belongs to | whose rye bread is sold out by nine
Who founded the museum of {town}? | The museum of {town} was founded by | who had collected clocks at sea
Who drives the night train to {town}? | The night train to {town} is driven by | who has never been late
Who is the best chess player of {town}? | The best chess player of {town} is | who learned it in hospital
Who planted the garden of {town}? | The garden of {town} was planted by | who brought the seeds from abroad
Who wrote the song of {town}? | The song of {town} was written by | who could not read music
Who is the doctor of {town}? | The doctor of {town} is | whose door is never locked
"""
"""A question, how the passage tells it and an answer begins, and what the passage adds."""

OTHERS = """
On a {day} one may meet {name} at the {place}, with a {colour} umbrella.
In {month} the {place} is painted {colour}, mostly by {name}.
A {colour} boat is kept at the {other}, and {name} lends it to children.
For {number} winters the {trade} was watched by {name} and a {colour} dog.
"""
"""People about whom nobody asks."""

FILLER = """
The {colour} houses along the {place} are {number} hundred years old.
In {month} the {place} is closed for a week, and carts go round by the {other}.
A market is held every {day} between the {place} and the {other}.
Most people work in the {trade}, though fewer than there were.
The winters are {weather}, and the {place} has been under snow {number} times.
From the {place} one sees the {other}, and on clear days the sea.
Visitors are told to try the {colour} plums, which ripen in {month}.
A bus leaves for the coast every {day}, and comes back when it is dark.
The {trade} burned down long ago, and was built again behind the {other}.
On the first {day} of {month} children carry {colour} lanterns to the {place}.
The road past the {place} is narrow, {weather} in spring, and loved by cyclists.
Letters are brought at noon, except on a {day}, when they are left at the {other}.
Nobody knows why the door of the {other} is {colour} on one side only.
The river freezes in some years, and then the {place} is reached on foot.
There are {number} inns, of which the one near the {other} is the oldest.
A {weather} wind from the east brings the smell of the {trade} on every {day}.
Swallows nest under the roof of the {place} from {month} on.
The clock of the {other} is {number} minutes slow, and meetings begin by it.
The {colour} tiles of the {place} came by ship, as a gift for help after a flood.
In {weather} years the apples are small, and the {trade} takes them all.
Every {number} years the {other} is emptied, cleaned and filled again.
Stories are told of a {colour} horse that was seen near the {other} in {month}.
The {place} has {number} windows to the south and none to the north.
Fishing is allowed below the {other}, but not on a {day}.
"""
SLOTS = {
    "colour": words("red, yellow, blue, white, grey, green, brown, black"),
    "place": words("harbour, mill, square, orchard, station, town hall, quarry, well"),
    "other": words("lighthouse, castle, pond, cemetery, windmill, forest, ferry, chapel"),
    "month": words("March, April, May, June, July, August, September, October"),
    "day": words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "trade": words("paper mill, brewery, shipyard, tannery, glassworks, sawmill, dairy"),
    "weather": words("mild, wet, long, dry, windy, grey"),
    "number": words("two, three, four, five, six, seven"),
}


@dataclass
class Question:
    """A question about one passage; `prompt` ends where the answer begins."""

    passage: int
    prompt: str
    answer: str


@dataclass
class Text:
    """Passages behind each other, as ids (1, tokens), the span of each, and questions."""

    ids: Tensor
    spans: list[slice]
    questions: list[Question]


def text(tokenizer: Any, *, seed: int, tokens: int) -> Text:
    """Invented passages of up to so many tokens in all, and a question about every other one of them."""
    draw = random.Random(seed)
    first, last = (draw.sample(names, len(names)) for names in (FIRST, LAST))
    people = (" ".join(name) for name in zip(first, last, strict=True))
    ids, spans, questions = encoded(tokenizer, BEGIN), [], []
    facts = draw.sample(FACTS.strip().splitlines(), PASSAGES)
    for place, (town, fact) in enumerate(zip(draw.sample(TOWNS, PASSAGES), facts, strict=True)):
        question, begin, more = (part.strip().format(town=town) for part in fact.split("|"))
        name = next(people)
        told = [f"{begin} {name}, {more}."]
        told += [sentence(draw, OTHERS, name=next(people)) for _ in range(2)]
        passage: list[int] = []
        while len(longer := encoded(tokenizer, as_passage(town, told))) <= tokens / PASSAGES:
            passage = longer
            told.insert(draw.randrange(len(told) + 1), sentence(draw, FILLER))
        spans.append(slice(len(ids), len(ids) + len(passage)))
        ids += passage
        prompt = ASK.format(question=question, start=begin)
        questions.append(Question(place, prompt, f" {name}"))
    return Text(torch.tensor([ids]), spans, questions[seed % 2 :: 2])


def as_passage(town: str, told: list[str]) -> str:
    return f"{town} is a town on a river. {' '.join(told)}\n\n"


def sentence(draw: random.Random, sentences: str, **more: str) -> str:
    slots = {name: draw.choice(every) for name, every in SLOTS.items()}
    return draw.choice(sentences.strip().splitlines()).format(**slots, **more)


def encoded(tokenizer: Any, written: str) -> list[int]:
    return tokenizer(written, add_special_tokens=False)["input_ids"]


class Reader:
    """A model that has read a text: its KV cache holds the passages, once for all questions."""

    def __init__(self, sample: Any, text: Text) -> None:
        self.model, self.tokenizer, self.text = sample.model, sample.tokenizer, text
        self.length = text.ids.shape[1]
        self.cache: Any = None
        with torch.no_grad():
            for some in text.ids.split(PREFILL, dim=1):
                read = self.model(
                    some, past_key_values=self.cache, use_cache=True, logits_to_keep=1
                )
                self.cache = read.past_key_values

    def ids(self, question: Question) -> tuple[Tensor, slice]:
        """The ids of question and answer, and the queries that predict the answer."""
        prompt, answer = (
            encoded(self.tokenizer, each) for each in (question.prompt, question.answer)
        )
        return torch.tensor([prompt + answer]), slice(len(prompt) - 1, -1)

    def log_probabilities(self, question: Question) -> tuple[Tensor, bool]:
        """Of each token of the right answer behind those before it, in nats; and whether the model takes
        every one of them for the likeliest."""
        ids, rows = self.ids(question)
        answer = ids[0, rows.start + 1 :]
        output = self.model(ids, past_key_values=self.cache, logits_to_keep=len(answer) + 1)
        logits = output.logits[0, :-1]
        # The cache is as it was, without the graph that its last tokens hang on.
        self.cache.crop(-ids.shape[1])
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
        found = logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]
        return found, bool((logits.argmax(-1) == answer).all())

    @torch.no_grad()
    def mass(self, question: Question) -> Tensor:
        """The weight on each passage of the queries that predict the answer, (layers, heads, passages)."""
        ids, rows = self.ids(question)
        passage = torch.full((self.length + ids.shape[1],), -1)
        for number, span in enumerate(self.text.spans):
            passage[span] = number

        def keep(path: str, weights: ch.AttentionMatrix) -> Tensor:
            return weights.mass(passage)[0, :, rows].mean(dim=1)

        with ch.watch(self.model, keep=keep) as seen:
            self.log_probabilities(question)
        return torch.stack(list(seen.values()))

    def relevance(self, question: Question) -> Tensor:
        """The relevance of each token of the text for the queries that predict the answer, (tokens,).

        The text was read without gradients: question and answer are followed through all layers, and what
        they take from a token of the text counts for that token, in whichever layer they take it.
        """
        ids, rows = self.ids(question)
        with ch.watch(self.model, keep="gradients") as seen:
            found, _ = self.log_probabilities(question)
        places = list(range(self.length, self.length + ids.shape[1]))[rows]
        return ch.reading.relevance(seen, found.sum(), output=places)[0].mean(dim=0)[: self.length]

    @torch.no_grad()
    def knockout(self, question: Question) -> Tensor:
        """The nats that the answer loses where question and answer do not see a passage, (passages,)."""
        whole = self.log_probabilities(question)[0].sum()
        lost = []
        for span in self.text.spans:
            with ch.edit(self.model) as edit:
                edit["*"].hide(key=span)
                lost.append(whole - self.log_probabilities(question)[0].sum())
        return torch.stack(lost)


def heads_found(sample: Any, *, tokens: int, count: int = HEADS) -> list[tuple[int, int]]:
    """The heads that look at the right passage more than at the others, on texts of their own."""
    more = []
    for seed in HELD_OUT:
        reader = Reader(sample, text(sample.tokenizer, seed=seed, tokens=tokens))
        for question in reader.text.questions:
            mass = reader.mass(question)
            others = (mass.sum(-1) - mass[..., question.passage]) / (PASSAGES - 1)
            more.append(mass[..., question.passage] - others)
    mean = torch.stack(more).mean(dim=0)
    best = mean.flatten().topk(count).indices.tolist()
    return [divmod(place, mean.shape[1]) for place in best]


def scores(reader: Reader, question: Question, heads: list[tuple[int, int]]) -> dict[str, Tensor]:
    """The score of each passage by each method, (passages,)."""
    mass, relevance = reader.mass(question), reader.relevance(question)
    parts = [relevance[span] for span in reader.text.spans]
    return {
        "mass": torch.stack([mass[head] for head in heads]).mean(dim=0),
        "mass of all heads": mass.mean(dim=(0, 1)),
        "relevance": torch.stack([part.max() for part in parts]),
        "relevance, summed": torch.stack([part.sum() for part in parts]),
        "knockout": reader.knockout(question),
    }


def draw(found: dict[str, list[Tensor]], right: list[int], file: str) -> None:
    """Draw the score of each passage for each question, as a share of the row; a frame around the right passage."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, every = pyplot.subplots(
        1, len(found), figsize=(2.5 * len(found), 5.3), sharey=True, layout="constrained"
    )
    for axes, (way, rows) in zip(every, found.items(), strict=True):
        values = torch.stack(rows).clamp(min=0)
        axes.imshow(
            values / values.sum(dim=1, keepdim=True), vmin=0, vmax=1, cmap="cividis", aspect="auto"
        )
        for row, passage in enumerate(right):
            frame = Rectangle((passage - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="white")
            axes.add_patch(frame)
        first = sum(int(each.argmax()) == one for each, one in zip(rows, right, strict=True))
        axes.set_title(f"{way}\n{first} of {len(right)} right", fontsize="medium")
        axes.set_xlabel("passage")
    every[0].set_yticks(range(0, len(right), 5))
    every[0].set_ylabel("question")
    figure.savefig(file, dpi=120)


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    sample = ch.samples.smollm2()
    # Weights get no gradient, which would keep what they were multiplied by.
    sample.model.requires_grad_(False)
    # Keys are not repeated for the query heads that share them.
    attention.register()
    sample.model.set_attn_implementation("clearhead")
    heads = heads_found(sample, tokens=1000)
    print("heads, found on other texts:", *(f"L{layer}H{head}" for layer, head in heads))
    found: dict[str, list[Tensor]] = {}
    right: list[int] = []
    answered = 0
    for seed in TEXTS:
        begun = time.perf_counter()
        reader = Reader(sample, text(sample.tokenizer, seed=seed, tokens=tokens))
        for question in reader.text.questions:
            right.append(question.passage)
            with torch.no_grad():
                answered += reader.log_probabilities(question)[1]
            for way, score in scores(reader, question, heads).items():
                found.setdefault(way, []).append(score)
        print(
            f"text {seed}: {reader.length} tokens, {time.perf_counter() - begun:.0f} s", flush=True
        )
        del reader  # and its cache, before the next text is read
    print(f"the model itself gives {answered} of {len(right)} answers")
    for way, rows in found.items():
        first = sum(int(each.argmax()) == one for each, one in zip(rows, right, strict=True))
        print(f"{way}: the right passage is first for {first} of {len(right)}")
    if len(sys.argv) > 2:
        draw(found, right, sys.argv[2])


if __name__ == "__main__":
    main()
