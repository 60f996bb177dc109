"""``dcnr data``: brings data sets into the network's store, lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session

if TYPE_CHECKING:
    from dataservice.dataset_manifest import DatasetManifest
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import data_pb2

app = typer.Typer(help="Data sets in the network's store.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def stage(
    source: Annotated[str, typer.Argument(help="npz or safetensors file with train_x, train_y, ... or an https:// address of an allowed host.")],
    name: Annotated[str, typer.Option(help="Name of the data set, as graphs refer to it.")],
    licence: Annotated[str, typer.Option(help="Licence of the data.")],
    origin: Annotated[str, typer.Option(help="Where the data come from; default: SOURCE.")] = "",
    version: Annotated[int, typer.Option(min=1, help="Version; only grows.")] = 1,
    num_classes: Annotated[int, typer.Option(min=0, help="Values that a target takes; 0: found out.")] = 0,
    as_bytes: Annotated[bool, typer.Option("--as-bytes", help="Keep inputs that are multiples of 1/255 as bytes (a quarter of the space).")] = False,
    sha256: Annotated[str, typer.Option(help="Digest of the file; needed for https://.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the one shuffle at staging.")] = 0,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Shuffle a data set once, cut it into shards and upload it.

    Example: dcnr data stage mnist.npz --name mnist --licence "CC BY-SA 3.0"
    """
    from dcnr.sdk.staging import Source

    wanted = Source(
        uri=source, name=name, licence=licence, origin=origin, version=version, num_classes=num_classes, as_bytes=as_bytes,
        sha256=sha256, seed=seed,
    )  # fmt: skip

    async def work(client: AsyncClient) -> DatasetManifest:
        return await client.stage(wanted, progress=output.Steps())

    manifest = Session(home, network, bootstrap, network_id).run(work)
    data = {
        "name": manifest.name,
        "digest": manifest.digest,
        "splits": dict(manifest.splits),
        "fields": {field: {"dtype": spec.dtype, "shape": list(spec.shape)} for field, spec in manifest.fields.items()},
        "size_bytes": manifest.size_bytes(),
    }

    def text() -> str:
        splits = ", ".join(f"{split} {count}" for split, count in manifest.splits.items())
        return f"staged {manifest.name} ({output.size(manifest.size_bytes())}: {splits})\n  digest {manifest.digest}"

    output.emit(data, text, as_json=as_json)


@app.command("list")
def list_datasets(
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """All staged data sets."""
    from dcnr.sdk.plain import plain

    async def work(client: AsyncClient) -> list[data_pb2.DatasetInfo]:
        return await client.list_datasets()

    datasets = Session(home, network, bootstrap, network_id).run(work)

    def text() -> str:
        rows = [
            (
                info.name, output.short(info.digest), ", ".join(f"{split} {info.splits[split]}" for split in sorted(info.splits)),
                ", ".join(f"{field} {info.fields[field]}" for field in sorted(info.fields)), output.size(info.size_bytes), info.licence,
            )
            for info in datasets
        ]  # fmt: skip
        return output.table(("name", "digest", "splits", "fields", "size", "licence"), rows)

    output.emit([plain(info) for info in datasets], text, as_json=as_json)
