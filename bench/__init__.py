"""`triolet bench` beyond a single load: offline rate, latencies, starts, the machine's floor."""
