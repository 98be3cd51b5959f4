"""The multimap: keys with several values each."""
