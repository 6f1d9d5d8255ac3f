"""Units, labels and sentences for terminal and page alike."""
