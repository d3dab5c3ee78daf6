"""Training scripts: for each law three that break it, and three that keep all laws.

A script is what `check_training` is called with; it is made anew, by the same seed, each time it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.testing.training.models import PAD, VOCABULARY, Decoder, Encoder, EncoderDecoder

BATCH, TOKENS, SOURCE, END = 4, 12, 10, VOCABULARY - 1
Made = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A script, the law that it is about, and the code of what is wrong; "" for a right one."""

    law: str
    name: str
    make: Callable[[], Made]
    code: str = ""


def texts(tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, tokens))


def lengths(tokens: int, batch: int = BATCH) -> Tensor:
    """Real tokens: the first are whole, and each row is three shorter than the one before."""
    return torch.arange(tokens) < (tokens - 3 * (torch.arange(batch) % 3))[:, None]


def adam(model: nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate)


# The three scripts, each right.


def next_token(model: nn.Module, ids: Tensor, shift: int = 1) -> Tensor:
    logits = model(ids)
    kept = logits[:, : ids.shape[1] - shift] if shift else logits
    return F.cross_entropy(kept.flatten(0, 1), ids[:, shift:].flatten())


def script(
    model: nn.Module,
    loss: Callable[..., Tensor],
    rate: float,
    switches: Made,
    batch: Any,
    **declared: Any,
) -> Made:
    for name, value in switches.items():
        assert hasattr(model, name)
        setattr(model, name, value)
    made = {"model": model, "loss": loss, "optimizer": adam(model, rate), "batch": batch}
    return made | declared


def decoder(
    loss: Callable[..., Tensor] = next_token,
    dropout: float = 0.0,
    tied: bool = True,
    rate: float = 1e-2,
    **switches: Any,
) -> Made:
    torch.manual_seed(0)
    return script(Decoder(dropout, tied), loss, rate, switches, texts())


def classes(model: nn.Module, batch: Made) -> Tensor:
    return F.cross_entropy(model(batch["ids"], batch["mask"]), batch["labels"])


def encoder(
    loss: Callable[..., Tensor] = classes,
    dropout: float = 0.0,
    model: nn.Module | None = None,
    **switches: Any,
) -> Made:
    torch.manual_seed(0)
    model, mask = model or Encoder(dropout=dropout), lengths(TOKENS)
    batch = {"ids": texts() * mask, "mask": mask, "labels": torch.arange(BATCH) % 4}
    return script(model, loss, 1e-2, switches, batch, causal=False, padding="mask")


def masked(model: nn.Module, batch: Made) -> Tensor:
    logits = model(batch["ids"], batch["mask"])
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def masked_model(
    loss: Callable[..., Tensor] = masked, dropout: float = 0.0, kind: Any = Encoder
) -> Made:
    """A masked language model; id 1 stands for what is hidden."""
    made = encoder(loss, model=kind(None, dropout))
    ids, mask = made["batch"]["ids"], made["batch"]["mask"]
    hidden = mask & (torch.arange(TOKENS) % 3 == 1)
    made["batch"] |= {"ids": ids.masked_fill(hidden, 1), "labels": ids.where(hidden, -100)}
    return made


def translation(model: nn.Module, batch: Made) -> Tensor:
    target = batch["target"]
    logits = model(batch["source"], batch["mask"], target[:, :-1])
    return F.cross_entropy(logits.mT, target[:, 1:], ignore_index=PAD)


def translator(dropout: float = 0.0, rate: float = 1e-2, **switches: Any) -> Made:
    torch.manual_seed(0)
    model, mask = EncoderDecoder(dropout), lengths(SOURCE)
    batch = {"source": texts(SOURCE) * mask, "mask": mask, "target": texts()}
    return script(model, translation, rate, switches, batch, ids="target", padding="mask")


# 1: the next token, and nothing after it.


def packed(apart: bool = True) -> Made:
    made = decoder(lambda model, batch: in_documents(model, batch, apart))
    made["batch"] = {
        "ids": made["batch"],
        "documents": (torch.arange(TOKENS) >= 5).repeat(BATCH, 1).long(),
    }
    return made | {"documents": "documents"}


def in_documents(model: nn.Module, batch: Made, apart: bool) -> Tensor:
    logits = model(batch["ids"], documents=batch["documents"] if apart else None)
    return F.cross_entropy(logits[:, :-1].mT, batch["ids"][:, 1:])


