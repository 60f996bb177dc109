"""``dcnr data``: brings data sets into the network's store, lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput

if TYPE_CHECKING:
    from dataservice.dataset_manifest import DatasetManifest
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import data_pb2

app = typer.Typer(help="Data sets in the network's store.", no_args_is_help=True, rich_markup_mode=None)

_NAMED: Final = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]*)=(?P<uri>.+)", re.DOTALL)

SourceArgument = Annotated[
    list[str],
    typer.Argument(
        help="npz or safetensors file with train_x, train_y, ...; an IDX file for each of them (train_x=FILE train_y=FILE); or texts (FILE, or train=FILE "
        "test=FILE). FILE is a path, https:// of a host that the network document allows, or s3://BUCKET/KEY of the network's store."
    ),
]
DigestOption = Annotated[
    list[str] | None, typer.Option(help="Digest of the file, of several files in their order; needed for https:// and s3://.")
]
FORMATS: Final = ("npz", "safetensors", "idx", "bytes")
FormOption = Annotated[
    str, typer.Option("--format", help=f"{', '.join(FORMATS)}; default: as the name ends.", autocompletion=among(*FORMATS))
]
ShareOption = Annotated[
    list[str] | None, typer.Option(help="Split to cut off from train, with its share of it, as validation=0.1. May be repeated.")
]
StoreFileOption = Annotated[Path | None, typer.Option(help="The store's credentials, 0600; needed for s3://.", show_default=False)]


@app.command()
def stage(
    source: SourceArgument,
    name: Annotated[str, typer.Option(help="Name of the data set, as graphs refer to it.")],
    licence: Annotated[str, typer.Option(help="Licence of the data.")],
    origin: Annotated[str, typer.Option(help="Where the data come from; default: SOURCE.")] = "",
    version: Annotated[int, typer.Option(min=1, help="Version; only grows.")] = 1,
    num_classes: Annotated[int, typer.Option(min=0, help="Values that a target takes; 0: found out.")] = 0,
    as_bytes: Annotated[bool, typer.Option("--as-bytes", help="Keep inputs that are multiples of 1/255 as bytes; take bytes for such.")] = False,
    sha256: DigestOption = None, form: FormOption = "", share: ShareOption = None, store_file: StoreFileOption = None,
    window: Annotated[int, typer.Option(min=0, help="Bytes of a text in one sample.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of the one shuffle at staging.")] = 0,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Shuffle a data set once, cut it into shards and upload it.

    Texts: --window 128 --share validation=0.1 --share test=0.1. MNIST as it was published: train_x=train-images-idx3-ubyte.gz
    train_y=train-labels-idx1-ubyte.gz, test_x and test_y likewise, with --as-bytes.
    Example: dcnr data stage mnist.npz --name mnist --licence "CC BY-SA 3.0"
    """
    from dcnr.sdk.staging import Source

    session = Session(home, network, bootstrap, network_id)
    uris, digests = _named(source, sha256 or [])
    wanted = Source(
        uri=uris, name=name, licence=licence, origin=origin, version=version, num_classes=num_classes, as_bytes=as_bytes, sha256=digests,
        seed=seed, form=form, window=window, shares=_shares(share or []), store_file=store_file or session.store_file,
    )  # fmt: skip

    async def work(client: AsyncClient) -> DatasetManifest:
        return await client.stage(wanted, progress=output.Steps())

    manifest = session.run(work)
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


def _named(sources: list[str], digests: list[str]) -> tuple[str | dict[str, str], str | dict[str, str]]:
    """Sources and their digests, by name where they have names. Raises InvalidInput."""
    if digests and len(digests) != len(sources):
        raise InvalidInput(
            f"{len(digests)} digests for {len(sources)} files",
            code="bad_source",
            remedy="give one --sha256 for each SOURCE, in their order",
        )
    if len(sources) == 1 and not _NAMED.fullmatch(sources[0]):
        return sources[0], digests[0] if digests else ""
    uris: dict[str, str] = {}
    for text in sources:
        found = _NAMED.fullmatch(text)
        if found is None or found["name"] in uris:
            raise InvalidInput(
                f"{text!r:.80} has no name of its own among several files", code="bad_source",
                remedy="write train_x=FILE train_y=FILE, of texts train=FILE test=FILE",
            )  # fmt: skip
        uris[found["name"]] = found["uri"]
    return uris, dict(zip(uris, digests, strict=False))


def _shares(texts: list[str]) -> dict[str, float]:
    """By split. Raises InvalidInput."""
    shares: dict[str, float] = {}
    for text in texts:
        split, _, share = text.partition("=")
        if split in shares:
            raise InvalidInput(f"split {split!r:.80} has two shares", code="bad_shares", remedy="give one --share for each split")
        try:
            shares[split] = float(share)
        except ValueError:
            raise InvalidInput(f"{text!r:.80} is not SPLIT=SHARE", code="bad_shares", remedy="write validation=0.1") from None
    return shares
