"""One rank's life: worker, loop, recording, commands, divergence."""
