"""A whole study as one file: packed here, unpacked there."""
