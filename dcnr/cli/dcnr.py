"""``dcnr``: networks, data, models and jobs, for maintainers; and a whole network on this machine, for everyone."""

from __future__ import annotations

import typer

from dcnr.cli import data, errors, gateway, generate, infer, job, ledger, local, model, network
from dcnr.cli.homes import VersionOption

app = typer.Typer(
    help="Train a model that a community owns, on machines that its members lend.\n\nSee it work: dcnr demo",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip
app.add_typer(network.app, name="network")
app.add_typer(data.app, name="data")
app.add_typer(model.app, name="model")
app.add_typer(job.app, name="job")
app.add_typer(ledger.app, name="ledger")
app.add_typer(gateway.app, name="gateway")
app.add_typer(local.app, name="local")
infer.add(app)
generate.add(app)
local.add_demo(app)


@app.callback()
def _root(version: VersionOption = False) -> None:
    pass


def main() -> None:
    """The command ``dcnr``."""
    errors.run(app, "dcnr")


if __name__ == "__main__":
    main()
