"""Where people meet the engine and the tuner: command line, run store, figures, pages, export."""
