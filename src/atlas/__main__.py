"""``python -m atlas`` is ``atlas``."""

from atlas.cli import main

if __name__ == "__main__":
    main()
