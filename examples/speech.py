"""Speech at 16 kHz: of the synthesiser espeak-ng, which says itself when each word began, or of a WAV file."""

import ctypes.util
import wave
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

RATE = 16_000


class Speech(NamedTuple):
    """Sound, and of a synthesiser its text, and by the place of a word in it the second when the word began."""

    sound: Tensor
    text: str
    starts: dict[int, float]


class Event(ctypes.Structure):
    """An event of espeak-ng's speak_lib.h."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("message", ctypes.c_uint),
        ("place", ctypes.c_int),
        ("length", ctypes.c_int),
        ("milliseconds", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
    ]


RECEIVE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event)
)


@cache
def synthesiser() -> tuple[ctypes.CDLL, int]:
    """espeak-ng and its rate; it is begun once, since it does not end well."""
    found = ctypes.util.find_library("espeak-ng")
    if found is None:
        raise OSError("espeak-ng is not installed: apt-get install espeak-ng")
    library = ctypes.CDLL(found)
    return library, library.espeak_Initialize(2, 0, None, 0)


def speak(text: str, voice: str = "en-us") -> Speech:
    """Let espeak-ng say an ASCII text, with its own events of words."""
    library, rate = synthesiser()
    sound: list[int] = []
    starts: dict[int, float] = {}

    @RECEIVE
    def receive(samples: Any, count: int, events: Any) -> int:
        sound.extend(samples[:count] if samples else [])
        number = 0
        while events[number].kind:
            if events[number].kind == 1:
                starts[events[number].place - 1] = events[number].milliseconds / 1000
            number += 1
        return 0

    library.espeak_SetSynthCallback(receive)
    library.espeak_SetVoiceByName(voice.encode())
    said = text.encode("ascii")
    library.espeak_Synth(said, len(said) + 1, 0, 1, 0, 1, None, None)
    return Speech(resampled(torch.tensor(sound), rate), text, starts)


def read(file: str) -> Speech:
    """A WAV file of 16 bits, its first channel."""
    with wave.open(file) as opened:
        data = bytearray(opened.readframes(opened.getnframes()))
        sound = torch.frombuffer(data, dtype=torch.int16)[:: opened.getnchannels()]
        return Speech(resampled(sound, opened.getframerate()), "", {})


def resampled(sound: Tensor, rate: int) -> Tensor:
    """At 16 kHz, in -1 to 1."""
    count = len(sound) * RATE // rate
    spectrum = torch.fft.rfft(sound.double() / 2**15)[: count // 2 + 1]
    return (torch.fft.irfft(spectrum, n=count) * count / len(sound)).float()
