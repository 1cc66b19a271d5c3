"""Programs written for dm-reverb run on this package, and find the modules and names they use."""

import importlib
import subprocess
import sys
import textwrap
from unittest import mock

import numpy as np
import pytest

import reverb_tf
from reverb_tf import compat, pybind
from reverb_tf.cc import schema_pb2

# Each of these runs unchanged on dm-reverb 0.14 too.
PROGRAMS = {
    'insert_sample_and_mutate': """
        import reverb

        def table(name, sampler):
            return reverb.Table(
                name=name, sampler=sampler, remover=reverb.selectors.Fifo(), max_size=100,
                rate_limiter=reverb.rate_limiters.MinSize(1))

        server = reverb.Server(tables=[
            table('per', reverb.selectors.Prioritized(1.0)),
            table('heap', reverb.selectors.MaxHeap()),
            reverb.Table.queue('queue', max_size=10),
            reverb.Table.stack('stack', max_size=10),
        ], port=None)
        client = reverb.Client(f'localhost:{server.port}')
        for i in range(5):
            client.insert([i, float(i)], priorities={'per': 1.0, 'heap': i, 'queue': 1, 'stack': 1})
        order = {name: [int(steps[0].data[0]) for steps in client.sample(name, 5)]
                 for name in ('queue', 'stack')}
        assert order == {'queue': [0, 1, 2, 3, 4], 'stack': [4, 3, 2, 1, 0]}, order

        (step,), = client.sample('heap', num_samples=1)
        assert isinstance(step, reverb.ReplaySample), type(step)
        assert isinstance(step.info, reverb.SampleInfo), type(step.info)
        assert step.info._fields == (
            'key', 'probability', 'table_size', 'priority', 'times_sampled')
        assert step.info.table_size == 5 and step.info.priority == 4
        client.mutate_priorities('heap', updates={step.info.key: -1.0})
        (step,), = client.sample('heap')
        assert step.data[0] == 3
        client.mutate_priorities('heap', deletes=[step.info.key])
        client.mutate_priorities('heap', updates={12345: 1.0})  # unknown keys are let be

        info = client.server_info()
        assert list(info) == ['per', 'heap', 'queue', 'stack'] or set(info) == {
            'per', 'heap', 'queue', 'stack'}
        assert info['heap'].current_size == 4 and info['queue'].current_size == 0
        assert info['per'].max_size == 100 and info['queue'].max_times_sampled == 1
        assert info['per'].sampler_options.WhichOneof('distribution') == 'prioritized'
        assert info['per'].sampler_options.prioritized.priority_exponent == 1.0
        assert info['heap'].sampler_options.heap.min_heap is False
        assert info['heap'].sampler_options.is_deterministic
        assert info['per'].rate_limiter_info.min_size_to_sample == 1
        assert info['per'].rate_limiter_info.insert_stats.completed == 5
        assert info['per'].signature is None
        client.reset('per')
        assert client.server_info(timeout=5)['per'].current_size == 0
        assert server.localhost_client().server_info()['heap'].current_size == 4
        server.stop()
    """,
    'errors': """
        import reverb

        server = reverb.Server([reverb.Table.queue('q', 10)])
        client = reverb.Client(f'localhost:{server.port}')
        for call, kind in [
            (lambda: client.insert(1, {}), ValueError),
            (lambda: client.insert(1, {'q': float('nan')}), ValueError),
            (lambda: client.writer(0), ValueError),
            (lambda: client.writer(2, chunk_length=3), ValueError),
            (lambda: client.trajectory_writer(0), ValueError),
            (lambda: next(client.sample('q', 0)), ValueError),
            (lambda: reverb.Table.queue('q', 10).replace(max_size=0), ValueError),
            (lambda: reverb.rate_limiters.SampleToInsertRatio(1, 1, None), TypeError),
            (lambda: reverb.Server([]), ValueError),
            (lambda: reverb.Server([server]), (ValueError, AttributeError, TypeError)),
            (lambda: client.trajectory_writer(1).history, RuntimeError),
        ]:
            try:
                call()
            except kind:
                continue
            raise AssertionError(f'{call} did not raise {kind}')
        assert issubclass(reverb.DeadlineExceededError, reverb.ReverbError)
        assert reverb.DeadlineExceededError is reverb.errors.DeadlineExceededError
        with client.trajectory_writer(1) as writer:
            writer.append(1)
            for _ in range(11):
                writer.create_item('q', 1.0, writer.history[-1])
            try:
                writer.flush(timeout_ms=200)
                raise AssertionError('the queue had room')
            except reverb.DeadlineExceededError:
                pass
            list(client.sample('q', 1, emit_timesteps=False))
    """,
    'trajectory_writer': """
        import numpy as np
        import reverb

        server = reverb.Server([reverb.Table.queue('q', 100), reverb.Table.queue('r', 100)])
        client = reverb.Client(f'localhost:{server.port}')
        with client.trajectory_writer(num_keep_alive_refs=3, validate_items=True) as writer:
            writer.configure(('a',), num_keep_alive_refs=3, max_chunk_length=1)
            for i in range(5):
                writer.append({'a': i, 'b': np.full((2,), i, np.float32)})
                if i >= 2:
                    writer.create_item(
                        table='q', priority=1.0,
                        trajectory={
                            'a': writer.history['a'][-3:],
                            'b': writer.history['b'][-1],
                            'last': writer.history['a'][-2],
                        })
            assert writer.episode_steps == 5
            assert isinstance(writer.history['a'][-1], reverb.TrajectoryColumn)
            assert writer.history['a'][-2:].numpy().tolist() == [3, 4]
            assert writer.history['b'][-2:].shape == (2, 2)
            writer.end_episode(clear_buffers=True, timeout_ms=20_000)
            assert len(writer.history['a']) == 0
            writer.append({'a': 7}, partial_step=True)
            writer.append({'b': np.zeros(2, np.float32)})
            writer.create_item('r', 2.0, {'a': writer.history['a'][:]})
            writer.flush(block_until_num_items=0)
        for i, sample in enumerate(client.sample('q', 3, emit_timesteps=False)):
            a, b, last = sample.data
            assert a.tolist() == [i, i + 1, i + 2]
            assert b.tolist() == [i + 2, i + 2] and last == i + 1
        (steps,) = client.sample('r', 1)
        assert len(steps) == 1 and steps[0].info.priority == 2.0
    """,
    'row_writer': """
        import numpy as np
        import reverb

        server = reverb.Server([reverb.Table.queue('q', 100), reverb.Table.queue('r', 100)])
        client = reverb.Client(f'localhost:{server.port}')
        with client.writer(max_sequence_length=3, delta_encoded=True, chunk_length=2) as writer:
            assert isinstance(writer, reverb.Writer)
            for i in range(5):
                writer.append([i, np.arange(4) + i])
                if i >= 1:
                    writer.create_item(table='q', num_timesteps=2, priority=1.5)
            writer.create_item('r', 3, 1.0)
            writer.flush()
            for n in (0, 4):
                try:
                    writer.create_item('q', n, 1.0)
                    raise AssertionError(n)
                except ValueError:
                    pass
        for first, steps in enumerate(client.sample('q', 4)):
            assert [int(s.data[0]) for s in steps] == [first, first + 1]
            assert steps[1].data[1].tolist() == [first + 1 + j for j in range(4)]
            assert steps[0].info.priority == 1.5
        (steps,) = client.sample('r')
        assert [int(s.data[0]) for s in steps] == [2, 3, 4]
        writer = client.writer(4)
        writer.append_sequence([np.arange(3), np.zeros((3, 2))])
        writer.create_item('r', 3, 1.0)
        writer.close()
        try:
            writer.close()
            raise AssertionError('closed twice')
        except ValueError:
            pass
        (sample,) = client.sample('r', emit_timesteps=False)
        assert [c.shape for c in sample.data] == [(3,), (3, 2)]
    """,
    'trajectory_dataset': """
        import numpy as np
        import reverb
        import tensorflow as tf

        signature = {
            'obs': tf.TensorSpec([3, 2], tf.float32), 'act': tf.TensorSpec([3], tf.int64)}
        server = reverb.Server([reverb.Table(
            'q', reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100,
            reverb.rate_limiters.MinSize(1), max_times_sampled=1, signature=signature)])
        client = reverb.Client(f'localhost:{server.port}')
        with client.trajectory_writer(3) as writer:
            for i in range(12):
                writer.append({'obs': np.full((2,), i, np.float32), 'act': i})
                if i % 3 == 2:
                    writer.create_item('q', 1.0, {
                        'obs': writer.history['obs'][-3:], 'act': writer.history['act'][-3:]})
        dataset = reverb.TrajectoryDataset.from_table_signature(
            server_address=client.server_address, table='q',
            max_in_flight_samples_per_worker=2, rate_limiter_timeout_ms=500)
        assert dataset.element_spec.data['obs'].shape == [3, 2]
        assert dataset.element_spec.info.key.dtype == tf.uint64
        batches = list(dataset.batch(2, drop_remainder=True))
        assert len(batches) == 2
        assert isinstance(batches[0], reverb.ReplaySample)
        assert batches[1].data['act'].numpy().tolist() == [[6, 7, 8], [9, 10, 11]]
        assert batches[0].info.table_size.shape == [2]

        @tf.function
        def total(dataset):
            result = 0.0
            for sample in dataset:
                result += tf.reduce_sum(sample.data['obs'])
            return result

        with client.trajectory_writer(1) as writer:
            writer.append({'obs': np.ones((3, 2), np.float32), 'act': np.arange(3)})
            writer.create_item('q', 1.0, {
                'obs': writer.history['obs'][-1], 'act': writer.history['act'][-1]})
        plain = reverb.TrajectoryDataset(
            client.server_address, 'q', dtypes={'obs': tf.float32, 'act': tf.int64},
            shapes={'obs': tf.TensorShape([3, 2]), 'act': tf.TensorShape([3])},
            max_in_flight_samples_per_worker=1, rate_limiter_timeout_ms=500)
        assert total(plain) == 6.0
    """,
    'structured_writer': """
        import numpy as np
        import reverb
        from reverb import structured_writer as sw
        import tensorflow as tf

        step_spec = {'a': tf.TensorSpec([], tf.int64), 'b': tf.TensorSpec([2], tf.float32)}
        pattern = sw.pattern_from_transform(
            step_structure=step_spec,
            transform=lambda step: {'now': step['a'][-1], 'window': step['b'][-3:]})
        config = sw.create_config(
            pattern=pattern, table='q',
            conditions=[sw.Condition.step_index() % 2 == 0, sw.Condition.step_index() >= 2])
        signature = sw.infer_signature([config], step_spec)
        assert signature['window'].shape == [3, 2]
        server = reverb.Server([reverb.Table(
            'q', reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100,
            reverb.rate_limiters.MinSize(1), max_times_sampled=1, signature=signature)])
        client = reverb.Client(f'localhost:{server.port}')
        writer = client.structured_writer([config])
        for i in range(6):
            writer.append({'a': i, 'b': np.full((2,), i, np.float32)})
        writer.end_episode()
        samples = client.sample('q', 2, emit_timesteps=False, unpack_as_table_signature=True)
        for last, sample in zip((2, 4), samples):
            assert sample.data['now'] == last
            assert sample.data['window'][:, 0].tolist() == [last - 2, last - 1, last]
    """,
    'pattern_dataset': """
        import reverb
        import tensorflow as tf

        steps = tf.data.Dataset.range(7).map(lambda i: {'obs': i, 'is_last': i % 3 == 2})
        ref = reverb.structured_writer.create_reference_step(steps.element_spec)

        def config(pattern, *conditions):
            return reverb.structured_writer.create_config(pattern, 'any', list(conditions))

        pairs = config({'obs': ref['obs'][-2:]})
        last = config(
            {'obs': ref['obs'][-1:]}, reverb.structured_writer.Condition.is_end_episode())

        def listed(dataset):
            return [t['obs'].tolist() for t in dataset.as_numpy_iterator()]

        dataset = reverb.PatternDataset(
            input_dataset=steps, configs=[last, pairs], respect_episode_boundaries=True,
            is_end_of_episode=lambda step: step['is_last'])
        assert dataset.element_spec == {'obs': tf.TensorSpec([None], tf.int64)}
        assert listed(dataset) == [[0, 1], [1, 2], [2], [3, 4], [4, 5], [5]], listed(dataset)
        assert listed(reverb.PatternDataset(steps, [pairs], False, lambda _: False)) == [
            [i, i + 1] for i in range(6)]
        samples = reverb.pattern_dataset.pattern_dataset_with_info(
            steps, [pairs], True, lambda step: step['is_last'])
        assert [s.data['obs'].numpy().tolist() for s in samples.take(1)] == [[0, 1]]
    """,
    'modules_as_they_are_imported': """
        from reverb import client as client_lib
        from reverb import errors, item_selectors, pybind, rate_limiters, reverb_types
        from reverb import replay_sample as rs
        from reverb import server as server_lib
        from reverb.cc import schema_pb2
        from reverb.platform.default import ensure_tf_install
        import reverb.trajectory_writer
        import reverb

        ensure_tf_install.ensure_tf_version()
        assert client_lib.Client is reverb.Client and client_lib.Writer is reverb.Writer
        assert server_lib.Table is reverb.Table
        assert rs.ReplaySample is reverb.ReplaySample
        assert issubclass(errors.DeadlineExceededError, errors.ReverbError)
        assert isinstance(item_selectors.Fifo(), reverb_types.Fifo)
        assert isinstance(item_selectors.Uniform(), pybind.UniformSelector)
        assert isinstance(item_selectors.Prioritized(0.5), pybind.PrioritizedSelector)
        assert isinstance(item_selectors.MinHeap(), reverb_types.Heap)
        options = schema_pb2.KeyDistributionOptions(heap=dict(min_heap=True))
        made = pybind.selector_from_proto(options.SerializeToString())
        assert isinstance(made, pybind.HeapSelector)
        assert isinstance(rate_limiters.MinSize(1), rate_limiters.RateLimiter)
        assert pybind.ConstantChunkerOptions(1, 2) == pybind.ConstantChunkerOptions(1, 2)
        assert pybind.ConstantChunkerOptions(1, 2) != pybind.ConstantChunkerOptions(2, 2)

        class Extension(server_lib.TableExtensionBase):
            def build_internal_extensions(self, table_name):
                return []

        table = reverb.Table(
            't', item_selectors.Fifo(), item_selectors.Fifo(), 1, rate_limiters.MinSize(1),
            extensions=[Extension()])
        server = reverb.Server([table])
        assert server.localhost_client().server_info()['t'].max_size == 1
    """,
}


