"""A member's files: the commands of the core carried out on a file system, beside the loop."""
