"""One file for each topic: the numbers, then the Plotly figure."""
