from dcnr.graph import Graph as Graph
from dcnr.sdk.asking import Answer as Answer
from dcnr.sdk.asking import Ask as Ask
from dcnr.sdk.blocking import Client as Client
from dcnr.sdk.blocking import connect as connect
from dcnr.sdk.client import AsyncClient as AsyncClient
from dcnr.sdk.client import connect_async as connect_async
from dcnr.sdk.signing import Draft as Draft
from dcnr.sdk.staging import Source as Source
from dcnr.sdk.submission import JobOptions as JobOptions
from dcnr.sdk.weights import read_weights as read_weights
from dcnr.sdk.writing import Write as Write
from dcnr.specs import TensorSpec as TensorSpec
from dcnr.texts import Part as Part
from vnode.importing.model import Chosen as Chosen
from vnode.importing.model import Imported as Imported
from vnode.importing.model import from_torch as from_torch

__all__: list[str]
__version__: str
