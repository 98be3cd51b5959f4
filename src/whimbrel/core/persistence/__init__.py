"""What a member keeps on its disk, decided on bytes and numbers; no file is touched here."""
