"""solo-learn 1.0.6, the version with Hydra that people have as a git checkout: HCSC as its method, and its repairs.

Nothing of the checkout is edited: Hydra imports `hydra_plugins/solo_hcsc_plugin.py` by itself, which calls `register`.
"""
