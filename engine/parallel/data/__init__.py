"""Replicated, ZeRO-1 and FSDP data parallelism: buckets, sharding, optimizer."""
