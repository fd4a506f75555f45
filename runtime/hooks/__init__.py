"""Where tileguard sits in host compilers: TorchInductor (and torch_npu), and @triton.autotune.

Each hook imports its host only when it is used, and nothing of ours raises inside one: log once, count, fall back.
"""
