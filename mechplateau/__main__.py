"""`python -m mechplateau` is the `mechplateau` command."""

from mechplateau.cli import main

if __name__ == "__main__":
    main()
