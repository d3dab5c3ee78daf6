"""A picture or a sound, whose parts the keys of a page are."""

from collections.abc import Sequence
from typing import Any

from clearhead.drawing.page.photo import Photo, read_photo
from clearhead.drawing.page.runs import Layer
from clearhead.drawing.page.sound import Sound, read_sound
from clearhead.errors import ArgumentError
from clearhead.matrix.matrix import AttentionMatrix
from clearhead.matrix.summary import Summary

Media = Photo | Sound


def read_media(
    layers: Sequence[tuple[str, AttentionMatrix | Summary] | Layer],
    image: Any = None,
    grid: Any = None,
    skip: Any = 0,
    times: Any = None,
    audio: Any = None,
) -> Media | None:
    """A picture, with the grid of its patches, or a sound, with the seconds of its keys; None for neither.

    Args:
        layers: whose keys these are; a number of seconds is that of each key of the first one between two
            texts, or else of the one that has most.
        image, grid, skip: as `read_photo` takes them.
        times, audio: as `read_sound` takes them.

    Raises:
        ArgumentError: codes `page.image`, `page.grid` and `page.sound`.

    Example:
        >>> read_media([("", ch.AttentionMatrix(torch.eye(3), torch.eye(3)))], times=0.5).tokens
        ['0.00s', '0.50s', '1.00s']
    """
    photo = read_photo(image, grid, skip)
    if times is None:
        if audio is not None:
            raise ArgumentError(
                "page.sound", "audio needs the seconds of the keys as well, times=; got none."
            )
        return photo
    if photo is not None:
        raise ArgumentError(
            "page.sound", "the keys are the patches of a picture, image=, or have times=; got both."
        )
    weights = [each[1] for each in layers]
    crossing = [each.kv_len for each in weights if each.cross]
    keys = crossing[0] if crossing else max([each.kv_len for each in weights], default=0)
    return read_sound(times, audio, keys)


def texts_with(media: Media | None, tokens: Any, source_tokens: Any) -> tuple[Any, Any]:
    """The texts of a page, where the parts of a picture or a sound are tokens, or beside other tokens the
    source.

    Example:
        >>> photo = read_photo(torch.rand(2, 2, 3), (1, 2), 0)
        >>> texts_with(photo, None, None), texts_with(photo, ["a"], None)
        ((['0,0', '0,1'], None), (['a'], ['0,0', '0,1']))
    """
    if media is None:
        return tokens, source_tokens
    if tokens is None:
        return media.tokens, source_tokens
    return tokens, media.tokens if source_tokens is None else source_tokens
