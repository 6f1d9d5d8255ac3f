"""What a machine was measured to reach: tables, their files, and the machine that they hold for. No torch."""
