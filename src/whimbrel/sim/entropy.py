"""Where every random choice of a run comes from: one generator per concern, named.

A concern has a generator of its own, so that drawing one number more for the network does not
change what the workload does. The name and the seed alone decide
the numbers; the hash seed of the interpreter has no part in it.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Entropy:
    """Named generators derived from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, random.Random] = {}

    def of(self, concern: str) -> random.Random:
        """The generator of a concern, always the same object."""
        generator = self._generators.get(concern)
        if generator is None:
            digest = hashlib.blake2b(f"{self.seed}/{concern}".encode(), digest_size=16).digest()
            generator = random.Random(int.from_bytes(digest, "big"))
            self._generators[concern] = generator
        return generator

    def uuid(self) -> str:
        """A fresh identity in the 36-character form."""
        digits = f"{self.of('identity').getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def unseed(self) -> int:
        """A number that tells whether two runs drew the same numbers (32 bits, X3).

        Draws from every generator, so it is for the end of a run only.
        """
        total = hashlib.blake2b(digest_size=4)
        for name in sorted(self._generators):
            total.update(f"{name}:{self._generators[name].getrandbits(32)}".encode())
        return int.from_bytes(total.digest(), "big")


def log_uniform(generator: random.Random, low: int, high: int) -> int:
    """A whole number between ``low`` (at least 1) and ``high``, each magnitude equally likely."""
    return round(math.exp(generator.uniform(math.log(low), math.log(high))))


def coin(generator: random.Random, probability: float) -> bool:
    """True with the given probability; draws one number in any case."""
    return generator.random() < probability


def pick(generator: random.Random, choices: Sequence[T]) -> T:
    """One of the choices."""
    return choices[generator.randrange(len(choices))]
