"""Workloads of published systems, and the steps that some of them take themselves."""
