"""One run as files and processes: folder, ending, progress, commands, ownership, devices."""
