"""The admin HTTP side of a member: health, metrics, documents and orders. Knows no client."""
