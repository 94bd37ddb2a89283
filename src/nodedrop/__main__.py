"""`python -m nodedrop` is the command `nodedrop`."""

from .cli import main

if __name__ == "__main__":
    main()
