"""The ``voxr-ray`` command: what people at a terminal use.

Modules here import nothing but click when they are loaded; what takes seconds (torch, ray) is imported by the command
that needs it, so that help and mistakes are answered at once.
"""
