"""Continuous batching: slots, queue, loop and replies around any :class:`~voxr_ray.engine.model.SlotModel`."""
