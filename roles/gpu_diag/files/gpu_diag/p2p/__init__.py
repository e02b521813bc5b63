"""The check of paths between GPUs: words that say where they belong, and what became of them."""
