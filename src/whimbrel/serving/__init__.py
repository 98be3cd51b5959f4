"""The serving layer: client sessions and member frames on top of the core, without any I/O."""
