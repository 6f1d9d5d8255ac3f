"""What lives longer than a command: jobs, page server, controllers, demo, doctor."""
