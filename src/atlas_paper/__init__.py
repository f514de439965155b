"""The paper: its settings as presets, its tables and figures as artefacts, and the demo."""
