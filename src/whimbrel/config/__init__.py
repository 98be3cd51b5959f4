"""Configuration: one table of keys, three sources, every problem told at once."""

from __future__ import annotations

from whimbrel.config.explain import describe, explain
from whimbrel.config.keys import KEYS, STRUCTURE_KEYS, Key
from whimbrel.config.loader import Flag, load, split_setting
from whimbrel.config.settings import Config, Entry, RuntimeSettings
from whimbrel.config.values import parse_address

__all__ = [
    "KEYS",
    "STRUCTURE_KEYS",
    "Config",
    "Entry",
    "Flag",
    "Key",
    "RuntimeSettings",
    "describe",
    "explain",
    "load",
    "parse_address",
    "split_setting",
]
