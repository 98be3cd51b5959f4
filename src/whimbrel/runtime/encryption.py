"""The keys of a real member: read once, when it starts."""

from __future__ import annotations

from whimbrel.config import Config
from whimbrel.core.persistence.encryption import PLAIN, Encryption
from whimbrel.runtime.entropy import salt_entropy
from whimbrel.storage.keys import keys_from_command, keys_from_file


def open_encryption(config: Config) -> Encryption:
    """What files are encrypted with. Blocks for as long as the command for the keys takes.

    Raises:
        ConfigError: There are no keys where the configuration says that they are.
    """
    settings = config.runtime
    if not config.core.persistence.enabled:
        return PLAIN
    if settings.key_file:
        keys = keys_from_file(settings.key_file)
    elif settings.key_command:
        keys = keys_from_command(settings.key_command, settings.key_timeout_us / 1_000_000)
    else:
        return PLAIN
    return Encryption(keys, salt_entropy(), plain=settings.plain_files)
