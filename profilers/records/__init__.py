"""The record format: schema, codec, writer and reader."""