def ended(apart: bool = True) -> Made:
    """Documents that end with an id of their own."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ends = (ids == END).long()
        logits = model(ids, documents=ends.cumsum(-1) - ends if apart else None)
        return F.cross_entropy(logits[:, :-1].mT, ids[:, 1:])

    made = decoder(loss)
    ids = made["batch"].clamp_max(END - 1)
    ids[:, 5] = END
    return made | {"batch": ids, "documents": END}


def pairs(shift: int = 1) -> Made:
    """Inputs and labels as a loader cuts them."""
    made = decoder(lambda model, batch: F.cross_entropy(model(batch["ids"]).mT, batch["labels"]))
    text = texts(TOKENS + 2)
    made["batch"] = {"ids": text[:, :TOKENS], "labels": text[:, shift : TOKENS + shift]}
    return made


def labelled_in_the_model() -> Made:
    """A masked language model that is handed the labels."""

    class Handed(Encoder):
        def forward(self, ids: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
            assert labels is not None
            return super().forward(ids.where(labels < 0, labels), mask)

    def loss(model: nn.Module, batch: Made) -> Tensor:
        logits = model(batch["ids"], batch["mask"], batch["labels"])
        return F.cross_entropy(logits.mT, batch["labels"])

    return masked_model(loss, kind=Handed)


# 2: padding.


def padded_text(loss: Callable[..., Tensor], **more: Any) -> Made:
    made = decoder(loss)
    return made | {"batch": made["batch"] * lengths(TOKENS), "padding": PAD, **more}


def ignoring(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], ignore_index=PAD)


def ignoring_all_but_the_last(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:], ignore_index=PAD)


def by_sequence(model: nn.Module, ids: Tensor) -> Tensor:
    losses = F.cross_entropy(model(ids)[:, :-1].mT, ids[:, 1:], ignore_index=PAD, reduction="none")
    real = ids[:, 1:] != PAD
    return (losses.sum(1) / real.sum(1)).mean()


def mean_of_means(model: nn.Module, batches: list[Tensor]) -> None:
    for each in batches:
        (ignoring(model, each) / len(batches)).backward()


def over_all_tokens(model: nn.Module, batches: list[Tensor]) -> None:
    total = sum(int((each[:, 1:] != PAD).sum()) for each in batches)
    for each in batches:
        logits = model(each)[:, :-1].mT
        losses = F.cross_entropy(logits, each[:, 1:], ignore_index=PAD, reduction="sum")
        (losses / total).backward()


# 3: parameters.


def without_the_head() -> Made:
    made = encoder()
    body = [each for name, each in made["model"].named_parameters() if "head" not in name]
    return made | {"optimizer": torch.optim.Adam(body, lr=1e-2)}


def renormed() -> Made:
    """A frozen embedding that writes to itself whenever it is called, since it has a `max_norm`."""
    made = translator()
    made["model"].places.max_norm = 0.1
    return frozen_positions(made)


def frozen_positions(made: Made) -> Made:
    made["model"].places.weight.requires_grad_(False)
    wanting = [each for each in made["model"].parameters() if each.requires_grad]
    return made | {"optimizer": torch.optim.AdamW(wanting, lr=1e-2)}


# 4: dropout.


def seeded(loss: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    torch.manual_seed(3)
    return loss(model, batch)


def always_training(loss: Callable[..., Tensor], model: nn.Module, batch: Any) -> Tensor:
    model.train()
    return loss(model, batch)


def drawing_its_masks(model: nn.Module, batch: Made) -> Tensor:
    """Tokens are hidden as they come, by the generator of the process."""
    hidden = (torch.rand(batch["ids"].shape) < 0.3) & batch["mask"]
    hidden[:, 1] = True
    logits = model(batch["ids"].masked_fill(hidden, 1), batch["mask"])
    return F.cross_entropy(logits.mT, batch["ids"].where(hidden, -100))


def unmasked_text(dropout: float) -> Made:
    made = masked_model(drawing_its_masks, dropout)
    made["batch"] = {"ids": texts() * lengths(TOKENS), "mask": lengths(TOKENS)}
    return made


# 5: going on from a save.


def saving(*lost: str) -> Made:
    """A save of its own that leaves something out."""

    def save(model: nn.Module, optimizer: torch.optim.Optimizer, **state: Any) -> Made:
        whole = {"model": model, "optimizer": optimizer, **state}
        saved = {name: each.state_dict() for name, each in whole.items() if name not in lost}
        return saved | ({} if "drawn" in lost else {"drawn": torch.get_rng_state()})

    def load(saved: Made, model: nn.Module, optimizer: torch.optim.Optimizer, **state: Any) -> None:
        whole = {"model": model, "optimizer": optimizer, **state}
        for name in saved.keys() & whole.keys():
            whole[name].load_state_dict(saved[name])
        if "drawn" in saved:
            torch.set_rng_state(saved["drawn"])

    return {"save": save, "load": load}


def warmed(made: Made) -> Made:
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        made["optimizer"], lambda step: min(1.0, (step + 1) / 4)
    )
    return made | {"state": {"scheduler": scheduler}}


def own_generator(named: bool) -> Made:
    """Noise on the labels, drawn by a generator of its own."""
    drawn = torch.Generator().manual_seed(5)

    def loss(model: nn.Module, batch: Made) -> Tensor:
        logits = model(batch["ids"], batch["mask"])
        noise = torch.rand(logits.shape, generator=drawn) * 0.01
        return F.cross_entropy(logits + noise, batch["labels"])

    made = encoder(loss)
    return made | ({"state": {"drawn": drawn}} if named else {})


def wrong(law: str, code: str, name: str, make: Any, *args: Any, **kw: Any) -> Entry:
    return Entry(law, name, partial(make, *args, **kw), code)


def right(law: str, name: str, make: Any, *args: Any, **kw: Any) -> Entry:
    return Entry(law, name, partial(make, *args, **kw))


ENTRIES = (
    wrong("predicting", "train.leak", "adds the next token's embedding", decoder, peeks=True),
    wrong("predicting", "train.leak", "no causal mask", translator, uncausal=True),
    wrong("predicting", "train.leak", "hands its labels to the model", labelled_in_the_model),
    wrong("predicting", "train.target", "not shifted", decoder, partial(next_token, shift=0)),
    wrong("predicting", "train.target", "shifted twice", pairs, shift=2),
    wrong("predicting", "train.documents", "documents see each other", packed, apart=False),
    wrong("predicting", "train.documents", "ended documents see each other", ended, apart=False),
    right("predicting", "ended documents", ended),
    right("predicting", "pairs of inputs and labels", pairs),
    right("predicting", "packed documents", packed),
    right("predicting", "a masked language model", masked_model),
    right("predicting", "a small rate", decoder, rate=1e-4),
    right("predicting", "classes", encoder),
    right("predicting", "an encoder and a decoder", translator),
    wrong("padding", "train.padding", "padding is a target", padded_text, next_token),
    wrong("padding", "train.padding", "padding is attended", encoder, hides=False),
    wrong("padding", "train.padding", "padding of the source is attended", translator, hides=False),
    wrong("padding", "train.weights", "a mean of each sequence", padded_text, by_sequence),
    wrong(
        "padding", "train.accumulation", "a mean of means",
        padded_text, ignoring, accumulate=mean_of_means,
    ),
    right("padding", "over all tokens", padded_text, ignoring, accumulate=over_all_tokens),
    right("padding", "without the last token", padded_text, ignoring_all_but_the_last),
    right("padding", "an encoder", encoder),
    right("padding", "a padded source", translator),
    wrong("parameters", "train.optimizer", "the head is not in the optimizer", without_the_head),
    wrong("parameters", "train.frozen", "a frozen embedding with max_norm", renormed),
    wrong("parameters", "train.gradient", "detached before the head", decoder, tied=False, detached=True),
    wrong("parameters", "train.moved", "a learning rate of 0", translator, rate=0.0),
    right("parameters", "tied", decoder),
    right("parameters", "frozen positions", lambda: frozen_positions(encoder())),
    right("parameters", "frozen positions of both", lambda: frozen_positions(translator())),
    wrong("dropout", "train.dropout", "a seed in the loss", decoder, partial(seeded, next_token), 0.1),
    wrong("dropout", "train.eval", "never in eval", encoder, partial(always_training, classes), 0.1),
    right("dropout", "checkpointing", decoder, dropout=0.1, recomputes=True),
    right("dropout", "masks drawn in the loss", unmasked_text, 0.1),
    right("dropout", "an encoder and a decoder", translator, dropout=0.1, recomputes=True),
    wrong("resuming", "train.resume", "no optimizer", lambda: decoder() | saving("optimizer")),
    wrong("resuming", "train.resume", "no schedule", lambda: warmed(translator()) | saving("scheduler")),
    wrong("resuming", "train.resume", "a generator that nobody named", own_generator, named=False),
    wrong("resuming", "train.resume", "no random numbers", lambda: decoder(dropout=0.1) | saving("drawn")),
    right("resuming", "all is saved", lambda: warmed(decoder(dropout=0.1)) | saving()),
    right("resuming", "a generator", own_generator, named=True),
    right("resuming", "a schedule", lambda: warmed(translator(dropout=0.1))),
)  # fmt: skip
