"""VoxCPM2 in PyTorch: the network, checkpoint loading, tokenizer, lanes, and the :class:`SlotModel` over them.

Only the modules that need torch import it, so that a checkpoint can be located and checked without it.
"""
