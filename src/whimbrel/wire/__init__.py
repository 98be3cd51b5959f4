"""Messages to bytes and back: frames, the client protocol, member links."""
