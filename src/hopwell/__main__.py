"""``python -m hopwell``."""

from hopwell.cli import main

if __name__ == "__main__":
    main()
