"""One small file per group of commands; heavy packages are imported when a command runs."""
