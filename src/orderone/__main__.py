"""``python -m orderone``, and so ``torchrun -m orderone``."""

from orderone.cli import main

if __name__ == "__main__":
    main()
