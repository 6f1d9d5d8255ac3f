"""Parts of placement: links between devices, what messages cost over them, orders of devices, layers of stages."""
