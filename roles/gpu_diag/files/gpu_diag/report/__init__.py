"""History of a box's paths between GPUs, what it says about the cause, and the report for people."""
