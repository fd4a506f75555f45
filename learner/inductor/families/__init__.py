"""The workload families that a corpus is collected from, by kind; `workloads` deals them out."""
