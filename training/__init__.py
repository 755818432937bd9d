"""Training of the package's own small voice: a student of four synthetic speakers.

Stages, each ``python -m training.<stage> --work FOLDER``, all of them with ``python -m training.all``:

``corpus`` → ``teacher`` → ``latents`` → ``vae`` (decoder, then encoder) beside ``lm`` → ``export`` → ``evaluate``

What is trained is the network that is served, :mod:`voxr_ray.voxcpm2`. Nothing here is part of the wheel.
"""
