"""Collecting the reductions that TorchInductor generates: workloads, capture, plan, sweep, timing. Imports no torch by itself."""
