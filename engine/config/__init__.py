"""What a person asks for: sections, presets, layout, environment catalogue, errors. Pure."""
