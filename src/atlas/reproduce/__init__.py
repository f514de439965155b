"""The paper, row by row: presets."""
