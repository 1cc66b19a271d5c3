"""The server as a peer of another implementation sees it: messages generated from the .proto, Python's gRPC."""

import grpc
import numpy as np
import pytest

from cc.rpc import reverb_pb2 as pb
import reverb_tf
from tests import testing_util

SERVICE = '/deepmind.reverb.ReverbService/'


class Peer:
    """Calls without our metadata key."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)

    def unary(self, method, request, response):
        call = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return call(request, timeout=10)

    def stream(self, method, requests, response):
        call = self.channel.stream_stream(
            SERVICE + method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return call(iter(requests), timeout=10)


@pytest.fixture
def server():
    tables = [
        testing_util.uniform_table('t'),
        reverb_tf.Table.queue('q', 100),
        reverb_tf.Table(
            'p',
            reverb_tf.selectors.Prioritized(1.0),
            reverb_tf.selectors.Fifo(),
            100,
            reverb_tf.rate_limiters.MinSize(1),
        ),
    ]
    with reverb_tf.Server(tables) as s:
        yield s


@pytest.fixture
def peer(server):
    return Peer(server.address)


def string_chunk(key, values):
    """Strings are not compressed, so a peer needs no codec for them."""
    chunk = pb.ChunkData(chunk_key=key, data_tensors_len=1)
    chunk.sequence_range.episode_id = 1
    chunk.sequence_range.end = len(values) - 1
    tensor = chunk.data.tensors.add(dtype=7)
    tensor.tensor_shape.dim.add(size=len(values))
    tensor.tensor_content = bytes(len(v) for v in values) + b''.join(values)
    return chunk


def item(key, table, slices, priority=1.0):
    message = pb.PrioritizedItem(key=key, table=table, priority=priority)
    column = message.flat_trajectory.columns.add()
    for chunk_key, offset, length in slices:
        column.chunk_slices.add(chunk_key=chunk_key, offset=offset, length=length)
    return message


def insert(peer, *requests):
    keys = []
    for response in peer.stream('InsertStream', requests, pb.InsertStreamResponse):
        keys += response.keys
    return keys


def status_of(call):
    with pytest.raises(grpc.RpcError) as raised:
        list(call) if hasattr(call, '__iter__') else call()
    return raised.value.code(), raised.value.details()


def test_items_over_kept_chunks_are_confirmed(peer, server):
    keys = insert(
        peer,
        pb.InsertStreamRequest(
            chunks=[string_chunk(5, [b'a', b'bb'])],
            items=[item(1, 't', [(5, 0, 2)])],
            keep_chunk_keys=[5],
        ),
        pb.InsertStreamRequest(
            chunks=[string_chunk(6, [b'c'])], items=[item(2, 't', [(5, 1, 1), (6, 0, 1)])]
        ),
    )
    assert sorted(keys) == [1, 2]
    assert len(server.tables['t']) == 2


def test_unkept_chunk_is_forgotten(peer, server):
    code, _ = status_of(
        peer.stream(
            'InsertStream',
            [
                pb.InsertStreamRequest(
                    chunks=[string_chunk(5, [b'a'])], items=[item(1, 't', [(5, 0, 1)])]
                ),
                pb.InsertStreamRequest(items=[item(2, 't', [(5, 0, 1)])]),
            ],
            pb.InsertStreamResponse,
        )
    )
    assert code == grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    'request_, code',
    [
        (pb.InsertStreamRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.InsertStreamRequest(
                chunks=[string_chunk(5, [b'a'])],
                items=[item(1, 't', [(5, 0, 1)])],
                keep_chunk_keys=[9],
            ),
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (
            pb.InsertStreamRequest(
                chunks=[string_chunk(5, [b'a'])], items=[item(1, 'nope', [(5, 0, 1)])]
            ),
            grpc.StatusCode.NOT_FOUND,
        ),
        (
            pb.InsertStreamRequest(
                chunks=[string_chunk(5, [b'a'])], items=[item(1, 'p', [(5, 0, 1)], -1.0)]
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_bad_inserts_end_the_stream_and_change_nothing(peer, server, request_, code):
    assert status_of(peer.stream('InsertStream', [request_], pb.InsertStreamResponse))[0] == code
    assert [len(t) for t in server.tables.values()] == [0, 0, 0]


def test_known_key_is_an_update(peer, server):
    for priority in (1.0, 4.0):
        insert(
            peer,
            pb.InsertStreamRequest(
                chunks=[string_chunk(5, [b'a'])], items=[item(1, 'p', [(5, 0, 1)], priority)]
            ),
        )
    assert len(server.tables['p']) == 1
    (response,) = peer.stream(
        'SampleStream', [pb.SampleStreamRequest(table='p', num_samples=1)], pb.SampleStreamResponse
    )
    assert response.entries[0].info.item.priority == 4.0


def test_samples_come_with_whole_chunks_and_an_end(peer, server):
    client = reverb_tf.Client(server.address)
    data = np.arange(4, dtype=np.int32)
    with client.trajectory_writer(4) as writer:
        for x in data:
            writer.append(x)
        writer.create_item('t', 2.0, writer.history[1:3])
    responses = list(
        peer.stream(
            'SampleStream',
            [
                pb.SampleStreamRequest(table='t', num_samples=2),
                pb.SampleStreamRequest(table='t', num_samples=1),
            ],
            pb.SampleStreamResponse,
        )
    )
    entries = [e for r in responses for e in r.entries]
    assert sum(e.end_of_sequence for e in entries) == 3
    assert entries[0].info.item.key != 0
    assert entries[0].info.table_size == 1
    assert entries[0].data[0].data.tensors[0].dtype == 3
    stats = server.tables['t'].info.rate_limiter_info.sample_stats
    assert (stats.completed, stats.delivered) == (3, 3)


def test_sample_errors_have_their_texts(peer):
    def sample(**kwargs):
        return status_of(
            peer.stream('SampleStream', [pb.SampleStreamRequest(**kwargs)], pb.SampleStreamResponse)
        )

    assert sample(table='t', num_samples=0)[0] == grpc.StatusCode.INVALID_ARGUMENT
    code, text = sample(table='nope', num_samples=1)
    assert code == grpc.StatusCode.NOT_FOUND
    assert 'Priority table nope was not found' in text
    code, text = sample(table='t', num_samples=1, rate_limiter_timeout=pb.Timeout(milliseconds=20))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 'Rate Limiter: Timeout exceeded before the right to insert was acquired.' in text


def test_priorities_deletes_come_first_and_unknown_keys_are_ignored(peer, server):
    for key in (1, 2):
        insert(
            peer,
            pb.InsertStreamRequest(
                chunks=[string_chunk(key, [b'a'])], items=[item(key, 'p', [(key, 0, 1)])]
            ),
        )
    peer.unary(
        'MutatePriorities',
        pb.MutatePrioritiesRequest(
            table='p',
            updates=[
                pb.KeyWithPriority(key=1, priority=3.0),
                pb.KeyWithPriority(key=2, priority=3.0),
                pb.KeyWithPriority(key=77, priority=1.0),
            ],
            delete_keys=[2],
        ),
        pb.MutatePrioritiesResponse,
    )
    assert len(server.tables['p']) == 1


def test_info_reset_checkpoint_and_connection(peer, server):
    info = peer.unary('ServerInfo', pb.ServerInfoRequest(), pb.ServerInfoResponse)
    assert [t.name for t in info.table_info] == ['t', 'q', 'p']
    assert info.tables_state_id.high or info.tables_state_id.low
    assert info.table_info[2].sampler_options.prioritized.priority_exponent == 1.0
    insert(
        peer,
        pb.InsertStreamRequest(chunks=[string_chunk(5, [b'a'])], items=[item(1, 't', [(5, 0, 1)])]),
    )
    peer.unary('Reset', pb.ResetRequest(table='t'), pb.ResetResponse)
    assert len(server.tables['t']) == 0
    code, _ = status_of(
        lambda: peer.unary('Checkpoint', pb.CheckpointRequest(), pb.CheckpointResponse)
    )
    assert code == grpc.StatusCode.UNIMPLEMENTED
    (response,) = peer.stream(
        'InitializeConnection',
        [pb.InitializeConnectionRequest(pid=1, table_name='t')],
        pb.InitializeConnectionResponse,
    )
    assert response.address == 0
