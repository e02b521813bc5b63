"""vllmctl: what the operator of a front door asks and orders, on the box itself."""
