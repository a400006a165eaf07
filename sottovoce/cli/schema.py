"""`sotto schema`: what the documents of commands and runs look like."""

from typing import Annotated

import typer

from sottovoce.cli.app import app
from sottovoce.cli.options import Json, offering
from sottovoce.cli.output import answer
from sottovoce.schemas import names, schema


@app.command("schema")
def schema_(
    name: Annotated[
        str | None, typer.Argument(help="The name of a command, or of a file of a run.", autocompletion=offering(names))
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON schema of a command's --json output, or of a file of a run. Example: sotto schema account"""
    if name is None:
        answer({"schemas": names()}, as_json, [["", ""], *([one, schema(one)["title"]] for one in names())])
        return
    answer(schema(name), True, [])
