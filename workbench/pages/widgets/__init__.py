"""Chart, forms and tables that pages share."""
