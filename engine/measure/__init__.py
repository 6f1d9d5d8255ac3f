"""Measuring this machine on real ranks: arithmetic, memory, copies and collectives, timed over sizes."""
