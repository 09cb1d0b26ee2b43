"""One paper, one file. Each holds one `Algorithm`; `raysim list algorithms` finds it by its file name."""