def run(tmp_path, source, *arguments, module='reverb_tf.compat'):
    """Runs a script of this source by the module; returns the finished process."""
    script = tmp_path / 'script.py'
    script.write_text(textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, '-m', module, script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


def check(tmp_path, source, *arguments):
    """The output of a script, which must succeed."""
    done = run(tmp_path, source, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize('name', PROGRAMS)
def test_program_runs_unchanged(tmp_path, name):
    assert check(tmp_path, PROGRAMS[name] + "\n        print('done')\n").endswith('done\n')


# ---- Running scripts -----------------------------------------------------------------


def test_a_script_sees_what_scripts_see(tmp_path):
    (tmp_path / 'beside.py').write_text('NAME = "beside"\n')
    source = """
        '''Its own docstring.'''
        import sys
        import beside
        print(__name__, __doc__, __file__ == sys.argv[0], sys.argv[1:], beside.NAME)
        print([name for name in globals() if not name.startswith('__')])
    """
    assert check(tmp_path, source, '--flag', 'x').splitlines() == [
        "__main__ Its own docstring. True ['--flag', 'x'] beside",
        "['sys', 'beside']",
    ]


def test_a_scripts_exit_code_and_traceback_are_its_own(tmp_path):
    done = run(tmp_path, 'import reverb, sys\nsys.exit(7)\n')
    assert done.returncode == 7
    done = run(tmp_path, 'import reverb\n\nraise KeyError("lost")\n')
    assert done.returncode == 1
    assert 'script.py", line 3' in done.stderr and "KeyError: 'lost'" in done.stderr


def test_a_missing_script_is_told(tmp_path):
    command = [sys.executable, '-m', 'reverb_tf.compat']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and 'usage:' in done.stderr
    command.append(tmp_path / 'no.py')
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and 'cannot read' in done.stderr and 'no.py' in done.stderr


SPAWN = """
    import multiprocessing
    {install}
    import reverb

    class Actor:
        def __init__(self, address):
            self.address = address

    def act(actor):
        reverb.Client(actor.address).insert(1, {{'t': 1.0}})
        return reverb.__name__

    if __name__ == '__main__':
        server = reverb.Server([reverb.Table.queue('t', 10)])
        actor = Actor(f'localhost:{{server.port}}')
        with multiprocessing.get_context('spawn').Pool(2) as pool:
            print(pool.map(act, [actor, actor]))
        print(server.localhost_client().server_info()['t'].current_size)
"""


def test_spawned_children_of_a_script_have_the_names(tmp_path):
    out = check(tmp_path, SPAWN.format(install=''))
    assert out.splitlines() == ["['reverb_tf', 'reverb_tf']", '2']


def test_spawned_children_of_a_program_that_installs_have_the_names(tmp_path):
    script = tmp_path / 'script.py'
    install = 'from reverb_tf import compat; compat.install_as_reverb()'
    script.write_text(textwrap.dedent(SPAWN.format(install=install)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["['reverb_tf', 'reverb_tf']", '2'], done.stderr


# ---- install_as_reverb ---------------------------------------------------------------


def installing(tmp_path, source):
    """The lines that a program prints which begins with `from reverb_tf import compat`."""
    script = tmp_path / 'program.py'
    script.write_text('from reverb_tf import compat\n' + textwrap.dedent(source))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_modules_are_the_same_objects(tmp_path):
    source = """
        import sys
        import reverb_tf
        compat.install_as_reverb()
        import reverb
        import reverb.client
        import reverb.platform.default.ensure_tf_install as ensure
        assert reverb is reverb_tf and sys.modules['reverb'] is reverb_tf
        assert reverb.client is reverb_tf.client is sys.modules['reverb.client']
        assert ensure is reverb_tf.platform.default.ensure_tf_install
        assert reverb.client.__name__ == reverb.client.__spec__.name == 'reverb_tf.client'
        assert not hasattr(reverb.client, '__path__')
        try:
            import reverb.nothing_of_the_kind
        except ModuleNotFoundError as e:
            print(e.name)
        import importlib
        assert importlib.reload(reverb.data) is reverb_tf.data
    """
    assert installing(tmp_path, source) == ['reverb.nothing_of_the_kind']


def test_installing_twice_is_once_and_uninstall_undoes_it(tmp_path):
    source = """
        import os, sys
        finders = list(sys.meta_path)
        compat.uninstall()
        compat.install_as_reverb(host='127.0.0.1')
        compat.install_as_reverb()
        import reverb.client
        assert len(sys.meta_path) == len(finders) + 1
        assert reverb.Server([reverb.Table.queue('q', 1)]).host == '127.0.0.1'
        compat.uninstall()
        assert sys.meta_path == finders
        assert not [m for m in sys.modules if m.split('.')[0] == 'reverb']
        assert 'REVERB_TF_HOST' not in os.environ
        try:
            import reverb
        except ModuleNotFoundError as e:
            print(e.name)
    """
    assert installing(tmp_path, source) == ['reverb']


def test_another_reverb_is_replaced_only_by_force(tmp_path):
    (tmp_path / 'reverb').mkdir()
    (tmp_path / 'reverb' / '__init__.py').write_text('from reverb import part\n')
    (tmp_path / 'reverb' / 'part.py').write_text('')
    source = """
        import sys
        import reverb as other
        try:
            compat.install_as_reverb()
        except RuntimeError as e:
            print('another reverb' in str(e))
        compat.install_as_reverb(force=True)
        import reverb
        assert reverb is not other and 'reverb.part' not in sys.modules
        compat.uninstall()
        import reverb
        assert reverb is other and 'reverb.part' in sys.modules
    """
    assert installing(tmp_path, source) == ['True']


def test_it_comes_before_another_reverb_that_was_not_imported(tmp_path):
    (tmp_path / 'reverb.py').write_text('raise AssertionError("the other one")\n')
    assert installing(tmp_path, 'compat.install_as_reverb()\nimport reverb\n') == []


def test_a_bad_host_is_refused():
    with pytest.raises(TypeError, match='host'):
        compat.install_as_reverb(host=3)
    with pytest.raises(ValueError, match='host'):
        compat.install_as_reverb(host='')


# ---- Names ---------------------------------------------------------------------------

NAMES = {
    '': 'Client Writer TFClient Server Table TrajectoryWriter TrajectoryColumn TrajectoryDataset '
    'TimestepDataset PatternDataset TFTrajectoryWriter timestep_dataset pattern_dataset '
    'tf_trajectory_writer '
    'ReplaySample SampleInfo ReverbError DeadlineExceededError selectors rate_limiters '
    'structured errors StructuredWriter Sampler PaddedSample MutateResult signature_from '
    'set_default_timeout get_default_timeout build_info data compat cc client item_selectors '
    'platform pybind replay_sample reverb_types server structured_writer tf_client '
    'trajectory_dataset trajectory_writer',
    'client': 'Client Writer',
    'server': 'Server Table TableExtensionBase',
    'errors': 'ReverbError DeadlineExceededError',
    'pybind': 'FifoSelector LifoSelector UniformSelector PrioritizedSelector HeapSelector '
    'RateLimiter Table Client Server TableExtension WeakCellRef ConstantChunkerOptions '
    'AutoTunedChunkerOptions selector_from_proto',
    'reverb_types': 'Fifo Heap Lifo Prioritized Uniform SelectorType SpecNest TableInfo',
    'replay_sample': 'ReplaySample SampleInfo',
    'item_selectors': 'Fifo Lifo MaxHeap MinHeap Prioritized Uniform',
    'rate_limiters': 'MinSize Queue RateLimiter SampleToInsertRatio Stack',
    'structured_writer': 'Condition ConditionProto Config Pattern StructuredWriter '
    'constant_priority_fn create_config create_reference_step infer_signature '
    'pattern_from_transform td_error unpack_pattern',
    'trajectory_writer': 'TrajectoryColumn TrajectoryWriter _ColumnHistory',
    'trajectory_dataset': 'TrajectoryDataset',
    'timestep_dataset': 'TimestepDataset',
    'pattern_dataset': 'PatternDataset pattern_dataset_with_info',
    'tf_client': 'TFClient',
    'platform': 'default',
    'platform.default': 'ensure_tf_install load_op_library',
    'platform.default.ensure_tf_install': 'ensure_tf_version',
    'cc': 'schema_pb2 patterns_pb2',
    'cc.schema_pb2': 'ChunkData FlatTrajectory KeyDistributionOptions KeyWithPriority '
    'PrioritizedItem RateLimiterCallStats RateLimiterInfo SampleInfo SequenceRange TableInfo '
    'TableWorkerTime Timeout Uint128',
    'cc.patterns_pb2': 'Condition PatternNode Priority StructuredWriterConfig',
}


@pytest.fixture
def installed():
    compat.install_as_reverb()
    yield
    compat.uninstall()


@pytest.mark.usefixtures('installed')
@pytest.mark.parametrize('path', NAMES)
def test_module_has_the_names(path):
    path = f'.{path}' if path else ''
    module = importlib.import_module(f'reverb{path}')
    assert module is importlib.import_module(f'reverb_tf{path}')
    assert [name for name in NAMES[path[1:]].split() if not hasattr(module, name)] == []


def test_import_alone_binds_the_submodules():
    source = 'import reverb_tf; reverb_tf.platform.default.ensure_tf_install.ensure_tf_version; '
    source += 'reverb_tf.cc.schema_pb2.TableInfo; reverb_tf.pybind.FifoSelector'
    subprocess.run([sys.executable, '-c', source], check=True, timeout=60)


def test_messages_have_names_of_their_own():
    assert schema_pb2.DESCRIPTOR.package == 'reverb_tf.schema'
    assert schema_pb2.TableInfo.DESCRIPTOR.fields_by_name['num_unique_samples'].number == 11


def test_table_info_of_a_serialized_message():
    proto = schema_pb2.TableInfo(
        name='t',
        sampler_options={'prioritized': {'priority_exponent': 0.5}},
        remover_options={'lifo': True},
        max_size=10,
        max_times_sampled=2,
        rate_limiter_info={
            'samples_per_insert': 3.0,
            'min_diff': -1.0,
            'max_diff': 9.0,
            'min_size_to_sample': 4,
            'insert_stats': {'completed': 5},
            'sample_stats': {'completed': 6},
        },
        current_size=7,
        table_worker_time={'sampling_ms': 8},
    )
    info = reverb_tf.TableInfo.from_serialized_proto(proto.SerializeToString())
    assert (info.name, info.max_size, info.max_times_sampled, info.current_size) == ('t', 10, 2, 7)
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    assert info.remover_options.WhichOneof('distribution') == 'lifo'
    limiter = info.rate_limiter_info
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (3.0, 4)
    assert (limiter.insert_stats.completed, limiter.sample_stats.completed) == (5, 6)
    assert info.table_worker_time.sampling_ms == 8
    assert info.signature is None
    for bad in (b'\xff', b''):
        with pytest.raises(ValueError):
            reverb_tf.TableInfo.from_serialized_proto(bad)


# ---- Writers over an object with the native names ------------------------------------


class Reference:
    """What the object gives for a cell."""

    shape = ()
    dtype = np.int64

    def __init__(self, value):
        self.value = value

    def numpy(self):
        return self.value


def references(cells):
    return [None if cell is None else Reference(cell) for cell in cells]


@pytest.fixture
def internal():
    internal = mock.Mock()
    internal.Append.side_effect = internal.AppendPartial.side_effect = references
    internal.max_num_keep_alive_refs = 3
    internal.episode_steps = 4
    return internal


def test_appends_pass_cells_in_order_of_first_appearance(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    writer.append({'a': 1, 'b': [2, 3]})
    writer.append({'b': [None, 4]})
    writer.append({'a': 5, 'z': 6}, partial_step=True)
    writer.append({'b': [7, None]})
    assert internal.mock_calls == [
        mock.call.Append([1, 2, 3]),
        mock.call.Append([None, None, 4]),
        mock.call.AppendPartial([5, None, None, 6]),
        mock.call.Append([None, 7, None, None]),
    ]
    history = writer.history
    assert [column._path for column in (history['a'], *history['b'], history['z'])] == [
        ('a',),
        ('b', 0),
        ('b', 1),
        ('z',),
    ]
    assert [r and r.value for r in history['a']] == [1, None, 5]
    assert [r and r.value for r in history['z']] == [None, None, 6]
    assert isinstance(history['a'], reverb_tf.trajectory_writer._ColumnHistory)


def test_a_leaf_is_set_once_a_step(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    writer.append({'a': 1, 'b': 2}, partial_step=True)
    with pytest.raises(ValueError, match='has already been set in the active step'):
        writer.append({'a': 1})
    assert len(internal.mock_calls) == 1


def test_items_pass_references(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    for i in range(3):
        writer.append({'a': i})
    cells = list(writer.history['a'])
    trajectory = {'x': writer.history['a'][-2:], 'y': writer.history['a'][0]}
    assert all(isinstance(column, reverb_tf.TrajectoryColumn) for column in trajectory.values())
    writer.create_item('t', 1.5, trajectory)
    internal.CreateItem.assert_called_once_with('t', 1.5, [cells[1:], cells[:1]], [False, True])
    with pytest.raises(TypeError, match='TrajectoryColumn'):
        writer.create_item('t', 1.0, {'x': 3})


def test_holes_and_expired_cells_are_refused(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    for i in range(4):
        writer.append({'a': i} if i != 2 else {'a': None})
    for index in (0, slice(None), [0, 1], 2):
        with pytest.raises(ValueError, match='cannot contain any None'):
            writer.history['a'][index]
    with pytest.raises(IndexError):
        writer.history['a'][4]


def test_other_calls_pass_their_arguments(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    with pytest.raises(RuntimeError, match='history'):
        _ = writer.history
    assert writer.episode_steps == 4
    with writer:
        writer.flush(3, 100)
        writer.end_episode()
        writer.end_episode(clear_buffers=False, timeout_ms=5)
    writer.close()
    assert internal.mock_calls == [
        mock.call.Flush(3, 100),
        mock.call.EndEpisode(True, None),
        mock.call.EndEpisode(False, 5),
        mock.call.Flush(0, -1),
        mock.call.Close(),
    ]


def test_the_end_of_an_episode_may_clear_the_history(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    writer.append(1)
    writer.end_episode(clear_buffers=False)
    assert len(writer.history) == 1
    writer.end_episode()
    assert len(writer.history) == 0
    writer.append(2)
    assert [r.value for r in writer.history] == [2]


def test_configure_passes_options_now_or_when_the_column_appears(internal):
    writer = reverb_tf.TrajectoryWriter(internal)
    writer.append({'a': 1})
    writer.configure(('a',), num_keep_alive_refs=2, max_chunk_length=1)
    writer.configure(('a',), num_keep_alive_refs=2, max_chunk_length=None)
    writer.configure(('b', 1), num_keep_alive_refs=1, max_chunk_length=1)
    writer.append({'b': [1, 2]})
    assert internal.mock_calls[1:] == [
        mock.call.ConfigureChunker(0, pybind.ConstantChunkerOptions(1, 2)),
        mock.call.ConfigureChunker(0, pybind.AutoTunedChunkerOptions(2, 1.0)),
        mock.call.ConfigureChunker(2, pybind.ConstantChunkerOptions(1, 1)),
        mock.call.Append([None, 1, 2]),
    ]


def test_columns_of_references(internal):
    cells = references([1, 2])
    column = reverb_tf.TrajectoryColumn(cells)
    assert (list(column), column.shape, column.is_squeezed) == (cells, (2,), False)
    assert list(column.numpy()) == [1, 2]
    assert column[1].is_squeezed and column[1].numpy() == 2
    with pytest.raises(ValueError, match='exactly one'):
        reverb_tf.TrajectoryColumn(cells, squeeze=True)


def test_a_structured_writer_passes_flat_steps():
    internal = mock.Mock()
    writer = reverb_tf.StructuredWriter(internal)
    writer.append({'b': [2, None], 'a': 1})
    writer.append({'a': None, 'b': [2, None]}, partial_step=True)
    with pytest.raises(ValueError, match='1 leaves, expected 3'):
        writer.append({'a': 1})
    writer.flush()
    writer.end_episode(False, 5)
    assert internal.mock_calls == [
        mock.call.Append([1, 2, None]),
        mock.call.AppendPartial([None, 2, None]),
        mock.call.Flush(0, None),
        mock.call.EndEpisode(False, 5),
    ]
    assert writer.step_is_open is internal.step_is_open


def test_the_native_history_tells_its_path():
    with reverb_tf.Server([reverb_tf.Table.queue('q', 1)]) as server:
        client = server.localhost_client()
        assert client._server_address == server.address
        writer = client.trajectory_writer(1)
        writer.append({'a': [1, {'b': 2}]})
        assert writer.history['a'][1]['b']._path == ('a', 1, 'b')
        writer.close()
