"""Attention and its friends as functions of tensors."""
