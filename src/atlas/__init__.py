"""ATLAS: adversarial training via local stability, and the evaluation to go with it."""

__version__ = "0.1.0"
