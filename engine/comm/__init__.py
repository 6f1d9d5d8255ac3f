"""What a rank communicates with: groups, channel, point-to-point messages, rank store, ``RankContext``."""
