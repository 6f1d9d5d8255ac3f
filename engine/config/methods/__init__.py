"""Methods by the names that configurations use: of compression, and of outer loops."""
