"""The benchmark: the same conversations against this server and its peers, on one machine, in one run."""
