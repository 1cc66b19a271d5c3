"""The selectors, under the name of the module that dm-reverb has them in."""

from reverb_tf.selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform

__all__ = ['Fifo', 'Lifo', 'MaxHeap', 'MinHeap', 'Prioritized', 'Uniform']
