"""Sounds: the samples of a .wav file, and the log-mel features in which Whisper reads them.

Radford et al. 2023, section 2.2: windows of 25 ms, one every 10 ms, at 16,000 samples a second.
"""

import wave
from pathlib import Path

import numpy as np

from numformer.errors import InputError

RATE, WINDOW, HOP = 16_000, 400, 160
"""Samples in a second, in a window, and from one window to the next."""


def read_wav(path: str | Path) -> np.ndarray:
    """Return the samples (N,) of a .wav file, from -1 to 1, at 16,000 a second.

    Several channels become their mean. Another rate is changed by the Fourier transform, without
    the frequencies that the lower rate lacks. Raises InputError for any other file.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, *_ = file.getparams()
            content = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
        least_first = content.reshape(-1, width)
        whole = np.zeros((len(least_first), 4), np.uint8)
        # Samples of one byte have no sign; of two to four bytes they have one, in the last byte.
        whole[:, 4 - width :] = least_first ^ 0x80 if width == 1 else least_first
        samples = (whole.view("<i4") / 2**31).reshape(-1, channels).mean(axis=-1)
        count = round(len(samples) * RATE / rate)
        if count < WINDOW:
            raise ValueError(f"{len(samples)} samples")
    except (OSError, EOFError, ValueError, wave.Error) as problem:
        raise InputError(
            "a sound is a .wav file without compression, of at least 0.025 seconds",
            f"{path} ({problem})",
            f"Convert it: ffmpeg -i {path} -ac 1 -ar {RATE} -c:a pcm_s16le OTHER.wav",
        ) from None
    if rate == RATE:
        return samples
    return np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples))


def mel_filters(bands: int) -> np.ndarray:
    """Return the weights (WINDOW / 2 + 1, bands) of frequencies from 0 to 8,000 Hz in each band.

    The bands are triangles of area 1 (in Hz), as wide as each other on Slaney's mel scale: it is
    linear, 3 f / 200, up to 1,000 Hz and logarithmic, 15 + 27 ln(f / 1000) / ln(6.4), above
    (Slaney 1998, Auditory Toolbox).
    """
    highest = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    mel = np.linspace(0, highest, bands + 2)
    hertz = np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))
    low, middle, high = hertz[:-2], hertz[1:-1], hertz[2:]
    frequency = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    sides = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return np.maximum(0, np.minimum(*sides)) * 2 / (high - low)


def log_mel(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """samples (N,) -> features (ceil(N / HOP), bands): the power in each mel band.

    The power spectra of Hann windows become L = log10(power in a band), at least 1e-10 and at least
    the maximum - 8; the features are (L + 4) / 4, as in Whisper's code (Radford et al. 2023).
    """
    around = np.pad(samples, WINDOW // 2, mode="reflect")  # window t is centred at sample HOP t
    cut = np.lib.stride_tricks.sliding_window_view(around, WINDOW)[: len(samples) : HOP]
    hann = np.hanning(WINDOW + 1)[:-1]
    power = np.abs(np.fft.rfft(cut * hann)) ** 2
    levels = np.log10(np.maximum(power @ mel_filters(bands), 1e-10))
    return (np.maximum(levels, levels.max() - 8) + 4) / 4
