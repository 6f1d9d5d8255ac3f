"""What a home folder holds: runs, index, inputs, commands, maintenance."""
