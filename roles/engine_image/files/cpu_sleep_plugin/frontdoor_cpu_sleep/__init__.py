"""A vLLM plugin that makes sleep mode real on a CPU.

vLLM's CPU worker answers `/sleep` and `/wake_up`, but ignores them (0.27.1 and 0.32.0): no memory is freed,
and a level-2 wake without `reload_weights` serves good answers. On a GPU neither is so. With this plugin a
rehearsal without GPUs shows what a GPU would: sleeping saves memory, and a wrong wake serves garbage.

Installed by copying: this folder and the `.dist-info` folder beside it go where Python looks for packages.
"""
