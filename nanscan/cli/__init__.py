"""The ``nanscan`` command: one module per subcommand, whose docstring is its help.

Nothing here imports torch at module level: ``nanscan report`` and ``--help`` must not wait for it.
"""
