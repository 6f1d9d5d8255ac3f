"""The pages, without a browser and in one."""
