"""The whole cluster comes back from its files: who is waited for, and whose files count."""
