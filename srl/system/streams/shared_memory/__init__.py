"""The transport of one host: blocks, requests and weights in memory that the processes share."""
