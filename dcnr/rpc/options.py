"""Channel and server options: an explicit message bound in both directions, nothing packed, and dead peers noticed within `DEAD_PEER_S`."""

from __future__ import annotations

from typing import Final

from dcnr.limits import CONNECT_TIMEOUT_S, MAX_MESSAGE_BYTES
from dcnr.open_files import room_for

KEEPALIVE_S: Final = 4.0
DEAD_PEER_S: Final = 2 * KEEPALIVE_S
MAX_METADATA_BYTES: Final = 16 * 1024
MAX_STREAMS_PER_CONNECTION: Final = 256
VERBOSITY: Final = "GRPC_VERBOSITY"
QUIET: Final = "NONE"
"""In the environment of a process before it loads gRPC: of each ClientHello with another server name than ours its core would write that name, as it came,
to standard error. Strangers choose names, and how many; they may hold what a terminal obeys. Who sets the variable has what they set.
"""
MAX_CONNECTIONS: Final = 4096
"""To one server. What comes then is closed before its handshake; strangers who do nothing hold descriptors and memory, but not all of them."""
IDLE_S: Final = 600.0
"""A connection without a call for so long is closed by its server; who keeps one for later connects anew at once, which costs a handshake."""
_UNPACKED: Final = 1
"""Of the bits by which gRPC names the compressions that it takes, the one that stands for none."""
_NEVER_MS: Final = 2**31 - 1

Options = list[tuple[str, int | str]]


def server_options() -> Options:
    """For every server of the network."""
    return [
        *_both_sides(),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(CONNECT_TIMEOUT_S * 1000)),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.max_allowed_incoming_connections", room_for(MAX_CONNECTIONS)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 250)),
    ]


def channel_options(peer_id: str, *, own_connection: bool = False) -> Options:
    """For a channel to the holder of ``peer_id``. ``own_connection``: never shares a TCP connection with another channel."""
    options: Options = [
        *_both_sides(),
        ("grpc.ssl_target_name_override", peer_id),
        ("grpc.default_authority", peer_id),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.client_idle_timeout_ms", _NEVER_MS),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),  # so long an attempt has, its handshake included
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
    if own_connection:
        options.append(("grpc.use_local_subchannel_pool", 1))
    return options


def message_options() -> Options:
    """For whatever sends or takes messages: of a bounded size and as they are. Nobody here packs any, and who unpacks one does a thousand times the work of
    who sends it: a call of packed messages ends (UNIMPLEMENTED) before one is read.
    """
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.compression_enabled_algorithms_bitset", _UNPACKED),
    ]


def _both_sides() -> Options:
    return [
        *message_options(),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
