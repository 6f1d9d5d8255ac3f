"""The pages: thin, they read files and start the command line. No torch and no optuna is loaded here."""
