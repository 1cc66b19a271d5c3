"""Tables: what a server holds."""

from reverb_tf import _native, arguments, rate_limiters, reverb_types, selectors, signatures

__all__ = ['Table', 'TableExtensionBase']


class TableExtensionBase:
    """Base of table extensions; none has an effect in this package."""

    def build_internal_extensions(self, table_name):
        """What the extension adds to the native table; must be empty here."""
        del table_name
        return ()


def _check_kind(value, kind, name):
    if isinstance(value, kind):
        return value
    if isinstance(value, Table) and kind is rate_limiters.RateLimiter:
        raise TypeError(
            f'{name} must be a rate limiter, got a Table; did you mean Table.queue(...) as the table?'
        )
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(f'{name} must be an instance, got the class; call it: {value.__name__}()')
    raise TypeError(
        f'{name} must be a {kind.__name__} (reverb_tf.{kind.__module__.split(".")[-1]}), got {type(value).__name__}'
    )


def _is_empty(signature):
    return signature is None or (isinstance(signature, (dict, list, tuple)) and not signature)


class Table:
    """Items, the selectors that order them and the limiter that paces them.

    Args:
      name: str, the key of the table on its server.
      sampler: selector that picks items to sample.
      remover: selector that picks items to evict when the table is over max_size or
        max_bytes.
      max_size: most items held, >= 1.
      rate_limiter: a `rate_limiters` instance.
      max_times_sampled: after so many samples an item is removed; < 1: no limit.
      extensions: sequence of `TableExtensionBase` without effect.
      signature: nest of `tf.TensorSpec` (or anything with shape and dtype) that items must
        match; None or empty: any item is accepted.
      max_bytes: most stored bytes of the distinct chunks that items refer to; None or 0: no
        limit.
      signature_scope: 'trajectory' (the signature describes whole items), 'step' (single
        steps) or None (decided by first use).

    Raises:
      TypeError: an argument of the wrong kind; the text names it.
      ValueError: a value out of range, or a limiter that could never be met.
    """

    def __init__(
        self,
        name,
        sampler,
        remover,
        max_size,
        rate_limiter,
        max_times_sampled=0,
        extensions=(),
        signature=None,
        *,
        max_bytes=None,
        signature_scope=None,
    ):
        self._name = arguments.text(name, 'name')
        self._sampler = _check_kind(sampler, selectors.Selector, 'sampler')
        self._remover = _check_kind(remover, selectors.Selector, 'remover')
        self._max_size = arguments.integer(max_size, 'max_size', 1)
        self._rate_limiter = _check_kind(rate_limiter, rate_limiters.RateLimiter, 'rate_limiter')
        self._max_times_sampled = arguments.integer(max_times_sampled, 'max_times_sampled')
        self._max_times_sampled = max(min(self._max_times_sampled, 2**31 - 1), -(2**31))
        self._extensions = tuple(arguments.sequence(extensions, 'extensions', 'TableExtensionBase'))
        for extension in self._extensions:
            _check_kind(extension, TableExtensionBase, 'extensions')
            if extension.build_internal_extensions(name):
                raise NotImplementedError('extensions with an effect are not supported')
        self._signature = None if _is_empty(signature) else signature
        self._max_bytes = 0 if max_bytes is None else arguments.integer(max_bytes, 'max_bytes', 0)
        if signature_scope not in reverb_types.SCOPES:
            raise ValueError(
                f"signature_scope must be 'trajectory', 'step' or None, got {signature_scope!r}"
            )
        if signature_scope is not None and self._signature is None:
            raise ValueError('signature_scope needs a signature')
        self._signature_scope = signature_scope
        minimum = self._rate_limiter.min_size_to_sample
        if minimum > self._max_size:
            raise ValueError(
                f"table '{name}': the rate_limiter's min_size_to_sample {minimum} is above "
                f'max_size {self._max_size}: the table could never be sampled; raise max_size '
                'or lower min_size_to_sample'
            )
        self._native = _native.make_table(
            name,
            self._sampler._native_config(),
            self._remover._native_config(),
            self._max_size,
            self._max_times_sampled,
            self._rate_limiter._native_config(),
            None if self._signature is None else signatures.encode(self._signature),
            self._max_bytes,
            reverb_types.SCOPES.index(signature_scope),
        )

    @classmethod
    def queue(
        cls, name, max_size, extensions=(), signature=None, *, max_bytes=None, signature_scope=None
    ):
        """A queue: each item is sampled once, in the order of inserts; a full one blocks inserts."""
        return cls(
            name,
            selectors.Fifo(),
            selectors.Fifo(),
            max_size,
            rate_limiters.Queue(max_size),
            max_times_sampled=1,
            extensions=extensions,
            signature=signature,
            max_bytes=max_bytes,
            signature_scope=signature_scope,
        )

    @classmethod
    def stack(
        cls, name, max_size, extensions=(), signature=None, *, max_bytes=None, signature_scope=None
    ):
        """A stack: each item is sampled once, newest first; a full one blocks inserts."""
        return cls(
            name,
            selectors.Lifo(),
            selectors.Lifo(),
            max_size,
            rate_limiters.Stack(max_size),
            max_times_sampled=1,
            extensions=extensions,
            signature=signature,
            max_bytes=max_bytes,
            signature_scope=signature_scope,
        )

    @property
    def name(self):
        """The table's key on its server."""
        return self._name

    @property
    def info(self):
        """A `TableInfo` of this moment; also before and after the table is served."""
        return reverb_types.table_info_from_native(self._native.info(), self._signature)

    def __len__(self):
        return self._native.info()['current_size']

    def __bool__(self):
        return True

    def can_sample(self, num_samples=1):
        """Whether the limiter lets `num_samples` (>= 1) samples through now."""
        return self._native.can_sample(arguments.integer(num_samples, 'num_samples', 1))

    def can_insert(self, num_inserts=1):
        """Whether the limiter lets `num_inserts` (>= 1) inserts through now."""
        return self._native.can_insert(arguments.integer(num_inserts, 'num_inserts', 1))

    def explain(self):
        """One line: size, and why samples or inserts wait."""
        return self._native.info()['explain']

    def replace(
        self,
        name=None,
        sampler=None,
        remover=None,
        max_size=None,
        rate_limiter=None,
        max_times_sampled=None,
        extensions=None,
        signature=None,
        *,
        max_bytes=None,
        signature_scope=None,
    ):
        """A new, empty, unserved table; None keeps this table's setting.

        `signature=()` and `max_bytes=0` remove.
        """

        def pick(new, old):
            return old if new is None else new

        signature = pick(signature, self._signature)
        empty = _is_empty(signature)
        return Table(
            pick(name, self._name),
            pick(sampler, self._sampler),
            pick(remover, self._remover),
            pick(max_size, self._max_size),
            pick(rate_limiter, self._rate_limiter),
            pick(max_times_sampled, self._max_times_sampled),
            pick(extensions, self._extensions),
            signature,
            max_bytes=pick(max_bytes, self._max_bytes),
            signature_scope=None if empty else pick(signature_scope, self._signature_scope),
        )

    def __repr__(self):
        return '\n'.join(
            [
                f"Table(name='{self._name}',",
                f'  sampler={self._sampler},',
                f'  remover={self._remover},',
                f'  max_size={self._max_size},',
                f'  rate_limiter={self._rate_limiter},',
                f'  max_times_sampled={self._max_times_sampled},',
                f'  signature={self._signature},',
                f'  max_bytes={self._max_bytes},',
                f'  signature_scope={self._signature_scope!r})',
            ]
        )

    def __reduce__(self):
        raise TypeError(
            'a Table cannot be pickled; use replace() to make another like it, or client.server_info() for its state'
        )
