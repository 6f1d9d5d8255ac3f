"""Hosts in network namespaces with shaped links."""
