"""Values to bytes and back: Data, Compact records, uuids. The core holds such bytes."""
