"""`python -m sottovoce` is `sotto`."""

from sottovoce.cli import main

main()
