"""Ten sentences that espeak-ng speaks, as Whisper base hears them here and in transformers.

    python tests/published/spoken.py

prints what both hear, and the processor time of each, in seconds.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import whisper_base

import numformer as nf
from numformer.data import log_mel, read_wav

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Attention is all you need.",
    "She sells sea shells by the sea shore.",
    "In the beginning there was a small garden behind the house.",
    "Please bring me two cups of tea and a slice of bread.",
    "The train to London leaves at half past seven.",
    "My brother plays the violin every Sunday morning.",
    "It was raining so hard that nobody went outside.",
    "Water boils at one hundred degrees.",
    "We will meet again in the middle of September.",
]


HEARD = {
    3: "in the beginning there was a small garden behind the house.",
    7: "It was raining so hard that nobody went outside.",
    9: "We will meet again in the middle of September.",
}
"""What transformers hears, by the number of the sentence."""


def speak(folder: Path) -> list[str]:
    """Let espeak-ng speak each sentence into a file of the folder; return their paths."""
    paths = [str(folder / f"{number}.wav") for number in range(len(SENTENCES))]
    for path, sentence in zip(paths, SENTENCES, strict=True):
        subprocess.run(["espeak-ng", "-v", "en-us", "-w", path, sentence], check=True)
    return paths


def main() -> None:
    import numpy as np
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as temporary:
        folder = whisper_base.write_folder(Path(temporary) / "base")
        paths = speak(Path(temporary))
        listener = nf.load(folder)
        begun = time.process_time()
        ours = listener(paths, language="en")
        seconds = [time.process_time() - begun]
        model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
        begun = time.process_time()
        features = [log_mel(np.pad(s := read_wav(p), (0, 480_000 - len(s)))) for p in paths]
        sounds = torch.tensor(np.stack(features).swapaxes(1, 2), dtype=torch.float32)
        ids = model.generate(sounds, language="en", task="transcribe")
        theirs = [listener.text.vocabulary._tokenizer.decode(row.tolist()).strip() for row in ids]
        seconds.append(time.process_time() - begun)
        for sentence, *heard in zip(SENTENCES, ours, theirs, strict=True):
            same = "same" if heard[0] == heard[1] else f"transformers: {heard[1]}"
            print(f"{sentence} -> {heard[0]} ({same})")
        print("numformer {:.0f} s, transformers {:.0f} s".format(*seconds))


if __name__ == "__main__":
    sys.exit(main())
