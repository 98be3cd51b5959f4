"""Small faults planted on purpose: where they can be, and whether a test notices them."""
