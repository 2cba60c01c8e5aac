"""The command line: parse, call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from confide import __version__
from confide.app.cli import audits, datasets, ledgers, prices, rehearsals, reproductions, runs, schemas
from confide.validation import Refused

app = typer.Typer(
    name="confide",
    help="Bayesian learning on sensitive data: fit a model within a privacy budget, publish the posterior, and keep a "
    "ledger of what was spent.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(schemas.schema_app, name="schema")
for command in (
    runs.fit,
    runs.resume,
    runs.predict,
    runs.report,
    audits.audit,
    runs.verify,
    runs.demo,
    datasets.data,
    prices.plan,
    prices.account,
    rehearsals.rehearse,
    reproductions.reproduce,
):
    app.command()(command)
app.add_typer(ledgers.ledger_app, name="ledger")


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"confide {__version__}")
        raise typer.Exit


# typer carries its own copy of click in some versions, so the class is found where both have it.
_ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> NoReturn:
    """Run the program; a refusal is one line on standard error and exit code 2, a refuted claim has exit code 3."""
    warnings.showwarning = _warn
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except Refused as refusal:
        code = _refuse(str(refusal))
    except _ClickException as error:
        code = 2 if type(error).__name__ == "NoArgsIsHelpError" else _refuse(_explain(error))
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Any) -> str:
    """A parser's complaint, with the value that was given, which the parser leaves out."""
    option = getattr(getattr(error, "param", None), "opts", [""])[0]
    arguments = [part for argument in sys.argv for part in argument.split("=", 1)]
    value = dict(itertools.pairwise(arguments)).get(option)
    given = f" (given: {value!r})" if value is not None else ""
    command = getattr(getattr(error, "ctx", None), "command_path", "confide")
    return f"{error.format_message().rstrip('.')}{given}: see '{command} --help'"


def _warn(message: Warning | str, *place: Any) -> None:
    print(f"confide: {' '.join(str(message).split())}", file=sys.stderr)


def _refuse(message: str) -> int:
    print(f"confide: {' '.join(message.split())}", file=sys.stderr)
    return 2
