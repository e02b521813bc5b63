"""The wake router: one address in front of several vLLM engines that sleep when nobody needs them."""
