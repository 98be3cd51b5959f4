"""Bytes to meaning and back: member links, the client protocol, serialised values."""
