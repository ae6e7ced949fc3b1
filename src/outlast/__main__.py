"""`python -m outlast` is `outlast`."""

from outlast.cli import main

if __name__ == "__main__":
    main()
